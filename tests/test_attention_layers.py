"""What all attention layers do with their call arguments."""

import keras
import numpy as np
import pytest
from keras import ops

import tfattn
from tests import reference
from tests.tensors import as_tensor, numpy, tf

B, T, S, D = 2, 3, 7, 5


def draw(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def weights_of(query, value, **call):
    return np.asarray(
        tfattn.DotProductAttention()(query, value, return_attention_scores=True, **call)[1]
    )


def test_every_mask_joins_every_other():
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


@pytest.mark.parametrize("known", [True, False], ids=["lengths", "no lengths"])
@pytest.mark.parametrize("call", OF_TWO_ROWS.values(), ids=OF_TWO_ROWS)
def test_a_functional_model_of_unknown_batch_holds_what_belongs_to_rows(call, known, dense_path):
    inputs = [keras.Input((n if known else None, D)) for n in (T, S)]
    layer = tfattn.MultiHeadAttention(2, 3)
    outputs = layer(*inputs, return_attention_scores=True, **call)
    assert {x.shape[0] for x in outputs} <= {None, B}  # TensorFlow knows that it can be no other
    assert outputs[0].shape[1:] in {(T if known else None, D), (T, D)}
    model = keras.Model(inputs, outputs)
    query, value = draw(B, T, D), draw(B, S, D, seed=1)
    expected = layer(query, value, return_attention_scores=True, **call)
    for found, wanted in zip(model([query, value]), expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match=f"`{next(iter(call))}` must have shape"):
        model([draw(B + 1, T, D), draw(B + 1, S, D)])


def test_query_mask_hides_no_key():
    tokens = draw(B, S, D)
    mask = reference.padding([3, 5], S)[:, 0]
    np.testing.assert_array_equal(
        weights_of(tokens, tokens, query_mask=mask), weights_of(tokens, tokens)
    )


@pytest.mark.parametrize("layer", [tfattn.DotProductAttention(), tfattn.MultiHeadAttention(2, 3)])
def test_query_mask_travels_on_with_the_output(layer):
    tokens = draw(B, S, D)
    mask = reference.padding([3, 5], S)[:, 0]
    output = layer(tokens, tokens, query_mask=mask)
    np.testing.assert_array_equal(output._keras_mask, mask)
    output, weights = layer(tokens, tokens, query_mask=mask, return_attention_scores=True)
    np.testing.assert_array_equal(output._keras_mask, mask)
    assert getattr(weights, "_keras_mask", None) is None


def test_ambiguous_mask_of_two_axes_is_queries_by_keys():
    tokens = draw(S, S, D)
    mask = reference.causal(S, S)
    seen = np.broadcast_to(mask, (S, S, S))
    np.testing.assert_array_equal(weights_of(tokens, tokens, attention_mask=mask) != 0, seen)


@pytest.mark.slow
def test_mask_object_survives_a_functional_model_on_disk(tmp_path):
    query, value = keras.Input((None, D)), keras.Input((None, D))
    mask = tfattn.masks.causal() & ~tfattn.masks.window(2)
    model = keras.Model(
        [query, value], tfattn.DotProductAttention()(query, value, attention_mask=mask)
    )
    model.save(tmp_path / "model.keras")
    inputs = [draw(B, T, D), draw(B, S, D, seed=1)]
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded(inputs), model(inputs))
    weights = reference.softmax(
        reference.dot_product(*inputs), reference.causal(T, S) & ~reference.window(2, T, S)
    )
    np.testing.assert_allclose(model(inputs), weights @ inputs[1], atol=1e-5)


@pytest.mark.tensorflow
def test_padding_that_is_masked_by_a_layer_before_is_seen_inside_tf_function():
    masking = keras.layers.Masking()
    layer = tfattn.DotProductAttention()

    @tf.function
    def run(tokens):
        x = masking(tokens)
        return layer(x, x, return_attention_scores=True)[1]

    tokens = draw(B, S, D)
    tokens[0, 4:] = 0
    assert np.all(numpy(run(tokens))[0, :, 4:] == 0)
    assert np.all(numpy(run(tokens))[1] > 0)


def test_score_object_can_be_shared_by_two_layers():
    score = tfattn.AdditiveScore(units=7)
    first, second = tfattn.Attention(score), tfattn.Attention(score)
    query, value = draw(B, T, D), draw(B, S, D)
    np.testing.assert_array_equal(first(query, value), second(query, value))


def test_dropout_is_active_in_training_only():
    query, value = draw(B, T, D), draw(B, S, D)
    layer = tfattn.DotProductAttention(dropout=0.5, seed=3)
    plain = tfattn.DotProductAttention()(query, value)
    np.testing.assert_array_equal(layer(query, value), plain)
    assert np.any(layer(query, value, training=True) != plain)


def test_symbolic_call_checks_what_an_eager_one_checks():
    query, value = keras.Input((T, D)), keras.Input((S, D))
    with pytest.raises(ValueError, match="`attention_mask` must have shape"):
        tfattn.DotProductAttention()(query, value, attention_mask=np.zeros((T, S + 1), bool))


def test_a_mask_of_both_key_and_value_is_looked_at_once(monkeypatch):
    calls, on = [], tfattn.masks.explicit.on
    monkeypatch.setattr(
        tfattn.masks.explicit, "on", lambda self, grid: calls.append(1) or on(self, grid)
    )
    tokens, mask = np.ones((2, 7, 5), "float32"), ops.arange(7) < as_tensor([[3], [7]])
    tfattn.Attention()(tokens, tokens, key_mask=mask, value_mask=mask)
    assert len(calls) == 1


# A bias object stands for its array.

BIASED = {
    "many heads": (lambda: tfattn.MultiHeadAttention(3, 11), 3),
    "shared key heads": (lambda: tfattn.MultiHeadAttention(6, 11, num_key_value_heads=2), 6),
    "one head": (lambda: tfattn.AdditiveAttention(units=11), 1),
}


@pytest.mark.tensorflow
@pytest.mark.parametrize("name", BIASED)
@pytest.mark.parametrize("way", ["eager", "functional", "loaded", "graph"])
def test_a_layer_with_alibi_equals_the_layer_with_its_array(name, way, tmp_path):
    make, num_heads = BIASED[name]
    layer, alibi = make(), tfattn.biases.alibi(num_heads)
    inputs = [draw(B, T, D), draw(B, S, D, seed=1)]
    array = reference.alibi(num_heads, T, S).astype("float32")
    array = array[0] if num_heads == 1 else array
    expected = layer(*inputs, bias=array, return_attention_scores=True)
    if way == "graph":
        lengths = [tf.TensorSpec((None, None, D))] * 2
        compiled = tf.function(
            lambda *x: layer(*x, bias=alibi, return_attention_scores=True), input_signature=lengths
        )
        found = compiled(*inputs)
    elif way == "eager":
        found = layer(*inputs, bias=alibi, return_attention_scores=True)
    else:
        symbols = [keras.Input((None, D)), keras.Input((None, D))]
        outputs = layer(*symbols, bias=alibi, return_attention_scores=True)
        model = keras.Model(symbols, outputs)
        if way == "loaded":
            model.save(tmp_path / "model.keras")
            model = keras.models.load_model(tmp_path / "model.keras")
        found = model(inputs)
    for ours, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, wanted, atol=1e-6)
    without = layer(*inputs)
    assert np.abs(without - expected[0]).max() > 1e-3  # the bias counts; of one head it is small
