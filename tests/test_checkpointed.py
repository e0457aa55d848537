"""The streamed path of JAX and PyTorch gives what the dense path gives, and holds no square."""

import itertools
from pathlib import Path

import keras
import numpy as np
import pytest
from keras import ops

import tfattn
from tests import tensors
from tests.blockwise import (
    BIASES,
    MASKS,
    SCORES,
    UPSTREAM,
    B,
    Earlier,
    H,
    S,
    T,
    assert_close,
    blocks_of,
    cover,
    mask_of,
    operands_of,
    problem,
)
from tests.processes import printed
from tests.tensors import BACKEND, as_tensor, numpy
from tfattn import attend, masks
from tfattn.core import scores as score_functions
from tfattn.core.paths import checkpointed, choice, devices, fused

pytestmark = pytest.mark.skipif(
    BACKEND not in ("jax", "torch"), reason="about JAX and PyTorch: others have paths of their own"
)

PATHS = ["streamed", "dense"]
BLOCKS = [(4, 6), (13, 17), (5, 3), (64, 64)]
HEADS = [(H, H), (H, 2), (H, 1)]
KINDS = dict(score=SCORES, bias=list(BIASES), block=BLOCKS, heads=HEADS)
ROWS = [{"mask": mask, **row} for row, mask in zip(cover(**KINDS), itertools.cycle(MASKS))]


def both_ways(function, arguments, mask=None, path="streamed", biased=False, block=(4, 6), **more):
    """Output, and the gradient of a fixed functional of it, of each argument."""
    upstream = UPSTREAM if len(arguments[0].shape) == 4 else UPSTREAM[:, 0]

    def run(query, key, value, *rest):
        bias = rest[-1] if biased else None
        parameters = rest[:-1] if biased else rest
        return attend(query, value, key, function, parameters, mask, bias, path=path, **more)

    with blocks_of(block):
        output, gradients = tensors.both_ways(tensors.compiled(run), arguments, upstream)
    return [output, *connected(gradients, arguments)]


def connected(gradients, arguments):
    """Gradients, zeros where an argument reaches no output."""
    both = zip(gradients, arguments, strict=True)
    return [ops.zeros_like(x) if gradient is None else gradient for gradient, x in both]


@pytest.mark.parametrize(
    "seed, row",
    [
        pytest.param(
            at, row, id=" ".join(map(str, row.values())), marks=[pytest.mark.slow] * (at > 3)
        )
        for at, row in enumerate(ROWS)
    ],
)
def test_output_and_every_gradient_equal_the_dense_path(seed, row):
    function, arguments = problem(seed, row["score"], row["heads"], row["bias"])
    rule, biased = mask_of(row["mask"], seed), row["bias"] != "none"
    here = both_ways(function, arguments, rule, "streamed", biased, row["block"])
    assert_close(here, both_ways(function, arguments, rule, "dense", biased))


@pytest.mark.slow(keep=2)
@pytest.mark.parametrize("rule", [None, masks.causal(), masks.padding([5, 0]), Earlier(1)])
def test_three_axes(rule):
    function, arguments = problem(3)
    arguments = [x[:, 0] for x in arguments]
    here = both_ways(function, arguments, rule)
    assert_close(here, both_ways(function, arguments, rule, "dense"))


@pytest.mark.slow(keep=2)
@pytest.mark.parametrize("rule", [None, masks.causal(), masks.window(3)])
@pytest.mark.parametrize("dtype, tolerance", [("float16", 3e-3), ("bfloat16", 3e-2)])
def test_half_precision(dtype, tolerance, rule):
    function, arguments = problem(4, dtype=dtype)
    here = both_ways(function, arguments, rule)
    assert {tensors.dtype_of(x) for x in here} == {dtype}
    exact = [ops.cast(x, "float32") for x in arguments]
    assert_close(here[:1], both_ways(function, exact, rule, "dense")[:1], tolerance)


@pytest.mark.parametrize(
    "dtypes",
    [
        ("float16", "float32", "float32"),
        ("float32", "bfloat16", "float16"),
        ("bfloat16",) * 2 + ("float32",),
    ],
)
def test_operands_of_several_dtypes(dtypes):
    function, arguments = problem(6)
    arguments = [ops.cast(x, dtype) for x, dtype in zip(arguments, dtypes, strict=True)]
    here, there = (both_ways(function, arguments, masks.causal(), path) for path in PATHS)
    assert [tensors.dtype_of(x) for x in here] == [dtypes[2], *dtypes]
    exact = [ops.cast(x, "float32") for x in arguments]
    assert_close(here, both_ways(function, exact, masks.causal(), "dense"), 3e-2)
    assert_close(here, there, 3e-2)


@pytest.mark.slow(keep=2)
@pytest.mark.parametrize("score", ["scaled dot", "additive", "gaussian"])
@pytest.mark.parametrize("rule", [None, masks.causal()])
def test_second_derivatives_equal_the_dense_path(score, rule):
    function, arguments = problem(43, score)
    assert_close(*(second(function, arguments, rule, path) for path in ("streamed", "dense")), 1e-3)


def second(function, arguments, rule, path, block=(4, 6)):
    """Gradients of the sum of squares of all gradients."""

    def total(*arguments):
        def output(query, key, value, *parameters):
            return attend(query, value, key, function, parameters, rule, path=path) ** 3

        with blocks_of(block):
            _, gradients = tensors.both_ways(output, arguments)
        return sum(ops.sum(gradient**2) for gradient in gradients)

    _, gradients = tensors.both_ways(tensors.compiled(total), arguments)
    return connected(gradients, arguments)


@pytest.mark.slow(keep=2)
@pytest.mark.parametrize("broken", [float("nan"), float("inf"), -float("inf"), 3e38])
@pytest.mark.parametrize("score", ["scaled dot", "additive", "gaussian"])
def test_what_lies_under_the_mask_reaches_nothing(score, broken):
    function, (query, key, value, *rest) = problem(19, score)
    rule = masks.padding([11, 11]) & masks.causal()
    clean = both_ways(function, [query, key, value, *rest], rule)
    hidden = ops.arange(S)[:, None] >= 11
    key, value = ops.where(hidden, broken, key), ops.where(hidden, broken, value)
    assert_close(both_ways(function, [query, key, value, *rest], rule), clean, 1e-6)


@pytest.mark.slow(keep=4)
@pytest.mark.parametrize(
    "rule",
    [
        masks.causal(),
        masks.causal() & masks.strided(2),
        ~masks.window(5),
        ~masks.causal(),
        masks.explicit(np.random.default_rng(1).random((31, 31)) < 0.3),
    ],
)
@pytest.mark.parametrize("which, at", [("key", 17), ("value", 0), ("value", 30)])
def test_a_broken_token_reaches_the_queries_that_may_see_it_and_no_other(which, at, rule):
    query, key, value, _ = operands_of((1, 2, 2, 31, 31))
    operands = {"key": key, "value": value}
    operands[which] = ops.where(ops.arange(31)[:, None] == at, float("nan"), operands[which])
    with blocks_of((8, 6)):
        clean = numpy(attend(query, value, key, mask=rule, path="streamed"))
        found = numpy(attend(query, **operands, mask=rule, path="streamed"))
    sees = numpy(rule.dense(31, 31))[:, at]
    np.testing.assert_array_equal(found[:, :, ~sees], clean[:, :, ~sees])
    assert np.isnan(found[:, :, sees]).all()


def test_a_broken_query_that_sees_nothing_pools_to_zero():
    query, key, value, _ = operands_of((1, 2, 2, 31, 31))
    query = ops.where(ops.arange(31)[:, None] == 4, float("nan"), query)
    with blocks_of((8, 6)):
        output = numpy(attend(query, value, key, mask=masks.prefix(0), path="streamed"))
    assert np.all(output == 0)


def test_fully_masked_queries_pool_to_zero_with_zero_gradients():
    function, arguments = problem(29)
    # some rows, and a whole batch row
    rule = masks.explicit(ops.arange(T)[:, None] % 3 > 0) & masks.padding([S, 0])
    output, *gradients = map(numpy, both_ways(function, arguments, rule))
    assert np.all(output[:, :, ::3] == 0.0) and np.all(output[1] == 0.0)
    assert np.all(gradients[0][:, :, ::3] == 0.0) and all(np.all(g[1] == 0.0) for g in gradients)
    assert all(np.isfinite(g).all() for g in gradients)


@pytest.mark.slow(keep=2)
@pytest.mark.parametrize("block", [(4, 6), (64, 64)])
@pytest.mark.parametrize("hiding", [-np.inf, np.finfo("float32").min, -1e9])
def test_a_bias_that_hides_keys_is_no_mask_and_no_nan(hiding, block):
    function, (query, key, value) = problem(31)
    bias = np.zeros((B, 1, T, S), "float32")
    bias[:, :, ::2, 3:] = hiding
    bias[:, :, 5] = hiding  # every key: by −inf there is nothing to see, by less the mean of all
    arguments = [query, key, value, as_tensor(bias)]
    here = both_ways(function, arguments, None, "streamed", True, block)
    assert_close(here, both_ways(function, arguments, None, "dense", True))
    assert all(np.isfinite(numpy(x)).all() for x in here)
    assert (numpy(here[0])[:, :, 5] == 0).all() == (hiding == -np.inf)


@pytest.mark.parametrize("rule", [None, masks.causal(), masks.prefix(0)])
def test_the_log_of_the_sums_and_its_gradient_equal_the_dense_path(rule):
    _, (query, key, value) = problem(7)
    upstream = (UPSTREAM, np.random.default_rng(1).normal(size=(B, H, T)))
    found = []
    for path in ("streamed", "dense"):

        def run(query, key, value, path=path):
            return attend(query, value, key, mask=rule, path=path, return_log_sum_exp=True)

        with blocks_of((4, 6)):
            run = tensors.compiled(run)
            outputs, gradients = tensors.both_ways(run, [query, key, value], upstream)
        found.append([*outputs, *connected(gradients, [query, key, value])])
    assert_close(*found)


def dropped(query, key, value, seed, rate=0.25, block=(4, 6)):
    with blocks_of(block):
        return attend(query, value, key, dropout=rate, seed=seed, path="streamed")


def test_dropout_drops_at_its_rate_differently_in_each_block_and_keeps_the_expected_sum():
    queries, keys = 60, 600
    query, key = (
        as_tensor(np.zeros((1, 1, queries, 2), "float32")),
        as_tensor(np.zeros((1, 1, keys, 2), "float32")),
    )
    value = as_tensor(np.eye(keys, dtype="float32")[None, None])
    weights = numpy(dropped(query, key, value, seed=3, block=(20, 100)))[0, 0] * keys
    assert np.allclose(np.unique(weights), [0, 1 / 0.75], atol=1e-5)
    assert abs((weights == 0).mean() - 0.25) < 0.01
    patterns = weights.reshape(3, 20, 6, 100).swapaxes(1, 2).reshape(18, -1) == 0
    assert len(np.unique(patterns, axis=0)) == 18


def test_dropout_follows_its_seed_and_is_the_same_forward_and_backward():
    _, (query, key, value) = problem(8)
    once, again = (numpy(dropped(query, key, value, seed=5)) for _ in range(2))
    np.testing.assert_array_equal(once, again)
    assert np.any(once != numpy(dropped(query, key, value, seed=6)))
    # Nor does a seed give the noise of its neighbour, a block further on.
    zeros, value_of_each = ops.zeros((1, 1, 200, 2)), ops.eye(200)[None, None]
    five, six = (
        numpy(dropped(zeros[:, :, :4], zeros, value_of_each, seed=seed, block=(4, 100)))[0, 0]
        for seed in (5, 6)
    )
    assert np.any((five[:, 100:] == 0) != (six[:, :100] == 0))
    generator = keras.random.SeedGenerator(5)
    first, second = (numpy(dropped(query, key, value, generator)) for _ in range(2))
    assert np.any(first != second)
    # The output is linear in the values: by the weights of the way back it is the same number.
    output, (grad_value,) = tensors.both_ways(
        lambda value: dropped(query, key, value, seed=5), [value], UPSTREAM
    )
    forward = np.sum(numpy(output) * UPSTREAM)
    np.testing.assert_allclose(np.sum(numpy(value) * numpy(grad_value)), forward, rtol=1e-4)


def test_dropout_is_the_same_when_it_is_compiled():
    _, (query, key, value) = problem(8)

    def run(query, key, value):
        return dropped(query, key, value, seed=5)

    found = [
        tensors.both_ways(function, [query, key, value], UPSTREAM)
        for function in (run, tensors.compiled(run))
    ]
    assert_close(*([output, *gradients] for output, gradients in found), 1e-6)


def test_dropout_without_a_seed_is_new_in_each_call_of_a_compiled_layer():
    layer = tfattn.MultiHeadAttention(1, 3, dropout=0.5, flash_attention=True)
    tokens = np.random.default_rng(0).normal(size=(1, 70, 3)).astype("float32")
    model = keras.Sequential([keras.Input((70, 3)), layer_on_itself(layer)])
    model.compile("sgd", "mse")
    state = [numpy(layer.seed_generator.state)]
    for _ in range(2):
        model.train_on_batch(tokens, tokens)
        state.append(numpy(layer.seed_generator.state))
    assert len({tuple(words) for words in state}) == 3


def layer_on_itself(layer):
    class OnItself(keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.attention = layer

        def call(self, tokens, training=None):
            return self.attention(tokens, tokens, training=training)

    return OnItself()


def test_shapes_of_a_long_layer_are_told_without_computing_it(monkeypatch):
    if BACKEND == "torch":  # JAX traces one block
        monkeypatch.setattr(checkpointed, "attend", None)
    inputs = keras.Input((2048, 16))
    layer = tfattn.MultiHeadAttention(2, 8, dropout=0.1)
    assert layer(inputs, inputs, training=True).shape == (None, 2048, 16)


def largest_of_jax(run, operands):
    """The most numbers of any array within the program."""
    import jax

    def of(jaxpr):
        sizes = [variable.aval.size for equation in jaxpr.eqns for variable in equation.outvars]
        inner = keras.tree.flatten([list(equation.params.values()) for equation in jaxpr.eqns])
        inner = [getattr(each, "jaxpr", each) for each in inner]  # of closed ones
        return max([*sizes, *(of(each) for each in inner if hasattr(each, "eqns"))], default=0)

    return of(jax.make_jaxpr(run)(*operands).jaxpr)


def sizes_of_torch(run, operands):
    """How many numbers each operation of the program makes."""
    from torch.utils import _python_dispatch

    class Sizes(_python_dispatch.TorchDispatchMode):
        found = ()

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            found = function(*args, **(kwargs or {}))
            self.found += tuple(x.numel() for x in keras.tree.flatten(found) if ops.is_tensor(x))
            return found

    with Sizes() as sizes:
        run(*operands)
    return sizes.found


def largest_of_torch(run, operands):
    return max(sizes_of_torch(run, operands))


@pytest.mark.slow(keep=4)
@pytest.mark.parametrize("rule", [None, masks.causal(), masks.window(40), masks.padding([150])])
@pytest.mark.parametrize("score", ["scaled dot", "additive"])
def test_nothing_of_the_size_of_the_square_is_held(score, rule):
    tokens, width = 192, 3
    query, key, value, upstream = operands_of((1, 1, 1, tokens, tokens), (width, width + 1))
    function, parameters = score_functions.scaled_dot_product, []
    if score == "additive":
        function, parameters = score_functions.additive, [np.ones((width, 1), "float32")]

    def run(path):
        def program(query, key, value):
            def output(*operands):
                query, key, value = operands
                return attend(query, value, key, function, parameters, rule, path=path)

            with blocks_of((8, 8)):
                return tensors.both_ways(output, [query, key, value], numpy(upstream))

        return {"jax": largest_of_jax, "torch": largest_of_torch}[BACKEND](
            program, [query, key, value]
        )

    assert run("dense") >= tokens**2
    assert run("streamed") <= 8 * tokens * (width + 1)


def test_blocks_that_the_mask_hides_are_not_computed():
    computed = []

    def score(query, key):
        if BACKEND == "jax":
            import jax

            jax.debug.callback(lambda: computed.append(1))
        else:
            computed.append(1)
        return score_functions.scaled_dot_product(query, key)

    query, key, value, _ = operands_of((1, 1, 1, 40, 40))
    for rule, blocks in ((None, 25), (masks.causal(), 15), (masks.window(2), 13)):
        computed.clear()
        with blocks_of((8, 8)):
            numpy(attend(query, value, key, score, mask=rule, path="streamed"))
        if BACKEND == "jax":
            import jax

            jax.effects_barrier()
        assert len(computed) == blocks


@pytest.mark.parametrize("sizes", [(0, 4), (4, 0), (0, 0)])
def test_what_is_empty_pools_to_nothing_or_to_zero(sizes):
    query, key, value, _ = operands_of((2, 1, 1, *sizes))
    output = numpy(attend(query, value, key, mask=masks.causal(), path="streamed"))
    assert output.shape == (2, 1, sizes[0], 5) and np.all(output == 0)


def test_a_layer_streams_and_trains(monkeypatch):
    taken, streamed = [], checkpointed.attend
    monkeypatch.setattr(
        checkpointed, "attend", lambda *a, **k: taken.append(1) or streamed(*a, **k, block=(4, 4))
    )
    tokens = np.random.default_rng(0).normal(size=(4, 11, 6)).astype("float32")
    layers = [
        tfattn.MultiHeadAttention(2, 3, flash_attention=flash, seed=1) for flash in (True, False)
    ]
    losses, weights = [], None
    for layer in layers:
        inputs = keras.Input((11, 6))
        model = keras.Model(inputs, layer(inputs, inputs, use_causal_mask=True))
        weights = weights or model.get_weights()
        model.set_weights(weights)
        model.compile("sgd", "mse")
        history = model.fit(tokens, tokens, epochs=3, verbose=0, shuffle=False).history
        losses.append(history["loss"])
    assert taken
    np.testing.assert_allclose(*losses, rtol=1e-5)


def test_a_layer_that_keras_computes_again_on_the_way_back_trains_alike():
    tokens = np.random.default_rng(0).normal(size=(2, 70, 6)).astype("float32")
    losses, weights = [], None
    for mode in ("full", None):
        with keras.RematScope(mode=mode):
            layer = tfattn.MultiHeadAttention(2, 3, flash_attention=True)
            inputs = keras.Input((70, 6))
            # Under a causal mask, a flag, which JAX has as a tensor then, Keras fails too.
            model = keras.Model(inputs, layer(inputs, inputs))
            weights = weights or model.get_weights()
            model.set_weights(weights)
            model.compile("sgd", "mse")
            history = model.fit(tokens, tokens, epochs=3, verbose=0, shuffle=False).history
        losses.append(history["loss"])
    np.testing.assert_allclose(*losses, rtol=1e-6)


def test_long_attention_streams_by_itself_and_the_scope_says_otherwise():
    query = keras.ops.zeros((1, 8, 1024, 2))
    arguments = query, query, score_functions.scaled_dot_product, False
    assert choice.streams(None, *arguments) is True
    with tfattn.path("dense"):
        assert choice.streams(None, *arguments) is False
    assert choice.streams(None, query[:, :, :512], *arguments[1:]) is False


def test_another_device_than_a_cpu_has_sizes_of_its_own(monkeypatch):
    monkeypatch.setattr(devices, "kind", lambda tensor: "cuda")

    def streams(heads, tokens, has_kernel=False):
        query = keras.ops.zeros((1, heads, tokens, 1))
        score = score_functions.scaled_dot_product
        return choice.streams(None, query, query, score, False, None, lambda: has_kernel)

    assert not streams(8, 2048)
    assert streams(8, 4096)
    assert streams(1, 2, has_kernel=True)
    here = both_ways(*problem(5), masks.causal(), block=None)
    assert_close(here, both_ways(*problem(5), masks.causal(), "dense"))
    query = keras.ops.zeros((1, 8, 2**14, 1))
    squares = checkpointed._Squares.of(query, query, score_functions.dot_product, None)
    assert (squares.t, squares.s) == (2048, 2048)


needs_jax = pytest.mark.skipif(BACKEND != "jax", reason="about JAX's compiler")


@needs_jax
def test_calls_of_one_kind_are_compiled_once():
    import jax

    traced = []

    def score(query, key):
        traced.append(1)
        return score_functions.scaled_dot_product(query, key)

    score.facts = score_functions.scaled_dot_product.facts

    def run(seed, *lengths):
        _, (query, key, value) = problem(seed)
        rule = masks.padding(list(lengths)) & masks.causal()

        def output(query):
            with blocks_of((4, 6)):
                return attend(query, value, key, score, mask=rule, path="streamed")

        def total(query):
            return ops.sum(output(query) ** 2)

        found = output(query), jax.grad(total)(query)
        with blocks_of((4, 6)):
            wanted = both_ways(
                score_functions.scaled_dot_product, [query, key, value], rule, "dense"
            )
        assert_close(found[:1], wanted[:1])
        return found

    first = run(1, 5, 11)
    times = len(traced)
    assert times
    second = run(2, 17, 3)
    assert len(traced) == times
    assert np.any(numpy(first[1]) != numpy(second[1]))


@needs_jax
@pytest.mark.parametrize("rule", [None, masks.causal(), masks.window(40)])
def test_memory_grows_with_the_tokens_and_not_with_their_square(rule):
    import jax

    def held(tokens, path):
        def total(query, key, value):
            return ops.sum(attend(query, value, key, mask=rule, path=path) ** 2)

        operand = jax.ShapeDtypeStruct((1, 2, tokens, 16), "float32")
        step = jax.jit(jax.grad(total, (0, 1, 2))).lower(*[operand] * 3)
        return step.compile().memory_analysis().temp_size_in_bytes

    short, long = held(4096, "streamed"), held(8192, "streamed")
    assert long < 2.2 * short and long < 8192**2
    assert held(8192, "dense") > 2 * 8192**2 * 4


needs_torch = pytest.mark.skipif(BACKEND != "torch", reason="about PyTorch")
FUSED = [(H, H, T, T, None), (H, 2, S, S, masks.causal()), (H, 1, T, S, None)]


@needs_torch
@pytest.mark.parametrize("heads, groups, queries, keys, rule", FUSED)
@pytest.mark.parametrize("score", ["dot product", "scaled dot product"])
def test_pytorchs_kernel_equals_the_dense_path(
    heads, groups, queries, keys, rule, score, monkeypatch
):
    taken, kernel = [], fused.attend
    monkeypatch.setattr(fused, "attend", lambda *a, **k: taken.append(1) or kernel(*a, **k))
    query, key, value, upstream = operands_of((B, heads, groups, queries, keys), (6, 6))
    function = getattr(score_functions, score.replace(" ", "_"))
    found = []
    for path in ("streamed", "dense"):

        def run(query, key, value, path=path):
            return attend(query, value, key, function, mask=rule, path=path)

        output, gradients = tensors.both_ways(run, [query, key, value], numpy(upstream))
        found.append([output, *gradients])
    assert taken == [1]
    assert_close(*found)


@needs_torch
def test_pytorchs_kernel_keeps_what_a_later_token_breaks_from_earlier_queries():
    query, key, value, _ = operands_of((1, 2, 2, 31, 31), (6, 6))
    value = ops.where(ops.arange(31)[:, None] == 17, float("nan"), value)
    output = numpy(attend(query, value, key, mask=masks.causal(), path="streamed"))
    assert np.isfinite(output[:, :, :17]).all() and np.isnan(output[:, :, 17:]).all()


@needs_torch
@pytest.mark.parametrize("rule", [None, masks.causal()])
def test_second_derivatives_of_what_pytorchs_kernel_computed(rule, monkeypatch):
    taken, kernel = [], fused.attend
    monkeypatch.setattr(fused, "attend", lambda *a, **k: taken.append(1) or kernel(*a, **k))
    arguments = operands_of((1, 2, 2, 31, 31), (6, 6))[:3]
    function = score_functions.scaled_dot_product
    here, there = (second(function, arguments, rule, path, None) for path in PATHS[::-1])
    assert taken == [1]
    assert_close(here, there, 1e-3)
    # One tensor for all three, and one that is computed of another.
    for others in (lambda x: (x, x), lambda x: (x / 2, ops.tanh(x))):

        def attention(path, others=others):
            def total(x):
                def output(x):
                    key, value = others(x)
                    return attend(x, value, key, mask=rule, path=path) ** 3

                (gradient,) = tensors.both_ways(output, [x])[1]
                return ops.sum(gradient**2)

            return tensors.both_ways(total, arguments[:1])[1]

        assert_close(attention("streamed"), attention("dense"), 1e-3)


MEMORY_OF_A_STEP = """
import re, sys, torch, tfattn

def step(tokens):
    query, key, value = (torch.randn(1, 1, tokens, 16, requires_grad=True) for _ in range(3))
    output = tfattn.attend(query, value, key, mask=tfattn.masks.causal(), path=sys.argv[1])
    output.sum().backward()

def peak():
    return int(re.search("VmHWM:\\s*(\\d+) kB", open("/proc/self/status").read())[1]) * 1024

step(256)
for tokens in map(int, sys.argv[2:]):
    before = peak()
    step(tokens)
    print(peak() - before)
"""


@needs_torch
def test_under_a_window_the_way_back_grows_with_the_tokens():
    def numbers(tokens):
        def program(*operands):
            def output(query, key, value):
                return attend(query, value, key, mask=masks.window(4), path="streamed")

            with blocks_of((8, 8)):
                return tensors.both_ways(output, list(operands), upstream)

        query, key, value, upstream = operands_of((1, 1, 1, tokens, tokens), (16, 16))
        return sum(sizes_of_torch(program, [query, key, value]))

    assert numbers(384) < 2.2 * numbers(192)


@needs_torch
@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads Linux's /proc")
def test_memory_of_pytorchs_kernel_grows_with_the_tokens_and_not_with_their_square():
    grown = [int(line) for line in printed("-c", MEMORY_OF_A_STEP, "streamed", 8192, 16384).split()]
    assert sum(grown) < 16384**2 * 4 / 8
    (dense,) = map(int, printed("-c", MEMORY_OF_A_STEP, "dense", 8192).split())
    assert dense > 8192**2 * 4


def test_what_a_kernel_of_the_backend_lacks_goes_by_blocks():
    query, key, value, _ = operands_of((1, 2, 2, 31, 31), (6, 6))
    scaled = score_functions.scaled_dot_product
    takes = BACKEND == "torch"  # JAX's is for a GPU
    assert fused.takes(query, value, key, scaled, masks.causal()) == takes
    assert fused.takes(query, value, key, scaled, None) == takes
    assert not fused.takes(query, value, key, scaled, masks.window(3))
    assert not fused.takes(query, value, key, scaled, masks.causal() & masks.padding([3]))
    assert not fused.takes(query[:, :, :7], value, key, scaled, masks.causal())
    assert not fused.takes(query, value, key, score_functions.additive, None)
    assert not fused.takes(query, value[..., :3], key, scaled, None)
    assert not fused.takes(query[:, 0], value[:, 0], key[:, 0], scaled, None)


@needs_torch
def test_gradients_are_zero_where_the_mask_hides_all():
    arguments = [x.requires_grad_() for x in operands_of((2, 2, 1, 5, 7), (3, 4))[:3]]
    query, key, value = arguments
    output = attend(query, value, key, mask=masks.padding([0, 0]), path="streamed")
    ops.sum(output).backward()
    assert not numpy(output).any() and not any(numpy(x.grad).any() for x in arguments)


@needs_torch
def test_tokens_whose_numbers_lie_apart_take_the_kernel_that_holds_no_scores():
    query = np.random.default_rng(0).normal(size=(1, 2, 3, 192)).astype("float32")

    def program(transposed):
        x = transposed.transpose(-1, -2)
        return attend(x, x, x, score_functions.scaled_dot_product, mask=None, path="streamed")

    assert largest_of_torch(program, [as_tensor(query)]) <= 2 * 192 * 3


@needs_torch
@pytest.mark.parametrize("has_one", [False, True])
def test_a_gpu_is_asked_whether_it_has_a_kernel_for_the_call(has_one, monkeypatch):
    from torch.backends import cuda

    query = ops.zeros((1, 4, 31, 6))
    arguments = query, query[:, :2], query[:, :2], score_functions.scaled_dot_product, None
    monkeypatch.setattr(devices, "kind", lambda tensor: "cuda")
    assert not fused.takes(*arguments)  # this one has numbers on a CPU
    monkeypatch.setattr(cuda, "can_use_efficient_attention", lambda call: has_one)
    assert fused.takes(*arguments) == has_one
    monkeypatch.setattr(devices, "kind", lambda tensor: "mps")
    assert not fused.takes(*arguments)


@needs_jax
def test_cudnn_is_asked_whether_it_has_a_kernel_for_this_gpu(monkeypatch):
    import jax

    def missing(*arguments, **options):
        raise RuntimeError("cuDNN is not detected.")

    def by_xla(query, value, key, implementation, **options):  # on a CPU, in 32 bits alone
        wide = (ops.cast(x, "float32") for x in (query, value, key))
        return ops.cast(kernel(*wide, "xla", **options), query.dtype)

    kernel, scaled = fused._by_jax, score_functions.scaled_dot_product
    query, key, value, _ = (ops.cast(x, "float16") for x in operands_of((1, 2, 1, 31, 31), (8, 8)))
    wanted = attend(query, value, key, scaled, mask=masks.causal(), path="dense")
    assert not fused.takes(query, value, key, scaled, None)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    for replaced, takes in ((missing, False), (by_xla, True)):
        monkeypatch.setattr(fused, "_by_jax", replaced)
        fused._cudnn_takes.cache_clear()
        assert fused.takes(query, value, key, scaled, None) == takes
        assert not fused.takes(*(x[..., :6] for x in (query, value, key)), scaled, None)
        assert not fused.takes(*(ops.cast(x, "float32") for x in (query, value, key)), scaled, None)
        here = attend(query, value, key, scaled, mask=masks.causal(), path="streamed")
        assert_close([here], [wanted], 2e-3)
    fused._cudnn_takes.cache_clear()


@needs_jax
def test_a_batch_of_unknown_size_streams():
    import jax
    from jax import export

    (rows,) = export.symbolic_shape("rows")

    def program(query, path):
        return attend(query, query, query, mask=masks.causal(), path=path)

    def exported(path, tokens):
        operand = jax.ShapeDtypeStruct((rows, 2, tokens, 3), "float32")
        return export.export(jax.jit(lambda query: program(query, path)))(operand)

    query = operands_of((3, 2, 2, 600, 600), (3, 3))[0]
    streamed = exported("streamed", 600)
    assert "600x600" in exported("dense", 600).mlir_module()
    assert "600x600" not in streamed.mlir_module()
    assert_close([streamed.call(query)], [program(query, "dense")])
    assert "2048x2048" not in exported(None, 2048).mlir_module()


@pytest.mark.skipif(BACKEND != "jax", reason="about JAX's own attention")
@pytest.mark.parametrize("heads, groups, queries, keys, rule", FUSED)
def test_jaxs_attention_as_it_is_called_equals_the_dense_path(heads, groups, queries, keys, rule):
    query, key, value, _ = operands_of((B, heads, groups, queries, keys), (6, 6))
    options = {"is_causal": rule is not None, "scale": 6**-0.5}
    # cuDNN's needs a GPU; this one takes the same arguments.
    here = fused._by_jax(query, value, key, "xla", **options)
    assert_close([here], [attend(query, value, key, mask=rule, path="dense")])
