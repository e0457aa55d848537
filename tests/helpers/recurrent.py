"""Recurrent encoder and decoder in plain NumPy, one sentence at a time and without padding; and
what goes into them.
"""

import keras
import numpy as np

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


class CountingScore(tfattn.BilinearScore):
    """Counts how often keys are prepared."""

    calls = 0

    def prepare_key(self, key):
        self.calls += 1
        return super().prepare_key(key)


# The oracle.


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def gru(x, states, kernel, recurrent_kernel, bias):
    [h] = states
    from_input, from_state = (
        np.split(x @ kernel + bias[0], 3),
        np.split(h @ recurrent_kernel + bias[1], 3),
    )
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
    return function(
        x, states, *(numbers(w) for w in (cell.kernel, cell.recurrent_kernel, cell.bias))
    )


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
    """One sentence, wherever its padding lies: outputs `(S, units)` and last states, layer by
    layer.
    """
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
    """One sentence: outputs `(T, width)`, alignments `(T, S)` and last states; `start` is a list of
    lists.
    """
    table, kernel, bias = (
        numbers(w) for w in (decoder.embedding.embeddings, *decoder.readout.weights)
    )
    outputs, alignments, real = [], [], np.asarray(memory[mask], "float64")
    for token in ids:
        if token == 0:  # padding changes no state
            outputs.append(np.tanh(bias))
            alignments.append(np.zeros(len(mask)))
            continue
        embedded, weights = table[token], np.zeros(len(mask))
        context, weights[mask] = reference.attention(
            scored(decoder.score, start[-1][0], real), real
        )
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


def shifted(layer, *shapes):
    """The layer, built, with weights moved off the zeros that some begin with."""
    layer.build(*shapes)
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
    return [
        [generator.normal(size=(B, UNITS)).astype("float32") for _ in range(count)]
        for _ in range(layers)
    ]


def encoder(**options):
    layer = RecurrentEncoder(VOCABULARY, **{"width": WIDTH, "units": UNITS, **options})
    return shifted(layer, (None, None))


def decoder(width=MEMORY, **options):
    layer = RecurrentDecoder(VOCABULARY, **{"width": WIDTH, "units": UNITS, **options})
    return shifted(layer, (None, None), (None, None, width))


WHOLE = {"return_attention_scores": True, "return_state": True}
