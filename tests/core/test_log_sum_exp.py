"""`return_log_sum_exp` of `attend`: the number and its gradients, on both paths."""

import numpy as np
import pytest
from keras import ops

from tests import reference
from tests.helpers import blockwise
from tests.helpers.blockwise import (
    B,
    D,
    H,
    S,
    T,
    V,
    assert_close,
    blocks_of,
    mask_of,
    operands_of,
    problem,
    wide,
)
from tests.helpers.paths import PATHS
from tests.helpers.tensors import FLOAT64, both_ways, dtype_of, needs_float64, numpy, tf
from tfattn import attend, masks
from tfattn.core.engine import sizes


def both(function, arguments, mask, path, **options):
    """Output, log of the sums, and the gradients of a fixed functional of both."""
    return blockwise.both_ways(function, arguments, mask, path, return_log_sum_exp=True, **options)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("mask", ["none", "causal", "padding by query", "explicit by head"])
def test_equals_the_oracle(path, mask):
    function, arguments = problem(3)
    query, key, value = (numpy(x).astype("float64") for x in arguments)
    rule = mask_of(mask, 3)
    seen = None if rule is None else numpy(rule.dense(T, S))
    if seen is not None and seen.ndim == 3:
        seen = seen[:, None]
    scores = reference.dot_product(query, key)
    output, sums = both(function, arguments, rule, path)[:2]
    np.testing.assert_allclose(sums, reference.log_sum_exp(scores, seen), 1e-5, 1e-5)
    np.testing.assert_allclose(output, reference.attention(scores, value, seen)[0], 1e-4, 1e-5)
    assert sums.shape == (B, H, T) and dtype_of(sums) == "float32"


@pytest.mark.slow
@needs_float64
@pytest.mark.parametrize("path", PATHS)
def test_its_gradient_equals_finite_differences(path):
    rng = np.random.default_rng(5)
    query, key, bias = (rng.normal(size=s) for s in ((1, T, D), (1, S, D), (T, S)))
    value = rng.normal(size=(1, S, V))
    upstream, of_sums = rng.normal(size=(1, T, V)), rng.normal(size=(1, T))
    seen = reference.window(4, T, S)

    def oracle(query, key, value, bias):
        scores = reference.dot_product(query, key) + bias
        pooled = reference.attention(scores, value, seen)[0]
        sums = reference.log_sum_exp(scores, seen)
        return (pooled * upstream).sum() + (sums * of_sums).sum()

    def ours(q, k, v, b):
        return attend(q, v, key=k, mask=masks.window(4), bias=b, path=path, return_log_sum_exp=True)

    with blocks_of((4, 6)):
        _, gradients = both_ways(ours, (query, key, value, bias), (upstream, of_sums))
    expected = reference.slopes(oracle, query, key, value, bias)
    assert_close(gradients, expected, 1e-6)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", FLOAT64])
def test_is_float32_or_wider_in_every_dtype(dtype, path):
    tolerance = {"float16": 4e-3, "bfloat16": 4e-2, "float32": 2e-5, "float64": 1e-12}[dtype]
    function, arguments = problem(13, dtype=dtype)
    here = both(function, arguments, masks.causal(), path)
    assert dtype_of(here[1]) == ("float64" if dtype == "float64" else "float32")
    assert all(dtype_of(x) == dtype for x in (here[0], *here[2:]))
    there = both(function, wide(arguments), masks.causal(), "dense")
    assert_close(here, there, max(tolerance, 2e-5))
    # The sums themselves are not rounded to half precision, but the scores in them may be: a sum
    # near zero has the rounding of larger ones.
    rounding = {"float16": 1e-3, "bfloat16": 2.0**-8 * np.abs(there[1]).max()}
    np.testing.assert_allclose(
        here[1],
        there[1],
        rtol=2e-5 + (dtype == "float16") * 1e-3 + (dtype == "bfloat16") * 2e-2,
        atol=rounding.get(dtype, 1e-3),
    )


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("mask", ["~causal", "window"])
def test_a_query_with_nothing_to_attend_to_has_minus_infinity_and_no_gradient(path, mask):
    rule = {"~causal": ~masks.causal(), "window": masks.window(2) & ~masks.window(1)}[mask]
    queries, keys = 20, 12  # the first queries stand before all keys
    query, key, value, _ = operands_of((1, 1, 1, queries, keys))
    empty = ~numpy(rule.dense(queries, keys)).any(-1)
    assert 0 < empty.sum() < queries
    for broken in (1.0, np.inf, np.nan):
        upstream = np.where(empty, broken, 0.0) + np.zeros((1, 1, queries))

        def ours(query, key, value):
            output, sums = attend(
                query, value, key=key, mask=rule, path=path, return_log_sum_exp=True
            )
            return sums, output

        with blocks_of((4, 4)):
            (sums, output), gradients = both_ways(ours, (query, key, value), upstream, has_aux=True)
        assert np.all(numpy(sums)[..., empty] == -np.inf)
        assert np.isfinite(numpy(sums)[..., ~empty]).all()
        assert np.all(numpy(output)[..., empty, :] == 0)
        assert gradients[2] is None or np.all(numpy(gradients[2]) == 0)  # of the values
        for gradient in gradients[:2]:
            assert np.all(numpy(gradient) == 0)


@pytest.mark.parametrize("path", PATHS)
def test_a_query_that_may_see_a_nan_has_a_nan_and_no_other_does(path):
    function, (query, key, value) = problem(7)
    broken = ops.where(np.arange(S)[:, None] == 9, np.nan, key)
    clean, sums = (
        numpy(both(function, [query, x, value], masks.causal(), path)[1]) for x in (key, broken)
    )
    sees = reference.causal(T, S)[:, 9]
    assert np.isnan(sums[..., sees]).all()
    np.testing.assert_array_equal(sums[..., ~sees], clean[..., ~sees])


@pytest.mark.parametrize("path", PATHS)
def test_scores_of_any_size_neither_overflow_nor_vanish(path):
    for size in (1e4, -1e4, 1e30, -1e30):
        query, key = ops.ones((1, 1, 3, 1)), ops.full((1, 1, 5, 1), np.float32(size))
        with blocks_of((2, 2)):
            _, sums = attend(query, key, path=path, return_log_sum_exp=True)
        np.testing.assert_allclose(sums, np.full((1, 1, 3), size + np.log(5)), 1e-6)


@pytest.mark.tensorflow
@pytest.mark.slow
@pytest.mark.parametrize(
    "score, rule, block",
    [
        ("scaled dot", masks.causal() & masks.window(5), (4, 4)),  # local attention
        ("additive", masks.explicit(np.arange(T)[:, None] % 3 > 0), (7, 9)),
    ],
)
def test_second_derivatives_equal_the_dense_path(score, rule, block):
    function, arguments = problem(43, score, heads=(1, 1))

    def penalty(path):
        with tf.GradientTape() as outer:
            outer.watch(arguments)
            _, sums, *gradients = both(function, arguments, rule, path, block=block)
            total = tf.add_n([ops.sum(ops.square(g)) for g in gradients])
            total += ops.sum(ops.sin(ops.where(ops.equal(sums, -np.inf), 0.0, sums)))
        return outer.gradient(total, arguments)

    here, there = map(penalty, ("streamed", "dense"))
    for this, that in zip(here, there, strict=True):
        np.testing.assert_allclose(this, that, 1e-3, 1e-4 * np.abs(that).max())


@pytest.mark.tensorflow
@pytest.mark.slow
def test_under_xla_a_graph_of_unknown_lengths_equals_eager():
    function, arguments = problem(11, heads=(2, 1))
    unknown = [tf.TensorSpec((None, x.shape[1], None, x.shape[3])) for x in arguments]

    @tf.function(input_signature=[unknown], jit_compile=True)
    def compiled(arguments):
        return both(function, arguments, masks.causal(), "streamed")

    assert_close(compiled(arguments), both(function, arguments, masks.causal(), "dense"))


@pytest.mark.tensorflow
@pytest.mark.slow
def test_a_graph_that_chooses_when_it_runs_gives_it_on_either_path(monkeypatch):
    least = sizes.LEAST["cpu"]._replace(pairs=100 * 100 * B * H, scores=100 * 100 * B * H)
    monkeypatch.setitem(sizes.LEAST, "cpu", least)
    spec = [tf.TensorSpec((B, H, None, D), "float16")] * 3

    @tf.function(input_signature=spec)
    def run(query, key, value):
        with tf.GradientTape() as tape:
            tape.watch([query, key, value])
            output, sums = attend(
                query, value, key=key, mask=masks.causal(), dropout=0.0, return_log_sum_exp=True
            )
            total = ops.sum(ops.cast(output, "float32")) + ops.sum(sums)
        return output, sums, *tape.gradient(total, [query, key, value])

    for length in (20, 120):
        arguments = operands_of((B, H, H, length, length), (D, D), "float16")[:3]
        query, key, value = wide(arguments)
        found = run(*arguments)
        assert dtype_of(found[1]) == "float32"
        expected = attend(query, value, key=key, mask=masks.causal(), return_log_sum_exp=True)
        assert_close(found[:2], expected, 5e-3)


def test_comes_last_and_changes_no_other_bit():
    function, (query, key, value) = problem(17)
    arguments = {"query": query, "value": value, "key": key, "mask": masks.causal()}
    output, weights, sums = attend(**arguments, return_weights=True, return_log_sum_exp=True)
    alone, sums_alone = attend(**arguments, return_log_sum_exp=True)
    for these in ((output, alone, attend(**arguments)), (sums, sums_alone)):
        for other in these[1:]:
            np.testing.assert_array_equal(these[0], other)
    scores = reference.dot_product(numpy(query), numpy(key))
    seen = np.exp(scores - numpy(sums)[..., None]) * reference.causal(T, S)
    np.testing.assert_allclose(weights, seen, 1e-4, 1e-6)  # weight = exp(score − log sum)


@pytest.mark.parametrize("path", PATHS)
def test_dropout_does_not_change_it_nor_does_it_change_the_output(path):
    _, (query, key, value) = problem(19)
    options = {"mask": masks.causal(), "path": path}
    sums, dropped = (
        attend(query, value, key=key, **options, return_log_sum_exp=True, dropout=rate, seed=3)
        for rate in (0.0, 0.5)
    )
    np.testing.assert_allclose(dropped[1], sums[1], 1e-6)
    assert np.abs(dropped[0] - sums[0]).max() > 0.1
    np.testing.assert_array_equal(sums[0], attend(query, value, key=key, **options))
