"""Layer normalization with its gradient written out, against its formula and Keras's layer."""

import keras
import numpy as np
import pytest
from keras import ops

from tests import reference
from tests.helpers import tensors
from tests.helpers.tensors import as_tensor, dtype_of, needs_float64, numpy, tf
from tfattn.layers.transformer.norm import LayerNormalization

B, T, D = 2, 3, 5
EPSILON = 0.01


def draw(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def made(dtype="float32", shape=(B, T, D)):
    layer = LayerNormalization(epsilon=EPSILON, dtype=dtype)
    layer.build(shape)
    layer.set_weights([draw(D, seed=1), draw(D, seed=2)])
    return layer


def both_ways(layer, x, upstream):
    """Output, and the gradients of Σ upstream · output by the tokens and the layer's weights."""
    output, gradients = tensors.both_ways(layer, [x], upstream, layer.trainable_weights)
    return [output, *gradients]


def assert_close(these, those, tolerance):
    for this, that in zip(these, those, strict=True):
        this, that = (x if isinstance(x, np.ndarray) else numpy(as_tensor(x)) for x in (this, that))
        np.testing.assert_allclose(
            this.astype("float64"), that.astype("float64"), tolerance, tolerance
        )


@pytest.mark.parametrize(
    "shape, dtype, tolerance",
    [
        ((7, D), "float32", 1e-5),
        pytest.param((2, 1, 3, D), "float64", 1e-8, marks=needs_float64),
    ],
)
def test_layer_normalization_and_gradients_equal_the_formula(shape, dtype, tolerance):
    x, upstream, layer = draw(*shape), draw(*shape, seed=3), made(dtype=dtype, shape=shape)
    arrays = [x, *layer.get_weights()]

    def summed(*arrays):
        return np.sum(upstream * reference.layer_norm(*arrays, EPSILON))

    expected = [reference.layer_norm(*arrays, EPSILON), *reference.slopes(summed, *arrays)]
    assert_close(both_ways(layer, as_tensor(x, dtype), upstream), expected, tolerance)


@pytest.mark.slow
@pytest.mark.tensorflow
def test_layer_normalization_in_a_graph_of_any_lengths_equals_eager():
    layer, unknown = made(), tf.TensorSpec((None, None, D))
    run = tf.function(
        lambda *x: both_ways(layer, *x), jit_compile=True, input_signature=[unknown, unknown]
    )
    for tokens in (T, 7):
        x, upstream = (as_tensor(draw(B, tokens, D, seed=seed), "float32") for seed in (0, 3))
        assert_close(run(x, upstream), both_ways(layer, x, upstream), 1e-5)
    nothing = run(ops.zeros((0, T, D)), ops.zeros((0, T, D)))
    assert nothing[1].shape == (0, T, D) and not np.any(nothing[2])


@pytest.mark.tensorflow
def test_layer_normalization_second_derivatives_equal_the_formula():
    """Those of Keras's layer are not: TensorFlow's variance takes the mean for a constant."""
    x, direction, layer = (
        as_tensor(draw(B, T, D)),
        as_tensor(draw(B, T, D, seed=3)),
        made(dtype="float64"),
    )
    gamma, beta = (weight.value for weight in layer.weights)

    def plainly(x):
        centered = x - ops.mean(x, -1, keepdims=True)
        return (
            gamma * centered / ops.sqrt(ops.mean(centered**2, -1, keepdims=True) + EPSILON) + beta
        )

    def second(norm):
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as inner:
                inner.watch(x)
                total = ops.sum(norm(x) ** 3)
            slope = ops.sum(inner.gradient(total, x) * direction)
        return outer.gradient(slope, [x, gamma])

    expected = second(plainly)
    assert all(np.abs(y).max() > 0.1 for y in expected)
    for run in (second, tf.function(second)):
        assert_close(run(layer), expected, 1e-9)


@pytest.mark.parametrize("dtype, tolerance", [("mixed_float16", 4e-3), ("mixed_bfloat16", 3e-2)])
def test_layer_normalization_in_half_precision_has_float32_statistics(dtype, tolerance):
    # The squares of the centered tokens overflow in float16; their mean has two digits in
    # bfloat16.
    x, upstream = 4000 + 300 * draw(B, T, D), draw(B, T, D, seed=3)
    here = made(dtype=dtype, shape=(B, T, D))
    x = ops.cast(x, here.compute_dtype)
    found = both_ways(here, x, upstream)
    assert [dtype_of(y) for y in found] == [here.compute_dtype] * 2 + ["float32"] * 2
    expected = both_ways(
        made(), ops.cast(x, "float32"), ops.cast(ops.cast(upstream, here.compute_dtype), "float32")
    )
    for ours, wanted in zip(found, map(numpy, expected), strict=True):
        scale = np.abs(wanted).max()
        assert_close([numpy(ours) / scale], [wanted / scale], tolerance)


@pytest.mark.parametrize("dtype, tolerance", [("mixed_float16", 2e-3), ("mixed_bfloat16", 2e-2)])
def test_keras_rms_normalization_squares_in_float32(dtype, tolerance):
    """So there is none here: this is what it is relied on for."""
    layer = keras.layers.RMSNormalization(epsilon=1e-6, dtype=dtype)
    layer.build((B, T, D))
    layer.set_weights([draw(D, seed=1)])
    x = (400 * draw(B, T, D)).astype("float16")  # squares of these overflow in float16
    output = layer(x)
    assert dtype_of(output) == layer.compute_dtype
    expected = reference.rms_norm(x, draw(D, seed=1))
    np.testing.assert_allclose(np.asarray(output, "float32"), expected, tolerance, tolerance)


@pytest.mark.parametrize(
    "options", [{}, {"scale": False}, {"center": False}, {"axis": 1}, {"axis": [1, 2]}], ids=str
)
def test_layer_normalization_over_any_axes_equals_keras(options):
    here, theirs = (
        kind(epsilon=EPSILON, **options)
        for kind in (LayerNormalization, keras.layers.LayerNormalization)
    )
    x = draw(B, D, D, seed=4).astype("float32")
    for layer in (here, theirs):
        layer.build(x.shape)
    assert [w.name for w in here.weights] == [w.name for w in theirs.weights]
    here.set_weights([draw(*w.shape, seed=i) for i, w in enumerate(here.weights)])
    theirs.set_weights(here.get_weights())
    np.testing.assert_allclose(here(x), theirs(x), atol=1e-5)


@pytest.mark.slow
@pytest.mark.tensorflow
def test_layer_normalization_gradient_of_a_reloaded_graph_is_the_same(tmp_path):
    layer, module, x = made(), tf.Module(), as_tensor(draw(B, T, D), "float32")
    module.weights = [weight.value for weight in layer.weights]
    module.run = tf.function(lambda x: layer(x), input_signature=[tf.TensorSpec((None, None, D))])
    tf.saved_model.save(module, tmp_path)
    again = tf.saved_model.load(tmp_path)
    gradients = []
    for run in (module.run, again.run):
        with tf.GradientTape() as tape:
            tape.watch(x)
            total = ops.sum(run(x) ** 3)
        gradients.append(tape.gradient(total, x))
    np.testing.assert_allclose(*gradients, atol=1e-5)
    assert np.abs(gradients[0]).max() > 0.1
