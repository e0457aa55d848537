"""Losses under a distribution strategy: what one device learns from a batch, two learn from its
halves.

Run as a program it trains on one logical device and on two, and prints the weights of both: a
process has its devices for good once TensorFlow has begun.
"""

import contextlib
import json

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfattn
from tests.processes import printed

pytestmark = pytest.mark.tensorflow

V = 7


def trained(scope, ids):
    with scope:
        keras.utils.set_random_seed(0)
        model = keras.Sequential([keras.layers.Embedding(V, V)])
        model.compile(keras.optimizers.SGD(0.3), tfattn.MaskedCrossentropy(0.1))
        loss = model.fit(ids, ids, batch_size=len(ids), epochs=2, shuffle=False, verbose=0).history[
            "loss"
        ]
    return [loss, model.get_weights()[0].tolist()]


def both():
    (cpu,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    ids = np.random.default_rng(0).integers(1, V, size=(4, 5))
    ids[0, 3:] = ids[3, :2] = 0  # as many in either half, whose means count alike
    return [
        trained(scope, ids)
        for scope in (contextlib.nullcontext(), tf.distribute.MirroredStrategy().scope())
    ]


@pytest.mark.slow
def test_two_replicas_learn_what_one_device_learns():
    for one, two in zip(*json.loads(printed(__file__, warm=True).splitlines()[-1]), strict=True):
        np.testing.assert_allclose(two, one, rtol=1e-5, atol=1e-7)


if __name__ == "__main__":
    print(json.dumps(both()))
