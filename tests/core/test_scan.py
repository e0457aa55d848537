"""The streamed path of JAX and PyTorch: memory, compilation, and calls that a kernel supports."""

import dataclasses
from pathlib import Path

import keras
import numpy as np
import pytest
from keras import ops

import tfattn
from tests.helpers import tensors
from tests.helpers.blockwise import (
    B,
    H,
    S,
    T,
    assert_close,
    blocks_of,
    both_ways,
    call_of,
    operands_of,
    problem,
    scored,
    second,
)
from tests.helpers.processes import printed
from tests.helpers.tensors import BACKEND, as_tensor, numpy
from tfattn import attend, masks
from tfattn.core import scores as score_functions
from tfattn.core.engine import devices, dispatch, fused, scan

pytestmark = pytest.mark.skipif(
    BACKEND not in ("jax", "torch"), reason="about JAX and PyTorch: others have paths of their own"
)


def test_scan_dropout_without_seed_is_new_in_each_compiled_call():
    layer = tfattn.MultiHeadAttention(1, 3, dropout=0.5, flash_attention=True)
    tokens = np.random.default_rng(0).normal(size=(1, 70, 3)).astype("float32")
    inputs = keras.Input((70, 3))
    model = keras.Model(inputs, layer(inputs, inputs))
    model.compile("sgd", "mse")
    state = [numpy(layer.seed_generator.state)]
    for _ in range(2):
        model.train_on_batch(tokens, tokens)
        state.append(numpy(layer.seed_generator.state))
    assert len({tuple(words) for words in state}) == 3


def test_scan_shapes_of_long_layer_need_no_computation(monkeypatch):
    if BACKEND == "torch":  # JAX traces one block
        monkeypatch.setattr(scan, "run", None)
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
    """The number of output elements of each operation of the program."""
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


@pytest.mark.slow
@pytest.mark.parametrize(
    "score, rule",
    [
        ("scaled dot", masks.causal()),
        ("scaled dot", masks.window(40)),
        ("additive", masks.padding([150])),
    ],
)
def test_scan_holds_nothing_of_the_size_of_the_square(score, rule):
    tokens, width = 192, 3
    *arguments, upstream = operands_of((1, 1, 1, tokens, tokens), (width, width + 1))
    function, parameters = scored(score, width, 1, np.random.default_rng(0))
    arguments += [as_tensor(x, "float32") for x in parameters]

    def run(path):
        def program(*arguments):
            options = {"block": (8, 8), "upstream": numpy(upstream)}
            return both_ways(function, arguments, rule, path, **options)

        largest = {"jax": largest_of_jax, "torch": largest_of_torch}[BACKEND]
        return largest(program, arguments)

    assert run("dense") >= tokens**2
    assert run("streamed") <= 8 * tokens * (width + 1)


def test_scan_blocks_hidden_by_mask_are_not_computed():
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
            numpy(attend(query, value, key=key, score=score, mask=rule, path="streamed"))
        if BACKEND == "jax":
            import jax

            jax.effects_barrier()
        assert len(computed) == blocks


def losses_of(flash_attention, mode=None, **options):
    """The losses of a layer's training, which Keras may recompute in the backward pass."""
    keras.utils.set_random_seed(1)
    tokens = np.random.default_rng(0).normal(size=(4, 11, 6)).astype("float32")
    with keras.RematScope(mode=mode):
        layer = tfattn.MultiHeadAttention(2, 3, flash_attention=flash_attention)
        inputs = keras.Input((11, 6))
        model = keras.Model(inputs, layer(inputs, inputs, **options))
        model.compile("sgd", "mse")
        history = model.fit(tokens, tokens, epochs=3, verbose=0, shuffle=False)
    return history.history["loss"]


def test_scan_layer_streams_and_trains(monkeypatch):
    taken, streamed = [], scan.run
    monkeypatch.setattr(
        scan, "run", lambda *a, **k: taken.append(1) or streamed(*a, **k, block=(4, 4))
    )
    here, there = (losses_of(flash, use_causal_mask=True) for flash in (True, False))
    assert taken
    np.testing.assert_allclose(here, there, rtol=1e-5)


def test_scan_layer_under_remat_trains_alike():
    # Under a causal mask, a flag, which JAX has as a tensor then, Keras fails too.
    np.testing.assert_allclose(losses_of(True, "full"), losses_of(True), rtol=1e-6)


def test_scan_is_taken_by_long_calls_unless_scope_is_dense():
    query = keras.ops.zeros((1, 8, 1024, 2))
    call = call_of(query, query, return_log_sum_exp=True)  # of which no kernel knows
    assert dispatch.streams(call) is True
    with tfattn.attention_path("dense"):
        assert dispatch.streams(call) is False
    assert dispatch.streams(dataclasses.replace(call, query=query[:, :, :512])) is False


def test_scan_on_gpu_has_sizes_of_its_own(monkeypatch):
    monkeypatch.setattr(devices, "kind", lambda tensor: "cuda")

    def streams(heads, tokens, has_kernel=False):
        query = keras.ops.zeros((1, heads, tokens, 1))
        with monkeypatch.context() as patch:
            patch.setattr(fused, "takes", lambda call: has_kernel)
            return dispatch.streams(call_of(query, query))

    assert not streams(8, 2048)
    assert streams(8, 4096)
    assert streams(1, 2, has_kernel=True)
    here = both_ways(*problem(5), masks.causal(), block=None)
    assert_close(here, both_ways(*problem(5), masks.causal(), "dense"))
    query = keras.ops.zeros((1, 8, 2**14, 1))
    tiling = scan._Tiling.of(query, query, score_functions.dot_product, None)
    assert (tiling.t, tiling.s) == (2048, 2048)


needs_jax = pytest.mark.skipif(BACKEND != "jax", reason="about JAX's compiler")


@needs_jax
def test_scan_calls_of_one_kind_are_compiled_once():
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
                return attend(query, value, key=key, score=score, mask=rule, path="streamed")

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
@pytest.mark.slow
@pytest.mark.parametrize("rule", [masks.causal(), masks.window(40)])
def test_scan_memory_grows_with_tokens(rule):
    import jax

    def held(tokens, path):
        def total(query, key, value):
            return ops.sum(attend(query, value, key=key, mask=rule, path=path) ** 2)

        operand = jax.ShapeDtypeStruct((1, 2, tokens, 16), "float32")
        step = jax.jit(jax.grad(total, (0, 1, 2))).lower(*[operand] * 3)
        return step.compile().memory_analysis().temp_size_in_bytes

    short, long = held(4096, "streamed"), held(8192, "streamed")
    assert long < 2.2 * short and long < 8192**2
    assert held(8192, "dense") > 2 * 8192**2 * 4


needs_torch = pytest.mark.skipif(BACKEND != "torch", reason="about PyTorch")
FUSED = [
    (H, H, T, T, None, "scaled dot"),
    (H, 2, S, S, masks.causal(), "scaled dot"),
    (H, 1, T, S, None, "dot"),
]


@pytest.fixture
def taken(monkeypatch):
    """A 1 for each call that the backend's kernel computes."""
    calls, kernel = [], fused.run
    monkeypatch.setattr(fused, "run", lambda *a, **k: calls.append(1) or kernel(*a, **k))
    return calls


@needs_torch
@pytest.mark.parametrize("heads, groups, queries, keys, rule, score", FUSED)
def test_torch_kernel_equals_dense(heads, groups, queries, keys, rule, score, taken):
    *arguments, upstream = operands_of((B, heads, groups, queries, keys), (6, 6))
    function, _ = scored(score, 6, heads, None)
    here, there = (
        both_ways(function, arguments, rule, path, block=None, upstream=upstream)
        for path in ("streamed", "dense")
    )
    assert taken == [1]
    assert_close(here, there)


@needs_torch
def test_torch_kernel_later_nan_reaches_no_earlier_query():
    query, key, value, _ = operands_of((1, 2, 2, 31, 31), (6, 6))
    value = ops.where(ops.arange(31)[:, None] == 17, float("nan"), value)
    output = numpy(attend(query, value, key=key, mask=masks.causal(), path="streamed"))
    assert np.isfinite(output[:, :, :17]).all() and np.isnan(output[:, :, 17:]).all()


@needs_torch
@pytest.mark.parametrize("rule", [None, masks.causal()])
def test_torch_kernel_second_derivatives_equal_dense(rule, taken):
    arguments = operands_of((1, 2, 2, 31, 31), (6, 6))[:3]
    function = score_functions.scaled_dot_product
    here, there = (second(function, arguments, rule, path, None) for path in ("dense", "streamed"))
    assert taken == [1]
    assert_close(here, there, 1e-3)
    # One tensor for all three, and one that is computed of another.
    for others in (lambda x: (x, x), lambda x: (x / 2, ops.tanh(x))):

        def attention(path, others=others):
            def total(x):
                def output(x):
                    key, value = others(x)
                    return attend(x, value, key=key, mask=rule, path=path) ** 3

                (gradient,) = tensors.both_ways(output, [x])[1]
                return ops.sum(gradient**2)

            return tensors.both_ways(total, arguments[:1])[1]

        assert_close(attention("streamed"), attention("dense"), 1e-3)


MEMORY_OF_A_STEP = """
import re, sys, torch, tfattn

def step(tokens):
    query, key, value = (torch.randn(1, 1, tokens, 16, requires_grad=True) for _ in range(3))
    output = tfattn.attend(query, value, key=key, mask=tfattn.masks.causal(), path=sys.argv[1])
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
def test_scan_backward_under_window_grows_with_tokens():
    def numbers(tokens):
        def program(*arguments):
            options = {"block": (8, 8), "upstream": upstream}
            return both_ways(function, arguments, masks.window(4), **options)

        *arguments, upstream = operands_of((1, 1, 1, tokens, tokens), (16, 16))
        return sum(sizes_of_torch(program, arguments))

    function = score_functions.scaled_dot_product
    assert numbers(384) < 2.2 * numbers(192)


@needs_torch
@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads Linux's /proc")
def test_torch_kernel_memory_grows_with_tokens():
    grown = [int(line) for line in printed("-c", MEMORY_OF_A_STEP, "streamed", 8192, 16384).split()]
    assert sum(grown) < 16384**2 * 4 / 8
    (dense,) = map(int, printed("-c", MEMORY_OF_A_STEP, "dense", 8192).split())
    assert dense > 8192**2 * 4


def test_fused_takes_what_kernel_of_backend_has():
    query, key, value, _ = operands_of((1, 2, 2, 31, 31), (6, 6))
    scaled = score_functions.scaled_dot_product
    takes = BACKEND == "torch"  # JAX's is for a GPU
    assert fused.takes(call_of(query, value, key, score=scaled, mask=masks.causal())) == takes
    assert fused.takes(call_of(query, value, key, score=scaled)) == takes
    assert not fused.takes(call_of(query, value, key, score=scaled, mask=masks.window(3)))
    assert not fused.takes(
        call_of(query, value, key, score=scaled, mask=masks.causal() & masks.padding([3]))
    )
    assert not fused.takes(call_of(query[:, :, :7], value, key, score=scaled, mask=masks.causal()))
    assert not fused.takes(call_of(query, value, key, score=score_functions.additive))
    assert not fused.takes(call_of(query, value[..., :3], key, score=scaled))
    assert not fused.takes(call_of(query[:, 0], value[:, 0], key[:, 0], score=scaled))


@needs_torch
def test_scan_fully_masked_has_zero_gradients():
    arguments = [x.requires_grad_() for x in operands_of((2, 2, 1, 5, 7), (3, 4))[:3]]
    query, key, value = arguments
    output = attend(query, value, key=key, mask=masks.padding([0, 0]), path="streamed")
    ops.sum(output).backward()
    assert not numpy(output).any() and not any(numpy(x.grad).any() for x in arguments)


@needs_torch
def test_torch_kernel_of_noncontiguous_tokens_holds_no_scores():
    query = np.random.default_rng(0).normal(size=(1, 2, 3, 192)).astype("float32")

    def program(transposed):
        x = transposed.transpose(-1, -2)
        return attend(
            x, x, key=x, score=score_functions.scaled_dot_product, mask=None, path="streamed"
        )

    assert largest_of_torch(program, [as_tensor(query)]) <= 2 * 192 * 3


@needs_torch
def test_torch_kernel_is_taken_where_gpu_has_one(monkeypatch):
    from torch.backends import cuda

    query = ops.zeros((1, 4, 31, 6))
    call = call_of(query, query[:, :2])
    monkeypatch.setattr(devices, "kind", lambda tensor: "cuda")
    assert not fused.takes(call)  # this one has numbers on a CPU
    for has_one in (False, True):
        monkeypatch.setattr(cuda, "can_use_efficient_attention", lambda call, has=has_one: has)
        assert fused.takes(call) == has_one
    monkeypatch.setattr(devices, "kind", lambda tensor: "mps")
    assert not fused.takes(call)


@needs_jax
def test_cudnn_kernel_is_taken_where_gpu_has_one(monkeypatch):
    import jax

    def missing(*arguments, **options):
        raise RuntimeError("cuDNN is not detected.")

    def by_xla(query, value, key, implementation, **options):  # on a CPU, in 32 bits alone
        wide = (ops.cast(x, "float32") for x in (query, value, key))
        return ops.cast(kernel(*wide, "xla", **options), query.dtype)

    kernel, scaled = fused._by_jax, score_functions.scaled_dot_product
    query, key, value, _ = (ops.cast(x, "float16") for x in operands_of((1, 2, 1, 31, 31), (8, 8)))
    wanted = attend(query, value, key=key, score=scaled, mask=masks.causal(), path="dense")
    assert not fused.takes(call_of(query, value, key, score=scaled))
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    for replaced, takes in ((missing, False), (by_xla, True)):
        monkeypatch.setattr(fused, "_by_jax", replaced)
        fused._cudnn_takes.cache_clear()
        assert fused.takes(call_of(query, value, key, score=scaled)) == takes
        assert not fused.takes(call_of(*(x[..., :6] for x in (query, value, key)), score=scaled))
        assert not fused.takes(
            call_of(*(ops.cast(x, "float32") for x in (query, value, key)), score=scaled)
        )
        here = attend(query, value, key=key, score=scaled, mask=masks.causal(), path="streamed")
        assert_close([here], [wanted], 2e-3)
    fused._cudnn_takes.cache_clear()


@needs_jax
def test_scan_of_unknown_batch_streams():
    import jax
    from jax import export

    (rows,) = export.symbolic_shape("rows")

    def program(query, path):
        return attend(query, query, key=query, mask=masks.causal(), path=path)

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
@pytest.mark.parametrize("heads, groups, queries, keys, rule, score", FUSED)
def test_jax_attention_equals_dense(heads, groups, queries, keys, rule, score):
    query, key, value, _ = operands_of((B, heads, groups, queries, keys), (6, 6))
    options = {"is_causal": rule is not None, "scale": 6**-0.5 if score == "scaled dot" else 1.0}
    # cuDNN's needs a GPU; this one takes the same arguments.
    here = fused._by_jax(query, value, key, "xla", **options)
    function, _ = scored(score, 6, heads, None)
    assert_close([here], [attend(query, value, key=key, score=function, mask=rule, path="dense")])
