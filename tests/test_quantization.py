"""Keras's quantisation of the translation models."""

import keras
import numpy as np
import pytest

from tfattn import BahdanauSeq2Seq, Transformer

V = 13
SMALL = {
    Transformer: {"num_layers": 1, "width": 8, "num_heads": 2, "hidden_dim": 16},
    BahdanauSeq2Seq: {"width": 8, "units": 6},
}
INPUTS = [np.arange(1, 11).reshape(2, 5), np.arange(3, 11).reshape(2, 4)]


def small(kind, share_embeddings=True):
    keras.utils.set_random_seed(1)
    model = kind(V, share_embeddings=share_embeddings, **SMALL[kind])
    model(INPUTS)
    return model


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["int8", "int4"])
@pytest.mark.parametrize("kind", SMALL)
def test_words_are_scored_by_the_vectors_that_they_are_looked_up_as(kind, mode):
    quantized, plain = small(kind), small(kind)
    embedding = quantized.decoder.embedding
    before = np.asarray(embedding.embeddings)
    embedding.quantize(mode)
    looked_up = np.asarray(embedding(np.arange(V)))
    assert 0 < np.abs(looked_up - before).max() < 0.2 * np.abs(before).max()
    plain.decoder.embedding.embeddings.assign(looked_up)
    np.testing.assert_allclose(quantized(INPUTS), plain(INPUTS), rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("share_embeddings", [False, True])
def test_a_quantised_transformer_says_nearly_the_same(share_embeddings):
    model = small(Transformer, share_embeddings)
    before = np.asarray(model(INPUTS))
    # Keras says so of each layer that stays as it is, of its own Dropout too.
    with pytest.warns(UserWarning, match="does not have a `quantize` method"):
        model.quantize("int8")
    after = np.asarray(model(INPUTS))
    assert 0 < np.abs(after - before).max() < 0.05 * np.abs(before).max()
