"""Positions that bias the scores, in calls, caches and steps: for `tests/test_multi_head.py` once
biases and `Grid.offset` are beside `HeadPositions`.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

import tfattn
from tests import reference
from tfattn.core.biases import Bias, alibi
from tfattn.layers.positions.base import HeadPositions

B, T, S, H = 2, 3, 7, 4


def draw(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


@keras.saving.register_keras_serializable("tests")
class Leaning(HeadPositions):
    """ALiBi as positions."""

    def bias(self):
        return alibi(H)


class ByDistance(Bias):
    """A learned number for each head, times the distance."""

    differs_by_head = True

    def __init__(self, slopes):
        self.slopes = slopes

    def parameters(self):
        return (self.slopes + 0.0,)

    def on(self, grid, slopes):
        distance = ops.cast(grid.key_positions() - grid.query_positions(), "float32")
        return slopes[:, None, None] * distance[None, None]


@keras.saving.register_keras_serializable("tests")
class Learned(HeadPositions):
    def build(self, query_shape, key_shape):
        self.slopes = self.add_weight(name="slopes", shape=(query_shape[1],), initializer="ones")

    def bias(self):
        return ByDistance(self.slopes)


def distances(num_queries, num_keys):
    return np.arange(num_keys) - (np.arange(num_queries)[:, None] + num_keys - num_queries)


def leaning(q, k):
    slopes = 2.0 ** -np.array([2, 4, 6, 8])[:, None, None]
    return reference.dot_product(q, k) - slopes * np.abs(distances(q.shape[2], k.shape[2]))


@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("queries", [S, T])
def test_a_bias_of_the_positions_is_added_to_the_calls(queries, given):
    layer = tfattn.MultiHeadAttention(H, 5, num_key_value_heads=2, positions=Leaning())
    query, value = draw(B, queries, 11), draw(B, S, 3, seed=1)
    bias = draw(B, queries, S, seed=2) if given else None
    added = 0.0 if bias is None else bias[:, None]
    _, weights = layer(query, value, bias=bias, return_attention_scores=True)
    expected = reference.multi_head(
        query, value, value, layer.get_weights(), score=lambda q, k: leaning(q, k) + added
    )
    np.testing.assert_allclose(weights, expected[1], atol=1e-5)


@pytest.mark.parametrize("positions", [Leaning, Learned])
@pytest.mark.parametrize("memory", [False, True])
def test_steps_with_a_bias_of_the_positions_are_the_call(positions, memory):
    attention = tfattn.MultiHeadAttention(H, 5, num_key_value_heads=2, positions=positions())
    block = tfattn.TransformerDecoderBlock(attention=attention, hidden_dim=11)
    x, others = draw(B, S, 8), [draw(B, T, 13, seed=1)] if memory else []
    wanted = np.asarray(block(x, *others))
    rows = {} if memory else {"batch_size": B}
    cache = block.new_cache(*others, max_length=S + 2, **rows)
    step = tf.function(block.step, autograph=False)
    for t in range(S):
        bias = np.where(np.arange(S + 2) <= t, 0.0, -np.inf)[None, None].astype("float32")
        output, cache = step(x[:, t : t + 1], tf.constant(t), cache, bias)
        np.testing.assert_allclose(output[:, 0], wanted[:, t], atol=1e-5)


def test_a_learned_bias_of_the_positions_gets_its_gradient():
    layer = tfattn.MultiHeadAttention(H, 5, positions=Learned())
    query, value = draw(B, T, 11), draw(B, S, 3, seed=1)
    layer.build(query.shape, value.shape)
    slopes = layer.positions.slopes

    def total():
        return tf.reduce_sum(tf.square(layer(query, value)))

    with tf.GradientTape() as tape:
        loss = total()
    found = tape.gradient(loss, slopes.value).numpy()
    for h in range(H):
        values = []
        for step in (1e-2, -1e-2):
            slopes.assign(np.ones(H) + step * np.eye(H)[h])
            values.append(float(total()))
        np.testing.assert_allclose(found[h], (values[0] - values[1]) / 2e-2, rtol=2e-2, atol=2e-3)
    assert np.all(np.abs(found) > 1e-3)
