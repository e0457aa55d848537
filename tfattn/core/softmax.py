"""The softmax over keys, with a mask."""

from typing import Any

import keras
import numpy as np
from keras import ops

from tfattn import _checks
from tfattn._types import Shape, Tensor
from tfattn.core import biases, masks
from tfattn.core.tensors import (
    SHAPES,
    check_lengths,
    check_shape,
    checked_bool,
    checked_int,
    given_floats,
    known_sizes,
    only_shapes_are_computed,
    with_heads,
)

LOWEST = -3e38  # close to the least float32: the score of a hidden key


def masked_softmax(scores: Any, valid_lens: Any = None, mask: Any = None) -> Tensor:
    """Softmax over the last axis, with weights of exactly 0 where the mask is False.

        weights = exp(scores) / Σ_keys exp(scores)        over the keys that the mask allows

    A row with no allowed key becomes all zeros. Masked scores, even NaN and infinities, reach
    neither the weights nor a gradient. A score of −inf counts as masked. The sums are computed in
    float32 or wider.

    Args:
        scores: float `(B, T, S)` or `(B, H, T, S)`.
        valid_lens: integers, how many keys count: `(B,)` for each row of the batch, or `(B, T)`
            for each query.
        mask: bool, True = may attend, broadcastable to the scores: `(T, S)`, `(B, T, S)` or
            `(B, H, T, S)`; or a mask object of `tfattn.masks`.
    Returns:
        Weights of the scores' shape and dtype; each row sums to 1, or to 0 where every key is
        masked.
    Raises:
        ValueError: `mask` is not boolean, or a shape does not fit.
    Example:
        >>> weights = masked_softmax(np.zeros((2, 2, 4), "float32"), valid_lens=np.array([2, 4]))
        >>> print(np.asarray(weights[:, 0]))
        [[0.5  0.5  0.   0.  ]
         [0.25 0.25 0.25 0.25]]
    """
    who, letters = "masked_softmax", "(B, T, S) or (B, H, T, S)"
    scores = given_floats(who, "scores", scores, letters)
    _checks.rank(who, "scores", scores.shape, (3, 4), letters)
    mask = mask_of(who, scores.shape, mask=mask, valid_lens=valid_lens)
    visible = None
    if mask is not None:
        visible = with_heads(mask.dense(*ops.shape(scores)[-2:]), len(scores.shape))
    dtype = scores.dtype
    scores = ops.cast(scores, keras.backend.result_type(dtype, "float32"))
    visible = not_hidden(scores, visible)
    return ops.cast(normalize(shifted(scores, visible)[0], visible), dtype)


def mask_of(
    who: str, shape: Shape, mask: Any = None, valid_lens: Any = None, name: str = "mask"
) -> masks.Mask | None:
    """`mask` and `valid_lens` as one mask object, checked against the shape of the scores; None
    where only shapes are computed, from placeholder sizes that the mask's arrays need not have.
    """
    lengths, shape = None, known_sizes(shape)
    if valid_lens is not None:
        valid_lens = checked_int(who, "valid_lens", valid_lens)
        _checks.rank(who, "valid_lens", valid_lens.shape, (1, 2), "(B,) or (B, T)")
        check_lengths(who, "valid_lens", valid_lens, shape[-1])
        lengths = masks.padding(valid_lens)
        lengths.check(who, "valid_lens", shape)
    if mask is not None:
        if isinstance(mask, biases.Bias):
            _checks.fail(who, name, "be boolean or a mask object (a bias is not a mask)", mask)
        if not isinstance(mask, masks.Mask):
            mask = checked_bool(who, name, mask, letters=SHAPES[len(shape)])
            check_shape(who, name, mask.shape, shape)
        mask = masks.all_of(mask)
        mask.check(who, name, shape)
    return None if only_shapes_are_computed() else masks.all_of(mask, lengths)


def normalize(scores: Tensor, visible: Tensor | None = None) -> Tensor:
    """Softmax over keys under a bool tensor that broadcasts to the scores.

    Without `visible` no score may be −inf; with it no row's greatest score may be near −3e38.
    """
    dtype = keras.backend.standardize_dtype(scores.dtype)
    scores = ops.cast(scores, keras.backend.result_type(dtype, "float32"))
    if visible is None:
        return ops.cast(_softmax(scores), dtype)
    # Hidden keys get a finite score, since a row of −inf has no softmax. Their weights are replaced
    # afterwards, since a gradient that overflows at a hidden value must not reach the sum over the
    # row: 0 · inf is NaN.
    weights = _softmax(ops.where(visible, scores, LOWEST))
    return ops.cast(ops.where(visible, weights, 0.0), dtype)


def log_sum_exp(scores: Tensor, visible: Tensor | None = None) -> Tensor:
    """Natural log of the sum over keys of exp(scores), `(..., T)`; −inf without a visible key.

    As in `normalize`, no score may be −inf without `visible`. The gradient is the weights of
    `normalize`.
    """
    if visible is None:
        return ops.logsumexp(scores, axis=-1)
    found = ops.logsumexp(ops.where(visible, scores, LOWEST), axis=-1)
    return ops.where(ops.any(visible, axis=-1), found, -float("inf"))


def not_hidden(scores: Tensor, visible: Tensor | None = None) -> Tensor:
    """`visible` without the pairs whose score is −inf. NaN stays visible, to reach the output."""
    finite = ops.not_equal(scores, -float("inf"))
    return finite if visible is None else ops.logical_and(visible, finite)


def least(scores: Tensor) -> float:
    """The least number of a dtype."""
    return float(np.finfo(keras.backend.standardize_dtype(scores.dtype)).min)


def shifted(scores: Tensor, visible: Tensor) -> tuple[Tensor, Tensor]:
    """Scores less the greatest visible score of their row, so that a low bias brings no row near
    hidden scores; and the greatest scores, `(..., T, 1)`. The softmax ignores the shift.
    """
    lowest, scores = least(scores), bounded(scores)
    shown = ops.where(visible, scores, lowest)
    # A negated minimum: ONNX's converter turns a maximum into a pooling without float64.
    largest = -ops.min(-shown, axis=-1, keepdims=True, initial=-lowest)
    largest = ops.stop_gradient(largest)
    return bounded(scores - largest), largest


def bounded(scores: Tensor) -> Tensor:
    """Scores with the least number for −inf, which `not_hidden` has marked as hidden."""
    # ONNX's converter turns `where` into a sum of products, and 0 · −inf is NaN.
    return ops.maximum(scores, least(scores))


def _softmax(scores: Tensor) -> Tensor:
    size = scores.shape[-1]
    if size is not None and not isinstance(size, int):
        # Any size may follow where PyTorch traces a placeholder of size 1 for a file.
        return ops.exp(scores - ops.logsumexp(scores, axis=-1, keepdims=True))
    if size == 1:
        # A single key gets all the weight. Keras warns about an axis of size 1. NaN stays NaN.
        return ops.exp(scores - scores)
    return ops.softmax(scores, axis=-1)
