"""The guard: hidden and non-finite tokens become zeros, and queries that may see them NaN."""

import numpy as np
import pytest

import tfattn
from tests import reference
from tests.helpers.tensors import BACKEND, as_tensor, both_ways, compiled, numpy, tf
from tfattn import attend, masks
from tfattn.core import scores as score_functions
from tfattn.core.engine import STREAMING_BACKENDS
from tfattn.core.guard import guard, zero_hidden, zero_nonfinite_padding

B, H, G, T, S, D, V = 2, 6, 3, 5, 7, 11, 13
STREAMS = BACKEND in STREAMING_BACKENDS


def tokens(heads, length, width, seed=1):
    shape = (B, length, width) if heads is None else (B, heads, length, width)
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


@pytest.mark.parametrize("heads", [None, G], ids=["three axes", "four axes"])
@pytest.mark.parametrize("broken", [np.nan, np.inf, -np.inf, 3e38])
def test_guard_hidden_token_becomes_zeros_whatever_it_holds(heads, broken):
    x, seen = tokens(heads, S, D), np.ones((B, S), bool)
    seen[0, 2] = seen[1, 5] = False
    clean = x.copy()
    x[0, ..., 2, :] = broken
    x[1, ..., 5, 3] = broken  # one number of it
    found = np.asarray(zero_hidden(x, seen))
    clean[0, ..., 2, :] = clean[1, ..., 5, :] = 0.0
    np.testing.assert_array_equal(found, clean)


@pytest.mark.parametrize("heads", [None, G], ids=["three axes", "four axes"])
def test_guard_visible_tokens_of_all_rows_may_come_as_one_row(heads):
    x, seen = tokens(heads, S, D), np.arange(S)[None] != 4
    found = np.asarray(zero_hidden(x, seen))
    assert np.all(found[..., 4, :] == 0)
    np.testing.assert_array_equal(np.delete(found, 4, -2), np.delete(x, 4, -2))


@pytest.mark.parametrize("broken", [np.nan, np.inf, -np.inf, 3e38])
def test_guard_nonfinite_padding_becomes_zeros_and_the_rest_stays(broken):
    x, mask = tokens(None, T, D), np.ones((B, T), bool)
    mask[0, 3] = mask[1, 2] = False
    x[0, 3, 4] = x[1, 1, 4] = broken  # padding, and a token that counts
    found = np.asarray(zero_nonfinite_padding(x, mask))
    expected = x.copy()
    expected[0, 3, 4] = 0.0
    np.testing.assert_array_equal(found, expected)


def guarded(heads, key, value, visible):
    """`guard` where the queries see by `visible` `(B, T, S)`, and what it was asked."""
    query, asked = tokens(None if heads is None else H, T, D, seed=2), []

    def attends_to(finite):
        asked.append(~np.asarray(finite)[..., 0])
        if heads is None:
            return (visible & asked[0][:, None]).any(-1, keepdims=True)
        return (visible[:, None] & asked[0][:, :, None]).any(-1, keepdims=True)

    found = guard(query, key, value, attends_to)
    assert len(asked) == 1
    return query, [np.asarray(x) for x in found], asked[0]


@pytest.mark.parametrize("heads", [None, G], ids=["three axes", "four axes"])
@pytest.mark.parametrize("broken", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("which", ["key", "value"])
@pytest.mark.parametrize("width", [D, V], ids=["equal widths", "widths"])
def test_guard_broken_token_makes_queries_that_see_it_nan(width, which, broken, heads):
    key, value = tokens(heads, S, D, 3), tokens(heads, S, width, 4)
    # Finite tokens whose sum is not, and infinities that add up to NaN, count as what they are.
    key[1, ..., 3, 6] = value[1, ..., 3, 6] = 3.4e38
    {"key": value, "value": key}[which][0, ..., 2, 6] = -broken
    there = {"key": key, "value": value}[which]
    there[0, ..., 2, 6] = broken
    visible = np.tril(np.ones((B, T, S), bool), S - T)  # causal: key 2 is seen by all
    visible[0, 1, 2] = False
    query, (new_query, new_key, new_value), asked = guarded(heads, key, value, visible)
    lost = np.zeros((B, S), bool)
    lost[0, 2] = True
    lost = lost if heads is None else np.repeat(lost[:, None], H, axis=1)
    np.testing.assert_array_equal(asked, lost)
    for new, old in ((new_key, key), (new_value, value)):
        assert np.all(new[0, ..., 2, :] == 0) and new.dtype == old.dtype
        np.testing.assert_array_equal(np.delete(new, 2, -2), np.delete(old, 2, -2))
        np.testing.assert_array_equal(new[1], old[1])
    attends_to = np.broadcast_to(np.arange(T) != 1, new_query[0, ..., 0].shape)
    assert np.isnan(new_query[0][attends_to]).all()
    np.testing.assert_array_equal(new_query[0][~attends_to], query[0][~attends_to])
    np.testing.assert_array_equal(new_query[1], query[1])


@pytest.mark.tensorflow
def test_attention_of_unknown_widths_takes_values_wider_than_keys():
    key, value = tokens(None, S, 4, 3), tokens(None, S, 3, 4)

    def call(query, value, key):
        options = {"score": score_functions.dot_product, "mask": masks.causal()}
        return attend(query, value, key=key, **options)

    shapes = [tf.TensorSpec((None, None, None))] * 3
    found = tf.function(call, input_signature=shapes)(*map(tf.constant, (key, value, key)))
    np.testing.assert_allclose(found, call(key, value, key), atol=1e-6)


@pytest.mark.tensorflow
def test_mask_of_unknown_width_that_is_one_key_wide_holds_for_all_keys():
    x, mask = tokens(None, S, 4, 3), np.arange(S)[:, None] % 2 == np.zeros((B, 1, 1))
    shapes = [tf.TensorSpec(x.shape), tf.TensorSpec((B, None, None), tf.bool)]
    found = tf.function(lambda x, mask: attend(x, x, mask=mask), input_signature=shapes)
    np.testing.assert_allclose(found(x, mask), attend(x, x, mask=mask), atol=1e-6)
    every = np.repeat(mask, S, axis=-1)
    np.testing.assert_allclose(found(x, every), attend(x, x, mask=every), atol=1e-6)


def test_guard_token_broken_in_one_head_makes_its_queries_alone_nan():
    key, value = tokens(G, S, D, 3), tokens(G, S, V, 4)
    key[0, 1, 2] = np.nan
    visible = np.ones((B, T, S), bool)
    query, (new_query, new_key, new_value), asked = guarded(G, key, value, visible)
    shared = [2, 3]  # the query heads of key head 1
    assert asked.shape == (B, H, S) and asked.sum() == 2 and asked[0, shared, 2].all()
    assert np.isnan(new_query[0, shared]).all() and np.isnan(new_query).sum() == 2 * T * D
    np.testing.assert_array_equal(new_key[0, [0, 2]], key[0, [0, 2]])
    np.testing.assert_array_equal(new_value[0, [0, 2]], value[0, [0, 2]])
    assert np.all(new_key[0, 1, 2] == 0) and np.all(new_value[0, 1, 2] == 0)


def test_attention_token_broken_in_one_head_breaks_no_other_under_any_mask():
    query, key, value = tokens(H, S, D, 2), tokens(G, S, D, 3), tokens(G, S, V, 4)
    earlier = np.tril(np.ones((B, H, S, S), bool))
    rules = {
        "none": None,
        "causal": masks.causal(),
        "padding": masks.padding([6, 5]),
        "of each head": masks.explicit(earlier),
        "queries": masks.explicit(np.arange(S)[:, None] > 1),  # (T, 1)
    }
    for which in (key, value):
        clean, which[0, 1, 2, 0] = which[0, 1, 2, 0], np.nan
        for path in ("dense", "streamed")[: 1 + STREAMS]:
            for name, rule in rules.items():
                call = compiled(
                    lambda *x, rule=rule, path=path: attend(
                        x[0], x[2], key=x[1], mask=rule, path=path
                    )
                )
                output = numpy(call(*map(as_tensor, (query, key, value))))
                broken = np.zeros((B, H, S), bool)
                seen = (
                    earlier[0, 0, :, 2] if name in ("causal", "of each head") else np.ones(S, bool)
                )
                seen = np.arange(S) > 1 if name == "queries" else seen
                broken[0, [2, 3]] = seen
                np.testing.assert_array_equal(np.isnan(output).any(-1), broken, f"{name} {path}")
        which[0, 1, 2, 0] = clean


@pytest.mark.parametrize("heads", [None, G], ids=["three axes", "four axes"])
def test_guard_finite_tokens_stay_bit_by_bit(heads):
    key, value = tokens(heads, S, D, 3), tokens(heads, S, V, 4)
    key[:, ..., 2, :], value[:, ..., 3, :] = 3e38, -3e38
    visible = np.ones((B, T, S), bool)
    query, (new_query, new_key, new_value), _ = guarded(heads, key, value, visible)
    for new, old in ((new_query, query), (new_key, key), (new_value, value)):
        np.testing.assert_array_equal(new, old)


SCORES = {"dot": score_functions.scaled_dot_product, "additive": score_functions.additive}


@pytest.mark.parametrize("path", ["dense", "streamed"])
@pytest.mark.parametrize("score", SCORES)
def test_token_hidden_by_joined_masks_that_overflows_reaches_no_gradient(score, path):
    """No query sees key 2 of the first row, but neither mask hides it from all of them."""
    rng = np.random.default_rng(7)
    lengths = np.array([[3, 3, 2, 2, 2], [3, 5, 4, 4, 5]])
    mask = masks.causal() & masks.padding(lengths)
    tokens = [rng.normal(size=(2, 5, 3)).astype("float32") for _ in range(3)]
    parameters = [rng.normal(size=(3, 1)).astype("float32")] if score == "additive" else []

    def gradients(number):
        query, key, value = (np.copy(x) for x in tokens)
        key[0, 2], value[0, 2] = number, number

        def call(query, key, value, *parameters):
            return attend(
                query,
                value,
                key=key,
                score=SCORES[score],
                parameters=parameters,
                mask=mask,
                path=path,
            )

        output, found = both_ways(call, [as_tensor(x) for x in (query, key, value, *parameters)])
        return output, *found

    for found, wanted in zip(gradients(3e38), gradients(0.0), strict=True):
        np.testing.assert_allclose(numpy(found), numpy(wanted), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("path", ["dense", "streamed"])
def test_pair_hidden_whose_gradient_overflows_leaves_the_gradients_of_others(path):
    """Query 0 does not see key 1, whose value times the gradient of its output is too large."""
    query, key = np.array([[0.1, 0.2], [0.3, 0.1]]), np.array([[0.5, 0.2], [0.1, 0.4]])
    value, grad = np.array([[1.0, 2.0], [1e10, 3.0]]), np.array([[1e30, 1.0], [1e-5, 1.0]])

    def call(query, key, value):
        return attend(query, value, key=key, mask=masks.causal(), path=path)

    *tensors, upstream = (as_tensor(x[None].astype("float32")) for x in (query, key, value, grad))
    _, (grad_query, *_) = both_ways(call, tensors, upstream)
    weights = reference.softmax(query[1] @ key.T / np.sqrt(2))
    grad_weights = value @ grad[1]
    grad_scores = weights * (grad_weights - weights @ grad_weights) / np.sqrt(2)
    wanted = np.stack([np.zeros(2), grad_scores @ key])
    np.testing.assert_allclose(numpy(grad_query)[0], wanted, rtol=1e-5)


LAYER_SCORES = {
    "cosine": tfattn.CosineScore,
    "normalized": tfattn.NormalizedDotProductScore,
    "tricube": lambda: tfattn.KernelScore("tricube", bandwidth=3.0),
}


@pytest.mark.parametrize("score", LAYER_SCORES)
def test_layer_token_hidden_by_joined_masks_is_zeroed_before_maps(score):
    """Of the lengths and the causal mask, neither hides key 2 of the first row from all queries."""
    rng = np.random.default_rng(8)
    query, value = (rng.normal(size=(2, 3, 4)).astype("float32") for _ in range(2))
    layer = tfattn.Attention(LAYER_SCORES[score]())
    hiding = {"use_causal_mask": True, "valid_lens": np.array([[3, 3, 2], [3, 3, 3]])}

    def gradients(number, path):
        value[0, 2] = number
        with tfattn.attention_path(path):
            output, found = both_ways(lambda q, v: layer(q, v, **hiding), [query, value])
        return output, *found

    for path in ("dense", "streamed")[: 1 + STREAMS]:
        for found, wanted in zip(gradients(3e38, path), gradients(0.0, path), strict=True):
            np.testing.assert_allclose(numpy(found), numpy(wanted), rtol=1e-5, atol=1e-6)
