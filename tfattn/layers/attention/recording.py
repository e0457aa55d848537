"""Recording of attention weights while a model runs."""

import contextlib
import contextvars
from collections.abc import Iterator
from typing import Any

import numpy as np
from keras import ops

from tfattn._types import Tensor

# The weights by path, while a call of `attention_weights` runs.
_recorded: contextvars.ContextVar[dict[str, np.ndarray] | None] = contextvars.ContextVar(
    "tfattn_recorded", default=None
)


@contextlib.contextmanager
def started() -> Iterator[dict[str, np.ndarray]]:
    """Records within the context, into the dict that it gives."""
    weights: dict[str, np.ndarray] = {}
    token = _recorded.set(weights)
    try:
        yield weights
    finally:
        _recorded.reset(token)


def active() -> bool:
    """Whether weights are being recorded."""
    return _recorded.get() is not None


def as_array(tensor: Tensor) -> np.ndarray | None:
    """`tensor` in NumPy, or None if it is symbolic."""
    try:
        return ops.convert_to_numpy(tensor)
    except (NotImplementedError, TypeError):
        return None


def note(path: str, weights: Any) -> None:
    """Records the weights of one call of the layer at `path`, if recording is active."""
    recorded = _recorded.get()
    if recorded is None:
        return
    array = as_array(weights)
    if array is None:  # some models are traced once to be built, before they run
        return
    again = sum(1 for known in recorded if known == path or known.startswith(f"{path}:"))
    recorded[f"{path}:{again}" if again else path] = array
