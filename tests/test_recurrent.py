"""Recurrent encoder and decoder, against plain NumPy that reads one sentence at a time and knows of no padding."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfattn
from tests import reference
from tfattn import RecurrentDecoder, RecurrentEncoder

VOCABULARY, WIDTH, UNITS, MEMORY, B, T, S = 17, 5, 7, 11, 3, 4, 6
CELLS = {"gru": keras.layers.GRUCell, "lstm": keras.layers.LSTMCell}
SCORES = {
    "additive": lambda: tfattn.AdditiveScore(units=13),
    "dot": lambda: tfattn.DotProductScore(scale=1.0),
    "bilinear": tfattn.BilinearScore,
    "cosine": lambda: tfattn.CosineScore(temperature=0.5),
    "kernel": lambda: tfattn.KernelScore(bandwidth=2.0),
}


# The oracle.


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def gru(x, states, kernel, recurrent_kernel, bias):
    [h] = states
    from_input, from_state = np.split(x @ kernel + bias[0], 3), np.split(h @ recurrent_kernel + bias[1], 3)
    update = sigmoid(from_input[0] + from_state[0])
    reset = sigmoid(from_input[1] + from_state[1])
    candidate = np.tanh(from_input[2] + reset * from_state[2])
    return [update * h + (1 - update) * candidate]


def lstm(x, states, kernel, recurrent_kernel, bias):
    h, c = states
    write, forget, candidate, read = np.split(x @ kernel + h @ recurrent_kernel + bias, 4)
    c = sigmoid(forget) * c + sigmoid(write) * np.tanh(candidate)
    return [sigmoid(read) * np.tanh(c), c]


def stepped(cell, x, states):
    function = {"GRUCell": gru, "LSTMCell": lstm}[type(cell).__name__]
    return function(x, states, *(numbers(w) for w in (cell.kernel, cell.recurrent_kernel, cell.bias)))


def zeros(cell):
    return [np.zeros(UNITS) for _ in range(2 if isinstance(cell, keras.layers.LSTMCell) else 1)]


def read(cell, tokens):
    """One sentence without padding: the outputs, and the states after the last token."""
    states, outputs = zeros(cell), []
    for x in tokens:
        states = stepped(cell, x, states)
        outputs.append(states[0])
    return np.array(outputs).reshape(len(tokens), UNITS), states


def encoded(encoder, ids):
    """One sentence, wherever its padding lies: outputs `(S, units)` and last states, layer by layer."""
    real = ids != 0
    tokens, finals = numbers(encoder.embedding.embeddings)[ids[real]], []
    for i, forward in enumerate(encoder.forward_cells):
        outputs, states = read(forward, tokens)
        if encoder.bidirectional:
            back, back_states = read(encoder.backward_cells[i], tokens[::-1])
            outputs = np.concatenate([outputs, back[::-1]], -1)
            states = [np.concatenate(pair) for pair in zip(states, back_states, strict=True)]
        tokens = outputs
        finals.append(states)
    whole = np.zeros((len(ids), tokens.shape[-1]))
    whole[real] = tokens
    return whole, finals


def scored(score, query, keys):
    """Scores `(S,)` of one query."""
    query = query[None]
    if isinstance(score, tfattn.AdditiveScore):
        left, right = query @ numbers(score.query_kernel), keys @ numbers(score.key_kernel)
        return reference.additive(left, right, numbers(score.score_kernel)[:, 0])[0]
    if isinstance(score, tfattn.BilinearScore):
        return reference.bilinear(query, keys, numbers(score.kernel))[0]
    if isinstance(score, tfattn.CosineScore):
        return reference.cosine(query, keys, score.temperature)[0]
    if isinstance(score, tfattn.KernelScore):
        return reference.log_kernel(query, keys, score.bandwidth)[0]
    return reference.dot_product(query, keys, score.scale)[0]


def decoded(decoder, ids, memory, mask, start):
    """One sentence: outputs `(T, width)`, alignments `(T, S)` and last states; `start` is a list of lists."""
    table, kernel, bias = (numbers(w) for w in (decoder.embedding.embeddings, *decoder.readout.weights))
    outputs, alignments, real = [], [], np.asarray(memory[mask], "float64")
    for token in ids:
        if token == 0:  # padding changes no state
            outputs.append(np.tanh(bias))
            alignments.append(np.zeros(len(mask)))
            continue
        embedded, weights = table[token], np.zeros(len(mask))
        context, weights[mask] = reference.attention(scored(decoder.score, start[-1][0], real), real)
        x, after = np.concatenate([embedded, context]), []
        for cell, states in zip(decoder.cells, start, strict=True):
            after.append(stepped(cell, x, states))
            x = after[-1][0]
        start = after
        outputs.append(np.tanh(np.concatenate([x, context, embedded]) @ kernel + bias))
        alignments.append(weights)
    return np.array(outputs), np.array(alignments), start


# What goes in.


def numbers(tensor):
    return np.asarray(keras.ops.convert_to_numpy(keras.ops.cast(tensor, "float32")), "float64")


def shifted(layer, *arguments, **options):
    """The layer, built, with weights moved off the zeros that some begin with."""
    layer(*arguments, **options)
    generator = np.random.default_rng(1)
    for weight in layer.trainable_weights:
        weight.assign(weight + 0.3 * generator.normal(size=weight.shape).astype("float32"))
    return layer


def sentences(length=S, seed=0):
    """Ids with padding at the end, in the middle, at the beginning."""
    ids = np.random.default_rng(seed).integers(1, VOCABULARY, (B, length)).astype("int32")
    ids[0, -2:], ids[1, 1], ids[2, :2] = 0, 0, 0
    return ids


def memories(width=MEMORY, seed=0):
    mask = np.ones((B, S), bool)
    mask[0, 4:], mask[1, 0] = False, False
    return np.random.default_rng(seed).normal(size=(B, S, width)).astype("float32"), mask


def states(layers=1, count=1, seed=3):
    generator = np.random.default_rng(seed)
    return [[generator.normal(size=(B, UNITS)).astype("float32") for _ in range(count)] for _ in range(layers)]


def encoder(ids=None, **options):
    options = {"width": WIDTH, "units": UNITS, **options}
    return shifted(RecurrentEncoder(VOCABULARY, **options), sentences() if ids is None else ids)


def decoder(width=MEMORY, **options):
    options = {"width": WIDTH, "units": UNITS, **options}
    return shifted(RecurrentDecoder(VOCABULARY, **options), sentences(T), memories(width)[0])


WHOLE = {"return_attention_scores": True, "return_state": True}


# The encoder.


@pytest.mark.parametrize("num_layers", [1, 2])
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("cell", CELLS)
def test_encoder_equals_the_oracle_that_knows_no_padding(cell, bidirectional, num_layers):
    layer = encoder(cell=CELLS[cell], bidirectional=bidirectional, num_layers=num_layers)
    ids = sentences()
    outputs, finals = layer(ids, return_state=True)
    for row in range(B):
        wanted, wanted_finals = encoded(layer, ids[row])
        np.testing.assert_allclose(outputs[row], wanted, atol=1e-6)
        got = keras.tree.map_structure(lambda state, row=row: state[row], finals)
        keras.tree.map_structure(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), got, wanted_finals)


@pytest.mark.parametrize("name", ["GRU", "LSTM", "SimpleRNN"])
def test_encoder_equals_keras_own_layer_with_the_same_weights(name):
    layer = encoder(cell=getattr(keras.layers, f"{name}Cell"))
    peer = getattr(keras.layers, name)(UNITS, return_sequences=True, return_state=True)
    embedded = layer.embedding(sentences())
    peer(embedded)
    for weight, ours in zip(peer.trainable_weights, layer.forward_cells[0].trainable_weights, strict=True):
        weight.assign(ours)
    wanted, *wanted_states = peer(embedded, mask=sentences() != 0)
    outputs, [finals] = layer(sentences(), return_state=True)
    real = sentences() != 0
    np.testing.assert_allclose(outputs.numpy()[real], wanted.numpy()[real], atol=1e-6)
    np.testing.assert_array_equal(outputs.numpy()[~real], 0.0)
    np.testing.assert_allclose(finals, wanted_states, atol=1e-6)


@pytest.mark.parametrize("cell", CELLS)
def test_padding_a_sentence_differently_changes_no_output_and_no_state(cell):
    layer = encoder(cell=CELLS[cell], bidirectional=True, num_layers=2)
    ids = sentences()[:1, :4]
    wanted, wanted_states = layer(ids, return_state=True)
    for before, after in ((0, 3), (2, 0), (1, 5)):
        outputs, finals = layer(np.pad(ids, ((0, 0), (before, after))), return_state=True)
        np.testing.assert_allclose(outputs[:, before : before + 4], wanted, atol=1e-6)
        keras.tree.map_structure(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), finals, wanted_states)


@pytest.mark.parametrize("bidirectional", [False, True])
def test_the_outputs_carry_the_mask_of_the_ids(bidirectional):
    outputs, [[state]] = encoder(bidirectional=bidirectional)(sentences(), return_state=True)
    np.testing.assert_array_equal(outputs._keras_mask, sentences() != 0)
    assert getattr(state, "_keras_mask", None) is None
    written, _, _ = decoder()(sentences(T), memories()[0], **WHOLE)
    np.testing.assert_array_equal(written._keras_mask, sentences(T) != 0)


@pytest.mark.parametrize("cell", CELLS)
def test_what_the_embedding_holds_for_padding_reaches_no_output_and_no_gradient(cell):
    layer = encoder(cell=CELLS[cell], bidirectional=True)
    table = layer.embedding.embeddings

    def run():
        with tf.GradientTape() as tape:
            outputs, finals = layer(sentences(), return_state=True)
            loss = tf.reduce_sum(tf.sin(outputs)) + sum(tf.reduce_sum(state**2) for state in finals[0])
        weights = [weight.value for weight in layer.trainable_weights]
        return [outputs, *finals[0], *map(tf.convert_to_tensor, tape.gradient(loss, weights))]

    wanted = run()
    for garbage in (np.nan, np.inf, 1e30):
        table.assign(np.concatenate([np.full((1, WIDTH), garbage), numbers(table)[1:]]))
        for got, same in zip(run(), wanted, strict=True):
            np.testing.assert_array_equal(got, same)


def test_a_sentence_of_padding_alone_ends_where_it_began():
    outputs, [[final]] = encoder()(np.zeros((2, S), "int32"), return_state=True)
    np.testing.assert_array_equal(outputs, 0.0)
    np.testing.assert_array_equal(final, 0.0)


# The decoder.


def assert_equals_oracle(layer, ids, memory, mask, start):
    outputs, alignments, finals = layer(ids, memory, memory_mask=mask, initial_state=start, **WHOLE)
    for row in range(B):

        def of_row(nested, row=row):
            return keras.tree.map_structure(lambda state: numbers(state)[row], nested)

        wanted, wanted_alignments, wanted_finals = decoded(layer, ids[row], memory[row], mask[row], of_row(start))
        np.testing.assert_allclose(outputs[row], wanted, atol=2e-6)
        np.testing.assert_allclose(alignments[row], wanted_alignments, atol=2e-6)
        keras.tree.map_structure(
            lambda a, b: np.testing.assert_allclose(a, b, atol=2e-6), of_row(finals), wanted_finals
        )
    np.testing.assert_allclose(np.sum(alignments, -1), ids != 0, atol=1e-6)
    np.testing.assert_array_equal(np.asarray(alignments)[~np.broadcast_to(mask[:, None], alignments.shape)], 0.0)


@pytest.mark.parametrize("score", SCORES)
def test_decoder_with_any_score_equals_the_oracle(score):
    width = UNITS if score in ("dot", "cosine", "kernel") else MEMORY
    layer = decoder(width, score=SCORES[score]())
    assert_equals_oracle(layer, sentences(T), *memories(width), states())


def test_a_score_of_minus_infinity_counts_as_masked():
    near = decoder(UNITS, score=tfattn.KernelScore("boxcar", bandwidth=20.0))
    memory, start = memories(UNITS)[0], states()
    memory[0, 1:], memory[1] = 100.0, 100.0
    outputs, alignments, _ = near(sentences(T), memory, initial_state=start, **WHOLE)
    np.testing.assert_array_equal(alignments[0, :, 0], sentences(T)[0] != 0)
    np.testing.assert_array_equal(alignments[0, :, 1:], 0.0)
    np.testing.assert_array_equal(alignments[1], 0.0)
    assert np.isfinite(outputs).all()


@pytest.mark.parametrize("num_layers", [1, 2])
@pytest.mark.parametrize("cell", CELLS)
def test_decoder_with_either_cell_equals_the_oracle(cell, num_layers):
    layer = decoder(cell=CELLS[cell], num_layers=num_layers)
    assert_equals_oracle(layer, sentences(T), *memories(), states(num_layers, 2 if cell == "lstm" else 1))


def test_the_default_score_is_additive_as_wide_as_the_state():
    layer = RecurrentDecoder(VOCABULARY, WIDTH, UNITS)
    assert type(layer.score) is tfattn.AdditiveScore and layer.score.units == UNITS


def test_without_an_initial_state_the_decoder_begins_at_zero():
    layer = decoder(cell=keras.layers.LSTMCell)
    zero = keras.tree.map_structure(np.zeros_like, states(1, 2))
    wanted = layer(sentences(T), memories()[0], initial_state=zero)
    np.testing.assert_array_equal(layer(sentences(T), memories()[0]), wanted)
    for i in range(2):
        other = states(1, 2)
        other[0][i] = zero[0][i]
        moved = layer(sentences(T), memories()[0], initial_state=other)
        np.testing.assert_array_equal(np.any(moved != wanted, axis=-1), sentences(T) != 0)  # padding looks at nothing


def test_the_mask_that_an_encoder_puts_on_its_output_arrives_by_itself():
    read, layer = encoder(), decoder(UNITS)
    memory = read(sentences())
    by_hand = layer(sentences(T), memory.numpy(), memory_mask=sentences() != 0)
    np.testing.assert_array_equal(layer(sentences(T), memory), by_hand)
    assert np.any(layer(sentences(T), memory.numpy()) != by_hand)


@pytest.mark.parametrize("score", SCORES)
def test_a_memory_of_padding_alone_gives_zero_alignments_and_finite_outputs(score):
    width = UNITS if score in ("dot", "cosine", "kernel") else MEMORY
    layer = decoder(width, score=SCORES[score]())
    memory, mask = memories(width)
    mask[1] = False
    outputs, alignments, _ = layer(sentences(T), memory, memory_mask=mask, **WHOLE)
    np.testing.assert_array_equal(alignments[1], 0.0)
    assert np.isfinite(outputs).all()
    # A context of exactly 0: what a memory of zeros would give.
    np.testing.assert_allclose(layer(sentences(T), np.zeros_like(memory))[1], outputs[1], atol=1e-6)


@pytest.mark.parametrize("cell", CELLS)
def test_garbage_under_the_padding_of_the_memory_reaches_no_output_and_no_gradient(cell):
    layer = decoder(cell=CELLS[cell], num_layers=2)
    memory, mask = memories()
    mask[2] = False

    def run(fill):
        filled = tf.constant(np.where(mask[..., None], memory, fill).astype("float32"))
        watched = [filled, *(weight.value for weight in layer.trainable_weights)]
        with tf.GradientTape() as tape:
            tape.watch(filled)
            outputs, alignments, _ = layer(sentences(T), filled, memory_mask=mask, **WHOLE)
            loss = tf.reduce_sum(tf.sin(outputs)) + tf.reduce_sum(alignments**2)
        return [outputs, alignments, *map(tf.convert_to_tensor, tape.gradient(loss, watched))]

    wanted = run(0.0)
    assert all(np.isfinite(tensor).all() for tensor in wanted)
    assert np.any(wanted[2][0] != 0) and np.all(wanted[2].numpy()[~mask] == 0)
    for garbage in (np.nan, -np.inf, 3e38):
        for got, same in zip(run(garbage), wanted, strict=True):
            np.testing.assert_array_equal(got, same)


def test_what_the_embedding_holds_for_padding_reaches_no_output_of_the_decoder():
    layer = decoder()
    wanted = layer(sentences(T), memories()[0])
    table = layer.embedding.embeddings
    table.assign(np.concatenate([np.full((1, WIDTH), np.nan), numbers(table)[1:]]))
    np.testing.assert_array_equal(layer(sentences(T), memories()[0]), wanted)


def test_keys_are_prepared_once_a_call_and_not_at_all_where_they_are_given():
    class Counting(tfattn.BilinearScore):
        calls = 0

        def prepare_key(self, key):
            self.calls += 1
            return super().prepare_key(key)

    layer = decoder(score=Counting())
    memory, mask = memories()
    layer.score.calls = 0
    wanted = layer(sentences(T), memory, memory_mask=mask)
    assert layer.score.calls == 1
    clean, keys = layer.prepare(memory, mask)
    layer.score.calls = 0
    np.testing.assert_array_equal(layer(sentences(T), clean, memory_mask=mask, keys=keys), wanted)
    assert layer.score.calls == 0


@pytest.mark.parametrize("cell", [*CELLS.values(), keras.layers.SimpleRNNCell])
def test_one_token_at_a_time_equals_all_at_once(cell):
    layer = decoder(cell=cell, num_layers=2)
    memory, mask = memories()
    wanted, wanted_alignments, wanted_state = layer(sentences(T), memory, memory_mask=mask, **WHOLE)
    state = None
    for t in range(T):
        token = sentences(T)[:, t : t + 1]
        output, alignment, state = layer(token, memory, memory_mask=mask, initial_state=state, **WHOLE)
        np.testing.assert_allclose(output[:, 0], wanted[:, t], atol=1e-6)
        np.testing.assert_allclose(alignment[:, 0], wanted_alignments[:, t], atol=1e-6)
    keras.tree.map_structure(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), state, wanted_state)


def test_a_position_sees_no_later_token():
    layer, ids = decoder(), sentences(T)
    wanted = layer(ids, memories()[0]).numpy()
    for t in range(1, T):
        changed = ids.copy()
        changed[:, t] = changed[:, t] % (VOCABULARY - 1) + 1
        output = layer(changed, memories()[0]).numpy()
        np.testing.assert_array_equal(output[:, :t], wanted[:, :t])
        np.testing.assert_array_equal(np.any(output != wanted, axis=-1)[:, t:], changed[:, t:] != 0)


def test_alignments_are_collected_with_all_other_attention_weights():
    layer = decoder(name="writer")
    memory, mask = memories()
    _, alignments, _ = layer(sentences(T), memory, memory_mask=mask, **WHOLE)
    collected = tfattn.attention_weights(layer, sentences(T), memory, memory_mask=mask)
    assert list(collected) == ["writer"]
    np.testing.assert_array_equal(collected["writer"], alignments)


# Both.


def test_dropout_is_off_at_inference_and_new_in_every_training_step():
    for layer, inputs in (
        (encoder(num_layers=2, dropout=0.5, seed=1), [sentences()]),
        (decoder(num_layers=2, dropout=0.5, seed=1), [sentences(T), memories()[0]]),
    ):
        np.testing.assert_array_equal(layer(*inputs), layer(*inputs, training=False))
        run = tf.function(lambda layer=layer, inputs=inputs: layer(*inputs, training=True))
        assert np.any(run() != run())
        assert np.isfinite(run()).all()


def test_dropout_between_the_decoders_layers_draws_anew_at_every_token():
    layer = decoder(num_layers=2, dropout=0.5, seed=1)
    layer.input_dropout.rate = layer.output_dropout.rate = 0.0
    for cell in layer.cells:
        # A state that forgets everything, so that equal tokens give equal outputs unless a mask comes between.
        cell.recurrent_kernel.assign(np.zeros(cell.recurrent_kernel.shape))
        bias = np.zeros((2, 3 * UNITS), "float32")
        bias[0, :UNITS] = -1e4
        cell.bias.assign(bias)
        kernel = numbers(cell.kernel)
        kernel[:, :UNITS] = 0.0
        cell.kernel.assign(kernel)
    ids, memory = np.full((1, 40), 3), np.ones((1, S, MEMORY), "float32")
    still, moving = layer(ids, memory)[0].numpy(), layer(ids, memory, training=True)[0].numpy()
    np.testing.assert_allclose(still[1:], still[:-1], atol=1e-6)
    assert len(np.unique(moving.round(4), axis=0)) > 20


def test_one_trace_of_unknown_shapes_serves_all_and_xla_compiles_it():
    read = encoder(cell=keras.layers.LSTMCell, bidirectional=True)
    layer = decoder(2 * UNITS, cell=keras.layers.LSTMCell, num_layers=2)
    parts = [weight.value for weight in (*read.trainable_weights, *layer.trainable_weights)]

    def run(source, target):
        with tf.GradientTape() as tape:
            output, alignments = layer(target, read(source), return_attention_scores=True)
            loss = tf.reduce_sum(tf.sin(output))
        return output, alignments, [tf.convert_to_tensor(g) for g in tape.gradient(loss, parts)]

    signature = [tf.TensorSpec((None, None), "int32")] * 2
    graph = tf.function(run, input_signature=signature)
    jit = tf.function(run, input_signature=signature, jit_compile=True)
    for source, target, roads in (
        (sentences(5, seed=1)[:2], sentences(3)[:2], [graph]),
        (sentences(), sentences(T), [graph, jit]),
    ):
        wanted = run(tf.constant(source), tf.constant(target))
        for compiled in roads:
            got = compiled(source, target)
            keras.tree.map_structure(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), got, wanted)
    assert graph.experimental_get_tracing_count() == 1


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_half_precision_agrees_with_float32(policy):
    exact, half = decoder(), decoder(dtype=policy)
    half.set_weights(exact.get_weights())
    memory, mask = memories()
    wanted = exact(sentences(T), memory, memory_mask=mask, **WHOLE)
    got = half(sentences(T), memory, memory_mask=mask, **WHOLE)
    assert {x.dtype for x in keras.tree.flatten(got)} == {tf.as_dtype(half.compute_dtype)}
    for a, b in zip(keras.tree.flatten(got), keras.tree.flatten(wanted), strict=True):
        np.testing.assert_allclose(numbers(a), b, atol=0.02 if policy == "mixed_float16" else 0.1)
    # Outside of a call no policy casts by itself; `prepare` does.
    assert {x.dtype for x in half.prepare(memory, mask)} == {tf.as_dtype(half.compute_dtype)}


@keras.saving.register_keras_serializable("test_recurrent")
class Doubling(keras.layers.SimpleRNNCell):
    def call(self, inputs, states, training=False):
        return super().call(2 * inputs, states, training)


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
        (lambda: RecurrentEncoder(0), "RecurrentEncoder: `vocabulary_size` must be a positive integer"),
        (lambda: RecurrentEncoder(7, width=0), "RecurrentEncoder: `width` must be a positive integer"),
        (lambda: RecurrentEncoder(7, units=1.5), "RecurrentEncoder: `units` must be a positive integer"),
        (lambda: RecurrentEncoder(7, num_layers=-1), "RecurrentEncoder: `num_layers` must be a positive integer"),
        (lambda: RecurrentEncoder(7, dropout=1.0), r"RecurrentEncoder: `dropout` must be a number in \[0, 1\)"),
        (lambda: RecurrentEncoder(7, bidirectional=1), "RecurrentEncoder: `bidirectional` must be True or False"),
        (lambda: RecurrentEncoder(7, cell="gru"), "RecurrentEncoder: `cell` must be a class of Keras cells"),
        (lambda: RecurrentEncoder(7, cell=keras.layers.GRUCell(5)), "RecurrentEncoder: `cell` must be a class"),
        (lambda: RecurrentEncoder(7, embedding="e"), "RecurrentEncoder: `embedding` must be a layer, or None"),
        (
            lambda: RecurrentDecoder(7, width=5, embedding=keras.layers.Embedding(7, 3)),
            "RecurrentDecoder: `embedding` must have `width`=5 features. Received: embedding=3",
        ),
        (lambda: RecurrentDecoder(7, score="dot"), "RecurrentDecoder: `score` must be a score layer"),
        (lambda: RecurrentDecoder(7, score=Joined()), "`score` must define `prepare_query` and `prepare_key`"),
        (
            lambda: decoder(MEMORY, score=tfattn.DotProductScore()),
            "DotProductScore: `key width` must be as wide as `query`, 7",
        ),
    ],
)
def test_bad_arguments_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"memory_mask": np.ones((B, S), "float32")}, "RecurrentDecoder: `memory_mask` must be boolean"),
        ({"memory_mask": np.ones((B, T, S), bool)}, r"`memory_mask` must have shape \(B, S\)"),
        ({"memory_mask": np.ones((B, S + 1), bool)}, r"`memory_mask` must have shape \(B, S\), here \(3, 6\)"),
        ({"initial_state": states(1, 2)}, r"`initial_state` must hold, for each of 1 layers, states .* \[7\]"),
        ({"initial_state": [[np.zeros((B, 3), "float32")]]}, r"Received: initial_state=\[\[\(3, 3\)\]\]"),
    ],
)
def test_bad_call_arguments_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        decoder()(sentences(T), memories()[0], **options)
