"""Norms of a Transformer block."""

import numpy as np

from exercises.arrays import floats
from exercises.exercise import Cases, exercise


def _tokens(rng: np.random.Generator) -> Cases:
    for batch, tokens, width in ((2, 3, 5), (3, 5, 2), (1, 1, 7)):
        yield (
            2 + 3 * floats(rng, batch, tokens, width),
            floats(rng, width),
            floats(rng, width),
            1e-3,
        )
    epsilon = round(float(rng.uniform(0.002, 0.01)), 4)
    yield np.float32(0.01) * floats(rng, 2, 3, 5), floats(rng, 5), floats(rng, 5), epsilon


@exercise(tutorial="residuals_and_norms", draw=_tokens)
def layer_norm(x: np.ndarray, gamma: np.ndarray, beta: np.ndarray, epsilon: float) -> np.ndarray:
    x = x.astype("float64")
    centered = x - x.mean(axis=-1, keepdims=True)
    variance = (centered**2).mean(axis=-1, keepdims=True)
    return centered / np.sqrt(variance + epsilon) * gamma + beta


def _branches(rng: np.random.Generator) -> Cases:
    for batch, tokens, width in ((2, 3, 5), (3, 5, 2), (1, 1, 7)):
        x, output = floats(rng, batch, tokens, width), floats(rng, batch, tokens, width)
        yield x, 1 + 2 * output
    yield np.float32(0.01) * floats(rng, 2, 3, 5), np.float32(0.01) * floats(rng, 2, 3, 5)


@exercise(tutorial="residuals_and_norms", draw=_branches)
def add_norm(x: np.ndarray, output: np.ndarray) -> np.ndarray:
    return layer_norm.oracle(x + output, 1.0, 0.0, 1e-5)
