"""What is hidden reaches nothing on the streamed path: no output, no gradient, not a bit."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from tests.streaming import B, D, H, S, T, assert_close, problem, pulled, scored
from tfattn import masks
from tfattn.core import scores as score_functions
from tfattn.core.paths.blockwise import attend as streamed


@pytest.mark.parametrize("broken", [float("nan"), float("inf"), -float("inf"), 3e38])
@pytest.mark.parametrize("score", ["scaled dot", "additive"])
def test_what_lies_under_the_mask_reaches_nothing(score, broken):
    function, (query, key, value, *rest) = problem(19, score)
    clean = pulled(function, [query, key, value, *rest], masks.padding([11, 11]), "streamed")
    hidden = tf.range(S)[:, None] >= 11
    key, value = tf.where(hidden, broken, key), tf.where(hidden, broken, value)
    assert_close(
        pulled(function, [query, key, value, *rest], masks.padding([11, 11]), "streamed"),
        clean,
        1e-6,
    )


@pytest.mark.parametrize(
    "score, token",
    # From 40 on an additive block takes another formula, equal to rounding, for all pairs in it.
    [
        *itertools.product(["scaled dot", "gaussian"], [np.nan, np.inf, 1e30, 50.0]),
        ("additive", 30.0),
    ],
)
def test_what_a_query_may_not_see_changes_no_bit_of_its_output(score, token):
    function, parameters = scored(score, D, H, np.random.default_rng(2))
    parameters = [tf.constant(x, "float32") for x in parameters]
    tokens = np.random.default_rng(3).normal(size=(2, H, 31, D)).astype("float32")

    def outputs():
        x = tf.constant(tokens)
        return streamed.attend(x, x, x, function, parameters, masks.causal(), block=(4, 6)).numpy()

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
        score = score_functions.scaled_dot_product
        return streamed.attend(query, value, key, score, (), masks.explicit(seen), block=(4, keys))[
            :, :, :2
        ]

    np.testing.assert_array_equal(first_rows(largest), first_rows(value))


def test_a_query_that_may_see_a_broken_key_becomes_nan_and_no_other_does():
    function, (query, key, value) = problem(23)
    value = tf.where(tf.range(S)[:, None] == 9, float("nan"), value)
    rule = masks.window(3)
    found = [
        pulled(function, [query, key, value], rule, path)[:2] for path in ("streamed", "dense")
    ]
    (here, of_query), (there, of_query_there) = found
    np.testing.assert_array_equal(np.isnan(here), np.isnan(there))
    assert np.isfinite(of_query).all() and np.isfinite(of_query_there).all()
    assert np.isnan(here).any() and not np.isnan(here).all()


def test_fully_masked_queries_pool_to_zero_with_zero_gradients():
    function, arguments = problem(29)
    # some rows, and a whole batch row
    rule = masks.explicit(tf.range(T)[:, None] % 3 > 0) & masks.padding([S, 0])
    output, *gradients = pulled(function, arguments, rule, "streamed")
    assert np.all(output[:, :, ::3] == 0.0) and np.all(output[1] == 0.0)
    assert np.all(gradients[0][:, :, ::3] == 0.0) and all(np.all(g[1] == 0.0) for g in gradients)
    assert all(np.isfinite(g).all() for g in gradients)


@pytest.mark.parametrize("block", [(4, 6), (64, 64)])
@pytest.mark.parametrize("hiding", [-np.inf, np.finfo("float32").min, -1e9, -1e6, -1e5])
def test_a_bias_that_hides_keys_is_no_mask_and_no_nan(hiding, block):
    function, (query, key, value) = problem(31)
    bias = np.zeros((B, 1, T, S), "float32")
    bias[:, :, ::2, 3:] = hiding
    bias[:, :, 5] = hiding  # every key: by −inf there is nothing to see, by less the mean of all
    arguments = [query, key, value, tf.constant(bias)]
    here, there = (
        pulled(function, arguments, None, path, True, block) for path in ("streamed", "dense")
    )
    assert_close(here, there)
    assert all(np.isfinite(x).all() for x in here)
    assert (here[0][:, :, 5].numpy() == 0).all() == (hiding == -np.inf)
