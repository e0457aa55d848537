"""Attention pooling: a sequence as one vector or as a few."""

import keras
import numpy as np
import pytest
from keras import ops

import tfattn
from tests import reference
from tests.helpers.tensors import as_tensor, numpy
from tfattn import biases, masks

RANDOM = np.random.default_rng(0)
TOKENS = RANDOM.normal(size=(2, 7, 5)).astype("float32")
LENGTHS = np.array([7, 3])
KINDS = {
    "dot": lambda: None,
    "additive": lambda: tfattn.AdditiveAttention(units=3),
    "heads": lambda: tfattn.MultiHeadAttention(num_heads=3, key_dim=2),
    "kernel": lambda: tfattn.NadarayaWatson(bandwidth=2.0),
    "sparse": lambda: tfattn.Attention(normalizer=tfattn.Sparsemax()),
}


def test_attention_pooling_equals_the_oracle():
    layer = tfattn.AttentionPooling()
    output, weights = layer(TOKENS, valid_lens=LENGTHS, return_attention_scores=True)
    query = np.repeat(np.asarray(layer.query)[None], 2, axis=0)
    mask = np.arange(7) < LENGTHS[:, None, None]
    scores = reference.dot_product(query, TOKENS)
    expected, shares = reference.attention(scores, TOKENS, mask=mask)
    np.testing.assert_allclose(output, expected[:, 0], atol=1e-6)
    np.testing.assert_allclose(weights, shares, atol=1e-6)
    rule = masks.padding(LENGTHS) & masks.explicit(mask)
    np.testing.assert_array_equal(layer(TOKENS, attention_mask=rule), output)


@pytest.mark.parametrize("kind", KINDS)
def test_attention_pooling_queries_equal_those_of_its_attention(kind):
    layer = tfattn.AttentionPooling(3, attention=KINDS[kind]())
    output, weights = layer(TOKENS, valid_lens=LENGTHS, return_attention_scores=True)
    queries = np.repeat(np.asarray(layer.query)[None], 2, axis=0)
    expected = layer.attention(
        query=queries, value=TOKENS, valid_lens=LENGTHS, return_attention_scores=True
    )
    assert output.shape == (2, 3, 5) and not np.allclose(output[:, 0], output[:, 1])
    np.testing.assert_allclose(output, expected[0], atol=1e-6)
    np.testing.assert_allclose(weights, expected[1], atol=1e-6)


def test_attention_pooling_implicit_mask_hides_padding_and_ends():
    ids = np.array([[3, 4, 5, 0], [0, 0, 0, 0]])
    embedded = keras.layers.Embedding(11, 5, mask_zero=True)(ids)
    layer = tfattn.AttentionPooling()
    output = layer(embedded)
    np.testing.assert_allclose(output[0], layer(embedded[:1, :3])[0], atol=1e-6)
    np.testing.assert_array_equal(output[1], np.zeros(5))
    assert getattr(output, "_keras_mask", None) is None


# A document of sentences of words, (B, N, T); the last sentence is padding.
WORDS = np.array([[[3, 4, 5, 0], [6, 0, 0, 0], [0, 0, 0, 0]]])


@pytest.mark.parametrize("count", [3, None])
def test_attention_pooling_of_sentences_hides_their_padding(count):
    embedding, layer = keras.layers.Embedding(11, 5, mask_zero=True), tfattn.AttentionPooling()
    embedded, ids = embedding(WORDS), keras.Input((count, None), dtype="int32")
    apart = [layer(embedded[:, n], mask=WORDS[:, n] != 0) for n in range(3)]
    model = keras.Model(ids, keras.layers.TimeDistributed(layer)(embedding(ids)))
    for found in (keras.layers.TimeDistributed(layer)(embedded), model(WORDS)):
        np.testing.assert_allclose(numpy(found), numpy(ops.stack(apart, 1)), atol=1e-6)
    np.testing.assert_allclose(numpy(apart[0]), numpy(layer(embedded[:, 0, :3])), atol=1e-6)
    both = layer(embedded[:, 0], mask=[[1, 1, 0, 0]], value_mask=[[0, 1, 1, 0]])
    np.testing.assert_allclose(numpy(both), numpy(layer(embedded[:, 0, 1:2])), atol=1e-6)


def test_sentence_is_real_to_attention_where_one_of_its_words_is():
    embedded = keras.layers.Embedding(11, 5, mask_zero=True)(WORDS)
    sentences = keras.layers.TimeDistributed(tfattn.AttentionPooling())(embedded)
    plain, query = as_tensor(numpy(sentences)), RANDOM.normal(size=(1, 2, 5)).astype("float32")
    tokens = WORDS[0, :1]
    for layer, first, mask in (
        (tfattn.AttentionPooling(), (), "mask"),
        (tfattn.TransformerEncoderBlock(5, 3), (), "mask"),
        (tfattn.MultiHeadAttention(2, 3), (query,), "value_mask"),
        (tfattn.TransformerDecoderBlock(5, 3), (query,), "memory_mask"),
        (tfattn.TransformerDecoder(11, 1, 4, 2, 3), (tokens,), "memory_mask"),
        (tfattn.RecurrentDecoder(11, width=4, units=5), (tokens,), "memory_mask"),
    ):
        found = layer(*first, sentences)
        right = layer(*first, plain, **{mask: np.array([[True, True, False]])})
        np.testing.assert_allclose(numpy(found)[:, :2], numpy(right)[:, :2], atol=1e-6)
        with pytest.raises(ValueError, match=rf"{type(layer).__name__}: `{mask}` must have shape"):
            layer(*first, plain, **{mask: WORDS != 0})


def test_model_of_documents_ignores_padding_and_is_loaded(tmp_path):
    ids, each = keras.Input((None, None), dtype="int32"), keras.layers.TimeDistributed
    words = keras.layers.Embedding(11, 5, mask_zero=True)(ids)
    sentences = each(tfattn.AttentionPooling())(each(tfattn.TransformerDecoderBlock(1, 3))(words))
    document = tfattn.AttentionPooling()(tfattn.TransformerEncoderBlock(1, 3)(sentences))
    model = keras.Model(ids, document)
    model.save(tmp_path / "model.keras")
    expected = numpy(model(WORDS[:, :2]))
    wide = np.pad(WORDS, [(0, 0), (0, 2), (3, 1)])  # to the left of words too
    loaded = keras.models.load_model(tmp_path / "model.keras")
    for found in (model(WORDS), model(wide), model.predict(wide, verbose=0), loaded(wide)):
        np.testing.assert_allclose(numpy(found), expected, atol=1e-5)


def test_attention_pooling_ignores_the_order_of_tokens():
    layer, order = tfattn.AttentionPooling(2, attention=KINDS["heads"]()), RANDOM.permutation(7)
    np.testing.assert_allclose(layer(TOKENS[:, order]), layer(TOKENS), atol=1e-6)


def test_attention_pooling_weights_are_recorded_under_its_attention():
    tokens = keras.Input((None, 5))
    model = keras.Model(tokens, tfattn.AttentionPooling(name="summary")(tokens))
    ((path, weights),) = tfattn.attention_weights(model, TOKENS).items()
    assert path.endswith("summary/attention") and weights.shape == (2, 1, 7)


def test_attention_pooling_copies_the_attention_passed_in():
    attention = tfattn.MultiHeadAttention(3, 2, name="mine")
    first, second = (tfattn.AttentionPooling(attention=attention) for _ in range(2))
    first(TOKENS), second(TOKENS)
    assert not attention.built and first.attention is not second.attention


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: tfattn.AttentionPooling(0), "`num_queries` must be a positive integer"),
        (
            lambda: tfattn.AttentionPooling(attention="dot"),
            "`attention` must be an attention la",
        ),
        (lambda: tfattn.AttentionPooling()(TOKENS[0]), r"`value` must .*\(B, S, D\)"),
        *[
            (
                lambda rule=rule: tfattn.AttentionPooling()(TOKENS, attention_mask=rule),
                "`attention_mask` must not depend on the position of a query",
            )
            for rule in (
                masks.causal(),
                masks.padding(LENGTHS) & ~masks.window(2),
                masks.chunks(2) | masks.prefix(1),
            )
        ],
        *[
            (
                lambda bias=bias: tfattn.AttentionPooling()(TOKENS, bias=bias),
                "`bias` must not depend on the position of a query",
            )
            for bias in (biases.alibi(1), biases.explicit(np.ones((1, 7))) + biases.alibi(1))
        ],
        *[
            (
                lambda options=options: tfattn.AttentionPooling(
                    attention=tfattn.MultiHeadAttention(2, 4, **options)
                ),
                f"`attention` must have no `{[*options][0]}`, since learned queries have no posit",
            )
            for options in ({"sliding_window": 2}, {"positions": tfattn.RotaryPositions()})
        ],
    ],
)
def test_attention_pooling_invalid_arguments_are_refused(make, message):
    with pytest.raises(ValueError, match=f"AttentionPooling: {message}"):
        make()
