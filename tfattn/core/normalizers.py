"""Functions that turn scores into weights, other than the softmax.

`sparsemax` and the function of `top_k` replace the softmax: `attend(..., normalizer=sparsemax)`.
They need all scores of a query at once, so they run on the dense path.

A custom normalizer is a function of the scores `(..., T, S)`, in float32 or wider, and of a bool
tensor that broadcasts to them, True where a query may see a key, or None where it sees all keys. It
returns the weights: 0 where a key is hidden, and so 0 in a whole row without visible keys.
"""

from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from tfattn import _checks
from tfattn._types import Tensor
from tfattn.core import softmax
from tfattn.core.tensors import checked_bool, given_floats

__all__ = ["sparsemax", "top_k"]


def sparsemax(scores: Any, visible: Any = None) -> Tensor:
    """The point of the simplex nearest to the scores: many weights are exactly 0.

        weights = max(score − τ, 0)        with τ such that the row sums to 1

    A key more than 1 below the greatest score has no weight. A row without visible keys becomes all
    zeros. Hidden scores, even NaN, reach neither the weights nor a gradient; a score of −inf counts
    as hidden.

    Args:
        scores: float `(..., T, S)`.
        visible: bool, broadcastable to the scores; True = may attend. None hides nothing.
    Returns:
        Weights of the scores' shape and dtype.
    Example:
        >>> print(np.asarray(normalizers.sparsemax(np.array([[0.5, 0.25, -3.0]], "float32"))))
        [[0.625 0.375 0.   ]]

    Source: Martins, Astudillo 2016, arXiv:1602.02068, algorithm 1. (`keras.ops.sparsemax` of Keras
    3.15 gives rows that do not sum to 1.)
    """
    scores, visible, dtype = _wide("normalizers.sparsemax", scores, visible)
    if scores.shape[-1] == 0:  # no key: the operations below would have no gradient
        return ops.cast(scores, dtype)
    scores = ops.where(visible, softmax.shifted(scores, visible)[0], -2.0)
    has_nan = ops.any(ops.isnan(scores), axis=-1, keepdims=True)  # which XLA's maximum drops
    scores = ops.maximum(scores, -2.0)  # a key 2 below the greatest has no weight
    ordered = -ops.sort(-scores, axis=-1)
    count = ops.cast(ops.arange(1, ops.shape(scores)[-1] + 1), scores.dtype)
    inside = 1 + count * ordered > ops.cumsum(ordered, axis=-1)
    total = ops.sum(ops.where(inside, ordered, 0.0), axis=-1, keepdims=True)
    number = ops.sum(ops.cast(inside, scores.dtype), axis=-1, keepdims=True)
    weights = ops.maximum(scores - (total - 1) / number, 0.0)
    weights = weights * ops.cast(ops.any(visible, axis=-1, keepdims=True), weights.dtype)
    return ops.cast(ops.where(has_nan, float("nan"), weights), dtype)


def top_k(k: int) -> Callable[..., Tensor]:
    """The softmax over the k keys that score best for a query; all others have a weight of 0.

    Keys that score as much as the k-th best stay too, so that their order does not matter. A query
    that sees fewer keys keeps them all.

    Args:
        k: positive int.
    Returns:
        Function of scores `(..., T, S)` and of the visible pairs to weights, like `sparsemax`.
    Example:
        >>> print(np.asarray(normalizers.top_k(2)(np.array([[1.0, 0.0, 1.0, -1.0]], "float32"))))
        [[0.5 0.  0.5 0. ]]

    Source: Gupta et al. 2021, arXiv:2106.06899; Zhao et al. 2019, arXiv:1912.11637, section 3.
    """
    k = _checks.positive_int("normalizers.top_k", "k", k)

    def normalize(scores: Any, visible: Any = None) -> Tensor:
        scores, visible, dtype = _wide("normalizers.top_k", scores, visible)
        shown = ops.where(visible, scores, softmax.least(scores))
        keys = ops.shape(scores)[-1]
        if isinstance(keys, int):
            most = min(k, keys)
        else:  # on JAX an unknown size is not a tensor, and only shapes are computed
            most = ops.minimum(k, keys) if ops.is_tensor(keys) else 1
        least = ops.top_k(ops.stop_gradient(shown), most)[0][..., -1:]
        # NaN is less than no number, and stays visible. TensorFlow would turn `not a < b` into
        # `a >= b`.
        kept = ops.where(scores < least, False, visible)
        scores, _ = softmax.shifted(scores, kept)
        return ops.cast(softmax.normalize(scores, kept), dtype)

    return normalize


def sink_scale(log_sum_exp: Tensor, sinks: Any) -> Tensor:
    """The share of a row's weights that a sink, of value 0, leaves to the keys: `(B[, H], T)`."""
    sinks = ops.cast(sinks, log_sum_exp.dtype)
    sinks = sinks[:, None] if len(sinks.shape) == 1 else sinks  # one per head
    dtype = keras.backend.result_type(log_sum_exp.dtype, "float32")
    # The least number for −inf, since −inf − −inf is NaN.
    total, sink = (ops.maximum(ops.cast(x, dtype), softmax.LOWEST) for x in (log_sum_exp, sinks))
    return ops.sigmoid(total - sink)


def _wide(who: str, scores: Any, visible: Any) -> tuple[Tensor, Tensor, str]:
    """Scores in float32 or wider, the visible pairs as a bool tensor, and the dtype of the scores.
    A score of −inf is not visible.
    """
    scores = given_floats(who, "scores", scores, "(..., T, S)")
    if len(scores.shape) < 2:
        _checks.fail(who, "scores", "have shape (..., T, S)", tuple(scores.shape))
    if visible is not None:
        visible = checked_bool(who, "visible", visible, letters="(..., T, S)")
        _checks.broadcasts(who, "visible", visible.shape, scores.shape, "(..., T, S)")
        if not len(visible.shape):
            _checks.fail(who, "visible", "have the scores' axes", ())
    dtype = keras.backend.standardize_dtype(scores.dtype)
    scores = ops.cast(scores, keras.backend.result_type(dtype, "float32"))
    return softmax.bounded(scores), softmax.not_hidden(scores, visible), dtype
