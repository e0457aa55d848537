"""The streamed path against the dense path and the oracle, on every backend."""

import keras
import numpy as np
import pytest
from keras import ops

from tests import reference
from tests.helpers import tensors
from tests.helpers.blockwise import (
    BIASES,
    MASKS,
    SCORES,
    UPSTREAM,
    B,
    D,
    Earlier,
    H,
    OfTheSquare,
    T,
    V,
    assert_close,
    blocks_of,
    both_ways,
    cover,
    mask_of,
    operands_of,
    problem,
    scored,
    second,
    wide,
)
from tests.helpers.tensors import BACKEND, FLOAT64, as_tensor, dtype_of, numpy
from tfattn import attend, masks
from tfattn.core.engine import STREAMING_BACKENDS

pytestmark = pytest.mark.skipif(BACKEND not in STREAMING_BACKENDS, reason="nothing streams here")

# Any two kinds of anything but masks meet, and every mask comes.
KINDS = cover(
    score=SCORES,
    bias=[bias for bias in BIASES if bias != "full"],
    block=[(13, 17), (7, 6), (5, 17), (64, 64)],
    heads=[(H, H), (H, 2), (H, 1)],
    return_log_sum_exp=[False, True],
)
ROWS = [{"mask": mask, **row} for mask, row in zip(MASKS, KINDS, strict=True)]


def named(rows):
    return [pytest.param(*row, id=" ".join(map(str, row[1].values()))) for row in enumerate(rows)]


@pytest.mark.parametrize("seed, row", named(ROWS))
def test_output_and_every_gradient_equal_the_dense_path(seed, row):
    mask, score, bias, block, heads, return_log_sum_exp = row.values()
    function, arguments = problem(seed, score, heads, bias)
    options = {"biased": bias != "none", "return_log_sum_exp": return_log_sum_exp}
    rule = mask_of(mask, seed)
    here = both_ways(function, arguments, rule, "streamed", block=block, **options)
    assert_close(here, both_ways(function, wide(arguments), rule, "dense", **options))


SIZES = cover(
    batch=[1, 3],
    heads=[1, 2],
    queries=[1, 7],
    keys=[7, 1],
    widths=[(1, 2), (7, 3)],
    block=[(1, 1), (4, 4), (2, 5)],
    mask=["causal", "padding", "window"],
)


@pytest.mark.parametrize("seed, row", named(SIZES))
def test_output_of_any_shape_equals_the_oracle(seed, row):
    batch, heads, queries, keys, widths, block, mask = row.values()
    query, key, value, _ = map(numpy, operands_of((batch, heads, heads, queries, keys), widths))
    lengths = np.random.default_rng(seed).integers(0, keys + 1, batch)
    rule, seen = {
        "causal": (masks.causal(), reference.causal(queries, keys)),
        "padding": (masks.padding(lengths), reference.padding(lengths, keys)[:, None]),
        "window": (masks.window(2), reference.window(2, queries, keys)),
    }[mask]
    expected, _ = reference.attention(reference.dot_product(query, key), value, seen)
    with blocks_of(block):
        output = attend(query, value, key=key, mask=rule, path="streamed")
    np.testing.assert_allclose(numpy(output), expected, 1e-4, 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    "mask, queries, keys, block",
    [
        (masks.causal(), 41, 41, (7, 7)),  # padded, with a last block of one
        (masks.causal(), 21, 22, (7, 8)),  # blocks that are no squares, three of each
        (masks.causal(), 24, 9, (8, 8)),  # queries before all keys
        (Earlier(8), 24, 32, (8, 8)),  # by position the diagonal is another
        (~masks.causal(), 16, 16, (4, 4)),  # a query that sees nothing
        (Earlier(-3), 40, 37, (8, 8)),  # queries of the last block see padding
        (OfTheSquare(), 21, 21, (4, 4)),
    ],
)
def test_a_relative_mask_of_any_lengths_and_blocks(mask, queries, keys, block):
    *arguments, upstream = operands_of((1, 1, 1, queries, keys), (7, 5))
    function, options = scored("scaled dot", 7, 1, None)[0], {"upstream": upstream}
    here = both_ways(function, arguments, mask, block=block, **options)
    assert_close(here, both_ways(function, arguments, mask, "dense", **options), 2e-5)
    assert np.any(numpy(here[0])) == np.any(mask.dense(queries, keys))


@pytest.mark.slow
def test_three_axes():
    rules = (masks.causal(), masks.padding([5, 0]), None)
    for score, rule in zip(("scaled dot", "additive", "gaussian"), rules, strict=True):
        function, arguments = problem(3, score, heads=(1, 1))
        arguments = [x[:, 0] if len(x.shape) == 4 else x for x in arguments]
        sums = {"return_log_sum_exp": rule is None}
        here = both_ways(function, arguments, rule, **sums)
        assert_close(here, both_ways(function, arguments, rule, "dense", **sums))
    assert here[1].shape == (B, T)


@pytest.mark.slow
@pytest.mark.parametrize("score, bias", [("scaled dot", "square"), ("additive", "by head and key")])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", FLOAT64])
def test_other_dtypes(dtype, score, bias):
    function, arguments = problem(13, score, bias=bias, dtype=dtype)
    here = both_ways(function, arguments, masks.causal(), biased=True)
    assert all(dtype_of(x) == dtype for x in here)
    there = both_ways(function, wide(arguments), masks.causal(), "dense", biased=True)
    assert_close(here, there, {"float16": 4e-3, "bfloat16": 4e-2, "float64": 1e-9}[dtype])


@pytest.mark.slow
@pytest.mark.parametrize(
    "dtypes", [("float16", "float32", "float32"), ("float32", "bfloat16", "float16")]
)
def test_operands_of_several_dtypes(dtypes):
    function, arguments = problem(6, heads=(2, 2))
    arguments = [ops.cast(x, dtype) for x, dtype in zip(arguments, dtypes, strict=True)]
    here = both_ways(function, arguments, masks.causal())
    assert [dtype_of(x) for x in here] == [dtypes[2], *dtypes]
    assert_close(here, both_ways(function, wide(arguments), masks.causal(), "dense"), 3e-2)


@pytest.mark.slow
@pytest.mark.parametrize("heads", [(2, 2), (2, 1)], ids=["own", "shared"])
def test_a_score_that_is_undefined_at_zero_meets_real_tokens_alone(heads):
    function, arguments = problem(61, "cosine", heads)
    here = both_ways(function, arguments, masks.causal())
    assert_close(here, both_ways(function, arguments, masks.causal(), "dense"))


@pytest.mark.slow
@pytest.mark.parametrize("score", ["scaled dot", "additive", "gaussian"])
def test_what_is_empty_pools_to_nothing_or_to_zero(score):
    function, parameters = scored(score, D, 2, np.random.default_rng(1))
    no_rows = [(0, 7, 11)] if BACKEND != "torch" else []
    for batch, queries, keys in [(2, 0, 11), (2, 7, 0), *no_rows]:
        *arguments, upstream = operands_of((batch, 2, 2, queries, keys), (D, V))
        arguments += [as_tensor(x, "float32") for x in parameters]
        here, there = (
            both_ways(function, arguments, masks.causal(), path, upstream=upstream, block=None)
            for path in ("streamed", "dense")
        )
        assert [x.shape for x in here] == [x.shape for x in there]
        assert_close(here, there)


@pytest.mark.slow
@pytest.mark.parametrize(
    "score, mask",
    [
        ("scaled dot", "causal"),
        ("additive", "padding"),
        ("gaussian", "none"),
        ("capped scaled dot", "causal"),
    ],
)
def test_second_derivatives_equal_the_dense_path(score, mask):
    function, arguments = problem(43, score, heads=(2, 1))
    rule = mask_of(mask, 43)
    here, there = (second(function, arguments, rule, path) for path in ("streamed", "dense"))
    assert_close(here, there, 1e-3)


@pytest.mark.slow
def test_second_derivatives_in_a_graph_where_one_tensor_comes_twice():
    rng = np.random.default_rng(47)
    arguments = [as_tensor(rng.normal(size=size), "float32") for size in ((B, 1, T, D), (1, T))]

    def penalty(path, x, bias):
        def output(x, bias):
            return attend(x, x, bias=bias, path=path) ** 3

        _, gradients = tensors.both_ways(output, [x, bias])
        return sum(ops.sum(gradient**2) for gradient in gradients)

    def gradients(path):
        run = tensors.compiled(lambda *x: tensors.both_ways(lambda *x: penalty(path, *x), x)[1])
        return run(*arguments)

    here, there = gradients("streamed"), gradients("dense")
    for this, that in zip(here, there, strict=True):
        np.testing.assert_allclose(this, that, 1e-3, 1e-4 * np.abs(that).max())


@pytest.mark.slow
def test_the_second_use_in_one_gradient():
    function, (query, key, value) = problem(41, heads=(2, 2))

    def twice(path):
        def run(query):
            def once(query):
                return attend(query, value, key=key, score=function, mask=masks.causal(), path=path)

            return once(ops.concatenate([once(query), query[..., V:]], -1)) ** 2

        with blocks_of((7, 9)):
            return tensors.both_ways(run, [query])[1]

    assert_close(twice("streamed"), twice("dense"))


def dropped(query, key, value, rate, seed, block=(7, 6)):
    with blocks_of(block):
        return attend(query, value, key=key, dropout=rate, seed=seed, path="streamed")


def weights_left(query, key, *arguments):
    """The weights after dropout, read off with the identity as values."""
    identity = ops.broadcast_to(ops.eye(key.shape[2]), (*key.shape[:3], key.shape[2]))
    return numpy(dropped(query, key, identity, *arguments))


# Of the second three rows of the batch fill a step.
@pytest.mark.parametrize("rows, block", [(1, (16, 32)), (9, (128, 192))])
def test_no_two_blocks_share_a_dropout_pattern(rows, block):
    kept = weights_left(ops.zeros((rows, 1, 64, 2)), ops.zeros((rows, 1, 96, 2)), 0.5, 3, block)
    kept = (kept > 0).reshape(rows, 4, 16, 3, 32).swapaxes(2, 3).reshape(rows * 12, 16 * 32)
    same = (kept[:, None] == kept).mean(-1)[~np.eye(len(kept), dtype=bool)]
    assert np.all(np.abs(same - 0.5) < 0.15)  # 6 deviations of 512 coins
    np.testing.assert_allclose(same.mean(), 0.5, atol=0.01)


@pytest.mark.slow
def test_dropout_drops_at_its_rate_and_keeps_the_expected_sum():
    query, key, ones = (
        ops.zeros((1, 8, 256, 4)),
        ops.zeros((1, 8, 512, 4)),
        ops.ones((1, 8, 512, 1)),
    )
    sums = numpy(dropped(query, key, ones, 0.1, 3, (64, 64)))
    assert abs(sums.mean() - 1.0) < 2e-3
    assert abs(sums.std() - np.sqrt(0.1 / 0.9 / 512)) < 1e-3  # of independent weights


@pytest.mark.slow
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_dropout_is_the_same_forward_and_backward(compiled):
    function, arguments = problem(31, heads=(2, 2))
    kept = as_tensor((weights_left(*arguments[:2], 0.3, 5) > 0) / np.float32(1 - 0.3))

    def by_hand(query, key, value):
        return ops.matmul(ops.softmax(function(query, key)) * kept, value)

    def run(*arguments):
        return both_ways(function, arguments, dropout=0.3, seed=5)

    run = tensors.compiled(run, jit=True) if compiled else run
    output, gradients = tensors.both_ways(by_hand, arguments, UPSTREAM[:, :2])
    assert_close(run(*arguments), [output, *gradients], 1e-3)


def test_dropout_follows_its_seed():
    zeros, generator = ops.zeros((1, 1, 200, 2)), keras.random.SeedGenerator(1)
    five, again, six, once, twice = (
        weights_left(zeros[:, :, :4], zeros, 0.5, seed, (4, 100)) > 0
        for seed in (5, 5, 6, generator, generator)
    )
    np.testing.assert_array_equal(five, again)
    assert np.any(five != six) and np.any(once != twice)
    # Nor does a seed give the noise of its neighbor, a block further on.
    assert np.any(five[..., 100:] != six[..., :100])


def pushed_forward(function, x, tangent):
    """The derivative of the function in the tangent's direction, in forward mode."""
    x, tangent = as_tensor(x), as_tensor(tangent)
    if BACKEND == "jax":
        return tensors.jax.jvp(function, (x,), (tangent,))[1]
    if BACKEND == "torch":
        return tensors.torch.func.jvp(function, (x,), (tangent,))[1]
    with tensors.tf.autodiff.ForwardAccumulator(x, tangent) as accumulator:
        output = function(x)
    return accumulator.jvp(output)


X, DIRECTION = np.random.default_rng(5).normal(size=(2, 1, 2, 11, 4)).astype("float32")
PUSHED = {
    "causal": lambda x, path: attend(x, x, mask=masks.causal(), path=path),
    "bias": lambda x, path: attend(
        x, x * x, bias=x[..., :1], mask=masks.window(3) & masks.padding([7]), path=path
    ),
    "sums": lambda x, path: attend(x, x, path=path, return_log_sum_exp=True)[1],
}


@pytest.mark.filterwarnings("ignore:.torch.jit.script:FutureWarning")
@pytest.mark.parametrize("name", PUSHED)
def test_derivatives_in_forward_mode_equal_the_dense_path(name):
    dense, streamed = (
        numpy(pushed_forward(lambda x, path=path: PUSHED[name](x, path), X, DIRECTION))
        for path in ("dense", "streamed")
    )
    assert np.abs(dense).max() > 0.1
    np.testing.assert_allclose(streamed, dense, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.tensorflow
def test_a_graph_is_pushed_forward_through_too():
    def call(x, path="streamed"):
        return attend(x, x, mask=masks.causal(), path=path)

    traced = tensors.tf.function(call, autograph=False)
    dense = pushed_forward(lambda x: call(x, "dense"), X, DIRECTION)
    np.testing.assert_allclose(pushed_forward(traced, X, DIRECTION), dense, rtol=1e-4, atol=1e-5)


@pytest.mark.tensorflow
def test_forward_mode_inside_of_a_graph_takes_the_dense_path_and_refuses_another():
    @tensors.tf.function(autograph=False)
    def derivative(x, tangent, path):
        return pushed_forward(lambda x: attend(x, x, mask=masks.causal(), path=path), x, tangent)

    dense = pushed_forward(lambda x: attend(x, x, mask=masks.causal()), X, DIRECTION)
    np.testing.assert_allclose(derivative(X, DIRECTION, None), dense, rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="attend: `path` must be 'dense' for a `tf.autodiff"):
        derivative(X, DIRECTION, "streamed")
