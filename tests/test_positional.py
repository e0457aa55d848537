"""Positions against the paper's formula in float64."""

import keras
import numpy as np
import pytest
from keras import ops

import tfattn
from tests.tensors import as_tensor, both_ways, dtype_of, numpy, tf


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


@pytest.mark.parametrize("width", [1, 2, 7, 12, 13])
def test_sinusoids_equal_the_formula_also_for_odd_widths(width):
    np.testing.assert_allclose(encoded(11, width), sinusoids(range(11), width), atol=2e-6)


def test_far_positions_are_as_exact_as_float32_angles():
    # An angle in float32 carries two roundings, of the frequency and of the product: together at
    # most its own size times 2^-23. At position 5000 that is 6e-4, and no better is promised.
    error = np.abs(encoded(5001, 13) - sinusoids(range(5001), 13))
    assert np.all(error <= angles(range(5001), 13) * 2.0**-23 + 1e-6)
    assert error[:11].max() < 2e-6


def test_another_wavelength_slows_the_last_columns():
    np.testing.assert_allclose(
        encoded(11, 7, max_wavelength=50.0), sinusoids(range(11), 7, 50.0), atol=2e-6
    )


@pytest.mark.parametrize("offset", [1, 5, 17])
def test_an_offset_is_one_rotation_for_every_position(offset):
    width, length = 12, 101
    codes = encoded(length, width)
    frequency = 10_000.0 ** (-np.arange(0, width, 2) / width)
    sin, cos = codes[:, 0::2], codes[:, 1::2]
    turned_sin = sin * np.cos(offset * frequency) + cos * np.sin(offset * frequency)
    turned_cos = cos * np.cos(offset * frequency) - sin * np.sin(offset * frequency)
    np.testing.assert_allclose(turned_sin[:-offset], sin[offset:], atol=3e-5)
    np.testing.assert_allclose(turned_cos[:-offset], cos[offset:], atol=3e-5)


def test_inputs_are_scaled_and_positions_are_not():
    inputs = np.random.default_rng(0).normal(size=(2, 5, 7)).astype("float32")
    output = tfattn.SinusoidalPositionalEncoding(input_scale=3.0)(inputs)
    np.testing.assert_allclose(output, 3.0 * inputs + sinusoids(range(5), 7), atol=2e-6)


@pytest.mark.parametrize(
    "start",
    [
        13,
        np.int64(13),
        np.array(13),
        as_tensor(13),
        as_tensor([13, 13, 13]),
    ],
    ids=["int", "NumPy int", "NumPy ()", "tensor ()", "tensor (B,)"],
)
def test_a_start_index_shifts_the_positions(start):
    output = tfattn.SinusoidalPositionalEncoding()(
        np.zeros((3, 5, 7), "float32"), start_index=start
    )
    for row in output:
        np.testing.assert_allclose(row, sinusoids(range(13, 18), 7), atol=5e-6)


def test_each_row_has_a_start_index_of_its_own():
    starts = [0, 7, 23]
    output = tfattn.SinusoidalPositionalEncoding()(
        np.zeros((3, 5, 7), "float32"), start_index=np.array(starts)
    )
    for row, start in zip(output, starts, strict=True):
        np.testing.assert_allclose(row, sinusoids(range(start, start + 5), 7), atol=5e-6)


@pytest.mark.tensorflow
def test_tokens_one_by_one_get_what_the_whole_sequence_gets():
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


@pytest.mark.parametrize(
    "policy, digit", [("mixed_bfloat16", 2**-8), ("bfloat16", 2**-8), ("mixed_float16", 2**-11)]
)
def test_position_600_is_right_in_half_precision(policy, digit):
    layer = tfattn.SinusoidalPositionalEncoding(dtype=policy)
    for output in (
        layer(np.zeros((1, 601, 13), "float32"))[:, -1:],
        layer(np.zeros((1, 1, 13), "float32"), start_index=600),
        layer(np.zeros((1, 1, 13), "float32"), start_index=as_tensor([600])),
    ):
        assert dtype_of(output) == layer.compute_dtype
        np.testing.assert_allclose(
            np.asarray(output, "float32")[0], sinusoids([600], 13), atol=digit
        )


@pytest.mark.parametrize(
    "layer",
    [
        tfattn.SinusoidalPositionalEncoding(input_scale=7**0.5),
        tfattn.LearnedPositionalEncoding(11, 7**0.5),
    ],
)
def test_an_embeddings_mask_passes_through(layer):
    ids = np.array([[3, 5, 0, 0, 0], [1, 2, 4, 2, 0]])
    embedded = keras.layers.Embedding(11, 7, mask_zero=True)(ids)
    np.testing.assert_array_equal(layer(embedded)._keras_mask, ids != 0)
    symbolic = layer(
        keras.layers.Embedding(11, 7, mask_zero=True)(keras.Input((None,), dtype="int32"))
    )
    assert symbolic._keras_mask is not None


@pytest.mark.tensorflow
def test_sinusoids_have_no_weights_and_take_any_length():
    layer = tfattn.SinusoidalPositionalEncoding()
    assert layer(np.zeros((1, 3, 5), "float32")).shape == (1, 3, 5)
    assert layer(np.zeros((2, 101, 5), "float32")).shape == (2, 101, 5)
    assert layer.weights == []
    unknown = tf.function(layer, input_signature=[tf.TensorSpec((None, None, 5))])
    np.testing.assert_allclose(
        unknown(ops.zeros((1, 17, 5)))[0], sinusoids(range(17), 5), atol=3e-6
    )


def test_learned_positions_are_rows_of_a_table():
    layer = tfattn.LearnedPositionalEncoding(11, input_scale=2.0)
    inputs = np.random.default_rng(0).normal(size=(3, 5, 7)).astype("float32")
    layer(inputs)
    (table,) = layer.get_weights()
    assert table.shape == (11, 7)
    np.testing.assert_allclose(layer(inputs), 2 * inputs + table[:5], atol=1e-6)
    np.testing.assert_allclose(layer(inputs, start_index=6), 2 * inputs + table[6:], atol=1e-6)
    rows = layer(inputs, start_index=np.array([0, 2, 5]))
    np.testing.assert_allclose(
        rows, 2 * inputs + np.stack([table[:5], table[2:7], table[5:10]]), atol=1e-6
    )


def test_learned_positions_start_small_and_train():
    layer = tfattn.LearnedPositionalEncoding(101)
    inputs = ops.zeros((2, 5, 17))
    layer(inputs)
    upstream = np.broadcast_to(np.arange(1.0, 6.0)[:, None], inputs.shape)
    _, (gradient,) = both_ways(lambda: layer(inputs), (), upstream, layer.trainable_weights)
    np.testing.assert_allclose(np.std(layer.get_weights()[0]), 0.02, rtol=0.1)
    gradient = numpy(gradient)
    # each row of the batch once
    np.testing.assert_allclose(gradient[:5, 0], 2 * np.arange(1.0, 6.0))
    assert not gradient[5:].any()


def test_learned_positions_take_another_initializer():
    layer = tfattn.LearnedPositionalEncoding(11, initializer="ones")
    np.testing.assert_array_equal(layer(np.zeros((1, 3, 5), "float32")), np.ones((1, 3, 5)))


@pytest.mark.parametrize("policy", ["float32", "mixed_float16", "mixed_bfloat16"])
@pytest.mark.parametrize(
    "layer",
    [
        tfattn.SinusoidalPositionalEncoding,
        lambda **options: tfattn.LearnedPositionalEncoding(13, **options),
    ],
)
def test_the_promised_dtype_is_the_one_that_comes(layer, policy):
    layer, tokens = layer(dtype=policy), np.ones((2, 3, 5), "float32")
    output = layer(tokens)
    promised = layer.compute_output_spec(keras.KerasTensor((2, 3, 5), dtype="float32"))
    assert promised.dtype == keras.backend.standardize_dtype(output.dtype) == layer.compute_dtype
