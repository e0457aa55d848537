"""Positions against the paper's formula in float64."""

import keras
import numpy as np
import pytest
from keras import ops

import tfattn
from tests.helpers.tensors import as_tensor, both_ways, dtype_of, numpy, tf


def angles(positions, width, max_wavelength=10_000.0):
    """Position times frequency, each frequency twice: `(T, D)`."""
    pairs = np.arange(width) // 2
    return np.asarray(positions, "float64")[:, None] * max_wavelength ** (-2.0 * pairs / width)


def sinusoids(positions, width, max_wavelength=10_000.0):
    turned = angles(positions, width, max_wavelength)
    return np.where(np.arange(width) % 2 == 0, np.sin(turned), np.cos(turned))


def encoded(length, width, **options):
    layer = tfattn.SinusoidalPositionalEncoding(**options)
    return np.asarray(layer(np.zeros((1, length, width), "float32"))[0], "float64")


@pytest.mark.parametrize("width", [1, 2, 7, 12])
def test_sinusoidal_encoding_of_any_width_equals_the_formula(width):
    np.testing.assert_allclose(encoded(11, width), sinusoids(range(11), width), atol=2e-6)
    found = encoded(11, width, max_wavelength=50.0)
    np.testing.assert_allclose(found, sinusoids(range(11), width, 50.0), atol=2e-6)


def test_sinusoidal_encoding_far_positions_are_as_exact_as_float32_angles():
    # An angle in float32 has two rounding errors, of the frequency and of the product: together at
    # most the angle times 2^-23, which is 6e-4 at position 5000.
    error = np.abs(encoded(5001, 13) - sinusoids(range(5001), 13))
    assert np.all(error <= angles(range(5001), 13) * 2.0**-23 + 1e-6)
    assert error[:11].max() < 2e-6


@pytest.mark.slow
@pytest.mark.tensorflow
def test_positional_encoding_of_single_tokens_equals_the_sequence():
    inputs = np.random.default_rng(0).normal(size=(2, 11, 7)).astype("float32")
    for layer in (
        tfattn.SinusoidalPositionalEncoding(input_scale=2.0),
        tfattn.LearnedPositionalEncoding(11),
    ):
        whole = layer(inputs)

        @tf.function
        def one(token, position, layer=layer):
            return layer(token, start_index=position)

        for t in range(11):
            np.testing.assert_allclose(
                one(inputs[:, t : t + 1], as_tensor(t))[:, 0], whole[:, t], atol=1e-6
            )


def test_sinusoidal_encoding_scales_inputs_and_not_positions():
    inputs = np.random.default_rng(0).normal(size=(2, 5, 7)).astype("float32")
    layer = tfattn.SinusoidalPositionalEncoding(input_scale=3.0)
    np.testing.assert_allclose(layer(inputs), 3.0 * inputs + sinusoids(range(5), 7), atol=2e-6)
    assert layer.weights == []


@pytest.mark.parametrize(
    "start",
    [13, np.int64(13), as_tensor(13), as_tensor([13, 13, 13]), np.array([0, 7, 23])],
    ids=["int", "NumPy int", "tensor ()", "tensor (B,)", "each row's own"],
)
def test_sinusoidal_encoding_start_index_shifts_positions(start):
    layer = tfattn.SinusoidalPositionalEncoding()
    output = layer(np.zeros((3, 5, 7), "float32"), start_index=start)
    for row, first in zip(output, np.broadcast_to(numpy(as_tensor(start)), 3), strict=True):
        np.testing.assert_allclose(row, sinusoids(range(first, first + 5), 7), atol=5e-6)


@pytest.mark.parametrize("policy, digit", [("mixed_bfloat16", 2**-8), ("mixed_float16", 2**-11)])
def test_sinusoidal_encoding_position_600_is_right_in_half_precision(policy, digit):
    layer = tfattn.SinusoidalPositionalEncoding(dtype=policy)
    for output in (
        layer(np.zeros((1, 601, 13), "float32"))[:, -1:],
        layer(np.zeros((1, 1, 13), "float32"), start_index=as_tensor([600])),
    ):
        assert dtype_of(output) == layer.compute_dtype
        np.testing.assert_allclose(numpy(output)[0], sinusoids([600], 13), atol=digit)


@pytest.mark.parametrize(
    "layer", [tfattn.SinusoidalPositionalEncoding(7**0.5), tfattn.LearnedPositionalEncoding(11)]
)
def test_positional_encoding_passes_the_mask_on(layer):
    ids = np.array([[3, 5, 0, 0, 0], [1, 2, 4, 2, 0]])
    embedded = keras.layers.Embedding(11, 7, mask_zero=True)(ids)
    np.testing.assert_array_equal(layer(embedded)._keras_mask, ids != 0)


def test_learned_encoding_adds_rows_of_its_table():
    layer = tfattn.LearnedPositionalEncoding(11, input_scale=2.0, initializer="ones")
    inputs = np.random.default_rng(0).normal(size=(3, 5, 7)).astype("float32")
    np.testing.assert_allclose(layer(inputs), 2 * inputs + 1, atol=1e-6)
    table = np.random.default_rng(1).normal(size=(11, 7)).astype("float32")
    layer.set_weights([table])
    for start, rows in ((0, table[:5]), (6, table[6:]), (np.array([0, 2, 5]), None)):
        if rows is None:
            rows = np.stack([table[first : first + 5] for first in start])
        found = layer(inputs, start_index=start)
        np.testing.assert_allclose(found, 2 * inputs + rows, atol=1e-6)


def test_learned_encoding_starts_small_and_trains():
    layer = tfattn.LearnedPositionalEncoding(101)
    inputs = ops.zeros((2, 5, 17))
    layer(inputs)
    upstream = np.broadcast_to(np.arange(1.0, 6.0)[:, None], inputs.shape)
    _, (gradient,) = both_ways(lambda: layer(inputs), (), upstream, layer.trainable_weights)
    np.testing.assert_allclose(np.std(layer.get_weights()[0]), 0.02, rtol=0.1)
    gradient = numpy(gradient)
    # once per row of the batch
    np.testing.assert_allclose(gradient[:5, 0], 2 * np.arange(1.0, 6.0))
    assert not gradient[5:].any()


def test_learned_encoding_known_position_beyond_the_table_is_refused():
    layer, inputs = tfattn.LearnedPositionalEncoding(3), ops.zeros((2, 2, 5))
    with pytest.raises(ValueError, match="at most `max_length`=3 positions, .*inputs=4"):
        layer(inputs, start_index=np.array([0, 2]))
    with pytest.raises(ValueError, match="`positions` must be at least 0. Received: positions=-1"):
        layer(inputs, positions=np.array([0, -1]))


@pytest.mark.slow
@pytest.mark.tensorflow
def test_learned_encoding_position_beyond_the_table_is_nan_under_xla():
    layer = tfattn.LearnedPositionalEncoding(3)
    layer.build((None, None, 2))
    spec = [tf.TensorSpec((1, None, 2), "float32"), tf.TensorSpec((), "int32")]
    run = tf.function(layer.call, jit_compile=True, input_signature=spec)
    for start, broken in ((0, [False] * 3 + [True] * 2), (-1, [True] + [False] * 3 + [True])):
        assert np.isnan(run(np.zeros((1, 5, 2)), start))[0, :, 0].tolist() == broken
