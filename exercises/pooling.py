"""Weighted means and kernel regression."""

import numpy as np

from exercises.arrays import floats, softmax
from exercises.exercise import Cases, exercise


def _one_query(rng: np.random.Generator) -> Cases:
    for size in (5, 7, 1):
        yield floats(rng, 4), floats(rng, size, 4), floats(rng, size, 2)
    query, keys = 4000 * floats(rng, 4), floats(rng, 3, 4)
    # Two different scores too large for the exponential.
    keys[0] = np.sign(query)
    keys[1] = keys[0] / 2
    yield query, keys, floats(rng, 3, 2)


@exercise(tutorial="attention_cues", draw=_one_query)
def attention_pooling(query: np.ndarray, keys: np.ndarray, values: np.ndarray) -> np.ndarray:
    scores = keys.astype("float64") @ query / np.sqrt(len(query))
    return softmax(scores) @ values


def _points(rng: np.random.Generator) -> Cases:
    for queries, keys, bandwidth, shift in ((3, 5, 0.5, 0), (7, 2, 2.0, 0), (1, 4, 0.3, 0)):
        yield floats(rng, queries) + np.float32(shift), floats(rng, keys), bandwidth
    yield floats(rng, 2) + np.float32(40), floats(rng, 5), 0.5


@exercise(tutorial="kernel_regression", draw=_points)
def gaussian_weights(queries: np.ndarray, keys: np.ndarray, bandwidth: float) -> np.ndarray:
    u = (queries[:, None].astype("float64") - keys) / bandwidth
    return softmax(-(u**2) / 2)


def _own_points(rng: np.random.Generator) -> Cases:
    for size, bandwidth in ((5, 0.5), (7, 2.0), (2, 1.0), (3, 0.01)):
        yield floats(rng, size), bandwidth
    yield (2 * rng.permutation(3) + rng.random(3)).astype("float32"), 1e-6


@exercise(tutorial="kernel_regression", draw=_own_points)
def leave_one_out_weights(x: np.ndarray, bandwidth: float) -> np.ndarray:
    u = (x[:, None].astype("float64") - x) / bandwidth
    return softmax(-(u**2) / 2, ~np.eye(len(x), dtype=bool))


def _labeled_points(rng: np.random.Generator) -> Cases:
    for size, bandwidth in ((5, 0.5), (7, 2.0), (2, 1.0)):
        yield floats(rng, size), floats(rng, size), bandwidth


@exercise(tutorial="kernel_regression_tool", draw=_labeled_points)
def leave_one_out_error(x: np.ndarray, y: np.ndarray, bandwidth: float) -> float:
    return np.mean((leave_one_out_weights.oracle(x, bandwidth) @ y - y) ** 2)


def _near_and_far(rng: np.random.Generator) -> Cases:
    for queries, keys, bandwidth in ((3, 5, 1.0), (7, 2, 2.0), (1, 4, 1.5)):
        yield floats(rng, queries), floats(rng, keys), floats(rng, keys), bandwidth
    yield np.array([0, 9, 0.5], "float32"), floats(rng, 4), floats(rng, 4), 1.5


@exercise(tutorial="kernel_regression_tool", draw=_near_and_far)
def epanechnikov_mean(
    queries: np.ndarray, keys: np.ndarray, values: np.ndarray, bandwidth: float
) -> np.ndarray:
    u = (queries[:, None].astype("float64") - keys) / bandwidth
    weights = np.maximum(1 - u**2, 0)
    total = weights.sum(axis=1)
    return weights @ values / np.where(total == 0, 1, total)


def _batches(rng: np.random.Generator) -> Cases:
    for batch, queries, keys in ((2, 3, 5), (3, 5, 2), (1, 1, 7), (2, 3, 3)):
        yield floats(rng, batch, queries, keys), floats(rng, batch, keys, 4)


@exercise(tutorial="batched_matmul", draw=_batches)
def weighted_sums(weights: np.ndarray, values: np.ndarray) -> np.ndarray:
    return np.einsum("bts,bsd->btd", weights.astype("float64"), values)
