"""The streamed path of TensorFlow: sizes known at run time only, invalid calls, and memory."""

import textwrap

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
    blocks_of,
    both_ways,
    call_of,
    problem,
    wide,
)
from tests.helpers.processes import printed
from tfattn import MultiHeadAttention, attend, biases, masks
from tfattn.core import scores as score_functions
from tfattn.core.engine import devices, dispatch, sizes
from tfattn.core.engine.tensorflow import block_scores
from tfattn.core.engine.tensorflow import run as streamed

pytestmark = pytest.mark.tensorflow


@pytest.fixture
def with_bfloat16_products(monkeypatch):
    monkeypatch.setattr(devices, "_has_bfloat16_products", lambda: True)


def of_unknown_size(*tensors):
    return [tf.TensorSpec([None, x.shape[1], None, x.shape[3]], x.dtype) for x in tensors]


def as_they_are(tensors):
    return [tf.TensorSpec(x.shape, x.dtype) for x in tensors]


def drawn(mask, seed):
    return [tf.constant(x) for x in MASKS[mask].arrays(np.random.default_rng(seed))]


@pytest.mark.slow
@pytest.mark.parametrize(
    "device, bias, widths",
    [
        ("cpu", None, {D, D + 1}),
        ("gpu", None, {D}),
        ("cpu", biases.explicit(np.zeros((1, S))), {D}),
        ("cpu", biases.explicit(np.zeros((1, S))) + biases.explicit(np.zeros((T, 1))), {D}),
    ],
)
def test_largest_score_is_a_column_of_the_product_where_that_is_exact(
    monkeypatch, device, bias, widths
):
    # By default TensorFlow's products on GPUs round their operands to 11 bits, and beside a bias of
    # -1e6 sums of some processors lose the scores.
    monkeypatch.setattr(devices, "kind", lambda tensor: device)
    seen, scores = set(), block_scores.Product.scores

    def record(self, tiling, query, key):
        seen.add(key.shape[-1])
        return scores(self, tiling, query, key)

    monkeypatch.setattr(block_scores.Product, "scores", record)
    draw = np.random.default_rng(3).normal
    operands = [tf.constant(draw(size=(B, H, n, D)), tf.float32) for n in (T, S, S)]

    def output(query, key, value, path="streamed"):
        return attend(query, value, key=key, mask=masks.causal(), bias=bias, path=path)

    _, here = tensors.both_ways(output, operands)
    _, there = tensors.both_ways(lambda *x: output(*x, path="dense"), operands)
    assert_close(here, there)
    assert seen == widths


@pytest.mark.slow
@pytest.mark.parametrize(
    "score, mask",
    [
        ("cosine", "none"),
        ("epanechnikov", "by head"),
    ],
)
def test_streamed_graph_of_unknown_batch_and_lengths_equals_dense(score, mask):
    function, arguments = problem(11, score)
    specs = of_unknown_size(*arguments[:3]), as_they_are(arguments[3:])

    def run(operands, weights, arrays, path="streamed"):
        return both_ways(function, [*operands, *weights], MASKS[mask].rule(*arrays), path)

    unknown = tf.function(run, input_signature=[*specs, as_they_are(drawn(mask, 11))])
    for seed in (11, 12):
        operands, arrays = problem(seed, score)[1][:3], drawn(mask, seed)
        there = run(operands, arguments[3:], arrays, "dense")
        assert_close(unknown(operands, arguments[3:], arrays), there)


@pytest.mark.slow
@pytest.mark.parametrize("mask", ["none", "window"])  # under the latter, passes are local
def test_streamed_graph_of_unknown_value_width_equals_dense(mask):
    function, arguments = problem(11)
    query, key, value = as_they_are(arguments)

    def run(*operands, path="streamed"):
        return both_ways(function, operands, MASKS[mask].rule(), path, block=(4, 4))

    value = tf.TensorSpec((*value.shape[:3], None), value.dtype)
    unknown = tf.function(run, input_signature=[query, key, value], autograph=False)
    assert_close(unknown(*arguments), run(*arguments, path="dense"))


def test_streamed_many_heads_of_one_key_head_equal_dense():
    x = tf.random.stateless_normal((1, 1040, 4, 2), (1, 2))
    y = x[:, :1]
    here, there = (attend(x, y, mask=masks.causal(), path=path) for path in ("streamed", "dense"))
    assert_close([here], [there])


@pytest.mark.slow
def test_streamed_pair_at_edge_of_support_errs_by_slope_times_rounding():
    rule = MASKS["~padded keys"].rule
    for seed in (6926250, 0):
        function, arguments = problem(seed, "epanechnikov", (2, 1), at_edges=True)
        query, key = (np.asarray(x, "float64") for x in arguments[:2])
        squared = np.sum((query[:, :, :, None] - key[:, :, None]) ** 2, -1)  # (B, H, T, S)
        slope = np.max(np.where(squared < 1, 2 / np.maximum(1 - squared, 1e-6), 0.0))
        mask = rule(*drawn("~padded keys", seed))
        here = both_ways(function, arguments, mask, block=(4, 6))
        there = both_ways(function, wide(arguments), mask, "dense")
        for this, that in zip(here, there, strict=True):
            np.testing.assert_allclose(this, that, 1e-3, 2e-4 + 2e-6 * slope)


@pytest.mark.slow
def test_streamed_additive_score_beyond_exponentials_equals_dense():
    function, (query, key, value, weight) = problem(17, "additive")
    arguments = [query * 100 + 200, key * 100 - 200, value, weight]
    assert_close(both_ways(function, arguments), both_ways(function, arguments, None, "dense"))


def test_capped_product_counts_one_number_for_each_pair():
    function, bounds = problem(3, "capped scaled dot")[0], sizes.STREAMING_THRESHOLDS["cpu"]
    assert dispatch._is_long(call_of(*[tf.zeros((1, 8, 1024, 64))] * 2, score=function), bounds)
    assert not dispatch._is_long(call_of(*[tf.zeros((1, 2, 512, 64))] * 2, score=function), bounds)
    assert score_functions.soft_capped(score_functions.scaled_dot_product, 0.8) is function


@pytest.mark.parametrize("slope", [tf.constant(2.0), keras.Variable(2.0)], ids=["float", "Keras"])
@pytest.mark.parametrize("cap", [None, 2.0])
def test_streamed_score_that_closes_over_tensor_is_refused(slope, cap):
    def sloped(query, key):
        return slope * score_functions.dot_product(query, key)

    score = score_functions.soft_capped(sloped, cap) if cap else sloped
    expected = "`score` must take `slope` from `parameters`: closed over, it"
    with pytest.raises(ValueError, match=expected):
        attend(*[tf.ones((1, 2, 3))] * 2, score=score, path="streamed")


@pytest.mark.slow
def test_streamed_second_derivatives_of_almost_equal_scores_equal_dense():
    function, (query, key, value) = problem(53)
    factors = tf.random.stateless_normal((B, H, T, V), (1, 2))

    def of_sum(path, query):
        def output(query):
            return attend(query, value, key=key, score=function, path=path)

        return tf.reduce_sum(tensors.both_ways(output, [query], factors)[1][0])

    here, there = (
        tensors.both_ways(lambda x, path=path: of_sum(path, x), [1e-8 * query])[1]
        for path in ("streamed", "dense")
    )
    assert_close(here, there, 1e-4)


@pytest.mark.slow
def test_streamed_gradient_of_gathered_rows_equals_dense():
    function, arguments = problem(53)

    def gradients(path):
        with tf.GradientTape() as tape:
            tape.watch(arguments)
            query, key, value = arguments
            output = tf.gather(attend(query, value, key=key, score=function, path=path), [1, 0, 1])
        return tape.gradient(output, arguments)

    assert_close(gradients("streamed"), gradients("dense"))


# Built from an array whose sizes are known at run time only.
RUN_TIME_MASKS = {
    "joined": (
        lambda array: ~(masks.explicit(array) & masks.causal()),
        lambda t, s: np.ones((B, t, s), bool),
    ),
    "padding": (masks.padding, lambda t, s: np.full((B, t), S)),
    "segments": (
        lambda ids: masks.segments(ids, np.zeros((B, S), int)),
        lambda t, s: np.zeros((B, t), int),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", RUN_TIME_MASKS)
def test_streamed_mask_of_wrong_run_time_length_is_refused(kind):
    function, (query, key, value) = problem(71, heads=(1, 1))
    make, array = RUN_TIME_MASKS[kind]
    rank = array(1, 1).ndim

    @tf.function(
        input_signature=[
            tf.TensorSpec((B, 1, None, D)),
            tf.TensorSpec((None,) * rank, array(1, 1).dtype),
        ]
    )
    def run(query, array):
        call = call_of(query, value, key, score=function, mask=make(array))
        return streamed.run(call, block=(7, 6))

    dense = attend(query, value, key=key, score=function, mask=make(array(T, S)), path="dense")
    for lengths in ((T, S), (1, 1)):
        assert_close([run(query, array(*lengths))], [dense])
    for lengths in ((4, S), (T + 1, S), *([(T, 2), (T, S + 1)] if rank == 3 else [])):
        with pytest.raises(tf.errors.InvalidArgumentError, match="a mask must have"):
            run(query, array(*lengths))
    with pytest.raises(tf.errors.InvalidArgumentError, match="a mask must have"):
        run(query[:, :, :4], array(T, S))


class Rows(masks.Mask):
    """A custom rule that does not check the shape of its array."""

    def __init__(self, array):
        self.array = array

    def on(self, grid):
        return grid.columns_of(grid.rows_of(self.array, -2), -1)


def test_streamed_custom_mask_of_wrong_length_is_refused():
    function, (query, key, value) = problem(71)
    attend(
        query, value, key=key, score=function, mask=Rows(tf.ones((T, 1), tf.bool)), path="streamed"
    )
    for lengths in ((T + 3, S), (4, S), (T, S - 1)):
        rule = Rows(tf.ones(lengths, tf.bool))
        with pytest.raises(ValueError, match="`mask` must have the length 1[37] or 1 on axis"):
            attend(query, value, key=key, score=function, mask=rule, path="streamed")


class InNumpy(masks.Mask):
    """A custom rule that returns NumPy arrays and numbers, and bounds of 64 bits."""

    def __init__(self, wrap):
        self.wrap = wrap

    def on(self, grid):
        keys, queries = np.arange(grid.num_keys), np.arange(grid.num_queries)[:, None]
        return np.asarray(grid.columns_of(grid.rows_of(tf.constant(keys < queries + 2), 0), 1))

    def bounds(self, grid):
        zero, start = self.wrap(0), grid.query_start
        return (zero, self.wrap(start + grid.queries + 1)), (zero, self.wrap(start + 2))


@pytest.mark.slow
@pytest.mark.parametrize(
    "wrap", [np.int64, lambda x: tf.cast(x, tf.int64)], ids=["NumPy", "int64 tensor"]
)
def test_streamed_custom_mask_in_numpy_equals_dense(wrap):
    function, (query, key, value) = problem(73, heads=(1, 1))
    own = InNumpy(wrap)
    for rule in (own & masks.window(9), own | masks.causal(), ~own | masks.padding([3, 5])):
        with blocks_of((4, 6)):
            here = attend(query, value, key=key, score=function, mask=rule, path="streamed")
        assert_close(
            [here], [attend(query, value, key=key, score=function, mask=rule, path="dense")]
        )


@pytest.mark.slow
def test_streamed_dropout_of_shared_trace_is_new_each_time(monkeypatch):
    monkeypatch.setattr(dispatch, "_is_long", lambda call, _: tf.shape(call.query)[2] > 0)
    seed = keras.random.SeedGenerator(3)
    graph = tf.function(
        lambda x: [attend(x, x, dropout=0.5, seed=seed) for _ in range(2)],
        input_signature=[tf.TensorSpec((1, 1, None, 4))],
    )
    once, again = graph(tf.ones((1, 1, 64, 4)))
    third = graph(tf.ones((1, 1, 64, 4)))[0]
    assert not np.allclose(once, again) and not np.allclose(once, third)


@pytest.mark.slow
def test_dropout_in_functional_model_of_unknown_lengths_is_new_each_time():
    tokens = keras.Input((None, 8))
    layer = MultiHeadAttention(2, 4, dropout=0.5, seed=1)
    output = layer(tokens, tokens, training=True)
    model = keras.Model(tokens, layer(output, output, training=True))
    x = np.random.default_rng(1).normal(size=(1, 5, 8)).astype("float32")
    for run in (model, tf.function(model)):
        first, other = (np.asarray(run(x)) for _ in range(2))
        assert np.any(first != other)
    model.compile("sgd", "mse")
    model.fit(x, x, verbose=0)


@pytest.mark.slow
def test_dropout_of_dense_side_of_choice_keeps_rate_and_sum():
    seed = keras.random.SeedGenerator(2)
    graph = tf.function(
        lambda x: attend(x, tf.ones_like(x), key=x, dropout=0.1, seed=seed),
        input_signature=[tf.TensorSpec((8, None, 4))],
    )
    sums = np.asarray(graph(tf.zeros((8, 256, 4))))[..., 0]
    assert abs(sums.mean() - 1.0) < 2e-3
    assert abs(sums.std() - np.sqrt(0.1 / 0.9 / 256)) < 2e-3  # of independent weights


MEMORY = """
    import pathlib
    import resource
    import tensorflow as tf
    from tfattn import attend, biases, masks
    from tfattn.core import scores

    def step(tokens, width, score, parameters, mask, compiled=tf.function, heads=1, bias=None):
        x = [tf.random.normal((1, heads, tokens, width)) for _ in range(3)]

        @compiled
        def both_ways(query, key, value):
            with tf.GradientTape() as tape:
                tape.watch([query, key, value])
                options = {"parameters": parameters, "mask": mask, "bias": bias}
                output = attend(
                    query, value, key=key, score=score, path="streamed", **options
                )
            return tape.gradient(output, [query, key, value])

        both_ways(*x)

    def peak():
        status = pathlib.Path("/proc/self/status")
        if status.exists():  # on Linux a process inherits `ru_maxrss` from the one that starts it
            return int(status.read_text().split("VmHWM:")[1].split()[0]) / 1024  # MB
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20  # in bytes elsewhere

    weight = tf.ones((64, 1))
    bias = biases.relative(tf.Variable(tf.ones((32, 1))))
    eager = lambda function: function
    step(256, 8, scores.dot_product, [], masks.causal(), eager, heads=4)
    step(256, 64, scores.additive, [weight], None)
    step(256, 8, scores.dot_product, [], masks.causal(), bias=bias)
    before = peak()
    step(4096, 8, scores.dot_product, [], masks.causal(), eager, heads=4)  # all scores: 256 MB
    step(8192, 8, scores.dot_product, [], masks.window(256))  # all scores: 256 MB
    step(1024, 64, scores.additive, [weight], None)  # all pairs and units: 256 MB
    step(8192, 8, scores.dot_product, [], masks.causal(), bias=bias)  # all biases: 256 MB
    print(peak() - before)
"""


@pytest.mark.slow
def test_streamed_memory_is_less_than_the_square():
    assert float(printed("-c", textwrap.dedent(MEMORY), warm=True)) < 128


@pytest.mark.slow
@pytest.mark.parametrize(
    "heads, dropout, rule, block",
    [
        ((H, H), 0.0, masks.causal(), (7, 6)),
        ((H, 2), 0.0, masks.causal(), (7, 6)),
        ((H, H), 0.4, masks.causal(), (7, 6)),
        ((H, H), 0.0, masks.window(2), (2, 2)),
    ],
    ids=["own heads", "shared heads", "dropout", "local"],
)
def test_bfloat16_products_give_gradients_exact_to_rounding(
    heads, dropout, rule, block, with_bfloat16_products
):
    function, arguments = problem(21, heads=heads, dtype="bfloat16")
    # Scores up to 40, which bfloat16 would round by 0.1.
    arguments = [arguments[0] * 4, arguments[1] * 4, *arguments[2:]]
    options = {"block": block, **({"dropout": dropout, "seed": 3} if dropout else {})}
    here = both_ways(function, arguments, rule, **options)
    assert {x.dtype for x in here} == {tf.bfloat16}
    path = "streamed" if dropout else "dense"  # with the same weights dropped
    there = both_ways(function, wide(arguments), rule, path, **options)
    for got, wanted in zip(here, there, strict=True):
        error = tf.norm(tf.cast(got, wanted.dtype) - wanted) / tf.norm(wanted)
        assert error < 2.0**-7


@pytest.mark.slow
def test_bfloat16_products_keep_hidden_nan_from_gradients(with_bfloat16_products):
    function, (query, key, value) = problem(22, dtype="bfloat16")
    hidden = np.zeros((1, 1, S, 1), "bool")
    hidden[:, :, 4] = True
    key, value = (tf.where(hidden, tf.cast(np.nan, x.dtype), x) for x in (key, value))
    rule = masks.padding(np.full(B, 4)) | masks.causal()
    here = both_ways(function, [query, key, value], rule)
    there = both_ways(function, wide([query, key, value]), rule, "dense")
    assert np.isnan(np.asarray(there[0], "float32")).any()
    assert_close(here, there, 4e-2)


def products_of(graph, dtype):
    """The matrix products of that dtype in a graph and its functions."""
    definition = graph.get_concrete_function().graph.as_graph_def()
    nodes = [*definition.node, *(n for f in definition.library.function for n in f.node_def)]
    products = [n for n in nodes if n.op.startswith("BatchMatMul")]
    return [n for n in products if n.attr["T"].type == dtype.as_datatype_enum]


@pytest.mark.slow
def test_bfloat16_products_are_three_where_they_are_fast(monkeypatch):
    _, arguments = problem(21, dtype="bfloat16")

    def products(*arguments, dtype=tf.bfloat16, bias=None, **options):
        def run():
            with tf.GradientTape() as tape:
                tape.watch(arguments)
                output = attend(*arguments[:2], bias=bias, path="streamed")
            return tape.gradient(output, arguments)

        return len(products_of(tf.function(run, **options), dtype))

    query, key, _ = arguments
    zeros = tf.zeros((T, S))
    monkeypatch.setattr(devices, "_has_bfloat16_products", lambda: True)
    assert products(query, key) == 3
    assert products(query, key, dtype=tf.float32) == 4  # scores twice, the output, ∂weights
    assert products(query, key, bias=zeros) == 0
    assert products(query, key, jit_compile=True) == 0
    assert products(query, tf.cast(key, "float32")) == 0
    monkeypatch.setattr(devices, "_has_bfloat16_products", lambda: False)
    assert products(query, key) == 0


@pytest.mark.parametrize(
    "flags, onednn, expected",
    [
        ("fpu avx512_bf16", None, True),
        ("amx_bf16", "1", True),
        ("amx_bf16", "False", False),
        ("avx512f avx512_bf16_not", None, False),
    ],
)
def test_bfloat16_products_need_processor_and_onednn(
    flags, onednn, expected, tmp_path, monkeypatch
):
    path = tmp_path / "cpuinfo"
    path.write_text(f"processor : 0\nflags : {flags}\n")
    monkeypatch.delenv("TF_ENABLE_ONEDNN_OPTS", raising=False)
    if onednn:
        monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", onednn)
    function = devices._has_bfloat16_products.__wrapped__  # without its cache
    assert function(path) == expected
    assert not function(tmp_path / "none")


@pytest.mark.slow
@pytest.mark.parametrize(
    "mask",
    [
        masks.causal(),
        pytest.param(None, marks=pytest.mark.nightly),
        pytest.param(masks.window(9), marks=pytest.mark.nightly),
    ],
)
def test_streamed_second_derivatives_compiled_by_xla_equal_dense(mask):
    rng = np.random.default_rng(3)
    operands = [tf.constant(rng.normal(size=(2, n, 3)).astype("float32")) for n in (70, 90, 90)]

    def second(path, jit_compile):
        @tf.function(jit_compile=jit_compile)
        def compute(*operands):
            with tf.GradientTape() as outer:
                outer.watch(operands)
                with tf.GradientTape() as inner:
                    inner.watch(operands)
                    output = attend(*operands[:2], key=operands[2], mask=mask, path=path)
                    loss = tf.reduce_sum(output**2)
                first = inner.gradient(loss, operands)
                loss = tf.add_n([tf.reduce_sum(x**2) for x in first])
            return outer.gradient(loss, operands)

        return compute(*operands)

    for found, wanted in zip(second("streamed", True), second("dense", False), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
