"""Pairwise score functions: how well each query matches each key, before the softmax.

Each is a pure function of two operands, `(..., T, X)` and `(..., S, X)`, which a score layer has
prepared per token, and of a few parameter tensors, and returns `(..., T, S)`.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import keras
from keras import ops

from tfattn._types import Size, Tensor
from tfattn.core.tensors import matmul, matmul_by_head, matmul_shared, repeat_heads


class Facts(NamedTuple):
    """Properties of a score function that the engine exploits: the function's attribute `facts`."""

    always_finite: bool = False  # finite operands never give −inf, which would hide a key
    is_product: bool = False  # a dot product of the operands, of one number for each pair
    is_scaled: bool = False  # the product is divided by √D
    cap: float | None = None  # the score is cap · tanh(product / cap)
    heads_independent: bool = False  # of the head's index
    is_pure: bool = False  # depends on its arguments alone, and closes over nothing


def facts_of(score: Callable[..., Any]) -> Facts:
    """The attribute `facts` of a score function, or the defaults."""
    return getattr(score, "facts", Facts())


def dot_product(query: Tensor, key: Tensor) -> Tensor:
    """query · key (Luong, Pham, Manning 2015, arXiv:1508.04025, section 3.1, dot)."""
    return matmul(query, ops.swapaxes(key, -1, -2))  # (..., T, S)


dot_product.facts = Facts(always_finite=True, is_product=True, heads_independent=True, is_pure=True)  # type: ignore[attr-defined]


def scaled_dot_product(query: Tensor, key: Tensor) -> Tensor:
    """query · key / √D (Vaswani et al. 2017, arXiv:1706.03762, equation 1).

    For independent components of mean 0 and variance 1 the dot product has variance D; the scale
    keeps it at 1.
    """
    return dot_product(query * (query.shape[-1] ** -0.5), key)


scaled_dot_product.facts = dot_product.facts._replace(is_scaled=True)  # type: ignore[attr-defined]


def additive(query: Tensor, key: Tensor, weight: Tensor) -> Tensor:
    """weight · tanh(query + key) (Bahdanau, Cho, Bengio 2015, arXiv:1409.0473, appendix A.1.2).

    Query `(..., T, U)` and key `(..., S, U)` are already projected; the weight is `(U, 1)`, or
    `(H, U, 1)` with one column per head.
    """
    left, right, shape = _broadcast_pairs(query, key)
    hidden = ops.tanh(left + right)  # (N, T, S, U)
    if len(weight.shape) == 2:
        return ops.reshape(matmul_shared(hidden, weight), shape)
    heads, units = weight.shape[:2]
    # (B, H, T·S, U)
    hidden = ops.reshape(hidden, (shape[0], heads, shape[-2] * shape[-1], units))
    return ops.reshape(matmul_by_head(hidden, weight), shape)  # (B, H, T, S)


additive.facts = Facts(always_finite=True, is_pure=True)  # type: ignore[attr-defined]


def log_kernel(kernel: Callable[[Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    """A kernel's score function: log K(‖query − key‖²), operands already divided by the bandwidth.

    Pair by pair: |q|² − 2 q·k + |k|² loses every digit for points far from the origin.
    """

    def log_weights(query: Tensor, key: Tensor) -> Tensor:
        left, right, shape = _broadcast_pairs(query, key)
        squared = ops.sum(ops.square(left - right), axis=-1)  # (N, T, S)
        return ops.reshape(kernel(squared), shape)  # (..., T, S)

    return log_weights


@functools.lru_cache(64)  # equal layers share one function, and so its traced graphs
def soft_capped(score: Callable[..., Tensor], cap: float) -> Callable[..., Tensor]:
    """cap · tanh(score / cap), between −cap and cap (Gemma Team 2024, arXiv:2408.00118, section 2).

    A score of −inf, which hides a key, stays.
    """
    facts = facts_of(score)

    def capped(query: Tensor, key: Tensor, *parameters: Tensor) -> Tensor:
        scores = score(query, key, *parameters)
        # Half precision has few digits near the cap.
        scores = ops.cast(scores, keras.backend.result_type(scores.dtype, "float32"))
        found = cap * ops.tanh(scores / cap)
        if facts.always_finite:
            return found
        return ops.where(ops.equal(scores, -float("inf")), scores, found)

    capped.facts = facts._replace(is_product=False, cap=cap if facts.is_product else None)  # type: ignore[attr-defined]
    capped.__wrapped__ = score  # type: ignore[attr-defined]
    return capped


def _broadcast_pairs(query: Tensor, key: Tensor) -> tuple[Tensor, Tensor, tuple[Size, ...]]:
    """Query `(N, T, 1, X)` and key `(N, 1, S, X)`, and the shape of the scores."""
    # Batch and heads fold into N, since TensorFlow's kernels for five axes are slow or missing.
    key = repeat_heads(key, query)
    *outer, rows, width = ops.shape(query)
    columns = ops.shape(key)[-2]
    count = math.prod(outer)  # not −1, which is ambiguous where there are no tokens
    left = ops.reshape(query, (count, rows, 1, width))
    right = ops.reshape(key, (count, 1, columns, width))
    return left, right, (*outer, rows, columns)
