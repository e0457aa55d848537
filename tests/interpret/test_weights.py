"""Rollout and entropy of attention weights."""

import numpy as np
import pytest

import tfattn
from tests.interpret import oracle
from tfattn.interpret import attention_rollout, deletion_test, head_entropy
from tfattn.plot.canvas import numbers

B, H, T, S = 2, 3, 5, 7


def draw(*shape, seed=0):
    return oracle.softmax(np.random.default_rng(seed).normal(size=shape))


def test_rollout_of_a_known_stack():
    first = np.array([[[[1.0, 0.0], [1.0, 0.0]]]])  # all look at token 0
    second = np.array([[[[0.0, 1.0], [0.0, 1.0]]]])  # all look at token 1
    found = attention_rollout({"first": first, "second": second})
    # Token 1 of the last layer has token 1 of the first, which has half of either input.
    np.testing.assert_allclose(found, [[[0.75, 0.25], [0.5, 0.5]]])
    np.testing.assert_allclose(
        attention_rollout({"second": second, "first": first}), [[[0.5, 0.5], [0.25, 0.75]]]
    )


def test_rollout_equals_the_sum_over_all_ways():
    layers = {str(n): draw(B, H, T, T, seed=n) for n in range(3)}
    for residual in (0.5, 0.0, 0.3):
        found = attention_rollout(layers, residual=residual)
        np.testing.assert_allclose(found, oracle.rollout([*layers.values()], residual), rtol=1e-12)
        np.testing.assert_allclose(found.sum(axis=-1), 1.0)
    weights = draw(B, T, T)
    one_head = attention_rollout({"layer": weights}, residual=0.0)
    np.testing.assert_allclose(one_head, weights)


def test_rollout_fully_masked_query_is_passed_on():
    weights = draw(1, H, T, T)
    weights[:, :, 2] = 0.0
    for residual in (0.5, 0.0):
        found = attention_rollout({"layer": weights}, residual)
        np.testing.assert_allclose(found[0, 2], np.eye(T)[2])
        np.testing.assert_allclose(found.sum(axis=-1), 1.0)


def test_entropy_of_uniform_weights_is_the_log_of_the_visible_keys():
    tokens = np.zeros((B, T, 4), "float32")  # all keys alike
    layer = tfattn.MultiHeadAttention(H, 2, name="layer")
    weights = tfattn.attention_weights(layer, tokens, tokens)
    np.testing.assert_allclose(head_entropy(weights)["layer"], np.full(H, np.log(T)), rtol=1e-6)
    weights = tfattn.attention_weights(layer, tokens, tokens, valid_lens=np.array([3, 3]))
    np.testing.assert_allclose(head_entropy(weights)["layer"], np.full(H, np.log(3)), rtol=1e-6)


def test_weights_of_a_layer_may_have_gradients():
    tokens = np.zeros((B, T, 4), "float32")
    _, weights = tfattn.MultiHeadAttention(H, 2)(tokens, tokens, return_attention_scores=True)
    np.testing.assert_allclose(head_entropy({"a": weights})["a"], np.full(H, np.log(T)), rtol=1e-6)
    assert attention_rollout({"a": weights}).shape == (B, T, T)
    for importance in (weights[0, 0], {"a": weights[0, 0, 0]}):
        assert deletion_test(lambda gone: 0.0, importance, 1).p_value == 1.0
    assert numbers("test", "weights", weights[0, 0], (2,), "(T, S)").shape == (T, T)


def test_entropy_equals_the_mean_over_real_queries():
    weights = draw(B, H, T, S)
    entropy = head_entropy({"a": weights})["a"]
    np.testing.assert_allclose(entropy, oracle.entropy(weights, np.ones((B, T), bool)))
    real = np.arange(T) < np.array([4, 2])[:, None]
    found = head_entropy({"a": weights}, query_mask=real)
    np.testing.assert_allclose(found["a"], oracle.entropy(weights, real))


def test_entropy_fully_masked_query_is_left_out():
    weights = draw(B, H, T, S)
    weights[1, :, 3:] = 0.0
    real = weights.any(axis=(1, 3))
    np.testing.assert_allclose(head_entropy({"a": weights})["a"], oracle.entropy(weights, real))
    assert np.isnan(head_entropy({"a": np.zeros((B, H, T, S))})["a"]).all()


def test_entropy_of_one_key_is_zero_without_a_sign():
    found = head_entropy({"a": np.eye(T)[None]})["a"]
    assert found.shape == (1,) and found[0] == 0.0 and not np.signbit(found[0])


@pytest.mark.parametrize(
    "weights, options, message",
    [
        ({}, {}, r"attention_rollout: `weights` must hold the weights of one layer or more"),
        (
            {"a": draw(B, H, T, T), "b": draw(B, H, S, S)},
            {},
            r"`weights\['b'\]` must hold weights of self-attention, here \(2, 5, 5\)",
        ),
        ({"a": draw(B, T, T)}, {"residual": 1.0}, r"`residual` must be a number in \[0, 1\)"),
        (
            {"a": np.full((B, T, T), np.inf)},
            {},
            r"attention_rollout: `weights\['a'\]` must have rows that sum to at most 1\. .*=inf",
        ),
    ],
)
def test_rollout_of_other_weights_is_refused(weights, options, message):
    with pytest.raises(ValueError, match=message):
        attention_rollout(weights, **options)


@pytest.mark.parametrize(
    "weights, query_mask, message",
    [
        (
            draw(B, 1, H, T, S),
            None,
            r"`weights\['a'\]` must have shape \(B, H, T, S\) or",
        ),
        (draw(B, T, S) - 1.0, None, r"`weights\['a'\]` must hold numbers of at least 0"),
        (
            np.full((B, T, S), 5.0),
            None,
            r"`weights\['a'\]` must have rows that sum to at most 1\. .*=35\.0",
        ),
        (
            draw(B, T, S),
            np.ones((B, S), bool),
            r"`query_mask` must have shape \(B, T\), for a \(2, 5\)",
        ),
        (draw(B, T, S), np.ones((B, T)), r"`query_mask` must be boolean"),
    ],
)
def test_entropy_of_other_weights_is_refused(weights, query_mask, message):
    with pytest.raises(ValueError, match=f"head_entropy: {message}"):
        head_entropy({"a": weights}, query_mask=query_mask)
