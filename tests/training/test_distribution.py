"""Losses under a distribution strategy: what one device learns from a batch, two learn from its
halves.

Run as a program it trains on one logical device and on two, and prints the weights of both: a
process has its devices for good once TensorFlow has begun.
"""

import contextlib
import functools
import json

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfattn
from tests.helpers.processes import printed

pytestmark = pytest.mark.tensorflow

V = 7


@functools.cache
def replicas():
    return tf.distribute.MirroredStrategy()  # another one's collective operations would collide


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
    ids = np.random.default_rng(0).integers(1, V, size=(4, 5))
    ids[0, 3:] = ids[3, :2] = 0  # as many in either half, whose means count alike
    return [trained(scope, ids) for scope in (contextlib.nullcontext(), replicas().scope())]


def an_update(reduction, rate, scope=None, accumulated=None, optimizer=keras.optimizers.SGD):
    """Of two batches, or replicas, with 10 tokens and with 2."""
    ids = np.random.default_rng(0).integers(1, V, size=(2, 10))
    ids[1, 2:] = 0
    with scope or contextlib.nullcontext():
        keras.utils.set_random_seed(0)
        model = keras.Sequential([keras.Input((10, V)), keras.layers.Dense(V, use_bias=False)])
        optimizer = optimizer(rate, gradient_accumulation_steps=accumulated)
        loss = tfattn.MaskedCrossentropy(reduction=reduction)
        model.compile(optimizer, loss, run_eagerly=scope is None)
        before = model.get_weights()[0]
        model.fit(np.eye(V)[ids], ids, batch_size=1 if accumulated else 2, shuffle=False, verbose=0)
    return (model.get_weights()[0] - before).tolist()


def uneven():
    """The update of all tokens; those of means; and those of sums, in both ways."""
    two = replicas().scope
    mean, adam = "sum_over_batch_size", keras.optimizers.Adam
    return {
        "whole": an_update(mean, 1.0),
        "means": [an_update(mean, 1.0, two()), an_update(mean, 1.0, accumulated=2)],
        "sums": [an_update("sum", 1 / 12, two()), an_update("sum", 2 / 12, accumulated=2)],
        "whole adam": an_update(mean, 1.0, optimizer=adam),
        "sums adam": an_update("sum", 1.0, accumulated=2, optimizer=adam),
    }


@pytest.mark.slow
def test_sums_of_batches_and_replicas_make_the_update_of_all_tokens_and_means_do_not():
    (one, two), found = json.loads(printed(__file__, warm=True).splitlines()[-1])
    for ours, theirs in zip(two, one, strict=True):  # replicas of as many tokens
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-7)
    for sums, means in zip(found["sums"], found["means"], strict=True):
        np.testing.assert_allclose(sums, found["whole"], atol=1e-6)
        assert np.abs(np.subtract(means, found["whole"])).max() > 0.1
    np.testing.assert_allclose(found["sums adam"], found["whole adam"], atol=1e-2)


if __name__ == "__main__":
    (cpu,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    print(json.dumps([both(), uneven()]))
