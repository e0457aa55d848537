"""The position-wise network and the residual connection, against their formulas in NumPy."""

import keras
import numpy as np
import pytest
from keras import ops

import tfattn
from tests import reference
from tests.reference import layer_norm
from tests.tensors import both_ways, numpy

B, T, D, HIDDEN = 2, 5, 7, 11


def draw(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def with_random_weights(layer, seed=1):
    rng = np.random.default_rng(seed)
    layer.set_weights([rng.normal(size=weight.shape) for weight in layer.get_weights()])
    return [weight.astype("float64") for weight in layer.get_weights()]


@pytest.mark.parametrize("output_dim", [None, 3])
def test_the_network_is_two_linear_maps_with_a_relu_between(output_dim):
    layer, x = tfattn.PositionwiseFeedForward(HIDDEN, output_dim), draw(B, T, D)
    layer.build(x.shape)
    w1, b1, w2, b2 = with_random_weights(layer)
    output = layer(x)
    assert output.shape == (B, T, output_dim or D)
    np.testing.assert_allclose(output, np.maximum(x @ w1 + b1, 0) @ w2 + b2, atol=2e-5)


@pytest.mark.parametrize("activation", ["tanh", keras.activations.silu])
def test_the_activation_may_be_another(activation):
    layer, x = tfattn.PositionwiseFeedForward(HIDDEN, activation=activation), draw(B, T, D)
    layer.build(x.shape)
    w1, b1, w2, b2 = with_random_weights(layer)
    inner = x @ w1 + b1
    inner = np.tanh(inner) if activation == "tanh" else inner / (1 + np.exp(-inner))
    np.testing.assert_allclose(layer(x), inner @ w2 + b2, atol=2e-5)


@pytest.mark.parametrize("output_dim", [None, 3])
@pytest.mark.parametrize("use_bias", [False, True])
def test_the_gated_network_is_one_map_through_the_gate_of_another(output_dim, use_bias):
    layer = tfattn.GatedFeedForward(HIDDEN, output_dim, use_bias=use_bias)
    x = draw(B, T, D)
    layer.build(x.shape)
    weights = with_random_weights(layer)
    matrices, biases = (weights[::2], weights[1::2]) if use_bias else (weights, (0.0, 0.0, 0.0))
    maps = zip(matrices, biases, strict=True)
    expected = reference.gated(x, *maps, activation=lambda z: z / (1 + np.exp(-z)))
    output = layer(x)
    assert output.shape == (B, T, output_dim or D)
    np.testing.assert_allclose(output, expected, rtol=1e-4, atol=1e-4)


def test_the_gates_activation_may_be_another():
    layer, x = tfattn.GatedFeedForward(HIDDEN, activation="sigmoid"), draw(B, T, D)
    layer.build(x.shape)
    maps = ((kernel, 0.0) for kernel in with_random_weights(layer))
    expected = reference.gated(x, *maps, activation=lambda z: 1 / (1 + np.exp(-z)))
    np.testing.assert_allclose(layer(x), expected, rtol=1e-4, atol=1e-4)


def test_two_thirds_of_the_hidden_width_make_as_many_weights():
    plain, gated = tfattn.PositionwiseFeedForward(12), tfattn.GatedFeedForward(8)
    for layer in (plain, gated):
        layer.build((None, None, D))
    biases = 12 + D
    assert gated.count_params() == plain.count_params() - biases


NETWORKS = [tfattn.PositionwiseFeedForward, tfattn.GatedFeedForward]


@pytest.mark.parametrize("network", NETWORKS)
def test_every_position_is_treated_alike_and_by_itself(network):
    layer, x = network(HIDDEN), draw(B, T, D)
    output = numpy(layer(x))
    np.testing.assert_allclose(numpy(layer(x[:, ::-1]))[:, ::-1], output, atol=1e-6)
    x[:, 2] = 9.0
    changed = np.any(numpy(layer(x)) != output, axis=-1)
    assert changed[:, 2].all() and changed.sum() == B


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("initializer", ["glorot_uniform", keras.initializers.HeNormal()])
def test_the_maps_start_from_different_numbers(initializer, network):
    layer = network(D, kernel_initializer=initializer)
    layer.build((B, T, D))
    kernels = [w for w in layer.get_weights() if w.shape == (D, D)]
    assert len(kernels) == (3 if network is tfattn.GatedFeedForward else 2)
    assert len({float(kernel[0, 0]) for kernel in kernels}) == len(kernels)


@pytest.mark.parametrize("network", NETWORKS)
def test_an_inner_unit_is_dropped_in_training_alone(network):
    layer, x = network(101, dropout=0.5, seed=0), draw(B, T, D)
    still = layer(x, training=False)
    np.testing.assert_array_equal(layer(x), still)
    assert np.abs(layer(x, training=True) - still).max() > 0.01
    assert np.any(layer(x, training=True) != layer(x, training=True))


@pytest.mark.parametrize("network", NETWORKS)
def test_dropout_of_the_network_keeps_the_mean(network):
    layer, x = network(HIDDEN, dropout=0.5, seed=0), draw(1, 1, D)
    many = numpy(layer(np.tile(x, (1, 20_000, 1)), training=True))
    np.testing.assert_allclose(many.mean(axis=1), layer(x)[:, 0], atol=0.05)


@pytest.mark.parametrize(
    "make",
    [
        lambda: tfattn.PositionwiseFeedForward(HIDDEN),
        lambda: tfattn.GatedFeedForward(HIDDEN),
        lambda: tfattn.AddNorm(),
        # A layer that says nothing of masks would warn here.
        lambda: tfattn.AddNorm(norm=keras.layers.RMSNormalization()),
        lambda: tfattn.AddNorm(norm=keras.layers.RMSNormalization(), norm_first=True),
    ],
)
def test_the_inputs_mask_passes_through(make):
    layer, ids = make(), np.array([[3, 5, 0, 0, 0], [1, 2, 4, 2, 0]])
    x = keras.layers.Embedding(7, D, mask_zero=True)(ids)
    arguments = (x, draw(B, T, D)) if isinstance(layer, tfattn.AddNorm) else (x,)
    np.testing.assert_array_equal(layer(*arguments)._keras_mask, ids != 0)
    if isinstance(layer, tfattn.AddNorm):
        np.testing.assert_array_equal(layer.pre_norm(x)._keras_mask, ids != 0)


def test_post_norm_normalises_the_sum():
    layer, x, sub = tfattn.AddNorm(), draw(B, T, D), draw(B, T, D, seed=2)
    layer.build(x.shape, sub.shape)
    gamma, beta = with_random_weights(layer)
    np.testing.assert_allclose(layer(x, sub), layer_norm(x + sub, gamma, beta), atol=1e-5)
    np.testing.assert_array_equal(layer.pre_norm(x), x)


def test_pre_norm_normalises_what_the_sublayer_is_given():
    layer, x, sub = tfattn.AddNorm(norm_first=True), draw(B, T, D), draw(B, T, D, seed=2)
    layer.build(x.shape, sub.shape)
    gamma, beta = with_random_weights(layer)
    np.testing.assert_allclose(layer(x, sub), x + sub, atol=1e-6)
    np.testing.assert_allclose(layer.pre_norm(x), layer_norm(x, gamma, beta), atol=1e-5)


@pytest.mark.parametrize("norm_first", [False, True])
def test_the_norm_may_be_another_and_is_a_copy(norm_first):
    norm = keras.layers.RMSNormalization(epsilon=0.1)
    layer, x, sub = tfattn.AddNorm(norm_first=norm_first, norm=norm), draw(B, T, D), draw(B, T, D)
    layer.build(x.shape, sub.shape)
    (scale,) = with_random_weights(layer)
    output = layer.pre_norm(x) if norm_first else layer(x, sub)
    expected = reference.rms_norm(x if norm_first else x + sub, scale, epsilon=0.1)
    np.testing.assert_allclose(output, expected, atol=1e-5)
    assert not norm.built and layer.norm.name == "norm"


def test_epsilon_is_added_to_the_variance():
    x = draw(B, T, D) * 1e-2
    layer = tfattn.AddNorm(epsilon=0.1)
    np.testing.assert_allclose(layer(x, x), layer_norm(2 * x, 1.0, 0.0, epsilon=0.1), atol=1e-6)


@pytest.mark.parametrize("norm_first", [False, True])
def test_the_residual_is_never_dropped(norm_first):
    layer, x = tfattn.AddNorm(dropout=0.5, norm_first=norm_first, seed=0), draw(B, T, D) + 10.0
    layer.build(x.shape, x.shape)
    # The sublayer's output dropped or doubled, and the residual there once.
    dropped = numpy(layer(x, np.ones_like(x), training=True) - x) if norm_first else None
    if norm_first:
        np.testing.assert_allclose(np.unique(dropped.round(4)), [0.0, 2.0])
    np.testing.assert_allclose(
        layer(x, np.zeros_like(x), training=True), layer(x, np.zeros_like(x)), atol=1e-6
    )
    assert np.any(layer(x, x, training=True) != layer(x, x, training=False))


@pytest.mark.parametrize("norm_first", [False, True])
def test_a_gradient_reaches_both_ways_of_the_residual(norm_first):
    layer = tfattn.AddNorm(norm_first=norm_first)
    layer(draw(B, T, D), draw(B, T, D))
    tokens = draw(B, T, D), draw(B, T, D)
    _, gradients = both_ways(lambda x, sub: ops.sum(layer(x, sub) ** 3), tokens)
    for gradient in gradients:
        assert np.isfinite(gradient).all() and np.any(gradient)


def test_a_constant_token_is_normalised_to_finite_numbers():
    x = np.full((1, 1, D), 3.0, "float16")
    output = tfattn.AddNorm(dtype="mixed_float16")(x, x)
    np.testing.assert_allclose(output, np.zeros((1, 1, D)), atol=2**-11)  # float16's
