"""Recurrent decoder, against plain NumPy that reads one sentence at a time, without padding."""

import keras
import numpy as np
import pytest

import tfattn
from tests.helpers.recurrent import (
    CELLS,
    MEMORY,
    SCORES,
    UNITS,
    VOCABULARY,
    WHOLE,
    WIDTH,
    B,
    CountingScore,
    S,
    T,
    decoded,
    decoder,
    encoder,
    memories,
    numbers,
    sentences,
    states,
)
from tests.helpers.tensors import dtype_of, numpy, tf
from tfattn import RecurrentDecoder


def assert_equals_oracle(layer, ids, memory, mask, start):
    outputs, alignments, finals = layer(ids, memory, memory_mask=mask, initial_state=start, **WHOLE)
    for row in range(B):

        def of_row(nested, row=row):
            return keras.tree.map_structure(lambda state: numbers(state)[row], nested)

        wanted, wanted_alignments, wanted_finals = decoded(
            layer, ids[row], memory[row], mask[row], of_row(start)
        )
        np.testing.assert_allclose(outputs[row], wanted, atol=2e-6)
        np.testing.assert_allclose(alignments[row], wanted_alignments, atol=2e-6)
        keras.tree.map_structure(
            lambda a, b: np.testing.assert_allclose(a, b, atol=2e-6), of_row(finals), wanted_finals
        )
    np.testing.assert_allclose(np.sum(alignments, -1), ids != 0, atol=1e-6)
    np.testing.assert_array_equal(
        np.asarray(alignments)[~np.broadcast_to(mask[:, None], alignments.shape)], 0.0
    )


@pytest.mark.parametrize(
    "score, cell, num_layers",
    [
        ("additive", "gru", 1),
        ("dot", "lstm", 2),
        ("bilinear", "gru", 2),
        ("cosine", "lstm", 1),
        ("kernel", "gru", 1),
    ],
)
def test_recurrent_decoder_with_any_score_equals_the_oracle(score, cell, num_layers):
    width = UNITS if score in ("dot", "cosine", "kernel") else MEMORY
    layer = decoder(width, score=SCORES[score](), cell=CELLS[cell], num_layers=num_layers)
    start = states(num_layers, 2 if cell == "lstm" else 1)
    assert_equals_oracle(layer, sentences(T), *memories(width), start)


def test_recurrent_decoder_score_of_minus_infinity_counts_as_masked():
    near = decoder(UNITS, score=tfattn.KernelScore("boxcar", bandwidth=20.0))
    memory, start = memories(UNITS)[0], states()
    memory[0, 1:], memory[1] = 100.0, 100.0
    outputs, alignments, _ = near(sentences(T), memory, initial_state=start, **WHOLE)
    np.testing.assert_array_equal(alignments[0, :, 0], sentences(T)[0] != 0)
    np.testing.assert_array_equal(alignments[0, :, 1:], 0.0)
    np.testing.assert_array_equal(alignments[1], 0.0)
    assert np.isfinite(outputs).all()


def test_recurrent_decoder_default_score_is_additive():
    layer = RecurrentDecoder(VOCABULARY, WIDTH, UNITS)
    assert type(layer.score) is tfattn.AdditiveScore and layer.score.units == UNITS


def test_recurrent_decoder_without_initial_state_begins_at_zero():
    layer = decoder(cell=keras.layers.LSTMCell)
    zero = keras.tree.map_structure(np.zeros_like, states(1, 2))
    wanted = layer(sentences(T), memories()[0], initial_state=zero)
    np.testing.assert_array_equal(layer(sentences(T), memories()[0]), wanted)


def test_recurrent_decoder_takes_the_implicit_mask_of_an_encoder():
    read, layer = encoder(), decoder(UNITS)
    memory = read(sentences())
    by_hand = layer(sentences(T), numpy(memory), memory_mask=sentences() != 0)
    np.testing.assert_array_equal(layer(sentences(T), memory), by_hand)
    assert np.any(layer(sentences(T), numpy(memory)) != by_hand)


@pytest.mark.parametrize("score", ["additive", "kernel"])
def test_recurrent_decoder_fully_masked_memory_has_zero_alignments(score):
    width = UNITS if score == "kernel" else MEMORY
    layer = decoder(width, score=SCORES[score]())
    memory, mask = memories(width)
    mask[1] = False
    outputs, alignments, _ = layer(sentences(T), memory, memory_mask=mask, **WHOLE)
    np.testing.assert_array_equal(alignments[1], 0.0)
    assert np.isfinite(outputs).all()
    # A context of exactly 0, as from a memory of zeros.
    np.testing.assert_allclose(layer(sentences(T), np.zeros_like(memory))[1], outputs[1], atol=1e-6)


def test_recurrent_decoder_nan_embedding_of_padding_changes_nothing():
    layer = decoder()
    wanted = layer(sentences(T), memories()[0])
    table = layer.embedding.embeddings
    table.assign(np.concatenate([np.full((1, WIDTH), np.nan), numbers(table)[1:]]))
    np.testing.assert_array_equal(layer(sentences(T), memories()[0]), wanted)


def test_recurrent_decoder_prepares_keys_once_per_call():
    layer = decoder(score=CountingScore())
    memory, mask = memories()
    layer.score.calls = 0
    wanted = layer(sentences(T), memory, memory_mask=mask)
    assert layer.score.calls == 1
    clean, keys = layer.prepare(memory, mask)
    layer.score.calls = 0
    np.testing.assert_array_equal(layer(sentences(T), clean, memory_mask=mask, keys=keys), wanted)
    assert layer.score.calls == 0


@pytest.mark.parametrize("cell", [keras.layers.LSTMCell, keras.layers.SimpleRNNCell])
def test_recurrent_decoder_one_token_at_a_time_equals_all_at_once(cell):
    layer = decoder(cell=cell, num_layers=2)
    memory, mask = memories()
    wanted, wanted_alignments, wanted_state = layer(sentences(T), memory, memory_mask=mask, **WHOLE)
    state = None
    for t in range(T):
        token = sentences(T)[:, t : t + 1]
        output, alignment, state = layer(
            token, memory, memory_mask=mask, initial_state=state, **WHOLE
        )
        np.testing.assert_allclose(output[:, 0], wanted[:, t], atol=1e-6)
        np.testing.assert_allclose(alignment[:, 0], wanted_alignments[:, t], atol=1e-6)
    keras.tree.map_structure(
        lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), state, wanted_state
    )


def test_recurrent_decoder_alignments_are_recorded():
    layer = decoder(name="writer")
    memory, mask = memories()
    _, alignments, _ = layer(sentences(T), memory, memory_mask=mask, **WHOLE)
    collected = tfattn.attention_weights(layer, sentences(T), memory, memory_mask=mask)
    assert list(collected) == ["writer"]
    np.testing.assert_array_equal(collected["writer"], alignments)


# Encoder and decoder.


@pytest.mark.tensorflow
@pytest.mark.slow
def test_recurrent_dropout_is_off_at_inference_and_new_in_each_step():
    for layer, inputs in (
        (encoder(num_layers=2, dropout=0.5, seed=1), [sentences()]),
        (decoder(num_layers=2, dropout=0.5, seed=1), [sentences(T), memories()[0]]),
    ):
        np.testing.assert_array_equal(layer(*inputs), layer(*inputs, training=False))
        run = tf.function(lambda layer=layer, inputs=inputs: layer(*inputs, training=True))
        assert np.any(run() != run())
        assert np.isfinite(run()).all()


@pytest.mark.slow
def test_recurrent_decoder_dropout_between_layers_is_new_for_each_token():
    layer = decoder(num_layers=2, dropout=0.5, seed=1)
    layer.input_dropout.rate = layer.output_dropout.rate = 0.0
    for cell in layer.cells:
        # The state is reset at each step, so that equal tokens have equal outputs, except at masks.
        cell.recurrent_kernel.assign(np.zeros(cell.recurrent_kernel.shape))
        bias = np.zeros((2, 3 * UNITS), "float32")
        bias[0, :UNITS] = -1e4
        cell.bias.assign(bias)
        kernel = numbers(cell.kernel)
        kernel[:, :UNITS] = 0.0
        cell.kernel.assign(kernel)
    ids, memory = np.full((1, 40), 3), np.ones((1, S, MEMORY), "float32")
    still, moving = numpy(layer(ids, memory)[0]), numpy(layer(ids, memory, training=True)[0])
    np.testing.assert_allclose(still[1:], still[:-1], atol=1e-6)
    assert len(np.unique(moving.round(4), axis=0)) > 20


@pytest.mark.slow
def test_recurrent_decoder_in_half_precision_agrees_with_float32():
    exact, half = decoder(), decoder(dtype="mixed_float16")
    half.set_weights(exact.get_weights())
    memory, mask = memories()
    wanted = exact(sentences(T), memory, memory_mask=mask, **WHOLE)
    got = half(sentences(T), memory, memory_mask=mask, **WHOLE)
    assert {dtype_of(x) for x in keras.tree.flatten(got)} == {half.compute_dtype}
    for a, b in zip(keras.tree.flatten(got), keras.tree.flatten(wanted), strict=True):
        np.testing.assert_allclose(numbers(a), b, atol=0.02)
    # Keras casts by the policy only in a call; `prepare` casts itself.
    assert {dtype_of(x) for x in half.prepare(memory, mask)} == {half.compute_dtype}
