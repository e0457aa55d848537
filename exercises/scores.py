"""Scores, masked weights, and attention out of both."""

import numpy as np

from exercises.arrays import floats, softmax
from exercises.exercise import Cases, exercise


def _scores_and_lengths(rng: np.random.Generator) -> Cases:
    for batch, queries, keys in ((2, 3, 5), (3, 2, 7), (1, 1, 4)):
        scores = floats(rng, batch, queries, keys)
        yield scores, rng.integers(1, keys, size=batch).astype("int32")
    scores = 300 * floats(rng, 2, 3, 5)
    scores[1, :, 4] = 1000  # a hidden key
    yield scores, np.array([5, 2], "int32")
    yield floats(rng, 3, 2, 5), np.array([3, 0, 5], "int32")
    yield floats(rng, 2, 3, 5) - 1000, np.array([4, 2], "int32")


@exercise(tutorial="scoring_functions", draw=_scores_and_lengths)
def masked_softmax(scores: np.ndarray, valid_lens: np.ndarray) -> np.ndarray:
    visible = np.arange(scores.shape[-1]) < valid_lens[:, None]  # (B, S)
    return softmax(scores, visible[:, None])


def _additive(rng: np.random.Generator) -> Cases:
    for batch, queries, keys in ((2, 3, 5), (3, 5, 2), (1, 1, 7), (2, 3, 3)):
        query, key = floats(rng, batch, queries, 4), floats(rng, batch, keys, 6)
        yield query, key, floats(rng, 4, 8), floats(rng, 6, 8), floats(rng, 8)


@exercise(tutorial="scoring_functions", draw=_additive)
def additive_scores(
    query: np.ndarray, key: np.ndarray, w_query: np.ndarray, w_key: np.ndarray, v: np.ndarray
) -> np.ndarray:
    query, key = query.astype("float64") @ w_query, key.astype("float64") @ w_key
    return np.tanh(query[:, :, None] + key[:, None]) @ v  # (B, T, S)


def _attention(rng: np.random.Generator) -> Cases:
    for batch, queries, keys in ((2, 3, 5), (3, 5, 2), (1, 1, 7)):
        query, key = floats(rng, batch, queries, 8), floats(rng, batch, keys, 8)
        mask = rng.random((batch, queries, keys)) < 0.7
        mask[:, :, 0] = True
        yield query, key, floats(rng, batch, keys, 3), mask
    query, key, value = floats(rng, 2, 3, 8), floats(rng, 2, 5, 8), floats(rng, 2, 5, 3)
    mask = np.ones((2, 3, 5), bool)
    mask[0, 1] = False
    yield query, key, value, mask
    large, mask = value.copy(), np.ones((2, 3, 5), bool)
    large[0, 1], mask[0, 2, 1] = 1e30, False  # visible to other queries
    yield query, key, large, mask
    mask = np.broadcast_to(np.arange(5) < 3, (2, 3, 5)).copy()
    yield query, key, np.where(mask[:, 0, :, None], value, np.float32("nan")), mask


@exercise(tutorial="scoring_functions", draw=_attention)
def dot_product_attention(
    query: np.ndarray, key: np.ndarray, value: np.ndarray, mask: np.ndarray
) -> np.ndarray:
    scores = np.einsum("btd,bsd->bts", query.astype("float64"), key) / np.sqrt(query.shape[-1])
    value = np.where(np.expand_dims(mask.any(axis=1), axis=-1), value, 0.0)
    return softmax(scores, mask) @ value


def _states(rng: np.random.Generator) -> Cases:
    for batch, keys, lengths in ((2, 5, (3, 5)), (3, 7, (7, 1, 4)), (1, 1, (1,))):
        state, memory = floats(rng, batch, 4), floats(rng, batch, keys, 6)
        weights = floats(rng, 4, 8), floats(rng, 6, 8), floats(rng, 8)
        yield state, memory, *weights, np.array(lengths, "int32")


@exercise(tutorial="bahdanau_translation", draw=_states)
def bahdanau_context(
    state: np.ndarray,
    memory: np.ndarray,
    w_state: np.ndarray,
    w_memory: np.ndarray,
    v: np.ndarray,
    lengths: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    scores = additive_scores.oracle(state[:, None], memory, w_state, w_memory, v)
    weights = masked_softmax.oracle(scores, lengths)  # (B, 1, S)
    return (weights @ memory)[:, 0], weights[:, 0]


def _targets(rng: np.random.Generator) -> Cases:
    for batch, length in ((2, 5), (3, 2), (1, 1)):
        targets = rng.integers(2, 20, size=(batch, length)).astype("int32")
        yield targets, int(rng.integers(20, 40))


@exercise(tutorial="bahdanau_translation", draw=_targets)
def shift_right(targets: np.ndarray, begin_id: int) -> np.ndarray:
    begin = np.full_like(targets[:, :1], begin_id)
    return np.concatenate([begin, targets[:, :-1]], axis=1)
