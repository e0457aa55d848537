"""Score layers against the oracle, alone and inside of `Attention`."""

import keras
import numpy as np
import pytest

import tfattn
from tests import reference
from tests.helpers.tensors import numpy

B, T, S, D, K, U = 2, 3, 7, 5, 11, 13


def draw(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def oracle(layer, query, key):
    if isinstance(layer, tfattn.DotProductScore):
        return reference.dot_product(query, key, layer.scale)
    if isinstance(layer, tfattn.AdditiveScore):
        w_q, w_k, w_v = layer.get_weights()
        return reference.additive(query @ w_q, key @ w_k, w_v[:, 0])
    if isinstance(layer, tfattn.BilinearScore):
        return reference.bilinear(query, key, layer.get_weights()[0])
    if isinstance(layer, tfattn.CosineScore):
        return reference.cosine(query, key, np.asarray(layer.current_temperature(), "float64"))
    if isinstance(layer, tfattn.NormalizedDotProductScore):
        gains = layer.get_weights()
        return reference.normalized_dot_product(query, key, *gains, layer.scale, layer.epsilon)
    if isinstance(layer, tfattn.SoftCapScore):
        return reference.soft_capped(oracle(layer.score, query, key), layer.cap)
    if isinstance(layer, tfattn.KernelScore):
        return reference.log_kernel(query, key, np.array(layer.bandwidth), layer.kernel)
    raise AssertionError(f"`oracle` has no branch for {type(layer).__name__}")


SAME_WIDTH = {
    "dot": lambda: tfattn.DotProductScore(),
    "unscaled dot": lambda: tfattn.DotProductScore(scale=1.0),
    "cosine": lambda: tfattn.CosineScore(temperature=0.3),
    "learned cosine": lambda: tfattn.CosineScore(0.3, trainable_temperature=True),
    "normalized dot": lambda: tfattn.NormalizedDotProductScore(),
    "normalized dot, scaled": lambda: tfattn.NormalizedDotProductScore(scale=2.0, epsilon=0.1),
    "soft cap": lambda: tfattn.SoftCapScore(0.7),
    "soft cap of a normalized dot": lambda: tfattn.SoftCapScore(
        2.0, tfattn.NormalizedDotProductScore(scale=3.0)
    ),
    "gaussian": lambda: tfattn.KernelScore("gaussian", bandwidth=1.7),
    "gaussian of each dimension": lambda: tfattn.KernelScore(bandwidth=[0.5, 1.0, 2.0, 3.0, 5.0]),
    "boxcar": lambda: tfattn.KernelScore("boxcar", bandwidth=2.5),
    "triangular": lambda: tfattn.KernelScore("triangular", bandwidth=3.5),
    "epanechnikov": lambda: tfattn.KernelScore("epanechnikov", bandwidth=3.5),
}
ANY_WIDTH = {
    "additive": lambda: tfattn.AdditiveScore(units=U),
    "bilinear": lambda: tfattn.BilinearScore(),
    "soft cap of additive": lambda: tfattn.SoftCapScore(0.7, tfattn.AdditiveScore(units=U)),
}


@pytest.mark.parametrize("name", SAME_WIDTH | ANY_WIDTH)
def test_score_alone_and_in_attention_equals_the_oracle(name):
    layer = (SAME_WIDTH | ANY_WIDTH)[name]()
    query, key, value = (
        draw(B, T, D),
        draw(B, S, K if name in ANY_WIDTH else D, seed=1),
        draw(B, S, K, seed=2),
    )
    scores = layer(query, key)
    for seed, weight in enumerate(layer.trainable_weights):  # gains of ones would hide
        weight.assign(weight + 0.3 * draw(*weight.shape, seed=seed))
    scores = layer(query, key)
    expected = oracle(layer, query.astype("float64"), key.astype("float64"))
    np.testing.assert_allclose(scores, expected, rtol=1e-4, atol=1e-5)
    output, weights = tfattn.Attention(layer)(
        query, value, key, use_causal_mask=True, return_attention_scores=True
    )
    pooled, expected_weights = reference.attention(expected, value, reference.causal(T, S))
    np.testing.assert_allclose(weights, expected_weights, atol=1e-5)
    np.testing.assert_allclose(output, pooled, atol=1e-4)


def test_dot_product_score_of_unit_variance_has_variance_one():
    query, key = draw(1, 200, 64), draw(1, 200, 64, seed=1)
    assert 0.95 < np.var(tfattn.DotProductScore()(query, key)) < 1.05
    assert 60 < np.var(tfattn.DotProductScore(scale=1.0)(query, key)) < 68


def test_cosine_score_of_a_zero_vector_is_zero():
    scores = tfattn.CosineScore()(np.zeros((1, 1, D), "float32"), draw(1, S, D))
    np.testing.assert_array_equal(scores, np.zeros((1, 1, S)))


def test_cosine_score_temperature_is_one_per_head():
    layer = tfattn.CosineScore(0.5, trainable_temperature=True)
    query, key = draw(B, 3, T, D), draw(B, 1, S, D, seed=1)
    layer(query, key)
    temperatures = np.array([0.25, 1.0, 3.0], "float32")
    np.testing.assert_allclose(layer.current_temperature(), [0.5] * 3)
    layer.log_temperature.assign(np.log(temperatures))
    expected = reference.cosine(query, np.repeat(key, 3, axis=1), temperatures[:, None, None])
    np.testing.assert_allclose(layer(query, key), expected, 1e-4, 1e-5)


def test_normalized_dot_product_score_ignores_the_length_of_vectors():
    layer = tfattn.NormalizedDotProductScore(epsilon=1e-12)
    query, key = draw(B, T, D), draw(B, S, D, seed=1)
    plain = layer(query, key)
    np.testing.assert_allclose(layer(1000 * query, 1e-3 * key), plain, rtol=1e-4, atol=1e-5)
    assert np.abs(plain).max() <= D**0.5 * 1.0001
    np.testing.assert_array_equal(layer(0 * query, key), 0 * plain)


def test_soft_cap_score_hides_a_key_that_its_score_hides():
    layer = tfattn.Attention(tfattn.SoftCapScore(2.0, tfattn.KernelScore("boxcar")))
    query, key = np.zeros((1, 1, 1), "float32"), np.array([[[0.5], [3.0]]], "float32")
    _, weights = layer(query, key, return_attention_scores=True)
    np.testing.assert_array_equal(weights, [[[1, 0]]])


@pytest.mark.parametrize("dtype", ["mixed_float16", "mixed_bfloat16"])
@pytest.mark.parametrize("name", ["soft cap", "normalized dot", "learned cosine"])
def test_score_in_half_precision_keeps_its_digits(name, dtype):
    plain = SAME_WIDTH[name]()
    layer = type(plain).from_config({**plain.get_config(), "dtype": dtype})
    query, key = draw(B, T, D), draw(B, S, D, seed=1)
    layer(query, key)
    expected = oracle(layer, query.astype("float64"), key.astype("float64"))
    scores = layer(query, key)
    tolerance = 5e-3 if dtype == "mixed_float16" else 5e-2
    np.testing.assert_allclose(keras.ops.cast(scores, "float32"), expected, atol=tolerance)


def test_dot_product_attention_equals_the_walk_through_by_hand():
    tokens = np.array([[[1, 0, 1, 0], [0, 2, 0, 2], [1, 1, 1, 1]]], "float32")
    w_key = np.array([[0, 0, 1], [1, 1, 0], [0, 1, 0], [1, 1, 0]], "float32")
    w_query = np.array([[1, 0, 1], [1, 0, 0], [0, 0, 1], [0, 1, 1]], "float32")
    w_value = np.array([[0, 2, 0], [0, 3, 0], [1, 0, 3], [1, 1, 0]], "float32")
    layer = tfattn.DotProductAttention(scale=1.0)
    output, weights = layer(
        tokens @ w_query, tokens @ w_value, tokens @ w_key, return_attention_scores=True
    )
    expected = [
        [6.3379e-02, 4.6831e-01, 4.6831e-01],
        [6.0337e-06, 9.8201e-01, 1.7986e-02],
        [2.9539e-04, 8.8054e-01, 1.1917e-01],
    ]
    np.testing.assert_allclose(weights[0], expected, rtol=1e-4)
    np.testing.assert_allclose(output[0, 0], [1.9366, 6.6831, 1.5951], atol=5e-5)


def test_additive_score_initial_weights_of_heads_differ():
    layer = tfattn.AdditiveScore(units=200)
    layer.build((None, 3, None, 100), (None, 3, None, 100))
    kernel = numpy(layer.query_kernel)
    assert kernel.shape == (3, 100, 200)
    assert len({float(k[0, 0]) for k in kernel}) == 3
    assert 0.99 < np.abs(kernel).max() / np.sqrt(6 / 300) < 1.001


@pytest.mark.parametrize(
    ("name", "groups", "path"),
    [
        (name, groups, path)
        for name in ("additive", "bilinear")
        for groups, path in ((1, "dense"), (2, "streamed"))
    ]
    + [("soft cap of additive", 1, "streamed")],
)
def test_score_matrices_of_each_head_equal_the_oracle(name, groups, path):
    """Beside an axis of 1, oneDNN reads a matrix that is repeated over the batch beyond its end."""
    heads, batch = 2, 13
    layer = tfattn.MultiHeadAttention(
        heads, D, num_key_value_heads=groups, score=ANY_WIDTH[name](), use_bias=False
    )
    tokens = draw(batch, S, 3)
    with tfattn.attention_path(path):
        found = layer(tokens, tokens)
    q, k, v, out = (np.asarray(w, "float64") for w in layer.get_weights()[-4:])
    inner = layer.score.score if isinstance(layer.score, tfattn.SoftCapScore) else layer.score
    weights = [np.asarray(w, "float64") for w in inner.get_weights()]
    wanted = 0.0
    for head in range(heads):
        group = head * groups // heads
        query, key, value = tokens @ q[:, head], tokens @ k[:, group], tokens @ v[:, group]
        one = [w[head if len(w) == heads else group] for w in weights]
        if isinstance(inner, tfattn.AdditiveScore):
            scores = reference.additive(query @ one[0], key @ one[1], one[2][:, 0])
        else:
            scores = reference.bilinear(query, key, one[0])
        if inner is not layer.score:
            scores = reference.soft_capped(scores, layer.score.cap)
        wanted = wanted + reference.softmax(scores) @ value @ out[head]
    np.testing.assert_allclose(numpy(found), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["additive", "bilinear"])
def test_score_of_a_single_head_equals_rows_one_by_one(name):
    layer = tfattn.MultiHeadAttention(1, D, score=ANY_WIDTH[name]())
    tokens = draw(13, S, 3)
    found = numpy(layer(tokens, tokens))
    one_by_one = [numpy(layer(row[None], row[None]))[0] for row in tokens]
    np.testing.assert_allclose(found, one_by_one, rtol=1e-5, atol=1e-6)


def test_score_config_once_built_fits_any_other_width():
    layer = tfattn.Attention(tfattn.AdditiveScore(units=U))
    layer(draw(B, T, D), draw(B, S, K))
    copy = tfattn.Attention.from_config(layer.get_config())
    assert copy(draw(B, T, K), draw(B, S, D)).shape == (B, T, D)


def test_kernel_score_custom_kernel_survives_its_config():
    @keras.saving.register_keras_serializable("tests")
    def cauchy(squared):
        return -keras.ops.log1p(squared)

    layer = tfattn.KernelScore(cauchy)
    copy = tfattn.KernelScore.from_config(layer.get_config())
    query, key = draw(B, T, D), draw(B, S, D, seed=1)
    squared = ((query[:, :, None] - key[:, None]) ** 2).sum(-1)
    np.testing.assert_allclose(copy(query, key), -np.log1p(squared), rtol=1e-4)
