"""Heads: their split, and attention of a sequence to itself."""

import numpy as np

from exercises.arrays import floats, softmax
from exercises.exercise import Cases, exercise


def _tokens_and_heads(rng: np.random.Generator) -> Cases:
    for batch, tokens, heads, size in ((2, 3, 2, 5), (3, 7, 5, 2), (1, 1, 2, 3), (2, 4, 4, 4)):
        yield floats(rng, batch, tokens, heads * size), heads


@exercise(tutorial="multi_head", draw=_tokens_and_heads)
def split_heads(x: np.ndarray, num_heads: int) -> np.ndarray:
    batch, tokens, width = x.shape
    return x.reshape(batch, tokens, num_heads, width // num_heads).transpose(0, 2, 1, 3)


def _heads(rng: np.random.Generator) -> Cases:
    for shape in ((2, 3, 5, 2), (3, 5, 2, 4), (1, 2, 1, 3), (2, 4, 4, 4)):
        yield (floats(rng, *shape),)


@exercise(tutorial="multi_head", draw=_heads)
def merge_heads(x: np.ndarray) -> np.ndarray:
    batch, heads, tokens, size = x.shape
    return x.transpose(0, 2, 1, 3).reshape(batch, tokens, heads * size)


def _groups(rng: np.random.Generator) -> Cases:
    for batch, groups, keys, size, heads in ((2, 2, 5, 3, 6), (1, 3, 2, 4, 6), (3, 1, 7, 2, 4)):
        yield floats(rng, batch, groups, keys, size), heads


@exercise(tutorial="multi_head", draw=_groups)
def repeat_key_heads(key: np.ndarray, num_heads: int) -> np.ndarray:
    return np.repeat(key, num_heads // key.shape[1], axis=1)


def _matrices(rng: np.random.Generator) -> Cases:
    for tokens, width, size in ((3, 4, 3), (5, 2, 7), (1, 4, 2), (4, 4, 4)):
        yield floats(rng, tokens, width), *(floats(rng, width, size) for _ in range(3))


@exercise(tutorial="self_attention_by_hand", draw=_matrices)
def self_attention(
    x: np.ndarray, w_query: np.ndarray, w_key: np.ndarray, w_value: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    query, key, value = (x.astype("float64") @ w for w in (w_query, w_key, w_value))
    weights = softmax(query @ key.T)
    return weights @ value, weights
