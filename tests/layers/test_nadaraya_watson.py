"""The kernel regression layer against kernel regression in NumPy."""

import keras
import numpy as np
import pytest
from keras import ops

import tfattn
from tests import reference
from tests.helpers.tensors import as_tensor, both_ways, dtype_of, numpy

B, T, S, D, V = 2, 5, 11, 3, 7

KERNELS = {
    "boxcar": lambda u2: 1.0 * (u2 <= 1),
    "epanechnikov": lambda u2: np.maximum(1 - u2, 0),
    "gaussian": lambda u2: np.exp(-u2 / 2),
    "triangular": lambda u2: np.maximum(1 - np.sqrt(u2), 0),
}


def draw(*shape, seed=0):
    return np.random.default_rng(seed).uniform(-1, 1, size=shape).astype("float32")


def regression(query, key, value, kernel="gaussian", bandwidth=1.0, mask=True):
    """Nadaraya and Watson, word for word, in float64; 0 where no key counts."""
    query, key, value = (np.asarray(x, "float64") for x in (query, key, value))
    difference = (query[:, :, None] - key[:, None]) / np.asarray(bandwidth)
    weights = KERNELS[kernel](np.square(difference).sum(-1)) * mask
    total = weights.sum(-1, keepdims=True)
    weights = np.divide(weights, total, out=np.zeros_like(weights), where=total > 0)
    return weights @ value, weights


@pytest.mark.parametrize("kernel", KERNELS)
def test_nadaraya_watson_equals_kernel_regression(kernel):
    query, key, value = draw(B, T, D), draw(B, S, D, seed=1), draw(B, S, V, seed=2)
    for bandwidth in (0.8, [0.9, 1.4, 2.2]):
        layer = tfattn.NadarayaWatson(kernel, bandwidth)
        output, weights = layer(query, value, key, return_attention_scores=True)
        wanted = regression(query, key, value, kernel, bandwidth)
        np.testing.assert_allclose(output, wanted[0], atol=3e-5)
        np.testing.assert_allclose(weights, wanted[1], atol=3e-5)
        assert layer.current_bandwidth().shape == np.shape(bandwidth)
        np.testing.assert_allclose(layer.current_bandwidth(), bandwidth, rtol=1e-6)
        assert layer.trainable_weights == [] and len(layer.weights) == 1


@pytest.mark.parametrize("kernel", ["gaussian", "boxcar"])
def test_nadaraya_watson_leave_one_out_equals_tiled_copies(kernel):
    x, y = draw(S, D), draw(S, V, seed=1)
    layer = tfattn.NadarayaWatson(kernel, 1.7, leave_one_out=True)
    output, weights = layer(x[None], y[None], x[None], return_attention_scores=True)
    assert not np.diagonal(weights[0]).any()
    others = ~np.eye(S, dtype=bool)
    keys = np.tile(x, (S, 1, 1))[others].reshape(S, S - 1, D)
    values = np.tile(y, (S, 1, 1))[others].reshape(S, S - 1, V)
    plain = tfattn.NadarayaWatson(kernel, 1.7)
    np.testing.assert_allclose(output[0], plain(x[:, None], values, keys)[:, 0], atol=1e-5)


def test_nadaraya_watson_leave_one_out_joins_the_other_masks():
    x, layer = draw(B, S, D), tfattn.NadarayaWatson(leave_one_out=True)
    call = {"valid_lens": np.array([4, 11]), "use_causal_mask": True}
    _, weights = layer(x, x, return_attention_scores=True, **call)
    visible = np.tril(np.ones((S, S), bool), k=-1) & (np.arange(S) < np.array([[4], [11]]))[:, None]
    np.testing.assert_array_equal(np.asarray(weights) > 0, visible)
    output, weights = layer(x[:, :1], x[:, :1], return_attention_scores=True)
    assert not np.any(output) and not np.any(weights)


def test_nadaraya_watson_far_query_has_weights_that_sum_to_one():
    key = np.array([[[0.0], [1.0], [2.0]]], "float32")
    value = np.array([[[10.0], [20.0], [30.0]]], "float32")
    query = np.array([[[1e3], [-1e3], [1e9], [1.0]]], "float32")
    output, weights = tfattn.NadarayaWatson(bandwidth=0.1)(
        query, value, key, return_attention_scores=True
    )
    np.testing.assert_allclose(np.sum(weights, axis=-1), 1.0, atol=1e-6)
    assert np.isfinite(output).all()
    # As long as the points are distinct, the nearest has all the weight.
    np.testing.assert_allclose(np.asarray(output)[0, [0, 1, 3], 0], [30.0, 10.0, 20.0], rtol=1e-6)


@pytest.mark.parametrize("kernel", ["boxcar", "epanechnikov", "triangular"])
def test_nadaraya_watson_compact_kernel_without_neighbors_is_zero(kernel):
    key, value = draw(1, S, 1), 1 + draw(1, S, V)
    query = np.array([[[0.0], [5.0], [-1e9]]], "float32")
    layer = tfattn.NadarayaWatson(kernel, 1.5, trainable_bandwidth=True)
    layer(query, value, key)

    def squares(query):
        output, weights = layer(query, value, key, return_attention_scores=True)
        return ops.sum(output**2), (output, weights)

    (_, (output, weights)), gradients = both_ways(
        squares, [query], variables=layer.trainable_weights, has_aux=True
    )
    output, weights = numpy(output), numpy(weights)
    assert np.any(output[:, 0]) and not np.any(output[:, 1:]) and not np.any(weights[:, 1:])
    for gradient in gradients:
        assert np.isfinite(gradient).all()


@pytest.mark.parametrize("kernel", ["gaussian", "epanechnikov", "triangular"])
def test_nadaraya_watson_bandwidth_gradient_equals_the_slope(kernel):
    query, key, value = draw(1, T, D), draw(1, S, D, seed=1), draw(1, S, V, seed=2)
    layer = tfattn.NadarayaWatson(kernel, [1.1, 1.9, 2.7], trainable_bandwidth=True)
    layer(query, value, key)
    (raw,) = layer.trainable_weights
    _, (gradient,) = both_ways(lambda: ops.sum(layer(query, value, key) ** 2), (), variables=[raw])

    def error(raw):
        return (regression(query, key, value, kernel, np.log1p(np.exp(raw)))[0] ** 2).sum()

    (slopes,) = reference.slopes(error, numpy(raw).astype("float64"))
    np.testing.assert_allclose(numpy(gradient), slopes, rtol=2e-3, atol=1e-4)


@pytest.mark.slow
@pytest.mark.usefixtures("dense_path")
def test_nadaraya_watson_trained_gives_each_dimension_its_bandwidth():
    x = np.random.default_rng(0).uniform(-1, 1, (1, 101, 2)).astype("float32")
    heights = np.sin(3 * x[..., :1])  # the second dimension tells nothing
    layer = tfattn.NadarayaWatson(
        bandwidth=[0.5, 0.5], trainable_bandwidth=True, leave_one_out=True
    )
    points = keras.Input((101, 2))
    model = keras.Model(points, layer(query=points, value=as_tensor(heights), key=points))
    model.compile(keras.optimizers.Adam(0.2), "mean_squared_error", jit_compile=False)
    history = model.fit(x, heights, epochs=23, verbose=0).history["loss"]
    telling, empty = numpy(layer.current_bandwidth())
    assert 0 < telling < 0.4 and empty > 2 * telling
    assert history[-1] < 0.5 * history[0]


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_nadaraya_watson_bandwidth_stays_positive_under_huge_gradients(sign):
    layer, x = (
        tfattn.NadarayaWatson(bandwidth=[0.5, 1.0, 2.0], trainable_bandwidth=True),
        draw(1, S, D),
    )
    layer(x, x)
    optimizer = keras.optimizers.SGD(1e3)
    optimizer.build(layer.trainable_weights)
    for _ in range(3):
        optimizer.apply([ops.full((D,), sign * 1e3)])
        bandwidth = np.asarray(layer.current_bandwidth())
        assert np.all(bandwidth > 0) and np.isfinite(bandwidth).all()
        output, weights = layer(x, x, return_attention_scores=True)
        assert np.isfinite(output).all()
        np.testing.assert_allclose(np.sum(weights, axis=-1), 1.0, atol=1e-5)


def test_nadaraya_watson_bandwidth_of_any_size_is_kept():
    for bandwidth in (1e-6, 1e-3, 1.0, 50.0, 1e4, 1e9):
        layer = tfattn.NadarayaWatson(bandwidth=bandwidth)
        layer.build((1, T, D), (1, S, V), (1, S, D))
        np.testing.assert_allclose(layer.current_bandwidth(), bandwidth, rtol=1e-5)


def test_nadaraya_watson_far_from_the_origin_loses_only_input_digits():
    # Steps of 1/64 around 4096 are exact in float32, so the inputs are not rounded; a point
    # divided by its bandwidth is rounded once, by at most 2^-24 of its size.
    grid = np.round(draw(1, S, D) * 64) / 64
    near, value, bandwidth = grid[:, :T], draw(1, S, V, seed=2), 0.3
    wanted = regression(near, grid, value, bandwidth=bandwidth)[0]
    output = tfattn.NadarayaWatson(bandwidth=bandwidth)(
        (4096 + near).astype("float32"), value, (4096 + grid).astype("float32")
    )
    rounding = 2 * 4096 / bandwidth * 2.0**-24
    np.testing.assert_allclose(output, wanted, atol=20 * rounding)


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_nadaraya_watson_in_half_precision_keeps_far_points_apart(policy):
    x = np.linspace(2000.0, 2005.0, 51)[None, :, None]
    y = np.sin(x)
    expected = np.asarray(tfattn.NadarayaWatson(bandwidth=0.3)(x, y, x))
    output = tfattn.NadarayaWatson(bandwidth=0.3, dtype=policy)(x, y, x)
    assert dtype_of(output) == policy.removeprefix("mixed_")
    np.testing.assert_allclose(numpy(output), expected, atol=0.02)
