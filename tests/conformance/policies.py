"""The precisions in which the contract of masks holds."""

import keras
import numpy as np

POLICIES = ["float32", "mixed_float16", "mixed_bfloat16"]


def numbers(tensor):
    """As NumPy's, which has no bfloat16."""
    return np.asarray(keras.ops.cast(tensor, "float32"))
