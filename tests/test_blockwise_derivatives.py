"""The blockwise path differentiated again, twice in one tape, and for some of its rows: as the
dense path.
"""

import numpy as np
import pytest
import tensorflow as tf

from tests.blockwise import B, D, H, T, V, assert_close, both_ways, mask_of, problem
from tfattn import attend, masks

pytestmark = pytest.mark.tensorflow


def test_second_use_in_one_tape():
    function, (query, key, value) = problem(41)

    def loss(attention):
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(query)
            once = attention(query)
            total = tf.reduce_sum(attention(tf.concat([once, query[..., V:]], -1)) ** 2)
        return [tape.gradient(total, query), tape.gradient(once, query)]

    here, there = (
        loss(lambda x, path=path: attend(x, value, key, function, mask=masks.causal(), path=path))
        for path in ("streamed", "dense")
    )
    assert_close(here, there)


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize(
    "mask, compiled",
    [
        ("causal", False),
        pytest.param("padding", False, marks=pytest.mark.slow),
        pytest.param("causal", True, marks=pytest.mark.slow),
    ],
    ids=["causal", "padding", "graph"],
)
@pytest.mark.parametrize("score", ["scaled dot", "additive", "gaussian", "capped scaled dot"])
def test_second_derivatives_equal_the_dense_path(score, mask, compiled):
    function, arguments = problem(43, score)
    rule = mask_of(mask, 43)

    def penalty(path, *arguments):
        with tf.GradientTape() as outer:
            outer.watch(arguments)
            gradients = both_ways(function, list(arguments), rule, path)[1:]
            total = tf.add_n([tf.reduce_sum(tf.square(g)) for g in gradients])
        return outer.gradient(total, arguments)

    run = tf.function(penalty) if compiled else penalty
    assert_close(run("streamed", *arguments), penalty("dense", *arguments), 1e-3)


@pytest.mark.parametrize("score", ["dot", "scaled dot"])
def test_second_derivatives_of_scores_that_differ_by_less_than_their_weights_can_show(score):
    function, (query, key, value, *parameters) = problem(53, score)
    factors = tf.random.stateless_normal(value.shape[:-2] + [T, V], (1, 2))

    def second(path, query):
        with tf.GradientTape() as outer:
            outer.watch(query)
            with tf.GradientTape() as inner:
                inner.watch(query)
                total = tf.reduce_sum(
                    attend(query, value, key, function, parameters, path=path) * factors
                )
            of_query = inner.gradient(total, query)
            total = tf.reduce_sum(of_query)
        return outer.gradient(total, query)

    query = 1e-8 * query
    assert_close([second("streamed", query)], [second("dense", query)], 1e-4)


@pytest.mark.parametrize(
    "compiled", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["eager", "graph"]
)
def test_second_derivatives_where_one_tensor_comes_twice_and_the_upstream_gradient_has_one_too(
    compiled,
):
    rng = np.random.default_rng(47)
    x = tf.constant(rng.normal(size=(B, H, T, D)), "float32")
    bias = tf.constant(rng.normal(size=(1, H, 1, T)), "float32")

    def penalty(path, x, bias):
        with tf.GradientTape() as outer:
            outer.watch([x, bias])
            with tf.GradientTape() as inner:
                inner.watch([x, bias])
                total = tf.reduce_sum(attend(x, x, mask=masks.causal(), bias=bias, path=path) ** 3)
            gradients = inner.gradient(total, [x, bias])
            total = tf.add_n([tf.reduce_sum(tf.square(g)) for g in gradients])
        return outer.gradient(total, [x, bias])

    run = tf.function(penalty) if compiled else penalty
    here, there = run("streamed", x, bias), penalty("dense", x, bias)
    for this, that in zip(here, there, strict=True):
        np.testing.assert_allclose(this, that, 1e-3, 1e-4 * np.abs(that).max())


@pytest.mark.parametrize(
    "compiled", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["eager", "graph"]
)
def test_the_gradient_of_some_rows_alone(compiled):
    function, arguments = problem(53)

    def gradients(path, *arguments):
        with tf.GradientTape() as tape:
            tape.watch(arguments)
            query, key, value = arguments
            output = tf.gather(attend(query, value, key, function, path=path), [1, 0, 1])
        return tape.gradient(output, arguments)

    run = tf.function(gradients) if compiled else gradients
    assert_close(run("streamed", *arguments), gradients("dense", *arguments))
