"""NaN and infinities in hidden tokens reach no output and no gradient.

A weight of exactly 0 does not hide a value in a product, nor in its gradient: 0 · NaN is NaN. So
every path and every layer replaces tokens before they are multiplied:

    1. a token that no query may see becomes zeros;
    2. a visible token that is not finite becomes zeros too, and each query of its head that may see
       it becomes NaN, as it would without a mask.
"""

from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from tfattn._types import Size
from tfattn.core.masks import Grid, Mask
from tfattn.core.tensors import matmul_shared, repeat_heads, shape_of, with_heads

_ROWS = 16  # queries at a time


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
    seen = mask.seen_keys(Grid.whole(shape_of(query)[-2], shape_of(key)[-2]))
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


def guard(query: Any, key: Any, value: Any, attends_to: Callable[[Any], Any]) -> tuple[Any, ...]:
    """Query, key and value after rule 2; `attends_to` is a function of bool `(B, S, 1)` or
    `(B, H, S, 1)`, the tokens that are finite, to bool `(..., T or 1, 1)`: the queries that may see
    one of the others.
    """
    kept = _finite(key, value)  # (B, S, 1) or (B, G, S, 1)
    nan_queries = attends_to(repeat_heads(kept, query))
    query = ops.where(nan_queries, float("nan"), query)
    return query, ops.where(kept, key, 0.0), ops.where(kept, value, 0.0)


def attends_by_blocks(mask: Mask, query: Any, finite: Any) -> Any:
    """`attends_to` of `guard` under a mask, computed for some of the queries at a time."""
    num_queries, num_keys = shape_of(query)[-2], shape_of(finite)[-2]
    broken = ops.swapaxes(ops.logical_not(finite), -1, -2)  # (..., 1, S)
    outer = ops.shape(broken)[:-2]

    def rows(i: Size) -> Any:
        grid = Grid(num_queries, num_keys, i * _ROWS, 0, _ROWS, num_keys, aligned=True)
        visible = with_heads(mask.on(grid), len(broken.shape))
        seen = ops.any(ops.logical_and(visible, broken), axis=-1)  # (..., t or 1)
        return ops.broadcast_to(seen, (*outer, _ROWS))

    count = -(-num_queries // _ROWS)
    if keras.backend.backend() == "torch":
        found = ops.stack([rows(i) for i in range(count)])
    else:
        found = ops.map(rows, ops.arange(count, dtype="int32"))  # (blocks, ..., t)
    found = ops.reshape(ops.moveaxis(found, 0, -2), (*outer, count * _ROWS, 1))
    return found[..., :num_queries, :]


def _finite(key: Any, value: Any) -> Any:
    """Whether all features of a key and of its value are finite, `(..., S, 1)`."""
    if None in (key.shape[-1], value.shape[-1]):
        return ops.all(ops.isfinite(ops.concatenate([key, value], -1)), axis=-1, keepdims=True)
    # A quarter of their means, which cannot overflow: a product is one pass over the tokens.
    columns = (ops.full((x.shape[-1], 1), 0.25 / x.shape[-1], x.dtype) for x in (key, value))
    return ops.isfinite(ops.add(*map(matmul_shared, (key, value), columns)))
