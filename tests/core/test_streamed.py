"""The streamed path against the dense path and the oracle, on every backend."""

import keras
import numpy as np
import pytest
from keras import ops

from tests.helpers import tensors
from tests.helpers.blockwise import (
    BIASES,
    MASKS,
    SCORES,
    UPSTREAM,
    B,
    Case,
    D,
    Earlier,
    OfTheSquare,
    S,
    T,
    V,
    assert_close,
    blocks_of,
    both_ways,
    check,
    mask_of,
    problem,
    second,
    sum_of,
)
from tests.helpers.paths import PATHS
from tests.helpers.tensors import BACKEND, FLOATS, as_tensor, numpy
from tfattn import attend, masks
from tfattn.core.engine import STREAMING_BACKENDS

pytestmark = pytest.mark.skipif(BACKEND not in STREAMING_BACKENDS, reason="nothing streams here")

NAN, INF = float("nan"), float("inf")
SQUARE = {"bias": "square", "block": (7, 6)}
BY_KEY = {"bias": "by head and key", "score": "additive"}
EDGES = {
    "one query and key": Case("causal", lengths=(1, 1), block=(4, 4), sums=True),
    "one query": Case("padding", lengths=(1, 7), block=(1, 1), widths=(1, 2)),
    "one key": Case("window", lengths=(7, 1), block=(4, 4), heads=(2, 1)),
    "nothing is seen": Case("nothing", heads=(4, 2), sums=True),
    # By distance, where the first key is seen by no one either; the second is local attention.
    "the last query sees nothing": Case(~masks.causal(), lengths=(24, 24), block=(4, 4)),
    "the last query sees nothing of a window": Case(
        ~masks.causal() & masks.window(4), lengths=(24, 24), block=(4, 4)
    ),
    "padding, and a last block of one": Case("causal", lengths=(41, 41), block=(7, 7)),
    "blocks that are no squares": Case("causal", lengths=(21, 22), block=(7, 8)),
    "queries before all keys": Case("causal", lengths=(24, 9), block=(8, 8)),
    "another diagonal": Case(Earlier(8), lengths=(24, 32), block=(8, 8)),
    "later keys, and padding": Case(Earlier(-3), lengths=(40, 37), block=(8, 8)),
    "a custom window": Case(OfTheSquare(), lengths=(21, 21), block=(4, 4)),
    "three axes": Case("causal", axes=3),
    "three axes, additive": Case(masks.padding([5, 0]), "additive", axes=3),
    "three axes, gaussian": Case(None, "gaussian", axes=3, sums=True),
    "undefined at zero": Case("causal", "cosine", heads=(2, 2)),
    "undefined at zero, shared": Case("causal", "cosine", heads=(2, 1)),
    "a NaN that some see": Case("window", heads=(2, 2), broken=NAN, reached=True, sums=True),
    "no queries": Case("causal", lengths=(0, 11), heads=(2, 2), block=None),
    "no keys": Case("causal", lengths=(7, 0), heads=(2, 2), block=None),
    "no keys, additive": Case("causal", "additive", lengths=(7, 0), heads=(2, 2), block=None),
    "no keys, gaussian": Case("causal", "gaussian", lengths=(7, 0), heads=(2, 2), block=None),
    **{
        f"{x}, {y['bias']}": Case("causal", dtypes=(x,) * 3, heads=(2, 2), **y)
        for x in FLOATS
        if x != "float32"
        for y in (SQUARE, BY_KEY)
    },
    "several dtypes": Case("causal", heads=(2, 2), dtypes=("float16", "float32", "float32")),
    "other dtypes": Case("causal", heads=(2, 2), dtypes=("float32", "bfloat16", "float16")),
}
if BACKEND == "tensorflow":
    wider = ("float32", "float64", "float64")
    EDGES["wider keys and values"] = Case(heads=(4, 4), dtypes=wider, block=(4, 6))
if BACKEND != "torch":
    EDGES["no rows"] = Case("causal", batch=0, lengths=(7, 11), heads=(2, 2), block=None)


# What other backends than TensorFlow run for each change.
QUICK = (
    "nothing is seen",
    "padding, and a last block of one",
    "undefined at zero, shared",
    "a NaN that some see",
    "bfloat16, square",
)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.quick] * (name in QUICK)) for name in EDGES]
)
def test_streamed_edge_equals_dense_and_oracle(name):
    check(EDGES[name])


def drawn(number):
    """A case by its number: each mask in turn, and all else by chance."""
    rng = np.random.default_rng([11, number])

    def choose(options):
        return options[rng.integers(len(options))]

    mask, dtype = [*MASKS][number % len(MASKS)], choose(FLOATS)
    return Case(
        mask,
        score=choose([*SCORES, "gaussian"]),
        bias=choose([*BIASES]),
        heads=choose(
            [(4, 4), (4, 2), (4, 1)] if mask == "by head" else [(1, 1), (2, 2), (4, 2), (3, 1)]
        ),
        lengths=choose([(T, S), (S, T), (T, T), (1, 7), (7, 1), (9, 12), (0, 7), (7, 0)]),
        widths=choose([(D, V), (1, 2), (7, 3)]),
        batch=choose([B, 1]),
        dtypes=choose([("float32",) * 3] * 2 + [(dtype,) * 3, [choose(FLOATS) for _ in range(3)]]),
        block=choose([(5, 6), (7, 7), (5, 17), (13, 17), (64, 64)]),
        sums=choose([False, True]),
        broken=None if mask == "none" else choose([None, NAN, INF, -INF]),
        reached=choose([False, True]),
        seed=number,
    )


# JAX compiles each of them for some seconds.
@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(MASKS) if BACKEND == "jax" else 60))
def test_streamed_drawn_call_equals_dense_and_oracle(number):
    print(drawn(number))
    check(drawn(number))


# The last is local attention on TensorFlow; under both with sums some queries see nothing.
@pytest.mark.slow
@pytest.mark.parametrize(
    "score, mask, block, sums",
    [
        ("scaled dot", "causal", (7, 9), False),
        ("gaussian", "none", (7, 9), False),
        ("capped scaled dot", "causal", (7, 9), False),
        ("additive", masks.explicit(np.arange(T)[:, None] % 3 > 0), (7, 9), True),
        ("scaled dot", ~masks.causal() & masks.window(5), (4, 4), True),
    ],
)
def test_streamed_second_derivatives_equal_dense(score, mask, block, sums):
    function, arguments = problem(43, score, heads=(2, 1))
    rule = mask_of(mask, 43) if isinstance(mask, str) else mask
    here, there = (second(function, arguments, rule, x, block, sums) for x in PATHS)
    assert_close(here, there, 1e-3)


@pytest.mark.slow
def test_streamed_second_derivatives_in_graph_of_one_tensor_twice_equal_dense():
    rng = np.random.default_rng(47)
    arguments = [as_tensor(rng.normal(size=size), "float32") for size in ((B, 1, T, D), (1, T))]

    def gradients(path, *arguments):
        def output(x, bias):
            return attend(x, x, bias=bias, path=path) ** 3

        return tensors.both_ways(lambda *x: sum_of(tensors.both_ways(output, x)[1]), arguments)[1]

    here = tensors.compiled(lambda *x: gradients("streamed", *x))(*arguments)
    for this, that in zip(here, gradients("dense", *arguments), strict=True):
        np.testing.assert_allclose(this, that, 1e-3, 1e-4 * np.abs(that).max())


@pytest.mark.slow
def test_streamed_call_used_twice_has_dense_gradient():
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
def test_streamed_dropout_of_two_blocks_is_independent(rows, block):
    kept = weights_left(ops.zeros((rows, 1, 64, 2)), ops.zeros((rows, 1, 96, 2)), 0.5, 3, block)
    kept = (kept > 0).reshape(rows, 4, 16, 3, 32).swapaxes(2, 3).reshape(rows * 12, 16 * 32)
    same = (kept[:, None] == kept).mean(-1)[~np.eye(len(kept), dtype=bool)]
    assert np.all(np.abs(same - 0.5) < 0.15)  # 6 deviations of 512 coins
    np.testing.assert_allclose(same.mean(), 0.5, atol=0.01)


@pytest.mark.slow
def test_streamed_dropout_keeps_rate_and_expected_sum():
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
def test_streamed_dropout_is_the_same_in_both_passes(compiled):
    function, arguments = problem(31, heads=(2, 2))
    kept = as_tensor((weights_left(*arguments[:2], 0.3, 5) > 0) / np.float32(1 - 0.3))

    def by_hand(query, key, value):
        return ops.matmul(ops.softmax(function(query, key)) * kept, value)

    def run(*arguments):
        return both_ways(function, arguments, dropout=0.3, seed=5)

    run = tensors.compiled(run, jit=True) if compiled else run
    output, gradients = tensors.both_ways(by_hand, arguments, UPSTREAM[:, :2])
    assert_close(run(*arguments), [output, *gradients], 1e-3)


def test_streamed_dropout_follows_its_seed():
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


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.torch.jit.script:FutureWarning")
@pytest.mark.parametrize("name", PUSHED)
def test_streamed_forward_mode_equals_dense(name):
    dense, streamed = (
        numpy(pushed_forward(lambda x, path=path: PUSHED[name](x, path), X, DIRECTION))
        for path in ("dense", "streamed")
    )
    assert np.abs(dense).max() > 0.1
    np.testing.assert_allclose(streamed, dense, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.tensorflow
def test_streamed_graph_in_forward_mode_equals_dense():
    def call(x, path="streamed"):
        return attend(x, x, mask=masks.causal(), path=path)

    traced = tensors.tf.function(call, autograph=False)
    dense = pushed_forward(lambda x: call(x, "dense"), X, DIRECTION)
    np.testing.assert_allclose(pushed_forward(traced, X, DIRECTION), dense, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.tensorflow
def test_forward_mode_inside_graph_is_dense_and_refuses_streaming():
    @tensors.tf.function(autograph=False)
    def derivative(x, tangent, path):
        return pushed_forward(lambda x: attend(x, x, mask=masks.causal(), path=path), x, tangent)

    dense = pushed_forward(lambda x: attend(x, x, mask=masks.causal()), X, DIRECTION)
    np.testing.assert_allclose(derivative(X, DIRECTION, None), dense, rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="attend: `path` must be 'dense' for a `tf.autodiff"):
        derivative(X, DIRECTION, "streamed")
