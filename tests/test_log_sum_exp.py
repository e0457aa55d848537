"""`return_log_sum_exp` of `attend`: the number and its gradients, on both paths."""

import itertools

import numpy as np
import pytest
from keras import ops

from tests import reference
from tests.blockwise import (
    BIASES,
    MASKS,
    SCORES,
    UPSTREAM,
    B,
    D,
    H,
    S,
    T,
    V,
    assert_close,
    blocks_of,
    cover,
    mask_of,
    operands_of,
    problem,
    wide,
)
from tests.paths import PATHS
from tests.tensors import FLOAT64, both_ways, dtype_of, needs_float64, numpy, tf
from tfattn import attend, masks
from tfattn.core.paths import thresholds

# Of the log of the sums, of finite ones.
OF_SUMS = np.random.default_rng(6).normal(size=(B, H, T))


def both(function, arguments, mask, path, biased=False, block=(4, 6), **options):
    """Output, log of the sums, and the gradients of a fixed functional of both."""

    def functional(query, key, value, *rest):
        bias = rest[-1] if biased else None
        parameters = rest[:-1] if biased else rest
        output, sums = attend(
            query,
            value,
            key,
            function,
            parameters,
            mask,
            bias,
            path=path,
            return_log_sum_exp=True,
            **options,
        )
        upstream, of_sums = UPSTREAM, OF_SUMS
        if len(output.shape) == 3:
            upstream, of_sums = upstream[:, 0], of_sums[:, 0]
        total = ops.sum(output * ops.cast(upstream, output.dtype))
        finite = ops.where(ops.equal(sums, -np.inf), 0.0, sums)
        total += ops.cast(ops.sum(finite * ops.cast(of_sums, sums.dtype)), total.dtype)
        return total, [output, sums]

    with blocks_of(block):
        (_, results), gradients = both_ways(functional, arguments, has_aux=True)
    return [*results, *gradients]


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
        return attend(q, v, k, mask=masks.window(4), bias=b, path=path, return_log_sum_exp=True)

    with blocks_of((4, 6)):
        _, gradients = both_ways(ours, (query, key, value, bias), (upstream, of_sums))
    expected = reference.slopes(oracle, query, key, value, bias)
    assert_close(gradients, expected, 1e-6)


KINDS = dict(score=SCORES, bias=list(BIASES), block=[(4, 6), (5, 3), (64, 64)], heads=[H, 2, 1])
ROWS = [{"mask": mask, **row} for row, mask in zip(cover(**KINDS), itertools.cycle(MASKS))]


@pytest.mark.tensorflow
@pytest.mark.slow(keep=6)
@pytest.mark.parametrize(
    "seed, row",
    [pytest.param(*at, id=" ".join(map(str, at[1].values()))) for at in enumerate(ROWS)],
)
def test_streamed_equals_the_dense_path_in_float64(seed, row):
    function, arguments = problem(seed, row["score"], (H, row["heads"]), row["bias"])
    rule, biased = mask_of(row["mask"], seed), row["bias"] != "none"
    here = both(function, arguments, rule, "streamed", biased, row["block"])
    assert_close(here, both(function, wide(arguments), rule, "dense", biased))


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
    # The sums themselves are not rounded to half precision.
    np.testing.assert_allclose(
        here[1],
        there[1],
        rtol=2e-5 + (dtype == "float16") * 1e-3 + (dtype == "bfloat16") * 2e-2,
        atol=1e-3,
    )


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("mask", ["~causal", "window"])
def test_a_query_with_nothing_to_attend_to_has_minus_infinity_and_no_gradient(path, mask):
    rule = {"~causal": ~masks.causal(), "window": masks.window(2) & ~masks.window(1)}[mask]
    queries, keys = 20, 12  # the first queries stand before all keys
    query, key, value, _ = operands_of((2, 3, 3, queries, keys))
    empty = ~numpy(rule.dense(queries, keys)).any(-1)
    assert 0 < empty.sum() < queries
    for broken in (1.0, np.inf, np.nan):
        upstream = np.where(empty, broken, 0.0) + np.zeros((2, 3, queries))

        def ours(query, key, value):
            output, sums = attend(query, value, key, mask=rule, path=path, return_log_sum_exp=True)
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
@pytest.mark.parametrize("broken", [np.nan, np.inf, 1e30])
def test_what_lies_under_the_mask_reaches_no_sum_and_no_gradient(path, broken):
    function, (query, key, value) = problem(7)
    hidden = np.arange(S)[:, None] >= 9
    noisy = [query, ops.where(hidden, broken, key), ops.where(hidden, broken, value)]
    clean = [query, ops.where(hidden, 0.0, key), ops.where(hidden, 0.0, value)]
    rule = masks.padding([9, 4])
    assert_close(*(both(function, x, rule, path) for x in (noisy, clean)), 1e-6)


@pytest.mark.parametrize("path", PATHS)
def test_a_query_that_may_see_a_nan_has_a_nan(path):
    function, (query, key, value) = problem(7)
    key = ops.where(np.arange(S)[:, None] == 9, np.nan, key)
    sums = numpy(both(function, [query, key, value], masks.causal(), path)[1])
    sees = reference.causal(T, S)[:, 9]
    assert np.isnan(sums[..., sees]).all() and np.isfinite(sums[..., ~sees]).all()


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("size", [1e4, -1e4, 1e30, -1e30])
def test_scores_of_any_size_neither_overflow_nor_vanish(path, size):
    query, key = ops.ones((1, 1, 3, 1)), ops.full((1, 1, 5, 1), np.float32(size))
    with blocks_of((2, 2)):
        _, sums = attend(query, key, path=path, return_log_sum_exp=True)
    np.testing.assert_allclose(sums, np.full((1, 1, 3), size + np.log(5)), 1e-6)


@pytest.mark.tensorflow
@pytest.mark.parametrize("mask", ["window", "explicit", "none"])
@pytest.mark.parametrize("score", ["scaled dot", "additive"])
def test_second_derivatives_equal_the_dense_path(score, mask):
    function, arguments = problem(43, score)
    rule = masks.causal() & masks.window(5) if mask == "window" else mask_of(mask, 43)

    def penalty(path):
        with tf.GradientTape() as outer:
            outer.watch(arguments)
            _, sums, *gradients = both(function, list(arguments), rule, path, block=(4, 4))
            total = tf.add_n([ops.sum(ops.square(g)) for g in gradients])
            total += ops.sum(ops.sin(ops.where(ops.equal(sums, -np.inf), 0.0, sums)))
        return outer.gradient(total, arguments)

    here, there = map(penalty, ("streamed", "dense"))
    for this, that in zip(here, there, strict=True):
        np.testing.assert_allclose(this, that, 1e-3, 1e-4 * np.abs(that).max())


@pytest.mark.tensorflow
@pytest.mark.parametrize("more", [-5, 0, 3])
@pytest.mark.parametrize("name", ["window", "causal window"])
def test_local_attention_has_it_too(name, more):
    mask = {"window": masks.window(5), "causal window": masks.causal() & masks.window(7)}[name]
    arguments = operands_of((2, 4, 2, 41, 41 + more))
    query, key, value, upstream = arguments
    from tfattn.core.paths.blockwise.block_scores import Product
    from tfattn.core.paths.blockwise.local import LocalPasses

    assert LocalPasses.of(query, key, Product(True), mask, block=(8, 8)) is not None

    def run(path, mask, block):
        def functional(query, key, value):
            output, sums = attend(query, value, key, mask=mask, path=path, return_log_sum_exp=True)
            total = ops.sum(output * upstream)
            total += ops.sum(ops.where(ops.equal(sums, -np.inf), 0.0, sums * upstream[..., 0]))
            return total, [output, sums]

        with blocks_of(block):
            (_, results), gradients = both_ways(functional, (query, key, value), has_aux=True)
        return [*results, *gradients]

    assert_close(run("streamed", mask, (8, 8)), run("dense", mask, None), 2e-5)


@pytest.mark.tensorflow
@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("jit", [False, True], ids=["graph", "XLA"])
def test_a_graph_of_unknown_lengths_equals_eager(jit):
    function, arguments = problem(11)
    unknown = [tf.TensorSpec((None, x.shape[1], None, x.shape[3])) for x in arguments]

    @tf.function(input_signature=[unknown], jit_compile=jit)
    def compiled(arguments):
        return both(function, arguments, masks.causal(), "streamed")

    assert_close(compiled(arguments), both(function, arguments, masks.causal(), "dense"))


@pytest.mark.tensorflow
def test_a_graph_that_chooses_when_it_runs_gives_it_on_either_path(monkeypatch):
    least = thresholds.LEAST["cpu"]._replace(pairs=100 * 100 * B * H, scores=100 * 100 * B * H)
    monkeypatch.setitem(thresholds.LEAST, "cpu", least)
    spec = [tf.TensorSpec((B, H, None, D), "float16")] * 3

    @tf.function(input_signature=spec)
    def run(query, key, value):
        with tf.GradientTape() as tape:
            tape.watch([query, key, value])
            output, sums = attend(
                query, value, key, mask=masks.causal(), dropout=0.0, return_log_sum_exp=True
            )
            total = ops.sum(ops.cast(output, "float32")) + ops.sum(sums)
        return output, sums, *tape.gradient(total, [query, key, value])

    for length in (20, 120):
        arguments = operands_of((B, H, H, length, length), (D, D), "float16")[:3]
        query, key, value = wide(arguments)
        found = run(*arguments)
        assert dtype_of(found[1]) == "float32"
        expected = attend(query, value, key, mask=masks.causal(), return_log_sum_exp=True)
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
def test_to_ask_for_it_changes_no_bit_of_the_output(path):
    _, (query, key, value) = problem(17)
    options = {"mask": masks.causal(), "path": path}
    np.testing.assert_array_equal(
        attend(query, value, key, **options, return_log_sum_exp=True)[0],
        attend(query, value, key, **options),
    )


@pytest.mark.parametrize("path", PATHS)
def test_dropout_does_not_change_it(path):
    _, (query, key, value) = problem(19)
    sums, dropped = (
        attend(query, value, key, path=path, return_log_sum_exp=True, dropout=rate, seed=3)
        for rate in (0.0, 0.5)
    )
    np.testing.assert_allclose(dropped[1], sums[1], 1e-6)
    assert np.abs(dropped[0] - sums[0]).max() > 0.1


@pytest.mark.parametrize("path", PATHS)
def test_three_axes_give_two(path):
    function, arguments = problem(23, heads=(1, 1))
    whole = both(function, arguments, masks.causal(), "dense")
    here = both(function, [x[:, 0] for x in arguments], masks.causal(), path)
    assert here[1].shape == (B, T)
    np.testing.assert_allclose(here[1], whole[1][:, 0], 1e-5, 1e-5)
    assert_close(here[:1], [whole[0][:, 0]])
