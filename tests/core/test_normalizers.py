"""Normalizers: sinks, sparsemax and top k, against the oracle.

`attend` with drawn normalizers, masks and biases: `test_properties.py`.
"""

import keras
import numpy as np
import pytest
from keras import ops

import tfattn
from tests import reference
from tests.helpers.paths import blocks_of
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

B, H, T, S, D = 2, 4, 13, 17, 5
EPSILON = {"float16": 2e-3, "bfloat16": 1.6e-2, "float32": 2e-6, "float64": 1e-12}
FUNCTIONS = {
    "sparsemax": (normalizers.sparsemax, reference.sparsemax),
    "top 1": (normalizers.top_k(1), lambda *x: reference.top_k(x[0], 1, *x[1:])),
    "top 3": (normalizers.top_k(3), lambda *x: reference.top_k(x[0], 3, *x[1:])),
    "top 99": (normalizers.top_k(99), reference.softmax),
}
SINKS = np.array([-1.0, 0.0, 2.0, 0.5])


def operands(seed=7):
    """query, key and value of heads."""
    rng = np.random.default_rng(seed)
    shapes = (B, H, T, D), (B, H, S, D), (B, H, S, 3)
    return [as_tensor(rng.normal(size=shape), "float32") for shape in shapes]


@pytest.mark.slow
@pytest.mark.parametrize("name", FUNCTIONS)
def test_normalizer_function_equals_oracle(name):
    function, oracle = FUNCTIONS[name]
    rng = np.random.default_rng(0)
    for dtype in FLOATS:
        for scale, share in ((0.0, 0.8), (0.3, None), (1.0, 0.3), (1.0, 0.0), (100.0, 1.0)):
            scores = ops.cast(rng.normal(size=(2, 3, 7)) * scale, dtype)
            visible = None if share is None else rng.random((2, 1, 7)) < share
            expected = oracle(numpy(scores).astype("float64"), visible)
            weights = function(scores, visible)
            assert keras.backend.standardize_dtype(weights.dtype) == dtype
            np.testing.assert_allclose(numpy(weights), expected, atol=EPSILON[dtype])


def test_top_k_keys_equal_to_the_kth_best_stay():
    weights = normalizers.top_k(2)(np.array([[3.0, 1.0, 1.0, 0.0, 1.0]], "float32"))
    assert (np.asarray(weights) > 0).tolist() == [[True, True, True, False, True]]


def test_sparsemax_of_scores_of_any_size_sums_to_one():
    for size in (1.0, 1e6, 1e30, 3e38):
        scores = np.array([[0.0, -1.0, -1.0], [1.0, 1.0, 0.0]], "float32") * np.float32(size)
        weights = normalizers.sparsemax(scores)
        np.testing.assert_allclose(weights, [[1, 0, 0], [0.5, 0.5, 0]], atol=1e-6)


@pytest.mark.slow
@needs_float64
@pytest.mark.parametrize("name", FUNCTIONS)
def test_normalizer_gradient_equals_finite_differences(name):
    rng = np.random.default_rng(11)
    function, oracle = FUNCTIONS[name]
    scores, upstream = rng.normal(size=(2, 3, 7)), rng.normal(size=(2, 3, 7))
    visible = rng.random((2, 3, 7)) < 0.7
    visible[0, 0] = False
    _, gradients = both_ways(lambda x: function(x, visible), [scores], upstream)
    expected = reference.slopes(lambda x: (oracle(x, visible) * upstream).sum(), scores)
    np.testing.assert_allclose(gradients[0], expected[0], 1e-6, 1e-6)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_normalizer_hidden_score_reaches_neither_weights_nor_gradient(name):
    function = FUNCTIONS[name][0]
    visible = np.array([[True, True, False, False], [False] * 4])
    clean = np.random.default_rng(1).normal(size=(2, 4)).astype("float32")

    def found(scores):
        def squares(scores):
            weights = function(scores, visible)
            return ops.sum(weights**2), weights

        (_, weights), [gradient] = both_ways(squares, [scores], has_aux=True)
        return numpy(weights), numpy(gradient)

    wanted = found(clean)
    assert not any(array[~visible].any() for array in wanted)
    for broken in (np.nan, np.inf, -np.inf, 3e38):
        here = found(np.where(visible, clean, np.float32(broken)))
        np.testing.assert_array_equal(here, wanted)


INFINITE = np.array([[-np.inf] * 4, [1.0, -np.inf, 0.5, -np.inf], [-np.inf, 2.0, -np.inf, -np.inf]])


@pytest.mark.parametrize("name", FUNCTIONS)
def test_normalizer_row_of_minus_infinities_is_zero(name):
    function, oracle = FUNCTIONS[name]
    for visible in (None, np.ones((3, 4), bool), np.array([True] * 3 + [False])):

        def total(scores, visible=visible):
            weights = function(scores, visible)
            return ops.sum(weights**2), weights

        (_, weights), (gradient,) = both_ways(total, [INFINITE.astype("float32")], has_aux=True)
        weights, gradient = numpy(weights), numpy(gradient)
        np.testing.assert_allclose(weights, oracle(INFINITE, visible), atol=1e-6)
        assert not np.any(weights[~np.isfinite(INFINITE)])
        assert np.isfinite(gradient).all() and not np.any(gradient[~np.isfinite(INFINITE)])


@pytest.mark.parametrize("name", FUNCTIONS)
def test_normalizer_query_that_may_see_nan_becomes_nan(name):
    query, key, value = operands()
    key = ops.where(np.arange(S)[:, None] == 9, np.nan, key)
    output = numpy(
        attend(query, value, key=key, mask=masks.causal(), normalizer=FUNCTIONS[name][0])
    )
    sees = reference.causal(T, S)[:, 9]
    assert np.isnan(output[:, :, sees]).all() and np.isfinite(output[:, :, ~sees]).all()


@pytest.mark.parametrize("jit", JIT, ids=str)
@pytest.mark.parametrize("name", ["top 1", "sparsemax"])
def test_normalizer_compiled_call_keeps_nan(name, jit):
    def call(x):
        return attend(x, x, key=x, mask=masks.causal(), normalizer=FUNCTIONS[name][0])

    output = compiled(call, jit)(as_tensor([[[1.0], [np.nan], [1.0]]], "float32"))
    np.testing.assert_array_equal(numpy(output).ravel(), [1.0, np.nan, np.nan])
    scores = as_tensor([[1.0, np.nan, 2.0, 0.0]], "float32")
    assert np.isnan(numpy(compiled(FUNCTIONS[name][0], jit)(scores))).any()


@pytest.mark.tensorflow
@pytest.mark.slow
@pytest.mark.parametrize("jit", [False, True], ids=["graph", "XLA"])
def test_normalizer_in_a_graph_of_unknown_lengths_equals_eager(jit):
    arguments = operands()

    def run(query, key, value):
        options = {"key": key, "mask": masks.causal()}
        functions = (FUNCTIONS[name][0] for name in ("sparsemax", "top 3", "top 99"))
        return [attend(query, value, normalizer=function, **options) for function in functions]

    specs = [tf.TensorSpec((None, H, None, x.shape[-1])) for x in arguments]
    in_graph = tf.function(run, input_signature=specs, jit_compile=jit)
    for found, expected in zip(in_graph(*arguments), run(*arguments), strict=True):
        np.testing.assert_allclose(found, expected, 1e-5, 1e-5)


def test_normalizer_takes_the_dense_path_and_refuses_to_stream(monkeypatch):
    sizes = tfattn.core.engine.sizes
    monkeypatch.setitem(
        sizes.STREAMING_THRESHOLDS, "cpu", sizes.StreamingThresholds(1, 1, 1, 1, 1, 1)
    )
    query, key, value = operands()
    options = {"key": key, "normalizer": normalizers.sparsemax}
    dense = attend(query, value, path="dense", **options)
    np.testing.assert_array_equal(attend(query, value, **options), dense)
    message = (
        "attend: `path` must be 'dense' with a `normalizer`, which needs all scores of a query"
    )
    with pytest.raises(ValueError, match=message):
        attend(query, value, path="streamed", **options)
    message = "attend: `normalizer` must be None with `return_log_sum_exp`, which"
    with pytest.raises(ValueError, match=message):
        attend(query, value, return_log_sum_exp=True, **options)


def test_top_k_of_no_positive_integer_is_refused():
    for k in (0, -1, 2.0, True, "3"):
        with pytest.raises(ValueError, match="normalizers.top_k: `k` must be a positive integer"):
            normalizers.top_k(k)
        with pytest.raises(ValueError, match="TopKSoftmax: `k` must be a positive integer"):
            tfattn.TopKSoftmax(k)


def test_sparsemax_of_keras_still_does_not_sum_to_one():
    # When this fails, Keras has been mended: then `normalizers.sparsemax` can be built on it.
    rows = np.array([[0.5, 0.3, -1.0]], "float32")
    assert abs(float(np.sum(keras.ops.sparsemax(rows))) - 1) > 0.1
    np.testing.assert_allclose(normalizers.sparsemax(rows), [[0.6, 0.4, 0.0]], atol=1e-6)


# Sinks.


@pytest.mark.parametrize(
    "normalizer", [tfattn.Sparsemax(), tfattn.TopKSoftmax(2), tfattn.AttentionSinks()]
)
@pytest.mark.parametrize("sink", [0.0, -np.inf])
def test_normalizer_layer_gives_a_row_of_minus_infinities_zeros(normalizer, sink):
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
def test_sinks_layer_equals_oracle_in_output_and_weights(dtype):
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
def test_sinks_layer_streamed_has_the_gradients_of_the_dense_path():
    layer = heads(tfattn.AttentionSinks("ones"))
    tokens = np.random.default_rng(1).normal(size=(B, S, 6)).astype("float32")
    layer(tokens, tokens)

    def found(path):
        def sines():
            output = layer(tokens, tokens, use_causal_mask=True, valid_lens=[S, 0])
            return ops.sum(ops.sin(output)), output

        with blocks_of((4, 6)), tfattn.attention_path(path):
            (_, output), gradients = both_ways(
                sines, (), variables=layer.trainable_weights, has_aux=True
            )
        return [output, *gradients]

    here = found("streamed")
    for one, other in zip(here, found("dense"), strict=True):
        np.testing.assert_allclose(one, other, 1e-5, 1e-5)
    assert len(here) == 1 + 9 and np.abs(here[-1]).max() > 1e-4


@pytest.mark.parametrize(
    "layer", [tfattn.Attention, heads], ids=["Attention", "MultiHeadAttention"]
)
def test_normalizer_argument_of_another_kind_is_refused(layer):
    message = "`normalizer` must be a Normalizer layer, such as tfattn.AttentionSinks"
    with pytest.raises(ValueError, match=message):
        layer(normalizer="sparsemax")


def test_normalizer_base_is_the_softmax():
    tokens = np.random.default_rng(1).normal(size=(B, S, 6)).astype("float32")
    layer, plain = tfattn.Attention(normalizer=tfattn.Normalizer()), tfattn.Attention()
    np.testing.assert_array_equal(layer(tokens, tokens), plain(tokens, tokens))
