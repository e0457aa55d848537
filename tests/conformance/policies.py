"""The dtype policies of the mask tests."""

import keras
import numpy as np

POLICIES = ["float32", "mixed_float16", "mixed_bfloat16"]


def numbers(tensor):
    """The array as NumPy's, without bfloat16."""
    return np.asarray(keras.ops.cast(tensor, "float32"))
