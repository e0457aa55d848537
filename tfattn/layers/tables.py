"""Ids and positions outside a table: an error if their values are known, else NaN."""

from typing import Any

import keras
import numpy as np
from keras import ops

from tfattn import _checks
from tfattn.core import pairs


def whole_ids(who: str, argument: str, ids: Any) -> Any:
    """Ids as integers; a float with a fraction raises, or in a graph becomes −1, as ids outside.

    In mixed precision Keras would cast floats to float16 or bfloat16, which rounds 257 to 256.
    """
    is_float = not isinstance(ids, keras.KerasTensor) and "float" in str(getattr(ids, "dtype", ""))
    if not is_float:
        return ids
    numbers = pairs.known(ids)
    if numbers is not None:
        _checks.whole(who, argument, numbers)
    else:
        ids = ops.where(ids == ops.round(ids), ids, -1)
    return ops.cast(ids, "int32")


def ids_below(who: str, argument: str, ids: Any, size: int) -> None:
    """Raises if an id of `(B, T)` is known to be outside a vocabulary of this size."""
    numbers: Any = pairs.known(ids)
    wrong: Any = [] if numbers is None else np.argwhere((numbers < 0) | (numbers >= size))
    if len(wrong):
        row, place = wrong[0]
        expected = f"hold ids of the vocabulary, 0 to {size - 1}; see row {row}, position {place}"
        _checks.fail(who, argument, expected, numbers[row, place].item())


def nan_outside(x: Any, ids: Any, size: int | None) -> Any:
    """Rows `(..., D)` of a table; NaN for ids outside its `size`, since a graph cannot raise."""
    if size is None:
        return x
    ids = ops.cast(ids, "int32")
    inside = ops.logical_and(ids >= 0, ids < size)
    return ops.where(ops.expand_dims(inside, -1), x, float("nan"))
