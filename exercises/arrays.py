"""Shared by the oracles: random arrays and the softmax."""

import numpy as np


def floats(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Normal random numbers in float32."""
    return rng.normal(size=shape).astype("float32")


def softmax(scores: np.ndarray, visible: np.ndarray | None = None) -> np.ndarray:
    """Weights over the last axis, in float64; a row without a visible key has weights of 0."""
    scores = np.asarray(scores, "float64")
    if visible is not None:
        scores = np.where(visible, scores, -np.inf)
    top = scores.max(axis=-1, keepdims=True)
    exponentials = np.exp(scores - np.where(np.isfinite(top), top, 0.0))
    total = exponentials.sum(axis=-1, keepdims=True)
    return exponentials / np.where(total == 0, 1.0, total)
