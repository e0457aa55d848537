"""Arrays over pairs of query and key as users pass them: masks, biases and lengths."""

from typing import Any

import keras
from keras import ops

from tfattn import _checks
from tfattn._types import Shape, Tensor

_FLOAT_HINT = "a float that is added to the scores, such as 0 and -1e9, goes into `bias`"
_INT_HINT = "0 and 1 become a mask with `mask != 0`"

# The shapes that cover all pairs, by the rank of the scores.
SQUARES = {3: "(T, S) or (B, T, S)", 4: "(T, S), (B, T, S) or (B, H, T, S)"}


def checked_bool(who: str, argument: str, value: Any) -> Tensor:
    """`value` as a tensor, if it is boolean."""
    value = _tensor(value)
    dtype = keras.backend.standardize_dtype(value.dtype)
    _checks.boolean_dtype(who, argument, dtype, _FLOAT_HINT if "float" in dtype else _INT_HINT)
    return value


def checked_int(who: str, argument: str, value: Any) -> Tensor:
    """`value` as an int32 tensor, if it holds integers."""
    value = _tensor(value)
    _checks.integer_dtype(who, argument, keras.backend.standardize_dtype(value.dtype))
    return ops.cast(value, "int32")


def checked_bias(who: str, bias: Any, scores_shape: Shape) -> Tensor:
    """`bias` as a tensor, if it holds numbers and broadcasts to scores of that static shape."""
    bias = _tensor(bias)
    if keras.backend.standardize_dtype(bias.dtype) == "bool":
        expected = "hold numbers that are added to the scores (a bool goes into `attention_mask`)"
        _checks.fail(who, "bias", expected, "bool")
    check_square(who, "bias", bias.shape, scores_shape)
    return bias


def check_square(who: str, argument: str, shape: Shape, scores_shape: Shape) -> None:
    """Raises unless a mask or bias of that static shape broadcasts to scores of `scores_shape`."""
    letters = SQUARES[len(scores_shape)]
    _checks.rank(who, argument, shape, range(2, len(scores_shape) + 1), letters)
    without_heads = (scores_shape[0], *scores_shape[-2:])
    target = tuple(scores_shape) if len(shape) == 4 else without_heads
    _checks.broadcasts(who, argument, shape, target[-len(shape) :], letters)


def with_heads(tensor: Tensor, rank: int) -> Tensor:
    """Gives a `(B, T, S)` tensor an axis of heads where the scores, of that rank, have one."""
    if rank == 4 and len(tensor.shape) == 3:
        return ops.expand_dims(tensor, 1)  # (B, 1, T, S)
    return tensor


def _tensor(value: Any) -> Tensor:
    return value if isinstance(value, keras.KerasTensor) else ops.convert_to_tensor(value)
