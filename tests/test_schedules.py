"""Learning rates over time, against their formulas."""

import keras
import numpy as np
import pytest

import tfattn
from tests.tensors import as_tensor, numpy

RATE = tfattn.InverseSquareRootSchedule(peak=0.01, warmup_steps=4)


def test_the_schedule_is_the_papers_formula():
    schedule = tfattn.TransformerSchedule(width=11, warmup_steps=13, scale=1.7)
    done = np.arange(200)
    steps = done + 1.0
    wanted = 1.7 * 11**-0.5 * np.minimum(steps**-0.5, steps * 13**-1.5)
    np.testing.assert_allclose([float(schedule(int(i))) for i in done], wanted, rtol=1e-6)


def test_the_rate_peaks_at_the_last_warm_up_step():
    schedule = tfattn.TransformerSchedule(width=512)
    rates = np.array([float(schedule(step)) for step in range(3980, 4020)])
    assert rates.argmax() == 3999 - 3980
    np.testing.assert_allclose(rates.max(), (512 * 4000) ** -0.5, rtol=1e-6)
    assert float(schedule(0)) > 0


def test_a_schedule_is_told_its_peak():
    schedule = tfattn.training.InverseSquareRootSchedule(peak=0.005, warmup_steps=13)
    done = np.arange(200)
    wanted = 0.005 * np.minimum((done + 1.0) / 13, np.sqrt(13 / (done + 1.0)))
    np.testing.assert_allclose([float(schedule(int(i))) for i in done], wanted, rtol=1e-6)
    np.testing.assert_allclose(
        [float(schedule(step)) for step in (0, 12, 51)], [0.005 / 13, 0.005, 0.0025], rtol=1e-6
    )


def test_the_papers_schedule_is_the_one_with_its_peak():
    papers = tfattn.TransformerSchedule(width=11, warmup_steps=13, scale=1.7)
    np.testing.assert_allclose(papers.peak, 1.7 * (11 * 13) ** -0.5)
    told = tfattn.training.InverseSquareRootSchedule(papers.peak, 13)
    assert [float(papers(step)) for step in range(40)] == [float(told(step)) for step in range(40)]


@pytest.mark.parametrize(
    "arguments, message",
    [
        (
            (0.0, 13),
            "InverseSquareRootSchedule: `peak` must be a positive, finite number. "
            "Received: peak=0.0",
        ),
        (
            (0.005, 0),
            "InverseSquareRootSchedule: `warmup_steps` must be a positive integer. "
            "Received: warmup_steps=0",
        ),
    ],
)
def test_a_schedule_without_a_peak_or_a_warm_up_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        tfattn.training.InverseSquareRootSchedule(*arguments)


def test_a_cooldown_is_the_schedule_and_then_a_straight_way_to_zero():
    cooled = tfattn.training.Cooldown(RATE, start=11, steps=5)
    before = [float(RATE(step)) for step in range(11)]
    assert [float(cooled(step)) for step in range(11)] == before
    down = np.array([1.0, 0.8, 0.6, 0.4, 0.2, 0.0, 0.0])
    rates = 0.01 * np.sqrt(4 / np.arange(12.0, 19.0))
    np.testing.assert_allclose(
        [float(cooled(step)) for step in range(11, 18)], down * rates, rtol=1e-6
    )


@pytest.mark.parametrize(
    "arguments, message",
    [
        (
            (0.1, 2, 3),
            "Cooldown: `schedule` must be a Keras LearningRateSchedule. Received: schedule=0.1",
        ),
        ((RATE, -1, 3), "Cooldown: `start` must be an integer of at least 0. Received: start=-1"),
        ((RATE, 2, 0), "Cooldown: `steps` must be a positive integer. Received: steps=0"),
    ],
)
def test_a_cooldown_of_nothing_or_to_nowhere_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        tfattn.training.Cooldown(*arguments)


def test_an_optimizer_follows_the_schedule():
    schedule = tfattn.TransformerSchedule(width=5, warmup_steps=3)
    optimizer = keras.optimizers.SGD(schedule)
    weight = keras.Variable(0.0)
    optimizer.build([weight])
    for step in range(7):
        before = float(numpy(weight))
        optimizer.apply([as_tensor(1.0)])
        rate = float(numpy(schedule(step)))
        np.testing.assert_allclose(before - float(numpy(weight)), rate, rtol=1e-4)
