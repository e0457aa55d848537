"""Arrays over the square of pairs, `(T, S)` with or without batch and heads: masks, biases and
lengths as users pass them.
"""

import keras
from keras import ops

from tfattn import _checks

_FLOAT_HINT = "a float that is added to the scores, such as 0 and -1e9, goes into `bias`"
_INT_HINT = "0 and 1 become a mask with `mask != 0`"

# The shapes of a whole square, by the rank of the scores.
SQUARES = {3: "(T, S) or (B, T, S)", 4: "(T, S), (B, T, S) or (B, H, T, S)"}


def checked_bool(who, argument, value):
    """`value` as a tensor, if it is boolean."""
    value = _tensor(value)
    dtype = keras.backend.standardize_dtype(value.dtype)
    _checks.boolean_dtype(who, argument, dtype, _FLOAT_HINT if "float" in dtype else _INT_HINT)
    return value


def checked_int(who, argument, value):
    """`value` as an int32 tensor, if it holds integers."""
    value = _tensor(value)
    _checks.integer_dtype(who, argument, keras.backend.standardize_dtype(value.dtype))
    return ops.cast(value, "int32")


def checked_bias(who, bias, scores_shape):
    """`bias` as a tensor, if it holds numbers and broadcasts to scores of that static shape."""
    bias = _tensor(bias)
    if keras.backend.standardize_dtype(bias.dtype) == "bool":
        expected = "hold numbers that are added to the scores (a bool goes into `attention_mask`)"
        _checks.fail(who, "bias", expected, "bool")
    check_square(who, "bias", bias.shape, scores_shape)
    return bias


def check_square(who, argument, shape, scores_shape):
    """Raises unless a mask or bias of that static shape broadcasts to scores of `scores_shape`."""
    letters = SQUARES[len(scores_shape)]
    _checks.rank(who, argument, shape, range(2, len(scores_shape) + 1), letters)
    without_heads = (scores_shape[0], *scores_shape[-2:])
    target = tuple(scores_shape) if len(shape) == 4 else without_heads
    _checks.broadcasts(who, argument, shape, target[-len(shape) :], letters)


def with_heads(tensor, rank):
    """Gives a `(B, T, S)` tensor its axis of heads where the scores have one; `(T, S)` broadcasts
    as it is.
    """
    if rank == 4 and len(tensor.shape) == 3:
        return ops.expand_dims(tensor, 1)  # (B, 1, T, S)
    return tensor


def _tensor(value):
    return value if isinstance(value, keras.KerasTensor) else ops.convert_to_tensor(value)
