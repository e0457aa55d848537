"""Masks as objects: rules that say which query may attend to which key.

True means *may attend*. A mask object is a rule over positions and not a matrix, so that the engine can ask it about any
rectangle of the T × S square of pairs, and never needs the whole square at once. Rules join with `&`, `|` and `~`:

    >>> from tfattn import masks
    >>> local = masks.causal() & masks.window(2)
    >>> print(local.dense(3, 3).numpy().astype(int))
    [[1 0 0]
     [1 1 0]
     [0 1 1]]

The next rule is a class with one method, `on(grid)`. Positions count tokens from 0. With fewer queries than keys the
queries are the last ones: query T−1 stands at key position S−1, as decoding needs.
"""

from typing import NamedTuple

import keras
from keras import ops

from tfattn import _checks

__all__ = ["Grid", "Mask", "causal", "explicit", "padding", "prefix", "segments", "window"]

_FLOAT_HINT = "a float that is added to the scores, such as 0 and -1e9, goes into `bias`"
_INT_HINT = "0 and 1 become a mask with `mask != 0`"


# The shapes of a whole square of pairs, by the rank of the scores.
_SQUARES = {3: "(T, S) or (B, T, S)", 4: "(T, S), (B, T, S) or (B, H, T, S)"}


class Grid(NamedTuple):
    """A rectangle of the T × S square of query–key pairs.

    `num_queries` (T) and `num_keys` (S) are the sides of the whole square; the rectangle begins at `query_start`,
    `key_start` and has `queries` rows and `keys` columns. Each is an int or a scalar integer tensor.
    """

    num_queries: object
    num_keys: object
    query_start: object
    key_start: object
    queries: object
    keys: object

    @classmethod
    def whole(cls, num_queries, num_keys):
        return cls(num_queries, num_keys, 0, 0, num_queries, num_keys)

    def query_rows(self):
        """Index of each query among the T queries, `(t, 1)`."""
        return ops.expand_dims(ops.arange(self.queries, dtype="int32") + self.query_start, -1)

    def query_positions(self):
        """Position of each query on the keys' axis, `(t, 1)`: the last query meets the last key."""
        return self.query_rows() + (self.num_keys - self.num_queries)

    def key_positions(self):
        """Position of each key, `(1, s)`."""
        return ops.expand_dims(ops.arange(self.keys, dtype="int32") + self.key_start, 0)

    def rows_of(self, tensor, axis):
        """Cuts the queries of this rectangle out of `tensor`, unless `axis` repeats one row."""
        return _cut(tensor, axis, self.query_start, self.queries)

    def columns_of(self, tensor, axis):
        """Cuts the keys of this rectangle out of `tensor`, unless `axis` repeats one column."""
        return _cut(tensor, axis, self.key_start, self.keys)


def _cut(tensor, axis, start, size):
    whole = isinstance(start, int) and start == 0 and tensor.shape[axis] == size
    if tensor.shape[axis] == 1 or whole:
        return tensor
    return ops.take(tensor, ops.arange(size, dtype="int32") + start, axis=axis)


class Mask:
    """What all masks share: `&`, `|`, `~` and `dense`. A rule defines `on`, and `get_config` if it has parameters."""

    def on(self, grid):
        """Which pairs of `grid` may attend: bool, broadcastable to `(B, t, s)` or `(B, H, t, s)`."""
        raise NotImplementedError

    def seen_keys(self, num_queries, num_keys):
        """The keys that some query may see: bool, broadcastable to `(B, S)`; None where the rule cannot tell cheaply.

        What no query may see is padding. It may say too much, never too little.
        """
        return None

    def check(self, who, argument, shape):
        """Raises where the rule's arrays do not fit scores of that static shape, `(B, T, S)` or `(B, H, T, S)`."""

    def dense(self, num_queries, num_keys):
        """The mask as a bool tensor, broadcastable to `(B, T, S)` or `(B, H, T, S)`."""
        return self.on(Grid.whole(num_queries, num_keys))

    def get_config(self):
        return {}

    @classmethod
    def from_config(cls, config):
        return cls(**{k: keras.saving.deserialize_keras_object(v) for k, v in config.items()})

    def __and__(self, other):
        return _Both(self, _as_rule(other))

    def __or__(self, other):
        return _Either(self, _as_rule(other))

    def __rand__(self, other):
        return _as_rule(other) & self

    def __ror__(self, other):
        return _as_rule(other) | self

    def __invert__(self):
        return _Not(self)

    # NumPy would otherwise apply `&` element by element to an object array.
    __array_ufunc__ = None


def _registered(cls):
    return keras.saving.register_keras_serializable("tfattn", f"masks.{cls.__name__}")(cls)


def _as_rule(mask):
    return mask if isinstance(mask, Mask) else explicit(mask)


def _saved(who, argument, value):
    """A mask's array as nested lists. A symbolic tensor has no values that a file could hold."""
    if value is None or isinstance(value, int):
        return value
    if isinstance(value, keras.KerasTensor):
        _checks.fail(who, argument, "hold values where a model is saved; a symbolic tensor is passed to the layer's "
                     "own argument (`valid_lens`, `key_mask`, `attention_mask`)", value)  # fmt: skip
    return ops.convert_to_numpy(value).tolist()


def _tensor(value, dtype=None):
    return value if isinstance(value, keras.KerasTensor) else ops.convert_to_tensor(value, dtype)


def checked_bool(who, argument, value):
    """`value` as a tensor, if it is boolean."""
    value = _tensor(value)
    dtype = keras.backend.standardize_dtype(value.dtype)
    _checks.boolean_dtype(who, argument, dtype, _FLOAT_HINT if "float" in dtype else _INT_HINT)
    return value


def checked_int(who, argument, value):
    """`value` as an int32 tensor, if it holds integers."""
    value = _tensor(value)
    _checks.integer_dtype(who, argument, keras.backend.standardize_dtype(value.dtype))
    return ops.cast(value, "int32")


@_registered
class explicit(Mask):
    """A boolean array as it is: `(T, S)`, `(B, T, S)` or `(B, H, T, S)`, with 1 where it repeats.

    Args:
        mask: bool array, True = may attend.
    Raises:
        ValueError: `mask` is not boolean, or its rank is not 2, 3 or 4.
    """

    def __init__(self, mask):
        self.mask = checked_bool("masks.explicit", "mask", mask)
        _checks.rank("masks.explicit", "mask", self.mask.shape, (2, 3, 4), _SQUARES[4])

    def check(self, who, argument, shape):
        check_square(who, argument, self.mask.shape, shape)

    def on(self, grid):
        return grid.columns_of(grid.rows_of(self.mask, -2), -1)

    def seen_keys(self, num_queries, num_keys):
        seen = ops.any(self.mask, axis=-2)  # (S,), (B, S) or (B, H, S)
        return ops.any(seen, axis=1) if len(seen.shape) == 3 else ops.reshape(seen, (-1, seen.shape[-1] or num_keys))

    def get_config(self):
        return {"mask": _saved("masks.explicit", "mask", self.mask)}


@_registered
class padding(Mask):
    """The first `valid_lens` keys are real, the others padding.

    Args:
        valid_lens: integers, `(B,)` one length a row of the batch, or `(B, T)` one length a query.
    Raises:
        ValueError: `valid_lens` holds no integers, or its rank is not 1 or 2.
    """

    def __init__(self, valid_lens):
        self.valid_lens = checked_int("masks.padding", "valid_lens", valid_lens)
        _checks.rank("masks.padding", "valid_lens", self.valid_lens.shape, (1, 2), "(B,) or (B, T)")

    def check(self, who, argument, shape):
        target = (shape[0], shape[-2])[: len(self.valid_lens.shape)]
        _checks.broadcasts(who, argument, self.valid_lens.shape, target, "(B,) or (B, T)")

    def on(self, grid):
        lengths = ops.expand_dims(self.valid_lens, -1)  # (B, 1) or (B, T, 1)
        if len(lengths.shape) == 2:
            lengths = ops.expand_dims(lengths, -1)  # (B, 1, 1)
        return grid.key_positions() < grid.rows_of(lengths, 1)  # (B, 1 or t, s)

    def seen_keys(self, num_queries, num_keys):
        longest = self.valid_lens if len(self.valid_lens.shape) == 1 else ops.max(self.valid_lens, axis=1)  # (B,)
        return ops.arange(num_keys, dtype="int32") < longest[:, None]  # (B, S)

    def get_config(self):
        return {"valid_lens": _saved("masks.padding", "valid_lens", self.valid_lens)}


@_registered
class causal(Mask):
    """A query sees the keys up to its own position and none after it (Vaswani et al. 2017, section 3.2.3)."""

    def on(self, grid):
        return grid.key_positions() <= grid.query_positions()  # (t, s)


@_registered
class window(Mask):
    """A query sees the keys less than `size` tokens away, on both sides: `window(1)` is the diagonal.

    Joined with `causal()` it is the sliding window of autoregressive models (Beltagy, Peters, Cohan 2020,
    arXiv:2004.05150, section 3.1). The same reach as `sliding_window` of `keras.layers.MultiHeadAttention`.

    Args:
        size: positive int, in tokens; the query's own position counts.
    Raises:
        ValueError: `size` is no positive integer.
    """

    def __init__(self, size):
        self.size = _checks.positive_int("masks.window", "size", size)

    def on(self, grid):
        return ops.abs(grid.key_positions() - grid.query_positions()) < self.size  # (t, s)

    def get_config(self):
        return {"size": self.size}


@_registered
class prefix(Mask):
    """The first `length` keys are open to every query. `causal() | prefix(n)` is a prefix language model's mask
    (Raffel et al. 2020, arXiv:1910.10683, figure 4).

    Args:
        length: int, or integers `(B,)`, in tokens.
    Raises:
        ValueError: `length` is no integer of at least 0, and no integer array of rank 1.
    """

    def __init__(self, length):
        if not hasattr(length, "shape") and not isinstance(length, (list, tuple)):
            self.length = _checks.non_negative_int("masks.prefix", "length", length)
        else:
            self.length = checked_int("masks.prefix", "length", length)
            _checks.rank("masks.prefix", "length", self.length.shape, (1,), "() or (B,)")

    def check(self, who, argument, shape):
        if not isinstance(self.length, int):
            _checks.broadcasts(who, argument, self.length.shape, shape[:1], "(B,)")

    def on(self, grid):
        length = self.length
        if not isinstance(length, int):
            length = ops.reshape(length, (-1, 1, 1))  # (B, 1, 1)
        return grid.key_positions() < length  # (1, s) or (B, 1, s)

    def get_config(self):
        return {"length": _saved("masks.prefix", "length", self.length)}


@_registered
class segments(Mask):
    """A query sees the keys of its own segment: several short sequences packed into one row stay apart.

    Args:
        query_segments: integers `(B, T)`, the segment of each query.
        key_segments: integers `(B, S)`; `query_segments` where they are not given (self-attention).
    Raises:
        ValueError: the ids are no integers of rank 2.
    """

    def __init__(self, query_segments, key_segments=None):
        if key_segments is None:
            key_segments = query_segments
        self.query_segments = self._ids("query_segments", query_segments)
        self.key_segments = self._ids("key_segments", key_segments)

    @staticmethod
    def _ids(argument, ids):
        ids = checked_int("masks.segments", argument, ids)
        _checks.rank("masks.segments", argument, ids.shape, (2,), "(B, T) or (B, S)")
        return ids

    def check(self, who, argument, shape):
        _checks.broadcasts(who, argument, self.query_segments.shape, (shape[0], shape[-2]), "(B, T)")
        _checks.broadcasts(who, argument, self.key_segments.shape, (shape[0], shape[-1]), "(B, S)")

    def on(self, grid):
        of_query = ops.expand_dims(grid.rows_of(self.query_segments, 1), 2)  # (B, t, 1)
        of_key = ops.expand_dims(grid.columns_of(self.key_segments, 1), 1)  # (B, 1, s)
        return of_query == of_key  # (B, t, s)

    def get_config(self):
        return {
            "query_segments": _saved("masks.segments", "query_segments", self.query_segments),
            "key_segments": _saved("masks.segments", "key_segments", self.key_segments),
        }


class _Pair(Mask):
    def __init__(self, left, right):
        self.left = left
        self.right = right

    def check(self, who, argument, shape):
        self.left.check(who, argument, shape)
        self.right.check(who, argument, shape)

    def on(self, grid):
        left, right = self.left.on(grid), self.right.on(grid)
        rank = max(len(left.shape), len(right.shape))
        return self.join(with_heads(left, rank), with_heads(right, rank))

    def get_config(self):
        serialize = keras.saving.serialize_keras_object
        return {"left": serialize(self.left), "right": serialize(self.right)}


@_registered
class _Both(_Pair):
    join = staticmethod(ops.logical_and)

    def seen_keys(self, num_queries, num_keys):
        sides = [side.seen_keys(num_queries, num_keys) for side in (self.left, self.right)]
        known = [side for side in sides if side is not None]
        return ops.logical_and(*known) if len(known) == 2 else (known or [None])[0]


@_registered
class _Either(_Pair):
    join = staticmethod(ops.logical_or)

    def seen_keys(self, num_queries, num_keys):
        sides = [side.seen_keys(num_queries, num_keys) for side in (self.left, self.right)]
        return None if any(side is None for side in sides) else ops.logical_or(*sides)


@_registered
class _Not(Mask):
    def __init__(self, inner):
        self.inner = inner

    def check(self, who, argument, shape):
        self.inner.check(who, argument, shape)

    def on(self, grid):
        return ops.logical_not(self.inner.on(grid))

    def get_config(self):
        return {"inner": keras.saving.serialize_keras_object(self.inner)}


def check_square(who, argument, shape, scores_shape):
    """Raises unless a mask or bias of that static shape broadcasts to scores of `scores_shape`."""
    letters = _SQUARES[len(scores_shape)]
    _checks.rank(who, argument, shape, range(2, len(scores_shape) + 1), letters)
    without_heads = (scores_shape[0], *scores_shape[-2:])
    target = tuple(scores_shape) if len(shape) == 4 else without_heads
    _checks.broadcasts(who, argument, shape, target[-len(shape) :], letters)


def with_heads(tensor, rank):
    """Gives a `(B, T, S)` tensor its axis of heads where the scores have one; `(T, S)` broadcasts as it is."""
    if rank == 4 and len(tensor.shape) == 3:
        return ops.expand_dims(tensor, 1)  # (B, 1, T, S)
    return tensor


def every(*parts):
    """AND over the masks that are there; None where there are none."""
    parts = [_as_rule(part) for part in parts if part is not None]
    joined = parts[0] if parts else None
    for part in parts[1:]:
        joined = joined & part
    return joined
