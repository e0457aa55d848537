"""Streamed scores of any size: exponentials of small ones are added up as they are, others by their largest."""

from unittest import mock

import numpy as np
import pytest
import tensorflow as tf

from tests import reference
from tests.streaming import MASKS, B, D, H, S, T, assert_close, problem, pulled, scored, wide
from tfattn import masks
from tfattn.core import block_scores, streamed, walk
from tfattn.core import scores as score_functions


def by_the_largest():
    """No score counts as small."""
    return mock.patch.object(walk, "_SMALL", -1.0)


@pytest.mark.parametrize("size", [1e-3, 1.0, 10.0, 100.0, 1e4])
@pytest.mark.parametrize("mask", ["none", "causal", "nothing"])
def test_scores_of_any_size_equal_the_oracle(size, mask):
    rng = np.random.default_rng(3)
    query, key, value = (rng.normal(size=(B, H, n, D)).astype("float32") for n in (T, S, S))
    query *= size
    rule, seen = {
        "none": (None, np.ones((T, S), bool)),
        "causal": (masks.causal(), reference.causal(T, S)),
        "nothing": (masks.prefix(0), np.zeros((T, S), bool)),
    }[mask]
    expected, _ = reference.attention(reference.dot_product(query, key), value, seen)
    arguments = [tf.constant(x) for x in (query, value, key)]
    output = streamed.attend(*arguments, score_functions.scaled_dot_product, mask=rule, block=(4, 6))
    np.testing.assert_allclose(output, expected, 1e-4, 1e-5 + 1e-6 * size)


@pytest.mark.parametrize("mask", ["none", "causal & window", "padding by query", "nothing"])
@pytest.mark.parametrize("score, heads", [("scaled dot", (H, H)), ("dot", (H, 2)), ("additive", (H, H))])
@pytest.mark.parametrize("options", [{}, {"dropout": 0.3, "seed": 3}], ids=["", "dropout"])
def test_both_ways_give_one_output_and_one_gradient(score, heads, mask, options):
    for bias in ("none", "by head and key"):
        function, arguments = problem(5, score, heads, bias)
        given = function, arguments, MASKS[mask](np.random.default_rng(5)), "streamed", bias != "none"
        with mock.patch.object(walk.Walk, "_pool", side_effect=AssertionError("for large scores alone")):
            here = pulled(*given, **options)
        with (
            by_the_largest(),
            mock.patch.object(walk.Walk, "_add_up", side_effect=AssertionError("for small scores alone")),
        ):
            there = pulled(*given, **options)
        assert_close(here, there, 1e-5)


@pytest.mark.parametrize("jit", [False, True], ids=["graph", "XLA"])
def test_what_only_the_run_can_tell_is_told_there(jit):
    function, arguments = problem(7)
    attend = tf.function(lambda query, value, key: streamed.attend(query, value, key, function), jit_compile=jit)
    query, key, value = arguments
    for size in (1.0, 100.0):
        expected, _ = reference.attention(reference.dot_product(size * query.numpy(), key.numpy()), value.numpy(), True)
        np.testing.assert_allclose(attend(size * query, value, key), expected, 1e-4, 2e-4)


@pytest.mark.parametrize("score", ["dot", "additive", "additive by head"])
def test_no_score_goes_beyond_its_bound(score):
    rng = np.random.default_rng(1)
    function, parameters = scored(score, D, H, rng)
    query, key = (3 * rng.normal(size=(B, H, n, D)) for n in (T, S))
    form = block_scores.block_score(function, [tf.constant(x) for x in parameters], rank=4)
    largest = np.abs(function(query, key, *parameters)).max()
    assert largest <= float(form.bound(*[tf.constant(x) for x in (query, key)], parameters)) < 4 * largest


@pytest.mark.parametrize("bias", ["square", "by head and key"])
@pytest.mark.parametrize("value", [1e9, -1e9, -np.inf])
def test_a_large_bias_makes_large_scores(bias, value):
    function, arguments = problem(9, bias=bias)
    arguments[-1] = tf.where(tf.range(S) == 2, value, arguments[-1])
    with mock.patch.object(walk.Walk, "_add_up", side_effect=AssertionError("for small scores alone")):
        here = pulled(function, arguments, None, "streamed", True)[0]
    assert_close([here], [pulled(function, wide(arguments), None, "dense", True)[0]])
