"""How far apart tokens are, and where they stand."""

import numpy as np

from exercises.arrays import floats
from exercises.exercise import Cases, exercise


def _lengths(rng: np.random.Generator) -> Cases:
    yield from ((10, 3), (9, 3), (16, 4), (17, 5), (2, 7), (1, 3))
    yield int(rng.integers(50, 99)), int(rng.integers(2, 9))


@exercise(tutorial="convolution_recurrence_attention", draw=_lengths)
def layers_to_connect(length: int, kernel_size: int) -> int:
    return -(-(length - 1) // (kernel_size - 1))


def _sizes(rng: np.random.Generator) -> Cases:
    yield from ((5, 8), (7, 2), (1, 6), (50, 4))
    yield int(rng.integers(8, 30)), 2 * int(rng.integers(2, 9))


@exercise(tutorial="positions", draw=_sizes)
def sinusoidal_positions(length: int, width: int) -> np.ndarray:
    angles = np.arange(length)[:, None] / 10_000.0 ** (np.arange(0, width, 2) / width)
    return np.stack([np.sin(angles), np.cos(angles)], axis=-1).reshape(length, width)


def _tokens_at(rng: np.random.Generator) -> Cases:
    for tokens, width in ((3, 8), (5, 2), (1, 6), (7, 4)):
        yield floats(rng, tokens, width), rng.integers(1, 40, size=tokens).astype("int32")


@exercise(tutorial="positions", draw=_tokens_at)
def rotate_pairs(x: np.ndarray, positions: np.ndarray) -> np.ndarray:
    x, width = x.astype("float64"), x.shape[1]
    angles = positions[:, None] / 10_000.0 ** (np.arange(0, width, 2) / width)
    a, b, cos, sin = x[:, 0::2], x[:, 1::2], np.cos(angles), np.sin(angles)
    return np.stack([a * cos - b * sin, a * sin + b * cos], axis=-1).reshape(x.shape)
