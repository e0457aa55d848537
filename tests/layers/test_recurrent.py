"""What recurrent encoder and decoder share: cells of any class, bad input."""

import keras
import numpy as np
import pytest

import tfattn
from tests.helpers.recurrent import B, S, T, decoder, encoder, memories, sentences, states
from tfattn import RecurrentDecoder, RecurrentEncoder


@keras.saving.register_keras_serializable("test_recurrent")
class Doubling(keras.layers.SimpleRNNCell):
    def call(self, inputs, states, training=False):
        return super().call(2 * inputs, states, training)


@pytest.mark.parametrize("cell", [keras.layers.LSTMCell, Doubling])
def test_recurrent_cell_class_survives_the_config(cell):
    for layer in (encoder(cell=cell), decoder(cell=cell)):
        assert type(layer).from_config(layer.get_config()).cell is cell
        cells = layer.cells if isinstance(layer, RecurrentDecoder) else layer.forward_cells
        assert [type(made) for made in cells] == [cell]


def test_recurrent_cell_subclass_keeps_its_own_call():
    @keras.saving.register_keras_serializable("test_recurrent")
    class Still(keras.layers.GRUCell):
        def call(self, inputs, states, training=False):
            return states[0], states

    np.testing.assert_array_equal(encoder(cell=Still)(sentences()), 0.0)


class Unregistered(keras.layers.SimpleRNNCell):
    pass


class Joined(tfattn.Score):
    def prepare(self, query, key):
        return query, key


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: RecurrentEncoder(7, cell=keras.layers.GRU),
            "RecurrentEncoder: `cell` must be a class of Keras cells",
        ),
        (
            lambda: RecurrentEncoder(7, cell=keras.layers.GRUCell(5)),
            "RecurrentEncoder: `cell` must be a class",
        ),
        (
            lambda: RecurrentEncoder.from_config(encoder(cell=Unregistered).get_config()),
            "RecurrentEncoder: `cell` must be a class of Keras cells",
        ),
        (
            lambda: RecurrentDecoder(7, width=5, embedding=keras.layers.Embedding(7, 3)),
            "RecurrentDecoder: `embedding` must have `width`=5 features. Received: embedding=3",
        ),
        (
            lambda: RecurrentDecoder(7, score=Joined()),
            "`score` must be a score layer with `prepare_query` and `prepare_key`",
        ),
        (
            lambda: decoder(score=tfattn.DotProductScore()),
            "DotProductScore: `key width` must be as wide as `query`, 7",
        ),
    ],
)
def test_recurrent_layers_refuse_invalid_arguments(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"memory_mask": np.ones((B, S), "float32")},
            "RecurrentDecoder: `memory_mask` must be boolean",
        ),
        ({"memory_mask": np.ones((B, T, S), bool)}, r"`memory_mask` must have shape \(3, 6\)"),
        (
            {"memory_mask": np.ones((B, S + 1), bool)},
            r"`memory_mask` must have shape \(B, S\), with the S of `memory`, 6",
        ),
        (
            {"initial_state": states(1, 2)},
            r"`initial_state` must hold, for each of 1 layers, states .* \[7\]",
        ),
        (
            {"initial_state": [[np.zeros((B, 3), "float32")]]},
            r"Received: initial_state=\[\[\(3, 3\)\]\]",
        ),
    ],
)
def test_recurrent_decoder_refuses_invalid_call_arguments(options, message):
    with pytest.raises(ValueError, match=message):
        decoder()(sentences(T), memories()[0], **options)
