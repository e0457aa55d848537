"""What the tests of decoding share: toy steps, the searches in Python that searches must equal, and
small models of words.
"""

import contextlib

import numpy as np
from keras import ops

import tfattn
from tests.helpers.tensors import as_tensor, numpy, tf
from tfattn import data

BEGIN, END, PAD = 1, 2, 0
IDS = {"begin_id": BEGIN, "end_id": END, "padding_id": PAD}

# Toy steps.


@contextlib.contextmanager
def eagerly():
    """TensorFlow runs a search step by step, which takes less than to compile it for one run."""
    if tf:
        tf.config.run_functions_eagerly(True)
    try:
        yield
    finally:
        if tf:
            tf.config.run_functions_eagerly(False)


def trigram(tokens, position, table):
    """Logits by position and the last two tokens; `table` (B, L, V, V, V) is the state, one for
    each row.
    """
    last = ops.take(tokens, position, axis=1)
    before = ops.take(tokens, ops.maximum(position - 1, 0), axis=1)
    chosen = ops.take(table, position, axis=1)  # (B, V, V, V)
    chosen = ops.take_along_axis(chosen, before[:, None, None, None], axis=1)[:, 0]  # (B, V, V)
    return ops.take_along_axis(chosen, last[:, None, None], axis=1)[:, 0], table


def tables(seed, batch, size, scale=2.0, length=11):
    """Random logits `(B, L, V, V, V)`; padding and begin are never written."""
    logits = np.random.default_rng(seed).normal(size=(batch, length, size, size, size), scale=scale)
    logits[..., [BEGIN, PAD]] = -np.inf
    return logits.astype("float32")


def noting(step, calls):
    """The step, which notes in `calls` the shape of the tokens of each call."""

    def noted(tokens, position, state):
        calls.append(tuple(tokens.shape))
        return step(tokens, position, state)

    return noted


# One sentence at a time, in float64.


def scores_after(table, tokens):
    """Logits of the token after `tokens`, which begin with BEGIN."""
    before = tokens[-2] if len(tokens) > 1 else BEGIN
    return table[len(tokens) - 1, before, tokens[-1]].astype("float64")


def no_rule(scores, written, limit):
    return scores


def gains_after(table, tokens, limit, adjusted):
    """{token: log-probability}; `adjusted` are rules, which make no other token likelier."""
    scores = scores_after(table, tokens)
    log_sum = scores.max() + np.log(np.exp(scores - scores.max()).sum())
    gains = adjusted(scores, tokens[1:], limit) - log_sum
    return {token: gains[token] for token in np.flatnonzero(gains > -np.inf).tolist()}


def beams_in_python(table, limit, penalty=1.0, num_beams=None, adjusted=no_rule):
    """(score, tokens) of the last beams, the best first; always to the last step.

    Without `num_beams`, of all that can be written; with one, greedy search.
    """
    beams = [((BEGIN,), 0.0)]

    def score(tokens, total):
        return total / max(len(tokens) - 1, 1) ** penalty

    for _ in range(limit):
        candidates = []
        for tokens, total in beams:
            if tokens[-1] == END:
                candidates.append((tokens, total))
                continue
            for token, gain in gains_after(table, tokens, limit, adjusted).items():
                candidates.append(((*tokens, token), total + gain))
        beams = sorted(candidates, key=lambda each: score(*each), reverse=True)[:num_beams]
    return [(score(tokens, total), tokens[1:]) for tokens, total in beams]


def pooled_in_python(table, limit, penalty, num_beams, early_stopping=False, adjusted=no_rule):
    """(score, tokens) of a pool: what ends waits in it, what is open goes on, and the limit ends
    all at no cost.
    """
    beams, pool = [(0.0, (BEGIN,))], []
    for length in range(1, limit + 1):
        candidates = [
            (total + gain, (*tokens, token))
            for total, tokens in beams
            for token, gain in (
                {END: 0.0} if length == limit else gains_after(table, tokens, limit, adjusted)
            ).items()
        ]
        candidates = sorted(candidates, reverse=True)[: 2 * num_beams]
        ended = [each for each in candidates[:num_beams] if each[1][-1] == END]
        pool += [(total / length**penalty, tokens[1:]) for total, tokens in ended]
        pool = sorted(pool, reverse=True)[:num_beams]
        beams = [each for each in candidates if each[1][-1] != END][:num_beams]
        is_full = len(pool) == num_beams
        if (
            not beams
            or is_full
            and (early_stopping or beams[0][0] / length**penalty <= pool[-1][0])
        ):
            break
    return pool


def drawn_in_python(table, limit, draws, temperature, adjusted=no_rule):
    """The tokens that these numbers in [0, 1) draw."""
    tokens = [BEGIN]
    while len(tokens) <= limit and tokens[-1] != END:
        scores = adjusted(scores_after(table, tokens), tokens[1:], limit)
        p = np.where(scores > -np.inf, np.exp((scores - scores.max()) / temperature), 0.0)
        draw = draws[len(tokens) - 1] * p.sum()
        tokens.append(int(np.searchsorted(np.cumsum(p), draw, side="right")))
    return tuple(tokens[1:])


def tokens_of_best(found, row=0):
    """The tokens of a row's best result, up to its end."""
    tokens = numpy(found.tokens[:, 0] if hasattr(found, "tokens") else found)[row].tolist()
    return tokens[: tokens.index(END) + 1] if END in tokens else [t for t in tokens if t != PAD]


def assert_same(found, wanted, row=0):
    """A row of `Hypotheses` is the list of (score, tokens) `wanted`; the rest of it is padding with
    score -inf.
    """
    tokens, scores = np.array(found.tokens[row]), np.array(found.scores[row])
    for (score, sequence), got, got_score in zip(wanted, tokens, scores, strict=False):
        assert got.tolist() == [*sequence, *[PAD] * (len(got) - len(sequence))]
        np.testing.assert_allclose(got_score, score, rtol=1e-5, atol=1e-5)
    assert (tokens[len(wanted) :] == PAD).all() and (scores[len(wanted) :] == -np.inf).all()


# States.


def reading(tokens, position, state):
    """`trigram` that notes what it reads, in a buffer (B, L), among much else."""
    assert state["none"] is None and state["word"] == "word" and state["number"] == 3
    here = ops.arange(ops.shape(tokens)[1]) == position
    read = ops.where(here, ops.take(tokens, position, axis=1)[:, None], state["read"])
    logits, table = trigram(tokens, position, state["table"])
    count, made = state["count"] + 1, ops.cast(tokens, "float32")
    return logits, {**state, "table": table, "read": read, "count": count, "made": made}


def reading_state(table, length):
    """`made` is what the first step makes."""
    return {
        "table": as_tensor(table),
        "read": ops.full((len(table), length), -1),
        "rows": ops.arange(len(table), dtype="int32"),
        "count": ops.zeros((), "int32"),
        "number": 3,
        "word": "word",
        "none": None,
        "made": None,
    }


# Words.

ENGLISH = data.Vocabulary(["one", "two", "three", "four", "five"])
GERMAN = data.Vocabulary(["fünf", "vier", "drei", "zwei", "eins"])
SPECIAL = 4


class WordForWord:
    """Translates word i into word i of the other vocabulary, the fifth from the end into the fifth;
    "four" becomes two.

    Notes the shapes that it is given, and how often Python runs its step.
    """

    source_vocabulary_size = len(ENGLISH)
    target_vocabulary_size = len(GERMAN)

    def __init__(self):
        self.shapes, self.traces = [], 0

    def encode(self, source, max_length):
        self.shapes.append((*source.shape, max_length))
        assert source.dtype == "int32" and (source[:, 0] != 0).all()
        # The end, and after it nothing.
        assert ((source == ENGLISH.end_id).sum(axis=1) == 1).all()
        translated = np.where(source >= SPECIAL, len(GERMAN) + SPECIAL - 1 - source, source)
        return {"written": np.pad(translated, [(0, 0), (0, max(0, max_length - source.shape[1]))])}

    def step(self, tokens, position, state):
        self.traces += 1
        return ops.one_hot(ops.take(state["written"], position, axis=1), len(GERMAN)) * 20.0, state


WORDS = dict(zip(ENGLISH.words, [*GERMAN.words[:SPECIAL], *GERMAN.words[:3:-1]], strict=True))


def word_for_word(sentence):
    return " ".join(WORDS.get(word, "<unk>") for word in sentence.split())


def some_sentences(count, longest=23, seed=0):
    rng = np.random.default_rng(seed)
    return [
        " ".join(rng.choice(ENGLISH.words[SPECIAL:], size=rng.integers(0, longest + 1)))
        for _ in range(count)
    ]


def spread(model):
    """The model with larger matrices: texts that differ, and attention that prefers some tokens."""
    rng = np.random.default_rng(7)
    model.build(((None, None), (None, None)))
    model.set_weights([rng.normal(size=w.shape) if w.ndim > 1 else w for w in model.get_weights()])
    return model


def transformer(**options):
    sizes = {"num_layers": 1, "width": 12, "num_heads": 2, "hidden_dim": 14, **options}
    return spread(tfattn.Transformer(len(ENGLISH), len(GERMAN), **sizes))


def recurrent():
    return spread(tfattn.BahdanauSeq2Seq(len(ENGLISH), len(GERMAN), width=12, units=14))
