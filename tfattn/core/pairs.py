"""Arrays over pairs of query and key as users pass them: masks, biases and lengths."""

from typing import Any

import keras
import numpy as np
from keras import ops

from tfattn import _checks
from tfattn._types import Shape, Tensor
from tfattn.core.floats import given_tensor

_FLOAT_HINT = "a float that is added to the scores, such as 0 and -1e9, goes into `bias`"

# The shapes of an array over all pairs, by the rank of the scores.
SHAPES = {3: "(T, S) or (B, T, S)", 4: "(T, S), (B, T, S) or (B, H, T, S)"}


def checked_bool(
    who: str, argument: str, value: Any, hint: str = _FLOAT_HINT, letters: str = SHAPES[4]
) -> Tensor:
    """`value` as a bool tensor, if it is boolean or holds only 0 and 1; floats raise with `hint`.

    In a graph numbers cannot be checked: all but 0 become True there.
    """
    value = given_tensor(who, argument, value, letters)
    dtype = keras.backend.standardize_dtype(value.dtype)
    if "int" not in dtype:
        _checks.boolean_dtype(who, argument, dtype, hint)
        return value
    for number in _extremes(value):
        if number not in (0, 1):
            expected = "be boolean, or hold 0 and 1, with 1 where attention is allowed"
            _checks.fail(who, argument, expected, int(number))
    return ops.not_equal(value, 0)


def _extremes(value: Tensor) -> list[Any]:
    """The least and the greatest number; empty for a symbolic or an empty tensor."""
    numbers = known(value)
    return [] if numbers is None or not numbers.size else [numbers.min(), numbers.max()]


def known(value: Any) -> np.ndarray | None:
    """The values of a tensor; None in a graph, and on PyTorch on another device."""
    if isinstance(value, keras.KerasTensor):
        return None
    try:
        return np.asarray(value)
    except _checks.SYMBOLIC[keras.backend.backend()]:
        return None


def check_lengths(who: str, argument: str, lengths: Tensor, most: int | None = None) -> None:
    """Raises for lengths below 0 or above `most`, where they are in the memory of the host: a copy
    from an accelerator would wait for all that it computes.
    """
    device = getattr(lengths, "backing_device", None) or getattr(lengths, "device", None)
    if "cpu" not in str(device).lower():
        return
    for length in _extremes(lengths):
        if most is None and length < 0:
            _checks.fail(who, argument, "hold lengths of at least 0", int(length))
        if most is not None and not 0 <= length <= most:
            expected = f"hold lengths from 0 to {most}, the number of keys"
            _checks.fail(who, argument, expected, int(length))


def checked_int(who: str, argument: str, value: Any) -> Tensor:
    """`value` as an int32 tensor, if it holds integers."""
    value = given_tensor(who, argument, value, "(B,) or (B, T)")
    _checks.integer_dtype(who, argument, keras.backend.standardize_dtype(value.dtype))
    return ops.cast(value, "int32")


def check_shape(who: str, argument: str, shape: Shape, scores_shape: Shape) -> None:
    """Raises unless a mask or bias of that static shape broadcasts to scores of `scores_shape`."""
    letters = SHAPES[len(scores_shape)]
    _checks.rank(who, argument, shape, range(2, len(scores_shape) + 1), letters)
    without_heads = (scores_shape[0], *scores_shape[-2:])
    target = tuple(scores_shape) if len(shape) == 4 else without_heads
    _checks.broadcasts(who, argument, shape, target[-len(shape) :], letters)


def with_heads(tensor: Tensor, rank: int) -> Tensor:
    """Gives a `(B, T, S)` tensor an axis of heads where the scores, of that rank, have one."""
    if rank == 4 and len(tensor.shape) == 3:
        return ops.expand_dims(tensor, 1)  # (B, 1, T, S)
    return tensor
