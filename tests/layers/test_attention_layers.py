"""What all attention layers do with their call arguments."""

import keras
import numpy as np
import pytest
from keras import ops

import tfattn
from tests import reference
from tests.helpers.tensors import as_tensor, tf
from tests.layers.test_multi_head import draw

B, T, S, D = 2, 3, 7, 5


def weights_of(query, value, **call):
    return np.asarray(
        tfattn.DotProductAttention()(query, value, return_attention_scores=True, **call)[1]
    )


def test_attention_masks_of_every_argument_join_by_and():
    query, value = draw(B, T, D), draw(B, S, D, seed=1)
    key_mask, value_mask = (np.random.default_rng(n).random((B, S)) < 0.7 for n in (2, 3))
    attention_mask = np.random.default_rng(4).random((B, T, S)) < 0.8
    weights = weights_of(
        query,
        value,
        key_mask=key_mask,
        value_mask=value_mask,
        attention_mask=attention_mask,
        valid_lens=np.array([6, 5]),
        use_causal_mask=True,
    )
    seen = key_mask[:, None] & value_mask[:, None] & attention_mask
    seen = seen & reference.padding([6, 5], S) & reference.causal(T, S)
    np.testing.assert_allclose(
        weights, reference.softmax(reference.dot_product(query, value), seen), atol=1e-6
    )


def test_attention_mask_of_two_axes_is_queries_by_keys():
    tokens = draw(S, S, D)
    mask = reference.causal(S, S)
    seen = np.broadcast_to(mask, (S, S, S))
    np.testing.assert_array_equal(weights_of(tokens, tokens, attention_mask=mask) != 0, seen)


def test_attention_score_object_shared_by_two_layers_computes_the_same():
    score = tfattn.AdditiveScore(units=7)
    first, second = tfattn.Attention(score), tfattn.Attention(score)
    query, value = draw(B, T, D), draw(B, S, D)
    np.testing.assert_array_equal(first(query, value), second(query, value))


def test_attention_mask_of_key_and_value_is_evaluated_once(monkeypatch):
    calls, on = [], tfattn.masks.explicit.on
    monkeypatch.setattr(
        tfattn.masks.explicit, "on", lambda self, grid: calls.append(1) or on(self, grid)
    )
    tokens, mask = np.ones((2, 7, 5), "float32"), ops.arange(7) < as_tensor([[3], [7]])
    tfattn.Attention()(tokens, tokens, key_mask=mask, value_mask=mask)
    assert len(calls) == 1


# Objects with entries per row, as constants of a functional model.
OF_TWO_ROWS = {
    "padding": {"attention_mask": tfattn.masks.padding([3, 5])},
    "padding by query": {"attention_mask": tfattn.masks.padding([[1, 2, 7], [0, 4, 3]])},
    "explicit": {"attention_mask": tfattn.masks.explicit(draw(B, T, S) > 0)},
    "an array": {"attention_mask": draw(B, T, S) > 0},
    "joined": {"attention_mask": tfattn.masks.prefix([1, 2]) | tfattn.masks.causal()},
    "lengths": {"valid_lens": np.array([3, 5])},
    "a bias": {"bias": tfattn.biases.explicit(draw(B, 1, T, S))},
    "an array as a bias": {"bias": draw(B, 2, T, S)},
}


@pytest.mark.parametrize(
    ("name", "known"),
    [(name, False) for name in OF_TWO_ROWS] + [("padding", True)],
)
def test_functional_model_of_any_batch_refuses_rows_unlike_its_masks(name, known, dense_path):
    call = OF_TWO_ROWS[name]
    inputs = [keras.Input((n if known else None, D)) for n in (T, S)]
    layer = tfattn.MultiHeadAttention(2, 3)
    outputs = layer(*inputs, return_attention_scores=True, **call)
    assert {x.shape[0] for x in outputs} <= {None, B}  # TensorFlow infers B from the objects
    assert outputs[0].shape[1:] in {(T if known else None, D), (T, D)}
    model = keras.Model(inputs, outputs)
    query, value = draw(B, T, D), draw(B, S, D, seed=1)
    expected = layer(query, value, return_attention_scores=True, **call)
    for found, wanted in zip(model([query, value]), expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match=f"`{next(iter(call))}` must have shape"):
        model([draw(B + 1, T, D), draw(B + 1, S, D)])


@pytest.mark.slow
def test_attention_dropout_is_active_in_training_only():
    query, value = draw(B, T, D), draw(B, S, D)
    layer = tfattn.DotProductAttention(dropout=0.5, seed=3)
    symbols = [keras.Input((None, D)), keras.Input((None, D))]
    model = keras.Model(symbols, layer(*symbols))
    plain = tfattn.DotProductAttention()(query, value)
    np.testing.assert_array_equal(layer(query, value), plain)
    np.testing.assert_array_equal(model([query, value]), plain)
    assert np.any(layer(query, value, training=True) != plain)
    assert np.any(model([query, value], training=True) != plain)


@pytest.mark.slow
@pytest.mark.tensorflow
def test_attention_bias_object_equals_its_array_in_graph_and_file(tmp_path):
    alibi, call = tfattn.biases.alibi(6), {"return_attention_scores": True}
    layer = tfattn.MultiHeadAttention(6, 11, num_key_value_heads=2)
    inputs = [draw(B, T, D), draw(B, S, D, seed=1)]
    array = reference.alibi(6, T, S).astype("float32")
    expected = layer(*inputs, bias=array, **call)
    symbols = [keras.Input((None, D)), keras.Input((None, D))]
    model = keras.Model(symbols, layer(*symbols, bias=alibi, **call))
    model.save(tmp_path / "model.keras")
    graph = tf.function(
        lambda *x: layer(*x, bias=alibi, **call),
        input_signature=[tf.TensorSpec((None, None, D))] * 2,
    )
    for found in (
        layer(*inputs, bias=alibi, **call),
        graph(*inputs),
        model(inputs),
        keras.models.load_model(tmp_path / "model.keras")(inputs),
    ):
        for ours, wanted in zip(found, expected, strict=True):
            np.testing.assert_allclose(ours, wanted, atol=1e-6)
    assert np.abs(layer(*inputs) - expected[0]).max() > 1e-3  # the bias has an effect
