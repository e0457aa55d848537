"""Tensors that the engine computes with."""

from typing import Any

import keras
from keras import ops

from tfattn._types import Tensor


def floating(x: Any, dtype: str | None = None) -> Tensor:
    """`x` as a float tensor: integers and bools become `dtype`, or Keras's float type."""
    x = x if isinstance(x, keras.KerasTensor) else ops.convert_to_tensor(x)
    if "float" in keras.backend.standardize_dtype(x.dtype):
        return x
    # Integer values would turn the weights into integers, which are all 0.
    return ops.cast(x, dtype or keras.config.floatx())
