"""Normalizers: sinks, sparsemax and top k, against the oracle."""

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import ops

import tfattn
from tests import reference
from tests.helpers.blockwise import B, D, H, S, T, assert_close, blocks_of, mask_of, problem
from tests.helpers.paths import PATHS
from tests.helpers.tensors import (
    FLOAT64,
    FLOATS,
    JIT,
    as_tensor,
    both_ways,
    compiled,
    needs_float64,
    numpy,
    tf,
)
from tfattn import attend, masks, normalizers

EPSILON = {"float16": 2e-3, "bfloat16": 1.6e-2, "float32": 2e-6, "float64": 1e-12}
FUNCTIONS = {
    "sparsemax": (normalizers.sparsemax, reference.sparsemax),
    "top 1": (normalizers.top_k(1), lambda *x: reference.top_k(x[0], 1, *x[1:])),
    "top 3": (normalizers.top_k(3), lambda *x: reference.top_k(x[0], 3, *x[1:])),
    "top 99": (normalizers.top_k(99), reference.softmax),
}
SINKS = np.array([-1.0, 0.0, 2.0, 0.5])


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    name=st.sampled_from(sorted(FUNCTIONS)),
    dtype=st.sampled_from(FLOATS),
    share=st.sampled_from([None, 0.0, 0.3, 0.8, 1.0]),
    scale=st.sampled_from([0.0, 0.3, 1.0, 100.0]),
)
def test_functions_equal_the_oracle(seed, name, dtype, share, scale):
    rng = np.random.default_rng(seed)
    function, oracle = FUNCTIONS[name]
    scores = keras.ops.cast(rng.normal(size=(2, 3, 7)) * scale, dtype)
    visible = None if share is None else rng.random((2, 1, 7)) < share
    expected = oracle(numpy(scores).astype("float64"), visible)
    weights = function(scores, visible)
    assert keras.backend.standardize_dtype(weights.dtype) == dtype
    np.testing.assert_allclose(numpy(weights), expected, atol=EPSILON[dtype])


def test_keys_that_score_as_the_kth_best_stay_too():
    weights = normalizers.top_k(2)(np.array([[3.0, 1.0, 1.0, 0.0, 1.0]], "float32"))
    assert (np.asarray(weights) > 0).tolist() == [[True, True, True, False, True]]


@pytest.mark.parametrize("size", [1.0, 1e6, 1e30, 3e38])
def test_sparsemax_of_scores_of_any_size_sums_to_one(size):
    scores = np.array([[0.0, -1.0, -1.0], [1.0, 1.0, 0.0]], "float32") * np.float32(size)
    np.testing.assert_allclose(normalizers.sparsemax(scores), [[1, 0, 0], [0.5, 0.5, 0]], atol=1e-6)


@needs_float64
@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients_equal_finite_differences(name):
    rng = np.random.default_rng(11)
    function, oracle = FUNCTIONS[name]
    scores, upstream = rng.normal(size=(2, 3, 7)), rng.normal(size=(2, 3, 7))
    visible = rng.random((2, 3, 7)) < 0.7
    visible[0, 0] = False
    _, gradients = both_ways(lambda x: function(x, visible), [scores], upstream)
    expected = reference.slopes(lambda x: (oracle(x, visible) * upstream).sum(), scores)
    assert_close(gradients, expected, 1e-6)


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("broken", [np.nan, np.inf, -np.inf, 3e38])
def test_what_is_hidden_reaches_neither_weights_nor_gradient(name, broken):
    function = FUNCTIONS[name][0]
    visible = np.array([[True, True, False, False], [False] * 4])
    clean = np.random.default_rng(1).normal(size=(2, 4)).astype("float32")

    def found(scores):
        def squares(scores):
            weights = function(scores, visible)
            return ops.sum(weights**2), weights

        (_, weights), [gradient] = both_ways(squares, [scores], has_aux=True)
        return weights, gradient

    weights, gradient = found(np.where(visible, clean, np.float32(broken)))
    for this, that in zip((weights, gradient), found(clean), strict=True):
        np.testing.assert_array_equal(this, that)
    assert not np.any(np.asarray(weights)[~visible]) and not np.any(np.asarray(gradient)[~visible])


INFINITE = np.array([[-np.inf] * 4, [1.0, -np.inf, 0.5, -np.inf], [-np.inf, 2.0, -np.inf, -np.inf]])


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("visible", [None, np.ones((3, 4), bool), np.array([True] * 3 + [False])])
def test_a_score_of_minus_infinity_is_hidden_a_whole_row_of_them_too(name, visible):
    function, oracle = FUNCTIONS[name]

    def total(scores):
        weights = function(scores, visible)
        return ops.sum(weights**2), weights

    (_, weights), (gradient,) = both_ways(total, [INFINITE.astype("float32")], has_aux=True)
    weights, gradient = numpy(weights), numpy(gradient)
    np.testing.assert_allclose(weights, oracle(INFINITE, visible), atol=1e-6)
    assert not np.any(weights[~np.isfinite(INFINITE)])
    assert np.isfinite(gradient).all() and not np.any(gradient[~np.isfinite(INFINITE)])


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("mask", ["none", "causal", "padding by query", "explicit by head"])
def test_attention_with_them_equals_the_oracle(name, mask):
    function, oracle = FUNCTIONS[name]
    score, arguments = problem(3)
    query, key, value = arguments
    rule = mask_of(mask, 3)
    seen = None if rule is None else numpy(rule.dense(T, S))
    if seen is not None and seen.ndim == 3:
        seen = seen[:, None]
    bias = np.random.default_rng(5).normal(size=(H, T, S))[None]
    output, weights = attend(
        query,
        value,
        key=key,
        score=score,
        parameters=(),
        mask=rule,
        bias=bias,
        normalizer=function,
        return_weights=True,
    )
    query, key, value = (numpy(x).astype("float64") for x in arguments)
    expected = oracle(reference.dot_product(query, key) + bias, seen)
    np.testing.assert_allclose(weights, expected, 1e-4, 1e-5)
    np.testing.assert_allclose(output, reference.pool(expected, value), 1e-4, 1e-5)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_query_that_may_see_a_nan_becomes_nan(name):
    _, (query, key, value) = problem(7)
    key = ops.where(np.arange(S)[:, None] == 9, np.nan, key)
    output = numpy(
        attend(query, value, key=key, mask=masks.causal(), normalizer=FUNCTIONS[name][0])
    )
    sees = reference.causal(T, S)[:, 9]
    assert np.isnan(output[:, :, sees]).all() and np.isfinite(output[:, :, ~sees]).all()


@pytest.mark.tensorflow
@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("jit", [False, True], ids=["graph", "XLA"])
def test_a_graph_of_unknown_lengths_equals_eager(name, jit):
    _, arguments = problem(7)
    spec = [tf.TensorSpec((None, H, None, x.shape[-1])) for x in arguments]

    def run(query, key, value):
        return attend(query, value, key=key, mask=masks.causal(), normalizer=FUNCTIONS[name][0])

    compiled = tf.function(run, input_signature=spec, jit_compile=jit)
    assert_close([compiled(*arguments)], [run(*arguments)], 1e-5)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_long_sequences_take_the_dense_path_and_streaming_is_refused(name, monkeypatch):
    sizes = tfattn.core.engine.sizes
    monkeypatch.setitem(sizes.LEAST, "cpu", sizes.Least(1, 1, 1, 1, 1, 1))
    _, (query, key, value) = problem(7)
    options = {"normalizer": FUNCTIONS[name][0]}
    np.testing.assert_array_equal(
        attend(query, value, key=key, **options),
        attend(query, value, key=key, path="dense", **options),
    )
    message = (
        "attend: `path` must be 'dense' with a `normalizer`, which needs all scores of a query"
    )
    with pytest.raises(ValueError, match=message):
        attend(query, value, key=key, path="streamed", **options)
    message = "attend: `normalizer` must be None with `return_log_sum_exp`, which"
    with pytest.raises(ValueError, match=message):
        attend(query, value, key=key, return_log_sum_exp=True, **options)


@pytest.mark.parametrize("k", [0, -1, 2.0, True, "3"])
def test_a_number_of_keys_that_is_none_is_refused(k):
    with pytest.raises(ValueError, match="normalizers.top_k: `k` must be a positive integer"):
        normalizers.top_k(k)
    with pytest.raises(ValueError, match="TopKSoftmax: `k` must be a positive integer"):
        tfattn.TopKSoftmax(k)


def test_keras_own_sparsemax_still_gives_rows_that_do_not_sum_to_one():
    # When this fails, Keras has been mended: then `normalizers.sparsemax` can be built on it.
    rows = np.array([[0.5, 0.3, -1.0]], "float32")
    assert abs(float(np.sum(keras.ops.sparsemax(rows))) - 1) > 0.1
    np.testing.assert_allclose(normalizers.sparsemax(rows), [[0.6, 0.4, 0.0]], atol=1e-6)


# Sinks.


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("mask", ["none", "causal", "padding by query", "explicit by head"])
def test_sinks_equal_the_oracle_on_both_paths(path, mask):
    function, arguments = problem(3)
    query, key, value = arguments
    rule = mask_of(mask, 3)
    seen = None if rule is None else numpy(rule.dense(T, S))
    if seen is not None and seen.ndim == 3:
        seen = seen[:, None]
    with blocks_of((4, 6)):
        pooled = attend(query, value, key=key, mask=rule, path=path, return_log_sum_exp=True)
    output, sums = normalizers.add_sinks(*pooled, SINKS)
    query, key, value = (numpy(x).astype("float64") for x in arguments)
    weights, expected = reference.with_sinks(reference.dot_product(query, key), SINKS, seen)
    np.testing.assert_allclose(output, reference.pool(weights, value), 1e-4, 1e-5)
    np.testing.assert_allclose(sums, expected, 1e-5, 1e-5)


@pytest.mark.slow
@needs_float64
@pytest.mark.parametrize("path", PATHS)
def test_gradients_of_sinks_equal_finite_differences_with_rows_that_see_nothing(path):
    rng = np.random.default_rng(5)
    shapes = (1, 2, T, D), (1, 2, S, D), (1, 2, S, 3), (2,)
    arrays = [rng.normal(size=shape) for shape in shapes]
    upstream, of_sums = rng.normal(size=(1, 2, T, 3)), rng.normal(size=(1, 2, T))
    seen = ~reference.causal(T, S) & reference.window(6, T, S)  # the last query sees nothing
    assert not seen.any(-1).all()

    def oracle(query, key, value, sinks):
        weights, sums = reference.with_sinks(reference.dot_product(query, key), sinks, seen)
        return (reference.pool(weights, value) * upstream).sum() + (sums * of_sums).sum()

    def ours(query, key, value, sinks):
        pooled = attend(query, value, key=key, mask=seen, path=path, return_log_sum_exp=True)
        return normalizers.add_sinks(*pooled, sinks)

    with blocks_of((4, 6)):
        (output, sums), gradients = both_ways(ours, arrays, (upstream, of_sums))
    assert np.all(numpy(output)[:, :, ~seen.any(-1)] == 0)
    empty = np.broadcast_to(arrays[3][:, None], (1, 2, T))[..., ~seen.any(-1)]
    np.testing.assert_allclose(numpy(sums)[..., ~seen.any(-1)], empty)
    assert_close(gradients, reference.slopes(oracle, *arrays), 1e-6)


@pytest.mark.parametrize("path", ["dense", "streamed"])
@pytest.mark.parametrize("sinks", [-np.inf, [-np.inf, 0.5]], ids=["all", "one head"])
def test_a_sink_of_minus_infinity_is_none_also_for_a_row_of_nothing(path, sinks):
    rng = np.random.default_rng(5)
    arrays = [rng.normal(size=shape) for shape in ((1, 2, 3, 5), (1, 2, 7, 5), (1, 2, 7, 3))]
    bias = np.where(rng.random((3, 7)) < 0.5, 0.0, -np.inf)
    bias[1] = -np.inf
    weights, expected = reference.with_sinks(
        reference.dot_product(arrays[0], arrays[1]), np.broadcast_to(sinks, 2), bias == 0
    )

    def total(query, key, value, sink):
        pooled = attend(query, value, key=key, bias=bias, path=path, return_log_sum_exp=True)
        output, sums = normalizers.add_sinks(*pooled, sink)
        finite = ops.where(ops.isfinite(sums), sums, 0.0)
        return ops.sum(output**2) + ops.sum(finite), (output, sums)

    operands = [as_tensor(x, FLOATS[-1]) for x in (*arrays, sinks)]
    (_, (output, sums)), gradients = both_ways(total, operands, has_aux=True)
    tolerance = EPSILON["float32"]
    expected_output = reference.pool(weights, arrays[2])
    np.testing.assert_allclose(numpy(output), expected_output, tolerance, tolerance)
    np.testing.assert_allclose(numpy(sums), expected, tolerance, tolerance)
    for gradient in gradients:
        assert np.isfinite(numpy(gradient)).all()


@pytest.mark.parametrize(
    "normalizer", [tfattn.Sparsemax(), tfattn.TopKSoftmax(2), tfattn.AttentionSinks()]
)
@pytest.mark.parametrize("sink", [0.0, -np.inf])
def test_a_layer_gives_a_row_of_minus_infinities_exact_zeros(normalizer, sink):
    layer = tfattn.Attention(normalizer=type(normalizer).from_config(normalizer.get_config()))
    layer.build((1, 3, 4), (1, 5, 4))
    for weight in layer.normalizer.weights:
        weight.assign(sink)
    operands = [np.ones((1, 3, 4), "float32"), np.ones((1, 5, 4), "float32")]
    bias = np.zeros((3, 5), "float32")
    bias[1] = -np.inf

    def total(query, value):
        output, weights = layer(query, value, bias=bias, return_attention_scores=True)
        return ops.sum(output**2), (output, weights)

    (_, found), gradients = both_ways(
        total, operands, variables=layer.trainable_weights, has_aux=True
    )
    output, weights = map(numpy, found)
    assert not np.any(weights[:, 1]) and not np.any(output[:, 1])
    assert np.isfinite(weights).all() and np.all(np.sum(weights, axis=-1)[:, [0, 2]] > 0)
    for gradient in gradients:
        assert np.isfinite(numpy(gradient)).all()


def heads(normalizer, **options):
    return tfattn.MultiHeadAttention(num_heads=H, key_dim=3, normalizer=normalizer, **options)


@pytest.mark.parametrize("dtype", ["float32", "mixed_float16", "mixed_bfloat16", FLOAT64])
def test_a_layer_with_sinks_equals_the_oracle_and_its_weights_agree(dtype):
    rng = np.random.default_rng(3)
    layer = heads(tfattn.AttentionSinks(), dtype=dtype)
    tokens = rng.normal(size=(B, S, 6))
    layer.build(tokens.shape, tokens.shape)
    layer.normalizer.sinks.assign(SINKS)
    output, weights = layer(
        tokens, tokens, use_causal_mask=True, valid_lens=[S, 4], return_attention_scores=True
    )
    seen = reference.causal(S, S) & reference.padding([S, 4], S)[:, None]
    maps = layer.query_dense, layer.key_dense, layer.value_dense, layer.output_dense
    given = [np.asarray(w, "float64") for each in maps for w in each.get_weights()]
    query, key, value = (reference.split_heads(tokens, given[i], given[i + 1]) for i in (0, 2, 4))
    expected, _ = reference.with_sinks(reference.dot_product(query, key), SINKS, seen)
    tolerance = {"mixed_float16": 5e-3, "mixed_bfloat16": 5e-2}.get(dtype, 2e-5)
    np.testing.assert_allclose(weights, expected, atol=tolerance)
    pooled = reference.join_heads(reference.pool(expected, value), *given[6:])
    np.testing.assert_allclose(output, pooled, atol=2 * tolerance)
    assert keras.backend.standardize_dtype(layer.normalizer.sinks.dtype) in ("float32", "float64")


@pytest.mark.slow
@pytest.mark.tensorflow
def test_a_layer_with_sinks_streams_and_its_gradients_agree():
    layer = heads(tfattn.AttentionSinks("ones"))
    tokens = np.random.default_rng(1).normal(size=(B, S, 6)).astype("float32")
    layer(tokens, tokens)

    def found(path):
        def sines():
            output = layer(tokens, tokens, use_causal_mask=True, valid_lens=[S, 0])
            return ops.sum(ops.sin(output)), output

        with blocks_of((4, 6)), tfattn.path(path):
            (_, output), gradients = both_ways(
                sines, (), variables=layer.trainable_weights, has_aux=True
            )
        return [output, *gradients]

    here = found("streamed")
    assert_close(here, found("dense"), 1e-5)
    assert len(here) == 1 + 9 and np.abs(here[-1]).max() > 1e-4


@pytest.mark.parametrize(
    "layer", [tfattn.Attention, heads], ids=["Attention", "MultiHeadAttention"]
)
def test_what_is_no_normalizer_is_refused(layer):
    message = "`normalizer` must be a Normalizer layer, such as tfattn.AttentionSinks"
    with pytest.raises(ValueError, match=message):
        layer(normalizer="sparsemax")


def test_the_base_is_the_softmax():
    tokens = np.random.default_rng(1).normal(size=(B, S, 6)).astype("float32")
    layer, plain = tfattn.Attention(normalizer=tfattn.Normalizer()), tfattn.Attention()
    np.testing.assert_array_equal(layer(tokens, tokens), plain(tokens, tokens))


@pytest.mark.parametrize("jit", JIT, ids=str)
@pytest.mark.parametrize("name", ["top 1", "sparsemax"])
def test_a_compiled_call_keeps_the_nan_of_a_query_that_sees_one(name, jit):
    def call(x):
        return attend(x, x, key=x, mask=masks.causal(), normalizer=FUNCTIONS[name][0])

    output = compiled(call, jit)(as_tensor([[[1.0], [np.nan], [1.0]]], "float32"))
    np.testing.assert_array_equal(numpy(output).ravel(), [1.0, np.nan, np.nan])


@needs_float64
def test_a_number_for_a_sink_keeps_its_digits():
    output, sums = ops.ones((1, 1, 1), "float64"), ops.zeros((1, 1), "float64")
    for sinks in (0.3, [0.3]):
        found, _ = normalizers.add_sinks(output, sums, sinks)
        assert abs(float(found[0, 0, 0]) - 1 / (1 + np.exp(0.3))) < 1e-15
