"""Smoothing kernels in log space against their textbook forms."""

import keras
import numpy as np
import pytest
from keras import ops

import tfattn
from tests.helpers.tensors import FLOAT64, as_tensor, both_ways, dtype_of, numpy
from tests.reference import KERNELS as TEXTBOOK
from tfattn import kernel_regression, kernels

ENDLESS = ["gaussian", "laplace", "logistic"]
COMPACT = sorted(set(TEXTBOOK) - set(ENDLESS))

DISTANCES = np.array([0.0, 1e-3, 0.1, 0.5, 0.9, 0.999, 1.001, 1.5, 3.0])


def log_kernel(name, u):
    return np.asarray(kernels.get(name)(as_tensor(np.square(u), "float32")), "float64")


def test_kernels_all_have_a_textbook_form():
    assert kernels.names() == kernel_regression.kernels.names() == sorted(TEXTBOOK)
    assert set(kernels.names()) <= set(kernels.__all__)


@pytest.mark.parametrize("name", TEXTBOOK)
def test_kernel_equals_the_textbook_form(name):
    np.testing.assert_allclose(
        np.exp(log_kernel(name, DISTANCES)), TEXTBOOK[name](DISTANCES), atol=3e-6
    )
    far = log_kernel(name, np.array([1.001, 2.0, 1e9, 1e18]))
    assert np.all(far == -np.inf) if name in COMPACT else np.isfinite(far).all()
    assert np.isnan(log_kernel(name, np.array([np.nan])))
    assert kernels.support(name) == (1.0 if name in COMPACT else np.inf)
    assert kernel_regression.kernels.get(name).support == kernels.support(kernels.get(name))


def test_kernel_of_ones_own_is_taken_and_has_no_known_support():
    def mine(squared):
        return -squared

    assert kernels.get(mine) is mine and kernels.support(mine) is None
    assert kernels.get("gaussian") is kernels.gaussian


def test_kernel_at_its_edge_is_zero_but_for_the_boxcar():
    at_edge = {name: float(np.exp(log_kernel(name, np.array(1.0)))) for name in COMPACT}
    assert at_edge.pop("boxcar") == 1.0
    assert set(at_edge.values()) == {0.0}
    assert float(np.exp(log_kernel("gaussian", np.array(1.0)))) == pytest.approx(np.exp(-0.5))


@pytest.mark.parametrize("name", TEXTBOOK)
def test_kernel_gradient_is_finite_everywhere_and_right_inside(name):
    squared = np.array([0.0, 1e-12, 0.09, 0.49, 1.0, 2.0, 1e9], "float32")

    def functional(squared):
        logs = kernels.get(name)(squared)
        # −inf is a masked pair: no gradient comes back to it.
        return ops.sum(ops.where(ops.isinf(logs), 0.0, logs))

    slope = numpy(both_ways(functional, [squared])[1][0])
    assert np.isfinite(slope).all()
    u2 = np.array([0.09, 0.49])
    formula = {
        "boxcar": 0 * u2,
        "epanechnikov": -1 / (1 - u2),
        "gaussian": -0.5 + 0 * u2,
        "triangular": -1 / (1 - np.sqrt(u2)) / (2 * np.sqrt(u2)),
    }
    numeric = (
        np.log(TEXTBOOK[name](np.sqrt(u2 + 1e-7))) - np.log(TEXTBOOK[name](np.sqrt(u2)))
    ) / 1e-7
    np.testing.assert_allclose(slope[2:4], formula.get(name, numeric), rtol=1e-5)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", FLOAT64])
def test_kernels_keep_the_dtype_of_distances(dtype):
    for name, textbook in TEXTBOOK.items():
        logs = kernels.get(name)(as_tensor([0.0, 0.25, 4.0], dtype))
        assert dtype_of(logs) == dtype
        wanted, tolerance = textbook(np.array([0.0, 0.5, 2.0])), 1e-2 if "16" in dtype else 3e-6
        np.testing.assert_allclose(np.exp(np.asarray(logs, "float64")), wanted, atol=tolerance)


@keras.saving.register_keras_serializable("test_kernels")
def quartic(squared):
    """A custom kernel."""
    return keras.ops.where(
        squared >= 1.0, -float("inf"), 2 * keras.ops.log1p(-keras.ops.minimum(squared, 0.999999))
    )


@pytest.mark.parametrize("kernel", ["triangular", kernels.epanechnikov, quartic])
def test_kernel_of_a_layer_comes_back_from_its_config(kernel):
    layer = tfattn.NadarayaWatson(kernel, bandwidth=2.0)
    config = keras.saving.serialize_keras_object(layer)
    back = keras.saving.deserialize_keras_object(config)
    points = np.linspace(0, 3, 7, dtype="float32").reshape(1, 7, 1)
    np.testing.assert_array_equal(back(points, points), layer(points, points))
    assert isinstance(config["config"]["kernel"], str) == (kernel is not quartic)


def test_kernel_of_ones_own_pools_like_its_formula():
    x = np.linspace(0, 3, 7)
    points = x.astype("float32").reshape(1, 7, 1)
    output = tfattn.NadarayaWatson(quartic, bandwidth=1.3)(points, points**2, points)
    weight = np.maximum(1 - ((x[:, None] - x) / 1.3) ** 2, 0) ** 2
    np.testing.assert_allclose(output[0, :, 0], weight @ x**2 / weight.sum(1), atol=1e-5)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_kernels_in_half_precision_have_the_slopes_of_float32(dtype):
    for name in TEXTBOOK:
        squared = ops.cast(as_tensor([0.0, 1e-6, 0.25, 0.99, 0.9995, 1.0, 1.01]), dtype)
        (logs, (slope,)), (wanted, (steep,)) = (
            both_ways(kernels.get(name), [ops.cast(squared, kind)]) for kind in (dtype, "float32")
        )
        for here, there in ((logs, wanted), (slope, steep)):
            np.testing.assert_allclose(
                numpy(here), numpy(there), rtol=1e-2, atol=1e-6, err_msg=name
            )
