"""Attention pooling: a sequence as one vector or as a few."""

import keras
import numpy as np
import pytest

import tfattn
from tests import reference
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


def widths(built_for, *others):
    layer = tfattn.AttentionPooling()
    layer(built_for)
    return layer(*others)


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
            for rule in (masks.causal(), masks.padding(LENGTHS) & ~masks.window(2))
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
        (lambda: widths(TOKENS, TOKENS[..., :3]), "`value` must have 5 features, for which"),
        (lambda: widths(TOKENS, TOKENS, TOKENS[..., :3]), "`key` must have 5 features, for wh"),
    ],
)
def test_attention_pooling_invalid_arguments_are_refused(make, message):
    with pytest.raises(ValueError, match=f"AttentionPooling: {message}"):
        make()
