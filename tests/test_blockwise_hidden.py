"""What is hidden reaches nothing on the blockwise path: no output, no gradient, not a bit."""

import functools
import itertools

import numpy as np
import pytest
import tensorflow as tf

from tests.blockwise import (
    B,
    D,
    Earlier,
    H,
    S,
    T,
    assert_close,
    blocks_of,
    both_ways,
    moved,
    operands_of,
    problem,
    scored,
    with_upstream,
)
from tfattn import attend, masks
from tfattn.core import scores as score_functions

pytestmark = pytest.mark.tensorflow


@functools.cache
def compiled(name, rule, score="scaled dot"):
    """Both ways for any tokens: of `problem`, or with an upstream gradient in blocks of 8."""
    mask = {
        "padding": masks.padding([11, 11]),
        "causal": masks.causal(),
        "before": Earlier(1),
        "~causal": ~masks.causal(),
    }[rule]
    if name == "problem":
        function, _ = problem(19, score)
        return tf.function(lambda x: both_ways(function, x, mask, "streamed"))
    function = score_functions.dot_product
    return tf.function(lambda *x: with_upstream(mask, *x, block=(8, 8), score=function))


@pytest.mark.parametrize("broken", [float("nan"), float("inf"), -float("inf"), 3e38])
@pytest.mark.parametrize("score", ["scaled dot", "additive"])
def test_what_lies_under_the_mask_reaches_nothing(score, broken):
    _, (query, key, value, *rest) = problem(19, score)
    run = compiled("problem", "padding", score)
    clean = run([query, key, value, *rest])
    hidden = tf.range(S)[:, None] >= 11
    key, value = tf.where(hidden, broken, key), tf.where(hidden, broken, value)
    assert_close(run([query, key, value, *rest]), clean, 1e-6)


@functools.cache
def causal_outputs(score):
    function, _ = scored(score, D, H, np.random.default_rng(2))

    @tf.function
    def outputs(x, parameters):
        with blocks_of((4, 6)):
            return attend(x, x, x, function, parameters, masks.causal(), path="streamed")

    return outputs


@pytest.mark.parametrize(
    "score, token",
    # From 40 on an additive block takes another formula, equal to rounding, for all pairs in it.
    [
        *itertools.product(["scaled dot", "gaussian"], [np.nan, np.inf, 1e30, 50.0]),
        ("additive", 30.0),
    ],
)
def test_what_a_query_may_not_see_changes_no_bit_of_its_output(score, token):
    _, parameters = scored(score, D, H, np.random.default_rng(2))
    parameters = [tf.constant(x, "float32") for x in parameters]
    tokens = np.random.default_rng(3).normal(size=(2, H, 31, D)).astype("float32")

    def outputs():
        return causal_outputs(score)(tf.constant(tokens), parameters).numpy()

    clean = outputs()
    tokens[0, :, 17] = token
    np.testing.assert_array_equal(outputs()[0, :, :17], clean[0, :, :17])
    np.testing.assert_array_equal(outputs()[1], clean[1])


@pytest.mark.parametrize("keys", [12, 19, 20])
def test_the_mean_of_a_hidden_block_may_overflow(keys):
    rng = np.random.default_rng(1)
    query, key, value = (
        tf.constant(rng.normal(size=(1, 1, n, 3)), "float32") for n in (4, 2 * keys, 2 * keys)
    )
    seen = np.ones((4, 2 * keys), bool)
    seen[:2, keys:] = False
    largest = tf.where(tf.range(2 * keys)[:, None] < keys, value, np.finfo("float32").max)

    def first_rows(value):
        with blocks_of((4, keys)):
            return attend(query, value, key, mask=masks.explicit(seen), path="streamed")[:, :, :2]

    np.testing.assert_array_equal(first_rows(largest), first_rows(value))


def test_a_query_that_may_see_a_broken_key_becomes_nan_and_no_other_does():
    function, (query, key, value) = problem(23)
    value = tf.where(tf.range(S)[:, None] == 9, float("nan"), value)
    rule = masks.window(3)
    found = [
        both_ways(function, [query, key, value], rule, path)[:2] for path in ("streamed", "dense")
    ]
    (here, of_query), (there, of_query_there) = found
    np.testing.assert_array_equal(np.isnan(here), np.isnan(there))
    assert np.isfinite(of_query).all() and np.isfinite(of_query_there).all()
    assert np.isnan(here).any() and not np.isnan(here).all()


def test_fully_masked_queries_pool_to_zero_with_zero_gradients():
    function, arguments = problem(29)
    # some rows, and a whole batch row
    rule = masks.explicit(tf.range(T)[:, None] % 3 > 0) & masks.padding([S, 0])
    output, *gradients = both_ways(function, arguments, rule, "streamed")
    assert np.all(output[:, :, ::3] == 0.0) and np.all(output[1] == 0.0)
    assert np.all(gradients[0][:, :, ::3] == 0.0) and all(np.all(g[1] == 0.0) for g in gradients)
    assert all(np.isfinite(g).all() for g in gradients)


@functools.cache
def biased(block):
    function, _ = problem(31)
    return tf.function(lambda x: both_ways(function, x, None, "streamed", True, block))


@pytest.mark.parametrize("block", [(4, 6), (64, 64)])
@pytest.mark.parametrize("hiding", [-np.inf, np.finfo("float32").min, -1e9, -1e6, -1e5])
def test_a_bias_that_hides_keys_is_no_mask_and_no_nan(hiding, block):
    function, (query, key, value) = problem(31)
    bias = np.zeros((B, 1, T, S), "float32")
    bias[:, :, ::2, 3:] = hiding
    bias[:, :, 5] = hiding  # every key: by −inf there is nothing to see, by less the mean of all
    arguments = [query, key, value, tf.constant(bias)]
    here = biased(block)(arguments)
    assert_close(here, both_ways(function, arguments, None, "dense", True))
    assert all(np.isfinite(x).all() for x in here)
    assert (here[0][:, :, 5].numpy() == 0).all() == (hiding == -np.inf)


@pytest.mark.parametrize("broken", [float("nan"), float("inf"), 3e38])
@pytest.mark.parametrize("at", [0, 17, 30])
@pytest.mark.parametrize("which", ["key", "value"])
def test_a_broken_token_reaches_the_queries_that_may_see_it_and_no_other(which, at, broken):
    query, key, value, upstream = operands_of((1, 2, 2, 31, 31))
    tokens = {"key": key, "value": value}
    tokens[which] = tf.where(tf.range(31)[:, None] == at, broken, tokens[which])
    run = compiled("upstream", "causal")
    clean = run(query, key, value, upstream)
    output, grad_query, *_ = run(query, tokens["key"], tokens["value"], upstream)
    np.testing.assert_array_equal(output.numpy()[:, :, :at], clean[0].numpy()[:, :, :at])
    if broken != 3e38:
        np.testing.assert_array_equal(grad_query.numpy()[:, :, :at], clean[1].numpy()[:, :, :at])
        assert not np.isfinite(output.numpy()[:, :, at:]).any()


def test_a_broken_token_and_those_who_may_see_it_have_gradients_of_zero():
    query, key, value, upstream = operands_of((1, 2, 2, 31, 31))
    there = tf.range(31)[:, None] == 17
    arguments = query, tf.where(there, float("nan"), key), value, upstream
    _, grad_query, grad_key, grad_value = compiled("upstream", "causal")(*arguments)
    assert np.all(grad_query[:, :, 17:] == 0) and np.any(grad_query[:, :, 16] != 0)
    assert np.all(grad_key[:, :, 17] == 0) and np.all(grad_value[:, :, 17] == 0)


def test_queries_that_see_nothing_of_a_mask_by_distance_pool_to_zero_with_zero_gradients():
    arguments = operands_of((2, 2, 2, 24, 24))
    output, grad_query, grad_key, grad_value = compiled("upstream", "~causal")(*arguments)
    assert np.all(output[:, :, -1] == 0) and np.all(grad_query[:, :, -1] == 0)
    assert np.any(output[:, :, -2] != 0)
    # and nobody sees the first key
    assert np.all(grad_key[:, :, 0] == 0) and np.all(grad_value[:, :, 0] == 0)
    before, grad_before, *_ = compiled("upstream", "before")(*arguments)
    assert np.all(before[:, :, 0] == 0) and np.all(grad_before[:, :, 0] == 0)
    assert np.any(before[:, :, 1] != 0)


@pytest.mark.parametrize(
    "name",
    ["causal", *(pytest.param(name, marks=pytest.mark.slow) for name in ("before", "~causal"))],
)
@pytest.mark.parametrize("kind", ["times 60", "overflow", "vanish"])
def test_exponentials_that_overflow_or_vanish_for_some_queries(kind, name):
    query, key, value, upstream = operands_of((1, 4, 4, 40, 40), (7, 5))
    query = 7**-0.5 * query
    third = np.arange(40) % 3 == 0
    if kind == "times 60":
        query = query * tf.where(third[:, None], 60.0, 1.0)
    else:
        by = np.where(third, 100.0 if kind == "overflow" else -100.0, 0.0)
        query, key = moved(query, key, by)
    here = compiled("upstream", name)(query, key, value, upstream)
    mask = {"causal": masks.causal(), "before": Earlier(1), "~causal": ~masks.causal()}[name]
    wide = [tf.cast(x, "float64") for x in (query, key, value, upstream)]
    there = with_upstream(mask, *wide, path="dense", score=score_functions.dot_product)
    assert_close([x[..., :7] for x in here], [x[..., :7] for x in there], 1e-3)
