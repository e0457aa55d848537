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


def mask_of_tokens(tokens: Any, *given: Any) -> Any:
    """The masks that are not None joined by AND, with one entry per token, or None.

    `keras.layers.TimeDistributed` leaves the vectors of sentences, `(B, N, D)`, the mask of their
    words, `(B, N, T)`: a sentence is real if one of its words is.
    """
    joined = None
    for mask in given:
        if mask is None:
            continue
        axes = tuple(range(len(tokens.shape) - 1, len(getattr(mask, "shape", ()))))
        mask = ops.any(mask, axis=axes) if axes else mask
        joined = mask if joined is None else ops.logical_and(joined, mask)
    return joined


def padding_mask(ids: Any) -> Any:
    """True where a token is real: `(B, T)` of ids `(B, T)`."""
    return ops.not_equal(ids, 0)
