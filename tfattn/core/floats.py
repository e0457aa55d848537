"""Tensors that the engine computes with."""

import keras
from keras import ops


def floating(x, dtype=None):
    """`x` as a float tensor: integers and bools become `dtype`, or Keras's float type."""
    x = x if isinstance(x, keras.KerasTensor) else ops.convert_to_tensor(x)
    if "float" in keras.backend.standardize_dtype(x.dtype):
        return x
    # Without this an integer value would turn the weights into integers, which are all 0.
    return ops.cast(x, dtype or keras.config.floatx())
