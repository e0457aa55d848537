"""Masks: who may attend to whom."""

import numpy as np

from exercises.exercise import Cases, exercise


def _squares(rng: np.random.Generator) -> Cases:
    yield from ((5, 5), (3, 5), (1, 4), (1, 1))
    queries = int(rng.integers(2, 6))
    yield queries, queries + int(rng.integers(1, 6))


@exercise(tutorial="masked_attention", draw=_squares)
def causal_mask(num_queries: int, num_keys: int) -> np.ndarray:
    positions = np.arange(num_queries)[:, None] + num_keys - num_queries
    return np.arange(num_keys) <= positions


def _padding(rng: np.random.Generator) -> Cases:
    for batch, keys in ((2, 5), (3, 7), (1, 1)):
        yield rng.integers(1, keys + 1, size=batch).astype("int32"), keys
    yield np.array([3, 0, 5], "int32"), 5


@exercise(tutorial="masked_attention", draw=_padding)
def padding_mask(valid_lens: np.ndarray, num_keys: int) -> np.ndarray:
    return np.arange(num_keys) < valid_lens[:, None, None]


def _windows(rng: np.random.Generator) -> Cases:
    yield from ((5, 5, 2), (7, 7, 3), (3, 7, 3), (1, 4, 2), (4, 4, 9), (3, 3, 1))
    queries = int(rng.integers(2, 6))
    yield queries, queries + int(rng.integers(1, 6)), int(rng.integers(2, 4))


@exercise(tutorial="masked_attention", draw=_windows)
def sliding_window_mask(num_queries: int, num_keys: int, size: int) -> np.ndarray:
    positions = np.arange(num_queries)[:, None] + num_keys - num_queries
    distances = positions - np.arange(num_keys)
    return (distances >= 0) & (distances < size)
