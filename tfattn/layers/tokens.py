"""Ids, positions and masks of tokens."""

from typing import Any

import keras
import numpy as np
from keras import ops

from tfattn import _checks
from tfattn._types import Tensor
from tfattn.core.tensors import checked_bool, given_tensor, known_values
from tfattn.layers.configs import checked_layer


def whole_ids(who: str, argument: str, ids: Any) -> Any:
    """Ids as integers; a float with a fraction raises, or in a graph becomes −1, as ids outside.

    In mixed precision Keras would cast floats to float16 or bfloat16, which rounds 257 to 256.
    """
    is_float = not isinstance(ids, keras.KerasTensor) and "float" in str(getattr(ids, "dtype", ""))
    if not is_float:
        return ids
    numbers: Any = known_values(ids)
    if numbers is not None:
        wrong = numbers[(numbers != numbers.round()) | np.isinf(numbers)]  # NaN too
        if wrong.size:
            _checks.fail(who, argument, "hold integers", wrong[0].item())
    else:
        ids = ops.where(ids == ops.round(ids), ids, -1)
    return ops.cast(ids, "int32")


def given_ids(who: str, argument: str, ids: Any, letters: str) -> Tensor:
    """Ids, or nested lists of ids, as a tensor of rank 2."""
    letters_of_list = f"{letters}, of integers, each row padded with 0 on the right"
    ids = given_tensor(who, argument, ids, letters_of_list)
    _checks.array(who, argument, ids, f"{letters}, of integers")
    _checks.rank(who, argument, ids.shape, (2,), letters)
    return whole_ids(who, argument, ids)


def ids_below(who: str, argument: str, ids: Any, size: int) -> None:
    """Raises if an id of `(B, T)` is known to be outside a vocabulary of this size."""
    numbers: Any = known_values(ids)
    wrong: Any = [] if numbers is None else np.argwhere((numbers < 0) | (numbers >= size))
    if len(wrong):
        row, place = wrong[0]
        expected = f"hold ids of the vocabulary, 0 to {size - 1}; see row {row}, position {place}"
        _checks.fail(who, argument, expected, numbers[row, place].item())


def nan_outside(x: Any, ids: Any, size: int | None) -> Any:
    """Rows `(..., D)` of a table; NaN for ids outside its `size`, since a graph cannot raise."""
    if size is None:
        return x
    ids = ops.cast(ids, "int32")
    inside = ops.logical_and(ids >= 0, ids < size)
    return ops.where(ops.expand_dims(inside, -1), x, float("nan"))


def checked_embedding(who: str, embedding: Any, width: int) -> Any:
    """`embedding`, if it is a layer of this width or None."""
    checked_layer(who, "embedding", embedding)
    if getattr(embedding, "output_dim", width) != width:
        _checks.fail(who, "embedding", f"have `width`={width} features", embedding.output_dim)
    return embedding


def embedded(who: str, embedding: Any, ids: Any) -> Any:
    """Rows of an embedding; ids outside of it raise, or in a graph give NaN."""
    size = getattr(embedding, "input_dim", None)
    if size is not None:
        ids_below(who, "ids", ids, size)
    return nan_outside(embedding(ids), ids, size)


def padding_mask(ids: Any) -> Any:
    """True where a token is real: `(B, T)` of ids `(B, T)`."""
    return ops.not_equal(ids, 0)


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


def checked_padding(who: str, name: str, mask: Any, tokens: Any, hint: str = "") -> Tensor:
    """A mask of tokens `(..., D)` as a boolean tensor `(...)`, or with 1 where it repeats."""
    letters = f"{tuple(tokens.shape[:-1])}, one entry per token"
    mask = given_tensor(who, name, mask_of_tokens(tokens, mask), letters)
    hint = hint if len(mask.shape) == 1 else ""
    _checks.rank(who, name, mask.shape, (len(tokens.shape) - 1,), letters + hint)
    mask = checked_bool(who, name, mask, "0 and 1 become a mask with `mask != 0`")
    _checks.broadcasts(who, name, mask.shape, tokens.shape[:-1], "of one entry per token")
    return mask


class AttachMask(keras.layers.Layer):
    """Attaches a mask to a tensor; Keras itself propagates only the implicit mask of the input."""

    def __init__(self, **kwargs: Any):
        super().__init__(autocast=False, **kwargs)
        self.built = True  # no weights

    def compute_mask(self, inputs: tuple[Tensor, Tensor], previous_mask: Any = None) -> Tensor:
        return inputs[1]

    def call(self, inputs: tuple[Tensor, Tensor]) -> Tensor:
        return inputs[0]
