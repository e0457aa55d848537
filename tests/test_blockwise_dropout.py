"""Dropout of the blockwise path: the same both ways, another a block and a seed, at its rate."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.blockwise import UPSTREAM, B, H, S, assert_close, blocks_of, both_ways, problem
from tfattn import MultiHeadAttention, attend, masks
from tfattn.core.paths import choice

pytestmark = pytest.mark.tensorflow


def dropped_weights(arguments, rate, seed, block):
    """The weights after dropout, read off with the identity as values."""
    query, key, _ = arguments
    identity = tf.eye(S, batch_shape=[B, H])
    with blocks_of(block):
        return attend(query, identity, key, dropout=rate, seed=seed, path="streamed")


# of the second three rows of the batch fill a step
@pytest.mark.parametrize("block", [(16, 32), (128, 192)])
@pytest.mark.parametrize("rows", [1, 9])
def test_no_two_blocks_share_a_dropout_pattern(rows, block):
    operands = [tf.zeros((rows, 1, n, 2)) for n in (64, 96, 96)]
    identity = tf.eye(96, batch_shape=[rows, 1])
    with blocks_of(block):
        weights = attend(operands[0], identity, operands[2], dropout=0.5, seed=3, path="streamed")
    kept = (
        np.asarray(weights > 0)
        .reshape(rows, 4, 16, 3, 32)
        .swapaxes(2, 3)
        .reshape(rows * 12, 16 * 32)
    )
    same = (kept[:, None] == kept).mean(-1)[~np.eye(len(kept), dtype=bool)]
    assert np.all(np.abs(same - 0.5) < 0.15)  # 6 deviations of 512 coins
    np.testing.assert_allclose(same.mean(), 0.5, atol=0.01)


@pytest.mark.parametrize(
    "compiled", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["eager", "XLA"]
)
def test_dropout_is_the_same_forward_and_backward(compiled):
    function, arguments = problem(31)
    kept = tf.cast(dropped_weights(arguments, 0.3, 5, (4, 6)) > 0, "float32") / (1 - 0.3)

    def by_hand(query, key, value):
        with tf.GradientTape() as tape:
            tape.watch([query, key, value])
            weights = tf.nn.softmax(function(query, key)) * kept
            output = weights @ value
        return [
            output,
            *tape.gradient(output, [query, key, value], tf.constant(UPSTREAM, "float32")),
        ]

    run = (
        tf.function(
            lambda x: both_ways(function, x, None, "streamed", dropout=0.3, seed=5),
            jit_compile=True,
        )
        if compiled
        else lambda x: both_ways(function, x, None, "streamed", dropout=0.3, seed=5)
    )
    assert_close(run(arguments), by_hand(*arguments), 1e-3)


def test_dropout_follows_its_seed():
    _, arguments = problem(37)
    first, again, other = (dropped_weights(arguments, 0.5, seed, (4, 6)) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert np.any(np.asarray(first > 0) != np.asarray(other > 0))
    generator = keras.random.SeedGenerator(1)
    once, twice = (dropped_weights(arguments, 0.5, generator, (4, 6)) for _ in range(2))
    assert np.any(np.asarray(once > 0) != np.asarray(twice > 0))


def test_dropout_drops_at_its_rate_and_keeps_the_expected_sum():
    query = tf.zeros((1, 8, 256, 4))
    value = tf.ones((1, 8, 512, 1))
    key = tf.zeros((1, 8, 512, 4))

    @tf.function
    def sums_of(query, value, key):
        with blocks_of((32, 32)):
            return attend(query, value, key, dropout=0.1, seed=3, path="streamed")

    sums = sums_of(query, value, key)
    sums = np.asarray(sums)
    assert abs(sums.mean() - 1.0) < 2e-3
    assert abs(sums.std() - np.sqrt(0.1 / 0.9 / 512)) < 1e-3  # of independent weights


def test_a_shared_trace_draws_new_dropout_each_time(monkeypatch):
    monkeypatch.setattr(choice, "_is_long", lambda query, *_: tf.shape(query)[2] > 0)
    seed = keras.random.SeedGenerator(3)
    graph = tf.function(
        lambda x: [attend(x, x, dropout=0.5, seed=seed) for _ in range(2)],
        input_signature=[tf.TensorSpec((1, 1, None, 4))],
    )
    once, again = graph(tf.ones((1, 1, 64, 4)))
    third = graph(tf.ones((1, 1, 64, 4)))[0]
    assert not np.allclose(once, again) and not np.allclose(once, third)


@pytest.mark.parametrize("again", [False, True], ids=["once", "twice"])
def test_dropout_in_a_functional_model_of_unknown_lengths(again):
    tokens = keras.Input((None, 8))
    layer = MultiHeadAttention(2, 4, dropout=0.5, seed=1)
    output = layer(tokens, tokens, training=True)
    output = layer(output, output, training=True) if again else output
    model = keras.Model(tokens, output)
    x = np.random.default_rng(1).normal(size=(1, 5, 8)).astype("float32")
    for run in (model, tf.function(model)):
        first, other = (np.asarray(run(x)) for _ in range(2))
        assert np.any(first != other)
    model.compile("sgd", "mse")
    model.fit(x, x, verbose=0)


def test_dropout_of_a_graph_that_chooses_the_dense_path_keeps_its_rate_and_sum():
    seed = keras.random.SeedGenerator(2)
    graph = tf.function(
        lambda x: attend(x, tf.ones_like(x), x, dropout=0.1, seed=seed),
        input_signature=[tf.TensorSpec((8, None, 4))],
    )
    sums = np.asarray(graph(tf.zeros((8, 256, 4))))[..., 0]
    assert abs(sums.mean() - 1.0) < 2e-3
    assert abs(sums.std() - np.sqrt(0.1 / 0.9 / 256)) < 2e-3  # of independent weights


@pytest.mark.parametrize("seed", range(6))
def test_a_large_value_that_is_hidden_overflows_nothing_when_the_others_grow(seed):
    rng = np.random.default_rng(1)
    query, key, value = (tf.constant(rng.normal(size=(1, 1, n, 3)), "float32") for n in (4, 12, 12))
    seen = np.ones((4, 12), bool)
    seen[:2, 6:] = False
    large = tf.where(tf.range(12)[:, None] < 6, value, 3.4e38)

    def first_rows(value):
        with blocks_of((4, 6)):
            found = attend(
                query,
                value,
                key,
                mask=masks.explicit(seen),
                dropout=0.5,
                seed=seed,
                path="streamed",
            )
        return found[:, :, :2]

    assert_close([first_rows(large)], [first_rows(value)], 0)
