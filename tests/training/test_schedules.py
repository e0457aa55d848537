"""Learning rates over time, against their formulas."""

import keras
import numpy as np
from keras import ops

import tfattn
from tests.helpers.tensors import as_tensor, numpy
from tfattn import training


def rates(schedule, *steps):
    return [float(schedule(step)) for step in steps]


def test_schedule_is_the_papers_formula():
    schedule = tfattn.TransformerSchedule(width=11, warmup_steps=13, scale=1.7)
    steps = np.arange(60) + 1.0
    wanted = 1.7 * 11**-0.5 * np.minimum(steps**-0.5, steps * 13**-1.5)
    found = rates(schedule, *range(60))
    np.testing.assert_allclose(found, wanted, rtol=1e-6)
    assert found[0] > 0 and np.argmax(found) == 12  # the last step of the warm-up
    np.testing.assert_allclose([schedule.peak, max(found)], 1.7 * (11 * 13) ** -0.5, rtol=1e-6)
    assert rates(training.InverseSquareRootSchedule(schedule.peak, 13), *range(60)) == found
    found = rates(tfattn.TransformerSchedule(width=512), *range(3995, 4005))
    np.testing.assert_allclose(found[3999 - 3995], (512 * 4000) ** -0.5, rtol=1e-6)
    assert max(found) == found[3999 - 3995]


def test_cooldown_is_the_schedule_and_then_a_straight_way_to_zero():
    schedule = training.InverseSquareRootSchedule(peak=0.01, warmup_steps=4)
    cooled = training.Cooldown(schedule, start=11, steps=5)
    assert rates(cooled, *range(11)) == rates(schedule, *range(11))
    down = np.array([1.0, 0.8, 0.6, 0.4, 0.2, 0.0, 0.0])
    wanted = down * 0.01 * np.sqrt(4 / np.arange(12.0, 19.0))
    np.testing.assert_allclose(rates(cooled, *range(11, 18)), wanted, rtol=1e-6)


def test_schedules_steps_beyond_those_of_float32_are_told_apart():
    far = 2**24 + 1
    cooled = training.Cooldown(training.InverseSquareRootSchedule(1.0, far), far, 4)
    for steps in (range(far, far + 5), [ops.convert_to_tensor(far + i) for i in range(5)]):
        np.testing.assert_allclose(rates(cooled, *steps), [1, 0.75, 0.5, 0.25, 0], atol=1e-6)


def test_schedule_is_followed_by_an_optimizer():
    schedule = tfattn.TransformerSchedule(width=5, warmup_steps=3)
    optimizer, weight = keras.optimizers.SGD(schedule), keras.Variable(0.0)
    optimizer.build([weight])
    for step in range(7):
        before = float(numpy(weight))
        optimizer.apply([as_tensor(1.0)])
        rate = float(numpy(schedule(step)))
        np.testing.assert_allclose(before - float(numpy(weight)), rate, rtol=1e-4)
