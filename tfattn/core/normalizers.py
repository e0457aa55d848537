"""Functions that turn scores into weights, other than the softmax.

`sparsemax` and the function of `top_k` replace the softmax: `attend(..., normalizer=sparsemax)`.
They need all scores of a query at once, so they run on the dense path. `add_sinks` follows after a
softmax, on either path.

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
from tfattn.core import pairs, softmax
from tfattn.core.floats import given_floats

__all__ = ["add_sinks", "sparsemax", "top_k"]


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
    Raises:
        ValueError: `k` is not a positive int.
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


def add_sinks(output: Any, log_sum_exp: Any, sinks: Any) -> tuple[Tensor, Tensor]:
    """Attention with a sink: one more score in each row's sum, with a value of 0.

        weights'     = weights · sigmoid(log_sum_exp − sink)
        log_sum_exp' = log(exp(log_sum_exp) + exp(sink))

    A query without a matching key may thus give its weight to the sink instead of to some key. A
    query without visible keys has an output of 0 and the sink as its log_sum_exp.

    Args:
        output: float `(B, T, Dv)` or `(B, H, T, Dv)`, of `attend`; or its weights.
        log_sum_exp: float `(B, T)` or `(B, H, T)`, of `attend` with `return_log_sum_exp`.
        sinks: a number, or `(H,)`, one per head.
    Returns:
        (output, log_sum_exp) with the sink.
    Example: a sink with the score of each of three keys takes a quarter of the weight.
        >>> query, value = np.zeros((1, 1, 2), "float32"), np.ones((1, 3, 2), "float32")
        >>> pooled = attend(query, value, return_log_sum_exp=True)
        >>> print(np.asarray(normalizers.add_sinks(*pooled, sinks=0.0)[0]).round(2))
        [[[0.75 0.75]]]

    Source: Xiao et al. 2023, arXiv:2309.17453, section 3.3 (zero and learned sinks); OpenAI
    2025, arXiv:2508.10925, section 2 (a learned number per head).
    """
    who = "normalizers.add_sinks"
    output = given_floats(who, "output", output, "(B, T, Dv) or (B, H, T, Dv)")
    letters = f"{tuple(output.shape[:-1])}, of `output` without its width"
    log_sum_exp = given_floats(who, "log_sum_exp", log_sum_exp, letters)
    _checks.rank(who, "output", output.shape, (3, 4), "(B, T, Dv) or (B, H, T, Dv)")
    _checks.rank(who, "log_sum_exp", log_sum_exp.shape, (len(output.shape) - 1,), letters)
    for size, wanted in zip(log_sum_exp.shape, output.shape, strict=False):
        if None not in (size, wanted) and size != wanted:
            _checks.fail(who, "log_sum_exp", f"have shape {letters}", tuple(log_sum_exp.shape))
    heads = log_sum_exp.shape[1:2] if len(output.shape) == 4 else (1,)
    numbers = sinks
    sinks = given_floats(who, "sinks", numbers, "() or (H,)")
    _checks.rank(who, "sinks", sinks.shape, (0, 1), "() or (H,)")
    _checks.broadcasts(who, "sinks", sinks.shape, heads, "() or (H,)")
    if not hasattr(numbers, "dtype"):  # Python's numbers have more digits than Keras's float type
        sinks = ops.convert_to_tensor(numbers, log_sum_exp.dtype)
    sinks = _by_head(sinks, log_sum_exp)
    scale = sink_scale(log_sum_exp, sinks)
    output = output * ops.cast(ops.expand_dims(scale, -1), output.dtype)
    joined = ops.logaddexp(_bounded_logs(log_sum_exp), _bounded_logs(sinks))
    empty = ops.logical_and(log_sum_exp == -float("inf"), sinks == -float("inf"))
    return output, ops.where(empty, -float("inf"), joined)


def sink_scale(log_sum_exp: Tensor, sinks: Any) -> Tensor:
    """The share of a row's weights that a sink leaves to the keys: `(B, T)` or `(B, H, T)`."""
    sinks = _by_head(sinks, log_sum_exp)
    return ops.sigmoid(_bounded_logs(log_sum_exp) - _bounded_logs(sinks))


def _bounded_logs(logs: Tensor) -> Tensor:
    """Logs of sums, with the least number for −inf, since −inf − −inf is NaN."""
    logs = ops.cast(logs, keras.backend.result_type(logs.dtype, "float32"))
    return ops.maximum(logs, softmax.LOWEST)


def _by_head(sinks: Any, log_sum_exp: Tensor) -> Tensor:
    sinks = ops.cast(sinks, log_sum_exp.dtype)
    return sinks[:, None] if len(sinks.shape) == 1 else sinks


def _wide(who: str, scores: Any, visible: Any) -> tuple[Tensor, Tensor, str]:
    """Scores in float32 or wider, the visible pairs as a bool tensor, and the dtype of the scores.
    A score of −inf is not visible.
    """
    scores = given_floats(who, "scores", scores, "(..., T, S)")
    if len(scores.shape) < 2:
        _checks.fail(who, "scores", "have shape (..., T, S)", tuple(scores.shape))
    if visible is not None:
        visible = pairs.checked_bool(who, "visible", visible, letters="(..., T, S)")
        _checks.broadcasts(who, "visible", visible.shape, scores.shape, "(..., T, S)")
        if not len(visible.shape):
            _checks.fail(who, "visible", "have the scores' axes", ())
    dtype = keras.backend.standardize_dtype(scores.dtype)
    scores = ops.cast(scores, keras.backend.result_type(dtype, "float32"))
    return softmax.bounded(scores), softmax.not_hidden(scores, visible), dtype
