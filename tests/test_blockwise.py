"""The streamed path: block by block, it gives what the dense path and the oracle give."""

import textwrap

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests import reference
from tests.processes import printed
from tests.streaming import (
    BIASES,
    MASKS,
    SCORES,
    B,
    D,
    H,
    S,
    T,
    assert_close,
    problem,
    pulled,
    scored,
    wide,
)
from tfattn import attend, masks
from tfattn.core import scores as score_functions
from tfattn.core.paths.blockwise import attend as streamed


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    score=st.sampled_from(SCORES),
    heads=st.sampled_from([(H, H), (H, 2), (H, 1)]),
    mask=st.sampled_from(list(MASKS)),
    bias=st.sampled_from(list(BIASES)),
    block=st.sampled_from([(4, 6), (13, 17), (5, 3), (64, 64)]),
)
def test_output_and_every_gradient_equal_the_dense_path_in_float64(
    seed, score, heads, mask, bias, block
):
    function, arguments = problem(seed, score, heads, bias)
    rule, biased = MASKS[mask](np.random.default_rng(seed)), bias != "none"
    here = pulled(function, arguments, rule, "streamed", biased, block)
    assert_close(here, pulled(function, wide(arguments), rule, "dense", biased))


@settings(max_examples=20, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    mask=st.sampled_from(["none", "causal", "~padded keys", "explicit by row"]),
)
@example(seed=6926250, mask="~padded keys")
def test_at_the_edge_of_a_support_only_the_slope_of_the_score_multiplies_the_rounding(seed, mask):
    function, arguments = problem(seed, "epanechnikov", (H, 1), at_edges=True)
    query, key = (np.asarray(x, "float64") for x in arguments[:2])
    squared = np.sum((query[:, :, :, None] - key[:, :, None]) ** 2, -1)  # (B, H, T, S)
    slope = np.max(np.where(squared < 1, 2 / np.maximum(1 - squared, 1e-6), 0.0))
    rule = MASKS[mask](np.random.default_rng(seed))
    here, there = (
        pulled(function, x, rule, path)
        for x, path in ((arguments, "streamed"), (wide(arguments), "dense"))
    )
    for this, that in zip(here, there, strict=True):
        np.testing.assert_allclose(this, that, 1e-3, 2e-4 + 2e-6 * slope)


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    sizes=st.tuples(*[st.sampled_from([1, 2, 3, 4, 6])] * 2, *[st.integers(1, 11)] * 4),
    block=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    mask=st.sampled_from(["none", "causal", "padding", "window"]),
)
def test_output_of_any_shape_equals_the_oracle(seed, sizes, block, mask):
    rng = np.random.default_rng(seed)
    batch, heads, queries, keys, width, value_width = sizes
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
    output = streamed.attend(
        *map(tf.constant, (query, value, key)),
        score_functions.scaled_dot_product,
        mask=rule,
        block=block,
    )
    np.testing.assert_allclose(output, expected, 1e-4, 1e-5)


@pytest.mark.parametrize("jit", [False, True], ids=["graph", "XLA"])
@pytest.mark.parametrize(
    ("score", "mask", "bias"),
    [
        ("scaled dot", "causal & window", "none"),
        ("scaled dot", "explicit by head", "full"),
        ("additive", "padding", "square"),
        ("gaussian", "explicit", "none"),
    ],
)
def test_graph_and_xla_equal_eager(score, mask, bias, jit):
    function, arguments = problem(7, score, bias=bias)
    rule, biased = MASKS[mask](np.random.default_rng(7)), bias != "none"
    compiled = tf.function(lambda x: pulled(function, x, rule, "streamed", biased), jit_compile=jit)
    assert_close(compiled(arguments), pulled(function, arguments, rule, "dense", biased))


@pytest.mark.parametrize("score", ["scaled dot", "additive", "gaussian"])
@pytest.mark.parametrize("mask", ["none", "causal", "padding by query", "explicit by row"])
def test_unknown_batch_and_lengths(score, mask):
    function, arguments = problem(11, score)
    rule = MASKS[mask](np.random.default_rng(11))
    shapes = [
        (None, x.shape[1], None, x.shape[3]) if x.shape.rank == 4 else x.shape for x in arguments
    ]
    unknown = tf.function(
        lambda x: pulled(function, x, rule, "streamed", block=(4, 6)),
        input_signature=[[tf.TensorSpec(shape, "float32") for shape in shapes]],
    )
    assert_close(unknown(arguments), pulled(function, arguments, rule, "dense"))


@pytest.mark.parametrize("heads", [1, H])
def test_a_mask_and_a_bias_of_no_known_size(heads):
    function, arguments = problem(12)
    rng = np.random.default_rng(12)
    arrays = [
        tf.constant(rng.random((B, heads, T, S)) < 0.5),
        tf.constant(rng.normal(size=(B, heads, T, S)), "float32"),
    ]

    def both(path, seen, bias):
        return pulled(function, [*arguments, bias], masks.explicit(seen), path, True)

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
            pulled(function, arguments, masks.causal(), "streamed"),
            pulled(function, arguments, masks.causal(), "dense"),
        )


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [("float16", 4e-3), ("bfloat16", 4e-2), ("float64", 1e-9)]
)
@pytest.mark.parametrize("score", ["scaled dot", "additive"])
def test_other_dtypes(dtype, tolerance, score):
    function, arguments = problem(13, score, dtype=dtype)
    here = pulled(function, arguments, masks.causal(), "streamed")
    assert all(x.dtype == dtype for x in here)
    assert_close(here, pulled(function, wide(arguments), masks.causal(), "dense"), tolerance)


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [("float16", 4e-3), ("bfloat16", 4e-2), ("float64", 1e-9)]
)
@pytest.mark.parametrize("bias", ["square", "by head and key"])
def test_other_dtypes_with_a_bias(dtype, tolerance, bias):
    function, arguments = problem(13, bias=bias, dtype=dtype)
    here = pulled(function, arguments, masks.causal(), "streamed", True)
    assert all(x.dtype == dtype for x in here)
    assert_close(here, pulled(function, wide(arguments), masks.causal(), "dense", True), tolerance)


def test_float64_keys_and_values_keep_their_digits_for_a_float32_query():
    function, (query, key, value) = problem(13)
    key, value = tf.cast(key, "float64") + 1e-9, tf.cast(value, "float64") + 1e-9
    here = streamed.attend(query, value, key, function, block=(4, 6))
    assert_close(
        [here], [attend(tf.cast(query, "float64"), value, key, function, path="dense")], 1e-12
    )


def test_additive_scores_far_outside_of_the_range_of_exponentials():
    function, (query, key, value, weight) = problem(17, "additive")
    arguments = [query * 100 + 200, key * 100 - 200, value, weight]
    assert_close(
        pulled(function, arguments, None, "streamed"), pulled(function, arguments, None, "dense")
    )


@pytest.mark.parametrize("unknown", [False, True], ids=["eager", "unknown"])
@pytest.mark.parametrize("heads", [(H, H), (H, 2)], ids=["own", "shared"])
def test_a_score_that_is_undefined_at_zero_meets_real_tokens_alone(heads, unknown):
    def cosine(query, key):
        key = tf.repeat(key, query.shape[1] // key.shape[1], axis=1)
        return tf.matmul(query / tf.norm(query, axis=-1, keepdims=True), key / tf.norm(key, axis=-1, keepdims=True),
                         transpose_b=True)  # fmt: skip

    _, arguments = problem(61, heads=heads)
    run = lambda *x: pulled(cosine, list(x), masks.causal(), "streamed")  # noqa: E731
    if unknown:
        run = tf.function(
            run,
            input_signature=[
                tf.TensorSpec((None, x.shape[1], None, x.shape[3])) for x in arguments
            ],
        )
    assert_close(run(*arguments), pulled(cosine, arguments, masks.causal(), "dense"))


@pytest.mark.parametrize(
    "sizes", [(0, 7, 11), (2, 0, 11), (2, 7, 0)], ids=["batch", "queries", "keys"]
)
@pytest.mark.parametrize("score", ["scaled dot", "additive", "gaussian"])
@pytest.mark.parametrize("unknown", [False, True], ids=["eager", "unknown"])
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
        streamed.attend(*[tf.ones((1, 2, 3))] * 3, sloped)


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "graph"])
def test_a_score_that_closes_over_a_float_tensor_is_refused(compiled):
    def outer(slope, x):
        def sloped(query, key):
            return slope * score_functions.dot_product(query, key)

        return streamed.attend(x, x, x, sloped)

    run = tf.function(outer) if compiled else outer
    with pytest.raises(
        ValueError, match="`score` must take `slope` from `parameters`: closed over, it"
    ):
        run(tf.constant(2.0), tf.ones((1, 2, 3)))


MEMORY = """
    import pathlib
    import resource
    import tensorflow as tf
    from tfattn import masks
    from tfattn.core import scores
    from tfattn.core.paths import blockwise as streamed

    def step(tokens, width, score, parameters, mask, compiled=tf.function, heads=1):
        x = [tf.random.normal((1, heads, tokens, width)) for _ in range(3)]

        @compiled
        def both_ways(query, key, value):
            with tf.GradientTape() as tape:
                tape.watch([query, key, value])
                output = streamed.attend(query, value, key, score, parameters, mask)
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
    before = peak()
    step(16384, 8, scores.dot_product, [], masks.causal())  # all scores: 1024 MB
    step(8192, 8, scores.dot_product, [], masks.causal(), heads=4)  # all scores: 1024 MB
    step(16384, 8, scores.dot_product, [], masks.window(256))  # all scores: 1024 MB
    step(2048, 64, scores.additive, [weight], None)  # all pairs and units: 1024 MB
    step(8192, 8, scores.dot_product, [], masks.causal(), lambda eager: eager)  # all scores: 256 MB
    print(peak() - before)
"""


@pytest.mark.slow
def test_nothing_of_the_size_of_the_square_is_held():
    assert float(printed("-c", textwrap.dedent(MEMORY))) < 128
