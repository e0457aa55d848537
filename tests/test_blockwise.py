"""Block by block comes what the dense path and the oracle give."""

import itertools
import textwrap

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests import reference
from tests.blockwise import (
    BIASES,
    MASKS,
    SCORES,
    B,
    D,
    Earlier,
    H,
    OfTheSquare,
    S,
    T,
    Unbounded,
    assert_close,
    blocks_of,
    both_ways,
    cover,
    mask_of,
    operands_of,
    problem,
    scored,
    wide,
    with_upstream,
)
from tests.processes import printed
from tfattn import attend, masks
from tfattn.core import scores as score_functions
from tfattn.core.paths import choice, thresholds

pytestmark = pytest.mark.tensorflow

BLOCKS = [(4, 6), (13, 17), (5, 3), (64, 64)]
HEADS = [(H, H), (H, 2), (H, 1)]
KINDS = dict(score=SCORES, bias=list(BIASES), block=BLOCKS, heads=HEADS)
# Any two kinds of anything but masks meet, and every mask comes; in the long cover masks too meet
# all others.
SHORT = [{"mask": mask, **row} for row, mask in zip(cover(**KINDS), itertools.cycle(MASKS))]
LONG = cover(mask=list(MASKS), **KINDS)


def rows_of(short, long):
    """Rows of a cover as parameters, those of the long one marked."""
    rows = [*short, *(row for row in long if row not in short)]
    return [
        pytest.param(
            at,
            row,
            id=" ".join(map(str, row.values())),
            marks=[pytest.mark.slow] * (row not in short),
        )
        for at, row in enumerate(rows)
    ]


@pytest.mark.parametrize("seed, row", rows_of(SHORT[:10], LONG))
def test_output_and_every_gradient_equal_the_dense_path_in_float64(seed, row):
    function, arguments = problem(seed, row["score"], row["heads"], row["bias"])
    rule, biased = mask_of(row["mask"], seed), row["bias"] != "none"
    here = both_ways(function, arguments, rule, "streamed", biased, row["block"])
    assert_close(here, both_ways(function, wide(arguments), rule, "dense", biased))


@pytest.mark.slow
@pytest.mark.parametrize(
    "mask",
    [
        "~padded keys",
        *(
            pytest.param(mask, marks=pytest.mark.slow)
            for mask in ("none", "causal", "explicit by row")
        ),
    ],
)
def test_at_the_edge_of_a_support_only_the_slope_of_the_score_multiplies_the_rounding(mask):
    function, _ = problem(0, "epanechnikov")
    case = MASKS[mask]

    @tf.function
    def compiled(arguments, arrays):
        return both_ways(function, arguments, case.rule(*arrays), "streamed")

    for seed in (6926250, *range(5)):
        _, arguments = problem(seed, "epanechnikov", (H, 1), at_edges=True)
        query, key = (np.asarray(x, "float64") for x in arguments[:2])
        squared = np.sum((query[:, :, :, None] - key[:, :, None]) ** 2, -1)  # (B, H, T, S)
        slope = np.max(np.where(squared < 1, 2 / np.maximum(1 - squared, 1e-6), 0.0))
        arrays = [tf.constant(x) for x in case.arrays(np.random.default_rng(seed))]
        here = compiled(arguments, arrays)
        there = both_ways(function, wide(arguments), case.rule(*arrays), "dense")
        for this, that in zip(here, there, strict=True):
            np.testing.assert_allclose(this, that, 1e-3, 2e-4 + 2e-6 * slope)


SIZES = cover(
    batch=[1, 2, 6],
    heads=[1, 3, 4, 6],
    queries=[1, 4, 11],
    keys=[1, 5, 11],
    widths=[(1, 2), (7, 3), (2, 11)],
    block=[(1, 1), (2, 5), (5, 2), (4, 4)],
    mask=["none", "causal", "padding", "window"],
)


@pytest.mark.parametrize("seed, row", rows_of(SIZES[:4], SIZES))
def test_output_of_any_shape_equals_the_oracle(seed, row):
    rng = np.random.default_rng(seed)
    batch, heads, queries, keys, (width, value_width), block, mask = row.values()
    query = rng.normal(size=(batch, heads, queries, width)).astype("float32")
    key = rng.normal(size=(batch, heads, keys, width)).astype("float32")
    value = rng.normal(size=(batch, heads, keys, value_width)).astype("float32")
    lengths = rng.integers(0, keys + 1, batch)
    rule, seen = {
        "none": (None, np.ones((queries, keys), bool)),
        "causal": (masks.causal(), reference.causal(queries, keys)),
        "padding": (masks.padding(lengths), reference.padding(lengths, keys)[:, None]),
        "window": (masks.window(2), reference.window(2, queries, keys)),
    }[mask]
    expected, _ = reference.attention(reference.dot_product(query, key), value, seen)

    @tf.function
    def compiled(query, value, key):
        with blocks_of(block):
            return attend(query, value, key, mask=rule, path="streamed")

    output = compiled(*map(tf.constant, (query, value, key)))
    np.testing.assert_allclose(output, expected, 1e-4, 1e-5)


@pytest.mark.slow(keep=3)
@pytest.mark.parametrize(
    "jit", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["graph", "XLA"]
)
@pytest.mark.parametrize(
    ("score", "mask", "bias"),
    [
        ("scaled dot", "causal & window", "none"),
        pytest.param("scaled dot", "explicit by head", "full", marks=pytest.mark.slow),
        ("additive", "padding", "square"),
        pytest.param("gaussian", "explicit", "none", marks=pytest.mark.slow),
    ],
)
def test_graph_and_xla_equal_eager(score, mask, bias, jit):
    function, arguments = problem(7, score, bias=bias)
    rule, biased = mask_of(mask, 7), bias != "none"
    compiled = tf.function(
        lambda x: both_ways(function, x, rule, "streamed", biased), jit_compile=jit
    )
    assert_close(compiled(arguments), both_ways(function, arguments, rule, "dense", biased))


UNKNOWN = [
    ("scaled dot", "explicit by row"),
    ("additive", "causal"),
    ("gaussian", "padding by query"),
]
UNKNOWN_TOO = [
    *itertools.product(
        ["scaled dot", "additive", "gaussian"],
        ["none", "causal", "padding by query", "explicit by row"],
    ),
    *zip(itertools.cycle(["scaled dot", "epanechnikov", "dot", "gaussian"]), MASKS),
]
UNKNOWN_TOO = [row for row in dict.fromkeys(UNKNOWN_TOO) if row not in UNKNOWN]


@pytest.mark.parametrize(
    "score, mask",
    [*UNKNOWN, *(pytest.param(*row, marks=pytest.mark.slow) for row in UNKNOWN_TOO)],
)
def test_unknown_batch_and_lengths(score, mask):
    function, arguments = problem(11, score)
    case = MASKS[mask]
    shapes = [
        (None, x.shape[1], None, x.shape[3]) if x.shape.rank == 4 else x.shape for x in arguments
    ]
    draws = [
        [tf.constant(x) for x in case.arrays(np.random.default_rng(seed))] for seed in (11, 12, 13)
    ]
    unknown = tf.function(
        lambda x, arrays: both_ways(function, x, case.rule(*arrays), "streamed"),
        input_signature=[
            [tf.TensorSpec(shape, "float32") for shape in shapes],
            [tf.TensorSpec(x.shape, x.dtype) for x in draws[0]],
        ],
    )
    for seed, arrays in zip((11, 12, 13), draws, strict=True):
        _, arguments = problem(seed, score)
        there = both_ways(function, arguments, case.rule(*arrays), "dense")
        assert_close(unknown(arguments, arrays), there)


@pytest.mark.parametrize("heads", [pytest.param(1, marks=pytest.mark.slow), H])
def test_a_mask_and_a_bias_of_no_known_size(heads):
    function, arguments = problem(12)
    rng = np.random.default_rng(12)
    arrays = [
        tf.constant(rng.random((B, heads, T, S)) < 0.5),
        tf.constant(rng.normal(size=(B, heads, T, S)), "float32"),
    ]

    def both(path, seen, bias):
        return both_ways(function, [*arguments, bias], masks.explicit(seen), path, True)

    unknown = tf.function(
        lambda *x: both("streamed", *x),
        input_signature=[tf.TensorSpec([None] * 4, x.dtype) for x in arrays],
    )
    assert_close(unknown(*arrays), both("dense", *arrays))


def test_many_heads_that_share_a_key_head():
    x = tf.random.stateless_normal((1, 1040, 4, 2), (1, 2))
    y = x[:, :1]
    streamed_, dense = (
        attend(x, y, mask=masks.causal(), path=path) for path in ("streamed", "dense")
    )
    assert_close([streamed_], [dense])


def test_three_axes():
    for score in ("scaled dot", "additive", "gaussian"):
        function, arguments = problem(3, score, heads=(1, 1))
        arguments = [x[:, 0] if x.shape.rank == 4 else x for x in arguments]
        assert_close(
            both_ways(function, arguments, masks.causal(), "streamed"),
            both_ways(function, arguments, masks.causal(), "dense"),
        )


@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [
        ("float16", 4e-3),
        pytest.param("bfloat16", 4e-2, marks=pytest.mark.slow),
        pytest.param("float64", 1e-9, marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("score", ["scaled dot", "additive"])
def test_other_dtypes(dtype, tolerance, score):
    function, arguments = problem(13, score, dtype=dtype)
    here = both_ways(function, arguments, masks.causal(), "streamed")
    assert all(x.dtype == dtype for x in here)
    assert_close(here, both_ways(function, wide(arguments), masks.causal(), "dense"), tolerance)


@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [
        ("float16", 4e-3),
        pytest.param("bfloat16", 4e-2, marks=pytest.mark.slow),
        pytest.param("float64", 1e-9, marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("bias", ["square", "by head and key"])
def test_other_dtypes_with_a_bias(dtype, tolerance, bias):
    function, arguments = problem(13, bias=bias, dtype=dtype)
    here = both_ways(function, arguments, masks.causal(), "streamed", True)
    assert all(x.dtype == dtype for x in here)
    assert_close(
        here, both_ways(function, wide(arguments), masks.causal(), "dense", True), tolerance
    )


def test_float64_keys_and_values_keep_their_digits_for_a_float32_query():
    function, (query, key, value) = problem(13)
    key, value = tf.cast(key, "float64") + 1e-9, tf.cast(value, "float64") + 1e-9
    with blocks_of((4, 6)):
        here = attend(query, value, key, function, path="streamed")
    assert_close(
        [here], [attend(tf.cast(query, "float64"), value, key, function, path="dense")], 1e-12
    )


def test_additive_scores_far_outside_of_the_range_of_exponentials():
    function, (query, key, value, weight) = problem(17, "additive")
    arguments = [query * 100 + 200, key * 100 - 200, value, weight]
    assert_close(
        both_ways(function, arguments, None, "streamed"),
        both_ways(function, arguments, None, "dense"),
    )


@pytest.mark.parametrize(
    "unknown", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["eager", "unknown"]
)
@pytest.mark.parametrize("heads", [(H, H), (H, 2)], ids=["own", "shared"])
def test_a_score_that_is_undefined_at_zero_meets_real_tokens_alone(heads, unknown):
    def cosine(query, key):
        key = tf.repeat(key, query.shape[1] // key.shape[1], axis=1)
        return tf.matmul(
            query / tf.norm(query, axis=-1, keepdims=True),
            key / tf.norm(key, axis=-1, keepdims=True),
            transpose_b=True,
        )

    _, arguments = problem(61, heads=heads)
    run = lambda *x: both_ways(cosine, list(x), masks.causal(), "streamed")  # noqa: E731
    if unknown:
        run = tf.function(
            run,
            input_signature=[
                tf.TensorSpec((None, x.shape[1], None, x.shape[3])) for x in arguments
            ],
        )
    assert_close(run(*arguments), both_ways(cosine, arguments, masks.causal(), "dense"))


@pytest.mark.parametrize(
    "sizes", [(0, 7, 11), (2, 0, 11), (2, 7, 0)], ids=["batch", "queries", "keys"]
)
@pytest.mark.parametrize("score", ["scaled dot", "additive", "gaussian"])
@pytest.mark.parametrize(
    "unknown", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["eager", "unknown"]
)
def test_what_is_empty_pools_to_nothing_or_to_zero(sizes, score, unknown):
    batch, queries, keys = sizes
    function, parameters = scored(score, D, 2, np.random.default_rng(1))
    arguments = [tf.ones((batch, 2, n, D)) for n in (queries, keys, keys)]
    arguments += [tf.constant(x, "float32") for x in parameters]

    def output_and_gradients(path, *arguments):
        with tf.GradientTape() as tape:
            tape.watch(arguments)
            query, key, value, *parameters = arguments
            output = attend(query, value, key, function, parameters, masks.causal(), path=path)
        return output, *tape.gradient(output, arguments)

    if unknown:
        specs = [tf.TensorSpec((None, 2, None, D))] * 3 + [
            tf.TensorSpec(x.shape) for x in arguments[3:]
        ]
        here = tf.function(lambda *x: output_and_gradients(None, *x), input_signature=specs)(
            *arguments
        )
    else:
        here = output_and_gradients("streamed", *arguments)
    there = output_and_gradients("dense", *arguments)
    assert [x.shape for x in here] == [x.shape for x in there]
    assert_close(here, there)
    assert attend(*arguments[:3], mask=masks.causal()).shape == here[0].shape


def test_a_score_that_closes_over_a_variable_of_keras_is_refused():
    slope = keras.Variable(2.0)

    def sloped(query, key):
        return slope * score_functions.dot_product(query, key)

    with pytest.raises(
        ValueError, match="`score` must take `slope` from `parameters`: closed over, it"
    ):
        attend(*[tf.ones((1, 2, 3))] * 3, sloped, path="streamed")


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "graph"])
def test_a_score_that_closes_over_a_float_tensor_is_refused(compiled):
    def outer(slope, x):
        def sloped(query, key):
            return slope * score_functions.dot_product(query, key)

        return attend(x, x, x, sloped, path="streamed")

    run = tf.function(outer) if compiled else outer
    with pytest.raises(
        ValueError, match="`score` must take `slope` from `parameters`: closed over, it"
    ):
        run(tf.constant(2.0), tf.ones((1, 2, 3)))


RELATIVE = {
    "causal": masks.causal(),
    "~causal": ~masks.causal(),
    "before": Earlier(1),
    "8 before": Earlier(8),
    "3 after": Earlier(-3),
    "of the square": OfTheSquare(),
    "unbounded": Unbounded(),
}
# A mask, heads, queries, how many keys more, and a block.
LENGTHS = [
    ("causal", 2, 40, 0, (8, 8)),
    ("causal", 2, 41, 0, (7, 7)),  # padded, with a last block of one
    ("causal", 1, 11, 0, (13, 13)),  # one block, and nothing left
    ("causal", 2, 21, 1, (7, 8)),  # blocks that are no squares, three of each
    ("causal", 1, 40, -15, (8, 8)),  # queries before all keys
    ("before", 2, 40, 0, (8, 8)),  # a query that sees nothing
    ("8 before", 1, 40, 8, (8, 8)),  # by position the diagonal is another
    ("~causal", 1, 40, 0, (8, 8)),
    ("~causal", 1, 16, 0, (4, 4)),
    ("3 after", 1, 40, -3, (8, 8)),  # queries of the last block see padding
    ("of the square", 2, 41, 0, (4, 4)),
    ("unbounded", 2, 41, 0, (4, 4)),
    *(
        tuple(row.values())
        for row in cover(
            mask=["causal", "~causal", "before", "8 before", "3 after"],
            heads=[1, 3],
            queries=[5, 23, 34],
            more=[-4, 0, 9],
            block=[(2, 2), (5, 5), (13, 13), (3, 11)],
        )
    ),
]


@pytest.mark.parametrize(
    "name, heads, queries, more, block",
    [
        pytest.param(*row, marks=[pytest.mark.slow] * (at not in (1, 3, 6, 9)))
        for at, row in enumerate(LENGTHS)
    ],
)
def test_a_relative_mask_of_any_lengths_and_blocks(name, heads, queries, more, block):
    mask = RELATIVE[name]
    arguments = operands_of((2, heads, heads, queries, queries + more), (7, 5))
    here = with_upstream(mask, *arguments, block=block)
    assert_close(here, with_upstream(mask, *arguments, path="dense"), 2e-5)
    assert np.any(here[0]) == np.any(mask.dense(queries, queries + more))


@pytest.mark.parametrize(
    "name, sizes",
    [
        ("causal", (30, 30)),
        pytest.param("~causal", (32, 32), marks=pytest.mark.slow),
        pytest.param("8 before", (40, 48), marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize(
    "jit", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["graph", "XLA"]
)
def test_a_relative_mask_in_a_graph_and_under_xla_with_a_batch_of_any_size(name, sizes, jit):
    mask, arguments = RELATIVE[name], operands_of((3, 2, 2, *sizes))

    @tf.function(
        jit_compile=jit, input_signature=[tf.TensorSpec((None, *x.shape[1:])) for x in arguments]
    )
    def run(*arguments):
        return with_upstream(mask, *arguments, block=(8, 8))

    assert_close(run(*arguments), with_upstream(mask, *arguments, path="dense"), 2e-5)
    if not jit:
        empty = [x[:0] for x in arguments]
        assert [x.shape for x in run(*empty)] == [empty[3].shape, *[x.shape for x in empty[:3]]]


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
                output = attend(
                    query, value, key, score, parameters, mask, bias=bias, path="streamed"
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
    added = [biases.alibi(1), biases.relative(tf.Variable(tf.ones((32, 1))))]
    for bias in added:
        step(256, 8, scores.dot_product, [], masks.causal(), bias=bias)
    before = peak()
    step(16384, 8, scores.dot_product, [], masks.causal())  # all scores: 1024 MB
    step(8192, 8, scores.dot_product, [], masks.causal(), heads=4)  # all scores: 1024 MB
    step(16384, 8, scores.dot_product, [], masks.window(256))  # all scores: 1024 MB
    step(2048, 64, scores.additive, [weight], None)  # all pairs and units: 1024 MB
    step(8192, 8, scores.dot_product, [], masks.causal(), lambda eager: eager)  # all scores: 256 MB
    for bias in added:
        step(16384, 8, scores.dot_product, [], masks.causal(), bias=bias)  # all biases: 1024 MB
    print(peak() - before)
"""


@pytest.mark.slow
def test_nothing_of_the_size_of_the_square_is_held():
    assert float(printed("-c", textwrap.dedent(MEMORY))) < 128


@pytest.mark.parametrize("mask", ["none", "causal", "window"])
@pytest.mark.parametrize("bias", ["none", "full"])
def test_a_capped_product_equals_the_dense_path_and_holds_one_number_a_pair(mask, bias):
    function, arguments = problem(3, "capped scaled dot", (H, 2), bias)
    bounds = thresholds.LEAST["cpu"]
    assert choice._is_long(*[tf.zeros((1, 8, 1024, 64))] * 2, function, bounds)
    assert not choice._is_long(*[tf.zeros((1, 2, 512, 64))] * 2, function, bounds)
    assert score_functions.soft_capped(score_functions.scaled_dot_product, 0.8) is function
    rule, biased = mask_of(mask, 3), bias != "none"
    here = both_ways(function, arguments, rule, "streamed", biased, (4, 4))
    assert_close(here, both_ways(function, wide(arguments), rule, "dense", biased), 2e-5)


def test_a_score_within_a_cap_that_closes_over_a_float_tensor_is_refused():
    slope = tf.constant(2.0)

    def sloped(query, key):
        return slope * score_functions.dot_product(query, key)

    with pytest.raises(ValueError, match="`score` must take `slope` from `parameters`"):
        attend(*[tf.ones((1, 2, 3))] * 3, score_functions.soft_capped(sloped, 2.0), path="streamed")
