"""What recurrent encoder and decoder share: cells of any class, compiled loops, bad input."""

import keras
import numpy as np
import pytest
from keras import ops

import tfattn
from tests.recurrent import MEMORY, UNITS, B, S, T, decoder, encoder, memories, sentences, states
from tests.tensors import as_tensor, tf
from tfattn import RecurrentDecoder, RecurrentEncoder


@pytest.mark.tensorflow
@pytest.mark.slow
def test_one_trace_of_unknown_shapes_serves_all_and_xla_compiles_it():
    read = encoder(cell=keras.layers.LSTMCell, bidirectional=True)
    layer = decoder(2 * UNITS, cell=keras.layers.LSTMCell, num_layers=2)
    parts = [weight.value for weight in (*read.trainable_weights, *layer.trainable_weights)]

    def run(source, target):
        with tf.GradientTape() as tape:
            output, alignments = layer(target, read(source), return_attention_scores=True)
            loss = ops.sum(ops.sin(output))
        return output, alignments, [tf.convert_to_tensor(g) for g in tape.gradient(loss, parts)]

    signature = [tf.TensorSpec((None, None), "int32")] * 2
    graph = tf.function(run, input_signature=signature)
    jit = tf.function(run, input_signature=signature, jit_compile=True)
    for source, target, roads in (
        (sentences(5, seed=1)[:2], sentences(3)[:2], [graph]),
        (sentences(), sentences(T), [graph, jit]),
    ):
        wanted = run(as_tensor(source), as_tensor(target))
        for compiled in roads:
            got = compiled(source, target)
            keras.tree.map_structure(
                lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), got, wanted
            )
    assert graph.experimental_get_tracing_count() == 1


@keras.saving.register_keras_serializable("test_recurrent")
class Doubling(keras.layers.SimpleRNNCell):
    def call(self, inputs, states, training=False):
        return super().call(2 * inputs, states, training)


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("cell", [keras.layers.LSTMCell, keras.layers.SimpleRNNCell, Doubling])
def test_the_class_of_the_cells_survives_the_config(cell):
    for layer in (encoder(cell=cell), decoder(cell=cell)):
        again = type(layer).from_config(layer.get_config())
        assert again.cell is cell
        cells = layer.cells if isinstance(layer, RecurrentDecoder) else layer.forward_cells
        assert [type(made) for made in cells] == [cell]


def test_a_subclass_of_a_known_cell_keeps_its_own_call():
    @keras.saving.register_keras_serializable("test_recurrent")
    class Still(keras.layers.GRUCell):
        def call(self, inputs, states, training=False):
            return states[0], states

    outputs = encoder(cell=Still)(sentences())
    np.testing.assert_array_equal(outputs, 0.0)


def test_an_unregistered_cell_is_refused_when_it_is_loaded():
    class Unregistered(keras.layers.SimpleRNNCell):
        pass

    config = encoder(cell=Unregistered).get_config()
    with pytest.raises(ValueError, match="registered. Received: name='Unregistered'"):
        RecurrentEncoder.from_config(config)


class Joined(tfattn.Score):
    def prepare(self, query, key):
        return query, key


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: RecurrentEncoder(0),
            "RecurrentEncoder: `vocabulary_size` must be a positive integer",
        ),
        (
            lambda: RecurrentEncoder(7, width=0),
            "RecurrentEncoder: `width` must be a positive integer",
        ),
        (
            lambda: RecurrentEncoder(7, units=1.5),
            "RecurrentEncoder: `units` must be a positive integer",
        ),
        (
            lambda: RecurrentEncoder(7, num_layers=-1),
            "RecurrentEncoder: `num_layers` must be a positive integer",
        ),
        (
            lambda: RecurrentEncoder(7, dropout=1.0),
            r"RecurrentEncoder: `dropout` must be a number in \[0, 1\)",
        ),
        (
            lambda: RecurrentEncoder(7, bidirectional=1),
            "RecurrentEncoder: `bidirectional` must be True or False",
        ),
        (
            lambda: RecurrentEncoder(7, cell="gru"),
            "RecurrentEncoder: `cell` must be a class of Keras cells",
        ),
        (
            lambda: RecurrentEncoder(7, cell=keras.layers.GRU),
            "RecurrentEncoder: `cell` must be a class of Keras cells",
        ),
        (
            lambda: RecurrentEncoder(7, cell=keras.layers.GRUCell(5)),
            "RecurrentEncoder: `cell` must be a class",
        ),
        (
            lambda: RecurrentEncoder(7, embedding="e"),
            "RecurrentEncoder: `embedding` must be a layer, or None",
        ),
        (
            lambda: RecurrentDecoder(7, width=5, embedding=keras.layers.Embedding(7, 3)),
            "RecurrentDecoder: `embedding` must have `width`=5 features. Received: embedding=3",
        ),
        (
            lambda: RecurrentDecoder(7, score="dot"),
            "RecurrentDecoder: `score` must be a score layer",
        ),
        (
            lambda: RecurrentDecoder(7, score=Joined()),
            "`score` must define `prepare_query` and `prepare_key`",
        ),
        (
            lambda: decoder(MEMORY, score=tfattn.DotProductScore()),
            "DotProductScore: `key width` must be as wide as `query`, 7",
        ),
    ],
)
def test_bad_arguments_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"memory_mask": np.ones((B, S), "float32")},
            "RecurrentDecoder: `memory_mask` must be boolean",
        ),
        ({"memory_mask": np.ones((B, T, S), bool)}, r"`memory_mask` must have shape \(B, S\)"),
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
def test_bad_call_arguments_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        decoder()(sentences(T), memories()[0], **options)
