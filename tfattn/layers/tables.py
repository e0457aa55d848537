"""Ids and positions that a table may not have: an error where they are known, else NaN."""

from typing import Any

import numpy as np
from keras import ops

from tfattn import _checks

__all__ = ["ids_below", "known", "nan_outside"]


def known(value: Any) -> np.ndarray | None:
    """The numbers of a tensor; None in a graph, which has none yet, and on another device."""
    try:
        array = np.asarray(value)
    except Exception:  # each backend has its own
        return None
    return array if array.dtype.kind in "iuf" else None


def ids_below(who: str, argument: str, ids: Any, size: int) -> None:
    """Ids `(B, T)` of a vocabulary of that size, where they are known."""
    numbers = known(ids)
    wrong = [] if numbers is None else np.argwhere((numbers < 0) | (numbers >= size))
    if len(wrong):
        row, place = wrong[0]
        expected = f"hold ids of the vocabulary, 0 to {size - 1}; row {row} has another at {place}"
        _checks.fail(who, argument, expected, numbers[row, place].item())


def nan_outside(x: Any, ids: Any, size: int | None) -> Any:
    """Rows `(..., D)` of a table, NaN where an id is none of its `size`: a graph may have taken
    another row, and cannot raise.
    """
    if size is None:
        return x
    ids = ops.cast(ids, "int32")
    inside = ops.logical_and(ids >= 0, ids < size)
    return ops.where(ops.expand_dims(inside, -1), x, float("nan"))
