"""`return_log_sum_exp` of `attend`: the number and its gradients, on both paths."""

import numpy as np
import pytest
from keras import ops

from tests import reference
from tests.helpers import blockwise
from tests.helpers.blockwise import (
    Case,
    D,
    H,
    S,
    T,
    V,
    assert_close,
    blocks_of,
    check,
    operands_of,
    problem,
    wide,
)
from tests.helpers.paths import PATHS
from tests.helpers.tensors import BACKEND, both_ways, dtype_of, needs_float64, numpy
from tfattn import attend, masks

CASES = {
    "no mask": Case("none"),
    "padding by query": Case("padding by query"),
    "explicit by head": Case("explicit by head"),
    "a NaN that some see": Case("causal", broken=float("nan"), reached=True),
}
if BACKEND == "tensorflow":
    CASES["float64"] = Case("causal", dtypes=("float64",) * 3)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("name", CASES)
def test_log_sum_exp_and_its_gradients_equal_oracle(path, name):
    check(CASES[name]._replace(heads=(H, H), sums=True, path=path, seed=3))


@pytest.mark.slow
@needs_float64
@pytest.mark.parametrize("path", PATHS)
def test_log_sum_exp_gradient_equals_finite_differences(path):
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


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_log_sum_exp_dense_in_half_precision_is_float32(dtype):
    tolerance = {"float16": 4e-3, "bfloat16": 4e-2}[dtype]
    function, arguments = problem(13, dtype=dtype)
    options = {"mask": masks.causal(), "path": "dense", "return_log_sum_exp": True}
    here = blockwise.both_ways(function, arguments, **options)
    there = blockwise.both_ways(function, wide(arguments), **options)
    assert [dtype_of(x) for x in here] == [dtype, "float32", *[dtype] * 3]
    assert_close(here, there, tolerance)
    # The sums themselves are not rounded to half precision, but the scores in them may be: a sum
    # near zero has the rounding of larger ones.
    relative, absolute = (1e-3, 1e-3) if dtype == "float16" else (2e-2, 2.0**-8)
    absolute *= 1.0 if dtype == "float16" else np.abs(there[1]).max()
    np.testing.assert_allclose(here[1], there[1], relative + 2e-5, absolute)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("mask", ["~causal", "window"])
def test_log_sum_exp_of_nothing_is_minus_infinity_without_gradient(path, mask):
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
def test_log_sum_exp_of_extreme_scores_is_finite(path):
    for size in (1e4, -1e4, 1e30, -1e30):
        query, key = ops.ones((1, 1, 3, 1)), ops.full((1, 1, 5, 1), np.float32(size))
        with blocks_of((2, 2)):
            _, sums = attend(query, key, path=path, return_log_sum_exp=True)
        np.testing.assert_allclose(sums, np.full((1, 1, 3), size + np.log(5)), 1e-6)


def test_log_sum_exp_comes_last_and_changes_no_other_bit():
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
def test_log_sum_exp_ignores_dropout_and_leaves_output(path):
    _, (query, key, value) = problem(19)
    options = {"mask": masks.causal(), "path": path}
    sums, dropped = (
        attend(query, value, key=key, **options, return_log_sum_exp=True, dropout=rate, seed=3)
        for rate in (0.0, 0.5)
    )
    np.testing.assert_allclose(dropped[1], sums[1], 1e-6)
    assert np.abs(dropped[0] - sums[0]).max() > 0.1
    np.testing.assert_array_equal(sums[0], attend(query, value, key=key, **options))
