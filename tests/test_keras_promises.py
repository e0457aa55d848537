"""What Keras's documentation promises of its attention layers, kept by the layers that take their
place; where they do it in another way, a test says which.
"""

import keras
import numpy as np
import pytest
from keras import ops

import tfattn
from tests import reference
from tests.tensors import as_tensor, both_ways, numpy
from tests.test_multi_head import draw

B, T, S, H, P, V = 2, 3, 7, 5, 2, 4
QUERY, VALUE, KEY = draw(B, T, 11), draw(B, S, 13, seed=1), draw(B, S, 17, seed=2)
TOKENS = draw(B, S, 11, seed=3)


def heads(**options):
    return tfattn.MultiHeadAttention(H, P, bias_initializer="random_normal", **options)


def weights_of(layer, *inputs, **call):
    return np.asarray(layer(*inputs, return_attention_scores=True, **call)[1])


# MultiHeadAttention


def test_each_query_gets_one_vector_as_wide_as_the_query():
    for layer, width in ((heads(value_dim=V), 11), (heads(output_shape=13), 13)):
        assert layer(QUERY, VALUE, KEY).shape == (B, T, width)


def test_maps_are_as_wide_as_heads_and_their_dims():
    layer = heads(value_dim=V)
    layer(QUERY, VALUE, KEY)
    shapes = [w.shape for w in layer.weights[::2]]
    assert shapes == [(11, H, P), (17, H, P), (13, H, V), (H, V, 11)]
    assert [w.shape for w in layer.weights[1::2]] == [(H, P), (H, P), (H, V), (11,)]


def test_without_a_key_the_value_is_the_key():
    layer = heads()
    np.testing.assert_array_equal(layer(QUERY, VALUE), layer(QUERY, VALUE, VALUE))


def test_weights_are_the_softmax_of_scaled_products_and_outputs_mix_the_values():
    layer = heads(value_dim=V)
    output, weights = layer(QUERY, VALUE, KEY, return_attention_scores=True)
    expected = reference.multi_head(QUERY, VALUE, KEY, layer.get_weights())
    np.testing.assert_allclose(output, expected[0], atol=1e-5)
    np.testing.assert_allclose(weights, expected[1], atol=1e-5)
    assert weights.shape == (B, H, T, S)
    np.testing.assert_allclose(np.sum(weights, -1), 1, atol=1e-6)


def test_there_are_no_biases_where_none_are_wanted():
    layer = tfattn.MultiHeadAttention(H, P, use_bias=False, use_gate=True)
    layer(QUERY, VALUE)
    assert [len(w.shape) for w in layer.weights] == [3] * 5


def test_axes_default_to_all_but_batch_and_features():
    image = draw(B, T, S, 11)
    ours = heads(seed=1)
    assert weights_of(ours, image, image).shape == (B, H, T, S, T, S)


def test_a_mask_of_ones_and_zeros_says_which_query_sees_which_key():
    mask = np.random.default_rng(4).integers(0, 2, (B, T, S))
    weights = weights_of(heads(), QUERY, VALUE, attention_mask=mask)
    np.testing.assert_array_equal(weights != 0, np.broadcast_to(mask[:, None], weights.shape))


def test_a_mask_repeats_over_the_batch_and_over_heads():
    layer, mask = heads(), np.random.default_rng(4).random((T, S)) < 0.5
    output = layer(QUERY, VALUE, attention_mask=mask)
    for shape in ((1, T, S), (B, T, S), (1, 1, T, S), (B, H, T, S), (B, 1, T, S)):
        whole = np.broadcast_to(mask, shape)
        np.testing.assert_array_equal(layer(QUERY, VALUE, attention_mask=whole), output)


def test_under_a_causal_mask_no_token_sees_a_later_one():
    weights = weights_of(heads(), TOKENS, TOKENS, use_causal_mask=True)
    assert np.all(weights[..., np.triu_indices(S, 1)[0], np.triu_indices(S, 1)[1]] == 0)
    assert np.all(weights[..., np.tril_indices(S)[0], np.tril_indices(S)[1]] > 0)


def test_a_window_joins_the_causal_mask():
    weights = weights_of(heads(sliding_window=3), TOKENS, TOKENS, use_causal_mask=True)
    for t in range(S):
        np.testing.assert_array_equal(
            np.nonzero(weights[0, 0, t])[0], np.arange(max(0, t - 2), t + 1)
        )


def test_masks_that_tensors_carry_join_the_given_ones():
    ids = np.array([[3, 1, 4, 1, 0, 0, 0], [5, 9, 2, 6, 5, 3, 0]])
    tokens = keras.layers.Embedding(11, 11, mask_zero=True)(ids)
    given = np.random.default_rng(4).random((B, S, S)) < 0.6
    weights = weights_of(heads(), tokens, tokens, attention_mask=given, use_causal_mask=True)
    seen = given & reference.causal(S, S) & (ids != 0)[:, None]
    np.testing.assert_array_equal(weights != 0, np.broadcast_to(seen[:, None], weights.shape))


def test_dropout_drops_in_training_only_and_as_the_seed_says():
    first, second = (heads(dropout=0.5, seed=3) for _ in range(2))
    first(TOKENS, TOKENS), second(TOKENS, TOKENS)
    second.set_weights(first.get_weights())
    quiet = first(TOKENS, TOKENS)
    np.testing.assert_array_equal(quiet, first(TOKENS, TOKENS, training=False))
    loud = first(TOKENS, TOKENS, training=True)
    assert np.any(np.asarray(loud) != quiet)
    np.testing.assert_array_equal(loud, second(TOKENS, TOKENS, training=True))


def test_training_is_that_of_the_model_around():
    x = keras.Input((S, 11))
    model = keras.Model(x, heads(dropout=0.5)(x, x))
    assert np.any(np.asarray(model(TOKENS, training=True)) != model(TOKENS))
    np.testing.assert_array_equal(model(TOKENS), model(TOKENS, training=False))


def test_initializers_regularizers_and_constraints_reach_every_map():
    layer = tfattn.MultiHeadAttention(
        H,
        P,
        use_gate=True,
        kernel_initializer="ones",
        bias_initializer="ones",
        kernel_regularizer=keras.regularizers.L2(0.5),
        bias_regularizer=keras.regularizers.L2(0.25),
        kernel_constraint="non_neg",
        bias_constraint="non_neg",
    )
    layer(QUERY, VALUE, KEY)
    for weight in layer.weights:
        assert np.all(numpy(weight) == 1)
        assert isinstance(weight.constraint, keras.constraints.NonNeg)
        strength = 0.25 if weight.name == "bias" else 0.5
        penalty = numpy(weight.regularizer(weight))
        assert penalty == pytest.approx(strength * np.prod(weight.shape))
    assert len(layer.losses) == 10


def test_symbolic_shapes_are_those_of_numbers():
    x, y = keras.Input((None, 11)), keras.Input((None, 13))
    output, weights = heads()(x, y, return_attention_scores=True)
    assert output.shape == (None, None, 11) and weights.shape == (None, H, None, None)
    assert heads().compute_output_shape((B, T, 11), (B, S, 13), (B, S, 17)) == (B, T, 11)


# GroupQueryAttention


@pytest.mark.parametrize("groups", [1, 2, 6])
@pytest.mark.parametrize("causal", [False, True])
def test_shared_key_heads_equal_keras_grouped_layer(groups, causal):
    theirs = keras.layers.GroupQueryAttention(P, 6, groups, bias_initializer="random_normal")
    ours = tfattn.MultiHeadAttention(6, P, num_key_value_heads=groups)
    call = {"use_causal_mask": causal, "return_attention_scores": True}
    ours(TOKENS, TOKENS), theirs(TOKENS, TOKENS)
    ours.set_weights(theirs.get_weights())
    for mine, other in zip(
        ours(TOKENS, TOKENS, **call), theirs(TOKENS, TOKENS, **call), strict=True
    ):
        np.testing.assert_allclose(mine, other, atol=1e-5)


def test_with_one_key_head_every_query_head_shares_it_and_with_all_none_does():
    layer = tfattn.MultiHeadAttention(6, P, num_key_value_heads=1)
    layer(QUERY, VALUE)
    assert layer.key_dense.kernel.shape == (13, 1, P)
    full = tfattn.MultiHeadAttention(6, P, num_key_value_heads=6)
    full(QUERY, VALUE)
    again = tfattn.MultiHeadAttention(6, P)
    again.build(QUERY.shape, VALUE.shape)
    again.set_weights(full.get_weights())
    np.testing.assert_array_equal(again(QUERY, VALUE), full(QUERY, VALUE))


def test_query_heads_that_do_not_divide_are_refused():
    with pytest.raises(ValueError, match="`num_key_value_heads` must divide `num_heads`=5"):
        tfattn.MultiHeadAttention(5, P, num_key_value_heads=2)


# Attention


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_dot_products_without_a_scale_equal_keras(causal, masked):
    query, value, key = draw(B, S, 11), draw(B, S, 13, seed=1), draw(B, S, 11, seed=2)
    layer = tfattn.Attention(tfattn.DotProductScore(scale=1.0))
    real = reference.padding([3, 6], S)[:, 0]
    call = {"use_causal_mask": causal, "return_attention_scores": True}
    ours = layer(query, value, key, value_mask=real if masked else None, **call)
    mask = [None, as_tensor(real)] if masked else None
    theirs = keras.layers.Attention()([query, value, key], mask=mask, **call)
    for mine, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(mine, other, atol=1e-5)


def test_named_layer_scales_by_the_width():
    query, key = draw(B, T, 11), draw(B, S, 11, seed=1)
    layer = keras.layers.Attention(use_scale=True)
    layer.build([query.shape, VALUE.shape, key.shape])
    layer.scale.assign(11**-0.5)
    np.testing.assert_allclose(
        tfattn.DotProductAttention()(query, VALUE, key), layer([query, VALUE, key]), atol=1e-5
    )


class Scaled(tfattn.DotProductScore):
    """Keras's `use_scale=True`: one number that is learned."""

    def build(self, query_shape, key_shape):
        super().build(query_shape, key_shape)
        self.factor = self.add_weight(name="scale", shape=(), initializer="ones")

    def prepare_query(self, query):
        return query * self.factor


def test_a_learned_scale_is_a_score_of_ones_own():
    query, key = draw(B, T, 11), draw(B, S, 11, seed=1)
    ours, theirs = tfattn.Attention(Scaled()), keras.layers.Attention(use_scale=True)
    ours(query, VALUE, key), theirs([query, VALUE, key])
    slopes = []
    for layer, call in (
        (ours, lambda: ours(query, VALUE, key)),
        (theirs, lambda: theirs([query, VALUE, key])),
    ):
        layer.trainable_weights[0].assign(0.3)
        (_, output), gradients = both_ways(
            lambda call=call: (ops.sum((output := call()) ** 2), output),
            (),
            variables=layer.trainable_variables,
            has_aux=True,
        )
        slopes.append((output, gradients[0]))
    np.testing.assert_allclose(slopes[0][0], slopes[1][0], atol=1e-5)
    np.testing.assert_allclose(slopes[0][1], slopes[1][1], rtol=1e-4)


def test_the_mask_of_the_query_travels_on_and_zeroes_nothing():
    # Keras's layer zeroes the outputs of padding; here whoever reads them has the mask.
    query, real = draw(B, T, 13), np.array([[True, True, False], [True, False, False]])
    output = tfattn.DotProductAttention()(query, VALUE, query_mask=real)
    np.testing.assert_array_equal(output._keras_mask, real)
    np.testing.assert_array_equal(output, tfattn.DotProductAttention()(query, VALUE))


def test_dropout_of_weights_is_for_training():
    layer, query = tfattn.DotProductAttention(dropout=0.5, seed=1), draw(B, T, 13)
    np.testing.assert_array_equal(layer(query, VALUE), layer(query, VALUE, training=False))
    assert np.any(np.asarray(layer(query, VALUE, training=True)) != layer(query, VALUE))


# AdditiveAttention


@pytest.mark.parametrize("use_scale", [False, True])
def test_the_sum_of_tanh_equals_keras_where_the_maps_do_nothing(use_scale):
    query, key = draw(B, T, 11), draw(B, S, 11, seed=1)
    theirs = keras.layers.AdditiveAttention(use_scale=use_scale)
    expected = theirs([query, VALUE, key], return_attention_scores=True)
    scale = numpy(theirs.scale) if use_scale else np.ones(11)
    ours = tfattn.AdditiveAttention(units=11)
    ours(query, VALUE, key)
    ours.set_weights([np.eye(11), np.eye(11), scale[:, None]])
    output = ours(query, VALUE, key, return_attention_scores=True)
    for mine, other in zip(output, expected, strict=True):
        np.testing.assert_allclose(mine, other, atol=1e-5)


def test_additive_attention_is_causal_and_masked_as_keras_is():
    query, value = draw(B, S, 11), draw(B, S, 11, seed=1)
    real = reference.padding([3, 6], S)[:, 0]
    theirs, ours = keras.layers.AdditiveAttention(), tfattn.AdditiveAttention(units=11)
    expected = theirs([query, value], mask=[None, as_tensor(real)], use_causal_mask=True)
    ours(query, value)
    ours.set_weights([np.eye(11), np.eye(11), numpy(theirs.scale)[:, None]])
    output = ours(query, value, value_mask=real, use_causal_mask=True)
    np.testing.assert_allclose(output, expected, atol=1e-5)
