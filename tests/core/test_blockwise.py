"""The streamed path of TensorFlow: sizes known at run time only, invalid calls, and memory."""

import textwrap

import keras
import numpy as np
import pytest
import tensorflow as tf

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
from tfattn import MultiHeadAttention, attend, masks
from tfattn.core import scores as score_functions
from tfattn.core.engine import devices, dispatch, sizes
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
    "score, mask",
    [
        ("scaled dot", "explicit by row"),
        ("additive", "causal"),
        ("cosine", "none"),
        ("epanechnikov", "by head"),
    ],
)
def test_unknown_batch_and_lengths(score, mask):
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
def test_an_unknown_width_of_the_value(mask):
    function, arguments = problem(11)
    query, key, value = as_they_are(arguments)

    def run(*operands, path="streamed"):
        return both_ways(function, operands, MASKS[mask].rule(), path, block=(4, 4))

    value = tf.TensorSpec((*value.shape[:3], None), value.dtype)
    unknown = tf.function(run, input_signature=[query, key, value], autograph=False)
    assert_close(unknown(*arguments), run(*arguments, path="dense"))


@pytest.mark.slow
def test_what_is_empty_in_a_graph_of_unknown_sizes():
    function, (query, key, value) = problem(11)

    def run(*operands, path=None):
        options = {"upstream": tf.square(operands[0][..., :V]), "block": None}
        return both_ways(function, operands, masks.causal(), path, **options)

    unknown = tf.function(run, input_signature=of_unknown_size(query, key, value))
    for rows, queries, keys in ((0, T, S), (B, 0, S), (B, T, 0)):
        operands = [query[:rows, :, :queries], *(x[:rows, :, :keys] for x in (key, value))]
        here, there = unknown(*operands), run(*operands, path="dense")
        assert [x.shape for x in here] == [x.shape for x in there]
        assert_close(here, there)


@pytest.mark.slow
def test_a_mask_and_a_bias_of_no_known_size():
    function, arguments = problem(12)
    rng = np.random.default_rng(12)

    def both(path, seen, bias):
        rule = masks.explicit(seen)
        return both_ways(function, [*arguments, bias], rule, path, biased=True)

    specs = [tf.TensorSpec([None] * 4, dtype) for dtype in (bool, "float32")]
    unknown = tf.function(lambda *x: both("streamed", *x), input_signature=specs)
    for heads in (1, H):
        shape = (B, heads, T, S)
        arrays = (
            tf.constant(rng.random(shape) < 0.5),
            tf.constant(rng.normal(size=shape), "float32"),
        )
        assert_close(unknown(*arrays), both("dense", *arrays))


def test_many_heads_that_share_a_key_head():
    x = tf.random.stateless_normal((1, 1040, 4, 2), (1, 2))
    y = x[:, :1]
    here, there = (attend(x, y, mask=masks.causal(), path=path) for path in ("streamed", "dense"))
    assert_close([here], [there])


@pytest.mark.slow
def test_float64_keys_and_values_keep_their_digits_for_a_float32_query():
    function, (query, key, value) = problem(13)
    key, value = tf.cast(key, "float64") + 1e-9, tf.cast(value, "float64") + 1e-9
    with blocks_of((4, 6)):
        here = attend(query, value, key=key, score=function, path="streamed")
    there = attend(tf.cast(query, "float64"), value, key=key, score=function, path="dense")
    assert_close([here], [there], 1e-12)


@pytest.mark.slow
def test_at_the_edge_of_a_support_only_the_slope_of_the_score_multiplies_the_rounding():
    rule = MASKS["~padded keys"].rule
    for seed in (6926250, 0, 1):
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
def test_additive_scores_far_outside_of_the_range_of_exponentials():
    function, (query, key, value, weight) = problem(17, "additive")
    arguments = [query * 100 + 200, key * 100 - 200, value, weight]
    assert_close(both_ways(function, arguments), both_ways(function, arguments, None, "dense"))


def test_a_capped_product_equals_the_dense_path_and_holds_one_number_a_pair():
    function, arguments = problem(3, "capped scaled dot", (2, 1))
    bounds = sizes.LEAST["cpu"]
    assert dispatch._is_long(call_of(*[tf.zeros((1, 8, 1024, 64))] * 2, score=function), bounds)
    assert not dispatch._is_long(call_of(*[tf.zeros((1, 2, 512, 64))] * 2, score=function), bounds)
    assert score_functions.soft_capped(score_functions.scaled_dot_product, 0.8) is function
    there = both_ways(function, wide(arguments), None, "dense")
    assert_close(both_ways(function, arguments), there, 2e-5)


@pytest.mark.parametrize("slope", [tf.constant(2.0), keras.Variable(2.0)], ids=["float", "Keras"])
@pytest.mark.parametrize("cap", [None, 2.0])
def test_a_score_that_closes_over_a_float_tensor_is_refused(slope, cap):
    def sloped(query, key):
        return slope * score_functions.dot_product(query, key)

    score = score_functions.soft_capped(sloped, cap) if cap else sloped
    expected = "`score` must take `slope` from `parameters`: closed over, it"
    with pytest.raises(ValueError, match=expected):
        attend(*[tf.ones((1, 2, 3))] * 2, score=score, path="streamed")


def test_second_derivatives_of_scores_that_differ_by_less_than_their_weights_can_show():
    function, (query, key, value) = problem(53)
    factors = tf.random.stateless_normal((B, H, T, V), (1, 2))

    def second(path, query):
        with tf.GradientTape() as outer:
            outer.watch(query)
            with tf.GradientTape() as inner:
                inner.watch(query)
                total = tf.reduce_sum(
                    attend(query, value, key=key, score=function, path=path) * factors
                )
            total = tf.reduce_sum(inner.gradient(total, query))
        return outer.gradient(total, query)

    query = 1e-8 * query
    assert_close([second("streamed", query)], [second("dense", query)], 1e-4)


def test_the_gradient_of_some_rows_alone():
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
def test_a_mask_of_the_wrong_run_time_length_is_refused(kind):
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


def test_an_array_of_the_wrong_length_in_a_mask_of_ones_own_is_refused():
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

    def key_bounds(self, grid):
        return self.wrap(0), self.wrap(grid.query_start + grid.queries + 1)

    def full_bounds(self, grid):
        return self.wrap(0), self.wrap(grid.query_start + 2)


@pytest.mark.slow
@pytest.mark.parametrize(
    "wrap", [np.int64, lambda x: tf.cast(x, tf.int64)], ids=["NumPy", "int64 tensor"]
)
def test_a_mask_of_ones_own_may_answer_in_numpy(wrap):
    function, (query, key, value) = problem(73, heads=(1, 1))
    own = InNumpy(wrap)
    for rule in (own & masks.window(9), own | masks.causal(), ~own | masks.padding([3, 5])):
        with blocks_of((4, 6)):
            here = attend(query, value, key=key, score=function, mask=rule, path="streamed")
        assert_close(
            [here], [attend(query, value, key=key, score=function, mask=rule, path="dense")]
        )


@pytest.mark.slow
@pytest.mark.parametrize(
    "sizes", [(0, 7, 11), (2, 0, 11), (2, 7, 0)], ids=["batch", "queries", "keys"]
)
def test_masks_of_what_is_empty(sizes):
    batch, queries, keys = sizes
    lengths, by_query = np.full(batch, keys), np.full((batch, queries), keys)
    rules = (
        ~masks.padding(lengths),
        ~masks.padding(by_query),
        ~masks.prefix(0 * lengths) | masks.causal(),
        masks.segments(0 * by_query, np.zeros((batch, keys), int)),
        masks.explicit(np.ones((batch, 1, keys), bool)) & masks.window(3),
        masks.chunks(2) | masks.chunk_ends(3) & masks.strided(2),
        masks.blocks(np.ones((-(-queries // 2), -(-keys // 2)), bool), 2),
        masks.per_head([masks.causal(), masks.padding(lengths)]),
    )
    operands = [tf.ones((batch, 2, n, D)) for n in (queries, keys, keys)]
    upstream = tf.ones((batch, 2, queries, D))
    for rule in rules:
        found = both_ways(score_functions.dot_product, operands, rule, upstream=upstream)
        assert [x.shape for x in found] == [x.shape for x in (upstream, *operands)]
        if not keys:
            assert not np.any(found[0])


@pytest.mark.slow
def test_a_shared_trace_draws_new_dropout_each_time(monkeypatch):
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
def test_dropout_in_a_functional_model_of_unknown_lengths():
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
def test_dropout_of_a_graph_that_chooses_the_dense_path_keeps_its_rate_and_sum():
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
    step(256, 8, scores.dot_product, [], masks.causal())
    step(256, 64, scores.additive, [weight], None)
    bias = biases.relative(tf.Variable(tf.ones((32, 1))))
    step(256, 8, scores.dot_product, [], masks.causal(), bias=bias)
    before = peak()
    step(8192, 8, scores.dot_product, [], masks.causal())  # all scores: 256 MB
    step(4096, 8, scores.dot_product, [], masks.causal(), heads=4)  # all scores: 256 MB
    step(8192, 8, scores.dot_product, [], masks.window(256))  # all scores: 256 MB
    step(1024, 64, scores.additive, [weight], None)  # all pairs and units: 256 MB
    step(8192, 8, scores.dot_product, [], masks.causal(), lambda eager: eager)  # all scores: 256 MB
    step(8192, 8, scores.dot_product, [], masks.causal(), bias=bias)  # all biases: 256 MB
    print(peak() - before)
"""


@pytest.mark.slow
def test_nothing_of_the_size_of_the_square_is_held():
    assert float(printed("-c", textwrap.dedent(MEMORY), warm=True)) < 128


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
def test_gradients_by_products_in_bfloat16_are_exact_to_the_rounding(
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


def test_a_hidden_nan_reaches_no_gradient_in_bfloat16(with_bfloat16_products):
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


def test_four_products_of_a_block_are_in_bfloat16_where_these_are_fast(monkeypatch):
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
    assert products(query, key) == 4
    assert products(query, key, dtype=tf.float32) == 3  # scores twice, and the output
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
def test_products_in_bfloat16_need_a_processor_and_onednn(
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
