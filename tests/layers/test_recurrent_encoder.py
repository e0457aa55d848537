"""Recurrent encoder, against plain NumPy that reads one sentence at a time, without padding."""

import keras
import numpy as np
import pytest
from keras import ops

from tests.helpers.recurrent import (
    CELLS,
    UNITS,
    WHOLE,
    WIDTH,
    B,
    S,
    T,
    decoder,
    encoded,
    encoder,
    memories,
    numbers,
    sentences,
)
from tests.helpers.tensors import both_ways, numpy


@pytest.mark.parametrize(
    "cell, bidirectional, num_layers",
    [("gru", False, 1), ("gru", True, 2), ("lstm", False, 2), ("lstm", True, 1)],
)
def test_recurrent_encoder_equals_the_oracle_without_padding(cell, bidirectional, num_layers):
    layer = encoder(cell=CELLS[cell], bidirectional=bidirectional, num_layers=num_layers)
    ids = sentences()
    outputs, finals = layer(ids, return_state=True)
    np.testing.assert_array_equal(outputs._keras_mask, ids != 0)
    assert getattr(finals[0][0], "_keras_mask", None) is None
    for row in range(B):
        wanted, wanted_finals = encoded(layer, ids[row])
        np.testing.assert_allclose(outputs[row], wanted, atol=1e-6)
        got = keras.tree.map_structure(lambda state, row=row: state[row], finals)
        keras.tree.map_structure(
            lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), got, wanted_finals
        )


def test_recurrent_decoder_outputs_carry_the_mask_of_the_ids():
    written, _, _ = decoder()(sentences(T), memories()[0], **WHOLE)
    np.testing.assert_array_equal(written._keras_mask, sentences(T) != 0)


@pytest.mark.parametrize("name", ["GRU", "LSTM", "SimpleRNN"])
def test_recurrent_encoder_equals_keras_layer_of_the_same_weights(name):
    layer = encoder(cell=getattr(keras.layers, f"{name}Cell"))
    peer = getattr(keras.layers, name)(UNITS, return_sequences=True, return_state=True)
    embedded, real = layer.embedding(sentences()), sentences() != 0
    peer(embedded)
    for weight, ours in zip(
        peer.trainable_weights, layer.forward_cells[0].trainable_weights, strict=True
    ):
        weight.assign(ours)
    wanted, *wanted_states = peer(embedded, mask=real)
    outputs, [finals] = layer(sentences(), return_state=True)
    np.testing.assert_allclose(numpy(outputs)[real], numpy(wanted)[real], atol=1e-6)
    np.testing.assert_array_equal(numpy(outputs)[~real], 0.0)
    np.testing.assert_allclose(finals, wanted_states, atol=1e-6)


@pytest.mark.slow
def test_recurrent_encoder_nan_embedding_of_padding_changes_nothing():
    layer = encoder(cell=keras.layers.LSTMCell, bidirectional=True)
    table = layer.embedding.embeddings

    def run():
        def functional():
            outputs, finals = layer(sentences(), return_state=True)
            loss = ops.sum(ops.sin(outputs)) + sum(ops.sum(state**2) for state in finals[0])
            return loss, [outputs, *finals[0]]

        (_, found), gradients = both_ways(
            functional, (), variables=layer.trainable_weights, has_aux=True
        )
        return [*found, *gradients]

    wanted = run()
    for garbage in (np.nan, np.inf, 1e30):
        table.assign(np.concatenate([np.full((1, WIDTH), garbage), numbers(table)[1:]]))
        for got, same in zip(run(), wanted, strict=True):
            np.testing.assert_array_equal(got, same)


def test_recurrent_encoder_of_padding_alone_is_zero():
    outputs, [[final]] = encoder()(np.zeros((2, S), "int32"), return_state=True)
    np.testing.assert_array_equal(outputs, 0.0)
    np.testing.assert_array_equal(final, 0.0)
