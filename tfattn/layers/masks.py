"""Implicit masks: those that Keras carries on tensors."""

from typing import Any

import keras
from keras import ops

__all__ = ["CarryMask", "padding_mask"]


class CarryMask(keras.layers.Layer):
    """Puts a mask on a tensor. Keras carries the first input's mask on by itself, but not one given
    as an argument.
    """

    def __init__(self, **kwargs):
        super().__init__(autocast=False, **kwargs)
        self.built = True  # it has nothing to build

    def compute_mask(self, inputs, previous_mask=None):
        return inputs[1]

    def call(self, inputs):
        return inputs[0]


def padding_mask(ids: Any) -> Any:
    """True where a token is real: `(B, T)` of ids `(B, T)`."""
    return ops.not_equal(ids, 0)
