"""Learning rates over time, against their formulas."""

import keras
import numpy as np
from keras import ops

import tfattn
from tests.helpers.tensors import as_tensor, numpy
from tfattn import training


def rates(schedule, *steps):
    return [float(schedule(step)) for step in steps]


def test_the_schedule_is_the_papers_formula():
    schedule = tfattn.TransformerSchedule(width=11, warmup_steps=13, scale=1.7)
    steps = np.arange(60) + 1.0
    wanted = 1.7 * 11**-0.5 * np.minimum(steps**-0.5, steps * 13**-1.5)
    np.testing.assert_allclose(rates(schedule, *range(60)), wanted, rtol=1e-6)
    np.testing.assert_allclose(schedule.peak, 1.7 * (11 * 13) ** -0.5)
    told = training.InverseSquareRootSchedule(schedule.peak, 13)
    assert rates(schedule, *range(40)) == rates(told, *range(40))


def test_the_rate_peaks_at_the_last_warm_up_step():
    found = rates(tfattn.TransformerSchedule(width=512), 0, *range(3995, 4005))
    assert found[0] > 0 and np.argmax(found) == 1 + 3999 - 3995
    np.testing.assert_allclose(max(found), (512 * 4000) ** -0.5, rtol=1e-6)


def test_a_schedule_is_told_its_peak():
    found = rates(training.InverseSquareRootSchedule(peak=0.005, warmup_steps=13), 0, 12, 51)
    np.testing.assert_allclose(found, [0.005 / 13, 0.005, 0.0025], rtol=1e-6)


def test_a_cooldown_is_the_schedule_and_then_a_straight_way_to_zero():
    schedule = training.InverseSquareRootSchedule(peak=0.01, warmup_steps=4)
    cooled = training.Cooldown(schedule, start=11, steps=5)
    assert rates(cooled, *range(11)) == rates(schedule, *range(11))
    down = np.array([1.0, 0.8, 0.6, 0.4, 0.2, 0.0, 0.0])
    wanted = down * 0.01 * np.sqrt(4 / np.arange(12.0, 19.0))
    np.testing.assert_allclose(rates(cooled, *range(11, 18)), wanted, rtol=1e-6)


def test_steps_beyond_those_of_float32_are_told_apart():
    far = 2**24 + 1
    cooled = training.Cooldown(training.InverseSquareRootSchedule(1.0, far), far, 4)
    for steps in (range(far, far + 5), [ops.convert_to_tensor(far + i) for i in range(5)]):
        np.testing.assert_allclose(rates(cooled, *steps), [1, 0.75, 0.5, 0.25, 0], atol=1e-6)


def test_an_optimizer_follows_the_schedule():
    schedule = tfattn.TransformerSchedule(width=5, warmup_steps=3)
    optimizer, weight = keras.optimizers.SGD(schedule), keras.Variable(0.0)
    optimizer.build([weight])
    for step in range(7):
        before = float(numpy(weight))
        optimizer.apply([as_tensor(1.0)])
        rate = float(numpy(schedule(step)))
        np.testing.assert_allclose(before - float(numpy(weight)), rate, rtol=1e-4)
