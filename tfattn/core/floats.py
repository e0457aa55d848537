"""Tensors that the engine computes with."""

import numbers
from typing import Any

import keras
from keras import ops

from tfattn import _checks
from tfattn._types import Tensor


def given_tensor(who: str, argument: str, value: Any, letters: str) -> Tensor:
    """Numbers, or nested lists of numbers, as a tensor of shape `letters`."""
    if not isinstance(value, list | tuple | numbers.Number):
        _checks.array(who, argument, value, letters, booleans=True)
    if isinstance(value, keras.KerasTensor):
        return value
    try:
        tensor = ops.convert_to_tensor(value)
    except (ValueError, TypeError):
        _checks.fail(who, argument, f"be a tensor of numbers, of shape {letters}", value)
    _checks.array(who, argument, tensor, letters, booleans=True)
    return tensor


def given_parameter(who: str, argument: str, value: Any, letters: str) -> Tensor | keras.Variable:
    """Like `given_tensor`, but a variable stays a variable, to be read when a graph is traced."""
    tensor = given_tensor(who, argument, value, letters)
    return value if isinstance(value, keras.Variable) else tensor


def given_floats(who: str, argument: str, value: Any, letters: str) -> Tensor:
    """Like `given_tensor`, as floats. Booleans raise: they are masks and not numbers."""
    tensor = given_tensor(who, argument, value, letters)
    _checks.array(who, argument, tensor, letters)
    return floating(tensor)


def floating(x: Any, dtype: str | None = None) -> Tensor:
    """`x` as a float tensor: integers and bools become `dtype`, or Keras's float type."""
    x = x if isinstance(x, keras.KerasTensor) else ops.convert_to_tensor(x)
    read = getattr(x, "value", None)
    if callable(read):
        # Keras takes a `tf.Variable` for a tensor, though it lacks attributes of tensors.
        x = read()
    if "float" in keras.backend.standardize_dtype(x.dtype):
        return x
    # Integer values would turn the weights into integers, which are all 0.
    return ops.cast(x, dtype or keras.config.floatx())
