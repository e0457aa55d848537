"""Implicit masks, which Keras attaches to tensors."""

from typing import Any

import keras
from keras import ops

from tfattn._types import Tensor


class AttachMask(keras.layers.Layer):
    """Attaches a mask to a tensor; Keras itself propagates only the implicit mask of the input."""

    def __init__(self, **kwargs: Any):
        super().__init__(autocast=False, **kwargs)
        self.built = True  # no weights

    def compute_mask(self, inputs: tuple[Tensor, Tensor], previous_mask: Any = None) -> Tensor:
        return inputs[1]

    def call(self, inputs: tuple[Tensor, Tensor]) -> Tensor:
        return inputs[0]


def padding_mask(ids: Any) -> Any:
    """True where a token is real: `(B, T)` of ids `(B, T)`."""
    return ops.not_equal(ids, 0)
