"""The position-wise network and the residual connection, against their formulas in NumPy."""

import keras
import numpy as np
import pytest

import tfattn
from tests import reference
from tests.helpers.tensors import numpy
from tests.layers.test_multi_head import draw

B, T, D, HIDDEN = 2, 5, 7, 11


def with_random_weights(layer, seed=1):
    rng = np.random.default_rng(seed)
    layer.set_weights([rng.normal(size=weight.shape) for weight in layer.get_weights()])
    return [weight.astype("float64") for weight in layer.get_weights()]


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


@pytest.mark.parametrize(
    "activation, function, output_dim",
    [
        ("relu", lambda x: np.maximum(x, 0), None),
        (keras.activations.silu, lambda x: x * sigmoid(x), 3),
    ],
)
def test_positionwise_feed_forward_equals_the_formula(output_dim, activation, function):
    layer = tfattn.PositionwiseFeedForward(HIDDEN, output_dim, activation=activation)
    x = draw(B, T, D)
    layer.build(x.shape)
    w1, b1, w2, b2 = with_random_weights(layer)
    output = layer(x)
    assert output.shape == (B, T, output_dim or D)
    np.testing.assert_allclose(output, function(x @ w1 + b1) @ w2 + b2, atol=2e-5)


@pytest.mark.parametrize(
    "options, function",
    [
        ({}, lambda x: x * sigmoid(x)),
        ({"output_dim": 3, "use_bias": True, "activation": "sigmoid"}, sigmoid),
    ],
)
def test_gated_feed_forward_equals_the_formula(options, function):
    layer, x = tfattn.GatedFeedForward(HIDDEN, **options), draw(B, T, D)
    layer.build(x.shape)
    weights = with_random_weights(layer)
    use_bias = len(weights) == 6
    matrices, biases = (weights[::2], weights[1::2]) if use_bias else (weights, (0.0, 0.0, 0.0))
    expected = reference.gated(x, *zip(matrices, biases, strict=True), activation=function)
    np.testing.assert_allclose(layer(x), expected, rtol=1e-4, atol=1e-4)


NETWORKS = [tfattn.PositionwiseFeedForward, tfattn.GatedFeedForward]


@pytest.mark.parametrize("network", NETWORKS)
def test_feed_forward_maps_have_initial_weights_of_their_own(network):
    for initializer in ("glorot_uniform", keras.initializers.HeNormal()):
        layer = network(D, kernel_initializer=initializer)
        layer.build((B, T, D))
        kernels = [w for w in layer.get_weights() if w.shape == (D, D)]
        assert len(kernels) == (3 if network is tfattn.GatedFeedForward else 2)
        assert len({float(kernel[0, 0]) for kernel in kernels}) == len(kernels)


@pytest.mark.parametrize("network", NETWORKS)
def test_feed_forward_dropout_in_training_keeps_the_mean(network):
    layer, x = network(HIDDEN, dropout=0.5, seed=0), draw(1, 1, D)
    many = np.tile(x, (1, 20_000, 1))
    still = layer(many, training=False)
    np.testing.assert_array_equal(layer(many), still)
    dropped = numpy(layer(many, training=True))
    assert np.any(layer(many, training=True) != dropped)
    np.testing.assert_allclose(dropped.mean(axis=1), still[:, 0], atol=0.05)


@pytest.mark.parametrize("network", NETWORKS)
def test_feed_forward_inputs_without_a_batch_are_refused(network):
    message = r"FeedForward: `inputs` must have shape \(B, T, D\)\. Received: .*\(5,\)"
    with pytest.raises(ValueError, match=message):
        network(HIDDEN)(draw(5))


def test_feed_forward_and_add_norm_pass_the_mask_on():
    ids = np.array([[3, 5, 0, 0, 0], [1, 2, 4, 2, 0]])
    x = keras.layers.Embedding(7, D, mask_zero=True)(ids)
    outputs = [network(HIDDEN)(x) for network in NETWORKS]
    # A norm without `supports_masking` would warn here.
    for options in ({}, {"norm": keras.layers.RMSNormalization()}):
        for norm_first in (False, True):
            layer = tfattn.AddNorm(norm_first=norm_first, **options)
            outputs += [layer(x, draw(B, T, D)), layer.pre_norm(x)]
    for output in outputs:
        np.testing.assert_array_equal(output._keras_mask, ids != 0)


# A norm, or None for the default, and the same in NumPy.
NORMS = {
    "layer": (None, reference.layer_norm),
    "RMS": (
        keras.layers.RMSNormalization(epsilon=0.1),
        lambda x, scale: reference.rms_norm(x, scale, epsilon=0.1),
    ),
}


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("name", NORMS)
def test_add_norm_equals_the_formula(name, norm_first):
    norm, function = NORMS[name]
    layer = tfattn.AddNorm(norm_first=norm_first, norm=norm)
    x, sub = draw(B, T, D), draw(B, T, D, seed=2)
    layer.build(x.shape, sub.shape)
    weights = with_random_weights(layer)
    if norm_first:
        np.testing.assert_allclose(layer.pre_norm(x), function(x, *weights), atol=1e-5)
        np.testing.assert_allclose(layer(x, sub), x + sub, atol=1e-6)
    else:
        np.testing.assert_array_equal(layer.pre_norm(x), x)
        np.testing.assert_allclose(layer(x, sub), function(x + sub, *weights), atol=1e-5)
    assert layer.norm.name == "norm" and (norm is None or not norm.built)


def test_add_norm_epsilon_is_added_to_the_variance():
    x = draw(B, T, D) * 1e-2
    layer = tfattn.AddNorm(epsilon=0.1)
    np.testing.assert_allclose(
        layer(x, x), reference.layer_norm(2 * x, 1.0, 0.0, epsilon=0.1), atol=1e-6
    )


@pytest.mark.parametrize("norm_first", [False, True])
def test_add_norm_dropout_leaves_the_residual(norm_first):
    layer, x = tfattn.AddNorm(dropout=0.5, norm_first=norm_first, seed=0), draw(B, T, D) + 10.0
    layer.build(x.shape, x.shape)
    if norm_first:  # the sublayer's output is dropped or doubled, the residual is not
        dropped = numpy(layer(x, np.ones_like(x), training=True) - x)
        np.testing.assert_allclose(np.unique(dropped.round(4)), [0.0, 2.0])
    np.testing.assert_allclose(
        layer(x, np.zeros_like(x), training=True), layer(x, np.zeros_like(x)), atol=1e-6
    )
    assert np.any(layer(x, x, training=True) != layer(x, x, training=False))


def test_add_norm_of_a_constant_token_is_zero():
    x = np.full((1, 1, D), 3.0, "float16")
    output = tfattn.AddNorm(dtype="mixed_float16")(x, x)
    np.testing.assert_allclose(output, np.zeros((1, 1, D)), atol=2**-11)  # float16's
