"""The path that `attend` takes, before a graph runs or in it, and functions shared by layers."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.helpers import tensors
from tests.helpers.blockwise import (
    MASKS,
    B,
    D,
    H,
    S,
    T,
    V,
    assert_close,
    both_ways,
    call_of,
    mask_of,
    problem,
    second,
)
from tfattn import MaskedCrossentropy, TransformerDecoder, attend, biases, masks
from tfattn.core import scores as score_functions
from tfattn.core.engine import dense, devices, dispatch, fused, sizes
from tfattn.core.engine.tensorflow import block_scores, differentiation
from tfattn.core.engine.tensorflow import run as streamed

pytestmark = pytest.mark.tensorflow


@pytest.fixture(autouse=True)
def made(monkeypatch):
    """The shared functions that a test traces, starting with none."""
    functions, compiled = [], streamed.compiled

    def noted(*arguments):
        functions.append(compiled(*arguments))
        return functions[-1]

    monkeypatch.setattr(streamed, "_shared", {})
    for module in (streamed, differentiation):
        monkeypatch.setattr(module, "compiled", noted)
    return functions


@pytest.mark.parametrize(
    "fields, taken",
    [
        ({}, True),
        ({"mask": masks.causal()}, True),
        ({"mask": masks.window(3)}, False),
        ({"mask": masks.causal(), "query": tf.zeros((1, 2, 5, 4))}, False),
        ({"score": score_functions.additive}, False),
        ({"value": tf.zeros((1, 2, 7, 3))}, False),
        ({"return_log_sum_exp": True}, False),
    ],
    ids=["no mask", "causal", "window", "fewer queries", "additive", "width of the value", "sums"],
)
def test_kernel_of_backend_takes_products_under_causal_or_no_mask(fields, taken, monkeypatch):
    monkeypatch.setitem(fused._KERNELS, "tensorflow", lambda *_: True)
    x = tf.zeros((1, 2, 7, 4))
    assert fused.takes(call_of(**{"query": x, "value": x, "key": x, **fields})) == taken


def test_attend_path_follows_from_sizes(monkeypatch):
    monkeypatch.setattr(devices, "_has_bfloat16_products", lambda: False)

    def path(batch, heads, queries, keys, width=64, dtype="float32", **fields):
        query, key = (
            keras.KerasTensor((batch, heads, queries, width), dtype),
            keras.KerasTensor((batch, heads, keys, width), dtype),
        )
        is_long = dispatch._is_long(
            call_of(query, key, **fields), sizes.STREAMING_THRESHOLDS["cpu"]
        )
        return "streamed" if is_long else "dense"

    additive = {"score": score_functions.additive}
    assert path(1, 8, 4096, 4096) == "streamed"
    assert path(None, 8, 1024, 1024) == "streamed"
    assert path(0, 8, 4096, 4096) == "dense"
    assert path(32, 8, 128, 128) == "dense"
    assert path(1, 8, 1, 4096) == "dense"  # a step of decoding
    assert path(1, 8, 1, None) == "dense"  # which holds no choice in its graph
    assert path(2, 1, 1024, 1024, width=256) == "dense"
    assert path(2, 1, 1024, 1024, width=256, **additive) == "streamed"
    assert path(2, 1, 1024, 1024, width=4, **additive) == "dense"
    # Where products are fast, the dense path is faster without a mask.
    monkeypatch.setattr(devices, "_has_bfloat16_products", lambda: True)
    assert path(1, 8, 2048, 2048) == "dense"
    assert path(1, 8, 2048, 2048, dtype="bfloat16") == "dense"
    assert path(1, 8, 2048, 2048, dtype="float16") == "streamed"
    assert path(1, 8, 2048, 2048, mask=masks.causal()) == "streamed"
    assert path(1, 8, 2048, 2048, bias=biases.alibi(8)) == "streamed"
    assert path(2, 1, 1024, 1024, width=256, **additive) == "streamed"
    assert path(1, 8, 4096, 4096) == "streamed"


@pytest.mark.slow
def test_attend_in_graph_of_unknown_lengths_chooses_at_run_time(monkeypatch):
    few = sizes.STREAMING_THRESHOLDS["cpu"]._replace(wide_numbers=2**18)
    monkeypatch.setitem(sizes.STREAMING_THRESHOLDS, "cpu", few)
    monkeypatch.setitem(sizes.BLOCKS, "cpu", sizes.BLOCKS["cpu"]._replace(keys=64))
    blocks = []

    def score(query, key):
        tf.py_function(lambda rows: blocks.append(int(rows)), [tf.shape(query)[1]], [])
        return score_functions.dot_product(query, key)

    def run(*operands, path=None):
        rule, options = masks.causal(), {"block": None, "upstream": tf.square(operands[0])}
        return both_ways(score, operands, rule, path, **options)

    graph = tf.function(run, input_signature=[tf.TensorSpec((None, None, 64))] * 3)
    rng = np.random.default_rng(7)
    for length, longest in ((24, 24), (150, 64)):
        operands = [tf.constant(rng.normal(size=(1, length, 64)) / 4, tf.float32) for _ in range(3)]
        blocks.clear()
        here = graph(*operands)
        assert max(blocks) <= longest
        assert length > longest or len(blocks) == 1  # streamed, the backward pass would ask again
        assert_close(here, run(*operands, path="dense"))
    for rows, queries, keys in ((0, 5, 7), (1, 0, 7), (1, 5, 0)):
        operands = [tf.ones((rows, length, 64)) for length in (queries, keys, keys)]
        here, there = graph(*operands), run(*operands, path="dense")
        assert [x.shape for x in here] == [x.shape for x in there]
        assert_close(here, there)


STREAMED, DENSE = (streamed, "run"), (dense, "run")


# Under XLA the streamed side alone: the dense one is what XLA has for any layer.
@pytest.mark.slow
@pytest.mark.parametrize(
    "score, mask, bias, sides, jit",
    [
        ("scaled dot", "causal", "square", [STREAMED, DENSE], False),
        ("additive by head", "window", "none", [STREAMED], True),
        ("gaussian", "explicit by head", "by head and key", [STREAMED], True),
    ],
    ids=["graph", "xla additive", "xla explicit"],
)
def test_choice_of_paths_equals_dense_on_both_sides(score, mask, bias, sides, jit, monkeypatch):
    function, arguments = problem(61, score, bias=bias)
    arrays = [tf.constant(x) for x in MASKS[mask].arrays(np.random.default_rng(61))]
    learned = slice(3, len(arguments) - (bias != "none"))

    def both(arguments, arrays, path=None):
        rule = MASKS[mask].rule(*arrays)
        options = {"biased": bias != "none", "block": None, "return_log_sum_exp": True}
        return both_ways(function, arguments, rule, path, **options)

    signature = [tf.TensorSpec([n if n == D else None for n in x.shape]) for x in arguments]
    signature[learned] = [tf.TensorSpec(x.shape) for x in arguments[learned]]
    signature[:3] = [tf.TensorSpec((None, H, None, x.shape[-1])) for x in arguments[:3]]
    signature = [signature, [tf.TensorSpec([None] * len(x.shape), bool) for x in arrays]]
    wanted = both(arguments, arrays, "dense")
    for side in sides:
        with monkeypatch.context() as patch:
            least = T if side is STREAMED else T + 1
            is_long = lambda call, _, least=least: tf.shape(call.query)[2] >= least  # noqa: E731
            patch.setattr(dispatch, "_is_long", is_long)
            other = DENSE if side is STREAMED else STREAMED
            wrong = lambda call, *_, **__: (7.0 * call.query[..., :V], call.query[..., 0])  # noqa: E731
            patch.setattr(*other, wrong)
            graph = tf.function(both, input_signature=signature, jit_compile=jit)
            assert_close(graph(arguments, arrays), wanted)


@pytest.mark.nightly  # TensorFlow builds this graph in more than a minute
def test_choice_of_paths_has_second_derivatives(monkeypatch, made):
    monkeypatch.setattr(dispatch, "_is_long", lambda call, _: tf.shape(call.query)[1] > 8)
    function, arguments = problem(71, heads=(1, 1))
    arguments = [x[:, 0] for x in arguments]

    def run(*arguments, path=None):
        return second(function, arguments, None, path, None)

    unknown = [tf.TensorSpec((None, None, x.shape[-1])) for x in arguments]
    graph = tf.function(run, input_signature=unknown)
    for operands in (arguments, [x[:, :7] for x in arguments]):  # streamed, and dense
        assert_close(graph(*operands), run(*operands, path="dense"), 1e-3)
    # the call, and the vjp of its gradient, which each branch of each gradient calls
    assert [function.experimental_get_tracing_count() for function in made] == [1, 1]


@pytest.mark.slow
def test_choice_of_paths_loaded_from_file_has_its_gradient(monkeypatch, tmp_path):
    monkeypatch.setattr(dispatch, "_is_long", lambda call, _: tf.shape(call.query)[2] >= 0)
    function, arguments = problem(73)
    unknown = [tf.TensorSpec((None, H, None, x.shape[-1])) for x in arguments]

    def output(query, key, value, path=None):
        mask = masks.causal() & masks.padding(tf.fill(tf.shape(query)[:1], 5))
        return attend(query, value, key=key, score=function, mask=mask, path=path)

    saved = tf.Module()
    saved.output = tf.function(lambda *operands: output(*operands), input_signature=unknown)
    tf.saved_model.save(saved, tmp_path)
    loaded = tf.saved_model.load(tmp_path).output

    _, here = tensors.both_ways(loaded, arguments)
    _, there = tensors.both_ways(lambda *x: output(*x, path="dense"), arguments)
    assert_close(here, there)


def drawn(*lengths, seed=4):
    draw = np.random.default_rng(seed).normal
    return [tf.constant(draw(size=(B, H, n, D)), tf.float32) for n in lengths]


def shared(*operands, **fields):
    return streamed.run(call_of(*operands, **fields), shared=True)


@pytest.mark.slow
def test_shared_calls_with_other_masks_or_scores_have_traces_of_their_own():
    x = tf.random.stateless_normal((1, 1, 6, 4), (1, 2))
    product = score_functions.dot_product
    rules = (None, masks.causal(), masks.window(2), masks.window(3), masks.padding([4]))
    for rule in rules:
        here = shared(x, x, score=product, mask=rule)
        assert_close([here], [attend(x, x, key=x, score=product, mask=rule, path="dense")])
    scaled = score_functions.scaled_dot_product
    assert_close([shared(x, x, score=scaled)], [attend(x, x, path="dense")])
    assert len(streamed._shared) == len(rules) + 1


@pytest.mark.slow
@pytest.mark.parametrize("known", [False, True], ids=["unknown sizes", "known sizes"])
def test_shared_layers_of_one_kind_have_one_trace(monkeypatch, made, known):
    monkeypatch.setattr(dispatch, "_is_long", lambda call, _: known or tf.shape(call.query)[2] > 0)
    operands, rules = drawn(T, S, S), [mask_of("by head", seed) for seed in (3, 5)]

    def run(*operands, path=None):
        def twice(query, key, value):
            for mask in rules:
                query = attend(query, value, key=key, mask=mask, path=path)
            return query

        output, gradients = tensors.both_ways(twice, operands)
        return [output, *gradients]

    shapes = [x.shape if known else (None, H, None, D) for x in operands]
    graph = tf.function(run, input_signature=[tf.TensorSpec(shape) for shape in shapes])
    assert_close(graph(*operands), run(*operands, path="dense"))
    # the call, and what no one has differentiated twice
    assert [function.experimental_get_tracing_count() for function in made] == [1, 0]


@pytest.mark.parametrize(
    "shape, xla, inlined",
    [
        ((1, 1, 6, 4), False, True),
        ((None, 1, 6, 4), False, True),
        ((1, 1, 5, 4), False, False),
        ((2, 1, None, 4), False, False),
        ((1, 1, 6, 4), True, False),
    ],
)
def test_large_call_is_inlined_and_holds_no_operands(monkeypatch, shape, xla, inlined):
    monkeypatch.setattr(sizes, "INLINED_NUMBERS", 24)
    function = tf.function(lambda x: shared(x, x), jit_compile=xla)
    graph = function.get_concrete_function(tf.TensorSpec(shape)).graph
    names = [op.get_attr("f").name for op in graph.get_operations() if "Call" in op.type]
    (called,) = [f for f in graph.as_graph_def().library.function if f.signature.name in names]
    assert called.attr["_noinline"].b is not inlined


@pytest.mark.slow
def test_shared_traces_of_process_are_few(monkeypatch):
    monkeypatch.setattr(dispatch, "_is_long", lambda call, _: tf.shape(call.query)[2] > 0)
    monkeypatch.setattr(sizes, "SHARED_CALLS", 2)
    for size in (2, 3, 4):
        graph = tf.function(lambda x: attend(x, x, mask=masks.causal()))
        x = tf.random.stateless_normal((1, 6, size), (1, 2))
        specs = graph.get_concrete_function(tf.TensorSpec((1, None, size)))
        assert_close([specs(x)], [attend(x, x, mask=masks.causal(), path="dense")])
    assert len(streamed._shared) == 2


@pytest.mark.slow
def test_custom_mask_is_not_shared(monkeypatch):
    monkeypatch.setattr(dispatch, "_is_long", lambda call, _: tf.shape(call.query)[2] > 0)

    class Even(masks.Mask):
        def on(self, grid):
            return grid.key_positions() % 2 == 0

    graph = tf.function(
        lambda x: attend(x, x, mask=Even()), input_signature=[tf.TensorSpec((1, None, 4))]
    )
    x = tf.random.stateless_normal((1, 6, 4), (1, 2))
    assert_close([graph(x)], [attend(x, x, mask=Even(), path="dense")])
    assert not streamed._shared


@pytest.mark.slow
def test_transformer_by_default_trains_with_causal_skip(monkeypatch):
    few = sizes.STREAMING_THRESHOLDS["cpu"]._replace(
        pairs=64**2, scores=64**2, unmasked_scores=64**2
    )
    monkeypatch.setitem(sizes.STREAMING_THRESHOLDS, "cpu", few)
    small = sizes.BLOCKS["cpu"]._replace(keys=32, scores=32**2)
    monkeypatch.setitem(sizes.BLOCKS, "cpu", small)
    blocks, scores = [], block_scores.Product.scores

    def counted(self, tiling, query, *rest):
        tf.py_function(lambda: blocks.append(tiling), [], [])
        return scores(self, tiling, query, *rest)

    monkeypatch.setattr(block_scores.Product, "scores", counted)
    decoder = TransformerDecoder(11, num_layers=1, width=8, num_heads=2, hidden_dim=8)
    model = keras.Sequential(
        [keras.Input((None,), dtype="int32"), OverOnes(decoder), keras.layers.Dense(11)]
    )
    model.compile("sgd", MaskedCrossentropy(), jit_compile=False)
    ids = np.full((2, 128), 3)
    model.fit(ids, ids, batch_size=2, verbose=0)
    # The square of the self-attention, and that of the attention over the memory, which has no
    # mask.
    causal, open_ = sorted(set(blocks), key=lambda tiling: -tiling.keys)
    of_open, of_causal = (
        2 * tiling.steps * tiling.query_blocks * tiling.key_blocks  # forward and backward
        for tiling in (open_, causal)
    )
    assert blocks.count(open_) == of_open
    assert 0 < blocks.count(causal) < 0.8 * of_causal


class OverOnes(keras.layers.Layer):
    """A decoder over a memory of ones, half as long as its target."""

    def __init__(self, decoder):
        super().__init__()
        self.decoder = decoder

    def call(self, ids):
        return self.decoder(ids, keras.ops.ones((2, 64, 8)))


def test_weights_with_streamed_path_are_refused():
    x = np.ones((1, 2, 3), "float32")
    with pytest.raises(ValueError, match="`path` must be 'dense'"):
        attend(x, x, path="streamed", return_weights=True)
