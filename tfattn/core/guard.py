"""NaN and infinities in hidden tokens reach no output and no gradient.

A weight of exactly 0 does not hide a value in a product, nor in its gradient: 0 · NaN is NaN. So
every path and every layer replaces tokens before they are multiplied:

    1. a token that no query may see becomes zeros;
    2. a visible token that is not finite becomes zeros too, and each query of its head that may see
       it becomes NaN, as it would without a mask.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

from tfattn.core import products, symbolic
from tfattn.core.engine import devices
from tfattn.core.masks import Grid, Mask


def zero_hidden(tokens: Any, seen: Any) -> Any:
    """Rule 1: `tokens` `(B, S, D)` or `(B, G, S, D)`, with zeros where `seen` `(B, S)` is False."""
    # Finite tokens too, since a finite number may overflow in a gradient.
    # `expand_dims` for masks, here and elsewhere: LiteRT has no slice of bools that adds an axis.
    seen = ops.expand_dims(seen, (1, 3) if len(tokens.shape) == 4 else -1)
    return ops.where(seen, tokens, 0.0)


def zero_unseen(mask: Mask | None, query: Any, value: Any, key: Any) -> tuple[Any, Any]:
    """Rule 1 for `value` and `key`, which may be one tensor, under the mask of a call."""
    if mask is None:
        return value, key
    seen = mask.seen_keys(Grid.whole(symbolic.shape_of(query)[-2], symbolic.shape_of(key)[-2]))
    if seen is None:
        return value, key
    zeroed = zero_hidden(value, seen)
    return zeroed, zeroed if key is value else zero_hidden(key, seen)


def zero_nonfinite_padding(tokens: Any, mask: Any) -> Any:
    """Zeros for padding of queries `(B, T, D)` that is not finite, or whose square is not: its
    outputs are not used, but its gradients would spread.
    """
    half = keras.backend.standardize_dtype(tokens.dtype) == "float16"
    usable = ops.abs(tokens) < (2.0**8 if half else 2.0**64)  # False for NaN
    mask = ops.expand_dims(ops.cast(mask, "bool"), -1)  # (B, T, 1)
    return ops.where(ops.logical_or(mask, usable), tokens, 0.0)


class Guarded(NamedTuple):
    """Operands after rule 2, and the places where they were replaced."""

    query: Any
    key: Any
    value: Any
    nan_queries: Any  # bool (..., T, 1): queries that became NaN
    kept: Any  # bool (..., S, 1): keys and values that stayed


def guard(query: Any, key: Any, value: Any, attends_to: Callable[[Any], Any]) -> Guarded:
    """Rule 2; `attends_to` is a function of bool `(B, S, 1)` or `(B, H, S, 1)`, the tokens that are
    finite, to bool `(..., T or 1, 1)`: the queries that may see one of the others.
    """
    kept = ops.logical_and(_finite(key), _finite(value))  # (B, S, 1) or (B, G, S, 1)
    nan_queries = attends_to(products.repeat_heads(kept, query))
    return Guarded(
        ops.where(nan_queries, float("nan"), query),
        ops.where(kept, key, 0.0),
        ops.where(kept, value, 0.0),
        nan_queries,
        kept,
    )


def known_finite(*tokens: Any) -> bool:
    """Whether all tokens are finite, if that is quickly read: in eager TensorFlow on a CPU."""
    if keras.backend.backend() != "tensorflow" or devices.kind(tokens[0]) != "cpu":
        return False
    try:
        return all(np.isfinite(ops.convert_to_numpy(x)).all() for x in tokens)
    except NotImplementedError:  # symbolic
        return False


def _finite(tokens: Any) -> Any:
    return ops.all(ops.isfinite(tokens), axis=-1, keepdims=True)
