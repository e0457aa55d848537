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


def argmax(x):
    """Places of the greatest numbers along the last axis, int32; of equal ones the first.

    `keras.ops.argmax` on TensorFlow tells −0 from 0, in passes over the whole tensor that take five times as long as the
    search itself: over a vocabulary they were a sixth of a training step.
    """
    if keras.backend.backend() != "tensorflow":
        return ops.cast(ops.argmax(x, axis=-1), "int32")
    import tensorflow as tf

    return tf.argmax(x, axis=-1, output_type=tf.int32)
