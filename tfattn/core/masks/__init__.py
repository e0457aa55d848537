"""Masks as objects: rules that say which query may attend to which key.

True means *may attend*. A mask object is a rule over positions and not a matrix, so that the engine
can ask it about any rectangle of the T × S square of pairs, and never needs the whole square at
once. Rules join with `&`, `|` and `~`:

    >>> from tfattn import masks
    >>> local = masks.causal() & masks.window(2)
    >>> print(local.dense(3, 3).numpy().astype(int))
    [[1 0 0]
     [1 1 0]
     [0 1 1]]

The next rule is a class with one method, `on(grid)`. Positions count tokens from 0. With fewer
queries than keys the queries are the last ones: query T−1 stands at key position S−1, as decoding
needs.
"""

import keras
from keras import ops

from tfattn import _checks
from tfattn.core import pairs
from tfattn.core.masks import ranges
from tfattn.core.masks.grid import Grid

__all__ = ["Grid", "Mask", "causal", "explicit", "padding", "prefix", "segments", "window"]


# What a rule says of itself in short, beside `on`.
_IN_SHORT = ("key_bounds", "width", "open_bounds", "seen_keys", "common_keys", "by_distance")


class Mask:
    """What all masks share: `&`, `|`, `~` and `dense`. A rule defines `on`, and `get_config` if it
    has parameters.

    What a rule says in short of itself, from `key_bounds` on, is for speed, and of its own `on`
    alone: a class that overrides `on` inherits none of it.

    Attributes:
        by_distance: whether the rule gives `(t, s)` and asks for nothing but how far a key is from
            a query, `grid.key_positions()` less `grid.query_positions()`. Streamed attention then
            asks once for all blocks of a diagonal, and takes many of them at a time where they are
            narrow. Such a rule is asked beyond the square too, and must answer by distance there.
    """

    by_distance = False

    def __init_subclass__(cls, **options):
        super().__init_subclass__(**options)
        owner = {name: _owner(cls, name) for name in ("on", *_IN_SHORT)}
        for name in _IN_SHORT:
            if owner[name] > owner["on"]:
                setattr(cls, name, vars(Mask)[name])

    def on(self, grid):
        """Which pairs of `grid` may attend: bool, broadcastable to `(B, t, s)` or `(B, H, t, s)`.

        A rule that holds an array cuts this rectangle's part out of it with `grid.batch_of`,
        `grid.rows_of` and `grid.columns_of`. The whole square is a rectangle too, of which they cut
        nothing, so that a rule without them is right on the dense path and wrong on the streamed
        one, which asks for some rows of the batch at a time.
        """
        raise NotImplementedError

    def key_bounds(self, grid):
        """Bounds `(low, high)` on what the queries of `grid` see: every key outside is hidden from
        all of them.

        Integers, or scalar integer tensors where only the run can tell. A rule that knows better
        bounds than the whole range makes streamed attention skip what lies outside.
        """
        return 0, grid.num_keys

    def width(self, grid):
        """An int: the most keys that the queries of `grid` see, as far as that is known before a
        graph runs.
        """
        low, high = ranges.ends(self.key_bounds(grid))
        return (
            min(high, grid.keys) - max(low, 0)
            if isinstance(low, int) and isinstance(high, int)
            else grid.keys
        )

    def open_bounds(self, grid):
        """A range of keys `(low, high)` that every query of `grid` sees; empty where low ≥ high, or
        where unknown.
        """
        return 0, 0

    def seen_keys(self, num_queries, num_keys):
        """The keys that some query may see: bool, broadcastable to `(B, S)`; None where the rule
        cannot tell cheaply.

        What no query may see is padding. It may say too much, never too little.
        """
        return None

    def common_keys(self, num_queries, num_keys):
        """The keys that every query may see, likewise; None where none is known. It may say too
        little, never too much.
        """
        return None

    def check(self, who, argument, shape):
        """Raises where the rule's arrays do not fit scores of that static shape, `(B, T, S)` or
        `(B, H, T, S)`.
        """

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


def _owner(cls, name):
    """How far up the class that defines `name` is."""
    return next(at for at, parent in enumerate(cls.__mro__) if name in vars(parent))


def _registered(cls):
    return keras.saving.register_keras_serializable("tfattn", f"masks.{cls.__name__}")(cls)


def _as_rule(mask):
    return mask if isinstance(mask, Mask) else explicit(mask)


def _saved(value):
    """A mask's array as nested lists."""
    return value if isinstance(value, int) else ops.convert_to_numpy(value).tolist()


def _refuse_symbols(who, argument, *arrays):
    """A functional model finds its symbolic tensors among the arguments of its layers, and not
    inside of an object.
    """
    for array in arrays:
        if isinstance(array, keras.KerasTensor):
            instead = "pass it to the layer's own argument `valid_lens` or `key_mask`, or `mask.dense(T, S)`"
            _checks.fail(
                who, argument, f"hold no symbolic tensor inside of a mask object: {instead}", array
            )


@_registered
class explicit(Mask):
    """A boolean array as it is: `(T, S)`, `(B, T, S)` or `(B, H, T, S)`, with 1 where it repeats.

    Args:
        mask: bool array, True = may attend.
    Raises:
        ValueError: `mask` is not boolean, or its rank is not 2, 3 or 4.
    """

    def __init__(self, mask):
        self.mask = pairs.checked_bool("masks.explicit", "mask", mask)
        _checks.rank("masks.explicit", "mask", self.mask.shape, (2, 3, 4), pairs.SQUARES[4])

    def check(self, who, argument, shape):
        _refuse_symbols(who, argument, self.mask)
        pairs.check_square(who, argument, self.mask.shape, shape)

    def on(self, grid):
        mask = self.mask if len(self.mask.shape) == 2 else grid.batch_of(self.mask)
        return grid.columns_of(grid.rows_of(mask, -2), -1)

    def key_bounds(self, grid):
        if self.mask.shape[-2] != 1:
            return super().key_bounds(grid)
        # One row for all queries is the padding of the keys: cheap to look at, and worth it.
        keys, seen = ops.arange(grid.num_keys, dtype="int32"), self._row(grid, ops.any)
        return _least(ops.where(seen, keys, grid.num_keys), grid), _greatest(
            ops.where(seen, keys + 1, 0)
        )

    def open_bounds(self, grid):
        if self.mask.shape[-2] != 1:
            return super().open_bounds(grid)
        keys, seen = ops.arange(grid.num_keys, dtype="int32"), self._row(grid, ops.all)
        low = _least(ops.where(seen, keys, grid.num_keys), grid)
        return low, _least(ops.where(ops.logical_or(seen, keys < low), grid.num_keys, keys), grid)

    def _row(self, grid, reduce):
        """Which keys some or all rows of the batch and heads see, `(S,)`."""
        mask = self.mask if len(self.mask.shape) == 2 else grid.batch_of(self.mask)
        keys = reduce(mask, axis=tuple(range(len(mask.shape) - 1)))  # (S,) or (1,)
        return ops.broadcast_to(keys, (grid.num_keys,))

    def seen_keys(self, num_queries, num_keys):
        return self._over_queries(ops.any)

    def common_keys(self, num_queries, num_keys):
        return self._over_queries(ops.all)

    def _over_queries(self, reduce):
        keys = reduce(self.mask, axis=-2)  # (S,), (B, S) or (B, H, S)
        if len(keys.shape) == 1:
            return keys[None]
        return reduce(keys, axis=1) if len(keys.shape) == 3 else keys

    def get_config(self):
        return {"mask": _saved(self.mask)}


@_registered
class padding(Mask):
    """The first `valid_lens` keys are real, the others padding.

    Args:
        valid_lens: integers, `(B,)` one length a row of the batch, or `(B, T)` one length a query.
    Raises:
        ValueError: `valid_lens` holds no integers, or its rank is not 1 or 2.
    """

    def __init__(self, valid_lens):
        self.valid_lens = pairs.checked_int("masks.padding", "valid_lens", valid_lens)
        _checks.rank("masks.padding", "valid_lens", self.valid_lens.shape, (1, 2), "(B,) or (B, T)")

    def check(self, who, argument, shape):
        _refuse_symbols(who, argument, self.valid_lens)
        target = (shape[0], shape[-2])[: len(self.valid_lens.shape)]
        _checks.broadcasts(who, argument, self.valid_lens.shape, target, "(B,) or (B, T)")

    def on(self, grid):
        return grid.key_positions() < self._lengths(grid)  # (B, 1 or t, s)

    def _lengths(self, grid):
        lengths = ops.expand_dims(grid.batch_of(self.valid_lens), -1)  # (B, 1) or (B, T, 1)
        if len(lengths.shape) == 2:
            lengths = ops.expand_dims(lengths, -1)  # (B, 1, 1)
        return grid.rows_of(lengths, 1)  # (B, 1 or t, 1)

    def key_bounds(self, grid):
        return 0, _greatest(self._lengths(grid))

    def open_bounds(self, grid):
        return 0, _least(self._lengths(grid), grid)

    def seen_keys(self, num_queries, num_keys):
        return self._first_keys(lambda lengths: ops.max(lengths, axis=1, initial=0), num_keys)

    def common_keys(self, num_queries, num_keys):
        return self._first_keys(
            lambda lengths: ops.min(lengths, axis=1, initial=num_keys), num_keys
        )

    def _first_keys(self, of_row, num_keys):
        # (B,)
        lengths = self.valid_lens if len(self.valid_lens.shape) == 1 else of_row(self.valid_lens)
        return ops.arange(num_keys, dtype="int32") < lengths[:, None]  # (B, S)

    def get_config(self):
        return {"valid_lens": _saved(self.valid_lens)}


@_registered
class causal(Mask):
    """A query sees the keys up to its own position and none after it (Vaswani et al. 2017, section
    3.2.3).
    """

    by_distance = True

    def on(self, grid):
        return grid.key_positions() <= grid.query_positions()  # (t, s)

    def key_bounds(self, grid):
        return 0, grid.last_position() + 1

    def open_bounds(self, grid):
        return 0, grid.first_position() + 1


@_registered
class window(Mask):
    """A query sees the keys less than `size` tokens away, on both sides: `window(1)` is the
    diagonal.

    Joined with `causal()` it is the sliding window of autoregressive models (Beltagy, Peters, Cohan
    2020, arXiv:2004.05150, section 3.1). The same reach as `sliding_window` of
    `keras.layers.MultiHeadAttention`.

    Args:
        size: positive int, in tokens; the query's own position counts.
    Raises:
        ValueError: `size` is no positive integer.
    """

    by_distance = True

    def __init__(self, size):
        self.size = _checks.positive_int("masks.window", "size", size)

    def on(self, grid):
        return ops.abs(grid.key_positions() - grid.query_positions()) < self.size  # (t, s)

    def key_bounds(self, grid):
        return grid.first_position() - self.size + 1, grid.last_position() + self.size

    def open_bounds(self, grid):
        return grid.last_position() - self.size + 1, grid.first_position() + self.size

    def get_config(self):
        return {"size": self.size}


@_registered
class prefix(Mask):
    """The first `length` keys are open to every query. `causal() | prefix(n)` is a prefix language
    model's mask (Raffel et al. 2020, arXiv:1910.10683, figure 3).

    Args:
        length: int, or integers `()` or `(B,)`, in tokens.
    Raises:
        ValueError: `length` is no integer of at least 0, and no integer array of rank 0 or 1.
    """

    def __init__(self, length):
        if not hasattr(length, "shape") and not isinstance(length, (list, tuple)):
            self.length = _checks.non_negative_int("masks.prefix", "length", length)
        else:
            length = pairs.checked_int("masks.prefix", "length", length)
            _checks.rank("masks.prefix", "length", length.shape, (0, 1), "() or (B,)")
            # of one number a row of the batch that repeats
            self.length = ops.reshape(length, (-1,))

    def check(self, who, argument, shape):
        if not isinstance(self.length, int):
            _refuse_symbols(who, argument, self.length)
            _checks.broadcasts(who, argument, self.length.shape, shape[:1], "() or (B,)")

    def on(self, grid):
        length = self.length
        if not isinstance(length, int):
            length = grid.batch_of(length)[:, None, None]  # (B, 1, 1)
        return grid.key_positions() < length  # (1, s) or (B, 1, s)

    def seen_keys(self, num_queries, num_keys):
        # (1 or B, S)
        return ops.arange(num_keys, dtype="int32")[None] < ops.reshape(self.length, (-1, 1))

    common_keys = seen_keys

    def key_bounds(self, grid):
        return 0, self.length if isinstance(self.length, int) else _greatest(
            grid.batch_of(self.length)
        )

    def open_bounds(self, grid):
        return 0, self.length if isinstance(self.length, int) else _least(
            grid.batch_of(self.length), grid
        )

    def get_config(self):
        return {"length": _saved(self.length)}


@_registered
class segments(Mask):
    """A query sees the keys of its own segment: several short sequences packed into one row stay
    apart.

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
        ids = pairs.checked_int("masks.segments", argument, ids)
        _checks.rank("masks.segments", argument, ids.shape, (2,), "(B, T) or (B, S)")
        return ids

    def check(self, who, argument, shape):
        _refuse_symbols(who, argument, self.query_segments, self.key_segments)
        _checks.broadcasts(
            who, argument, self.query_segments.shape, (shape[0], shape[-2]), "(B, T)"
        )
        _checks.broadcasts(who, argument, self.key_segments.shape, (shape[0], shape[-1]), "(B, S)")

    def on(self, grid):
        # (B, t, 1)
        of_query = ops.expand_dims(grid.rows_of(grid.batch_of(self.query_segments), 1), 2)
        # (B, 1, s)
        of_key = ops.expand_dims(grid.columns_of(grid.batch_of(self.key_segments), 1), 1)
        return of_query == of_key  # (B, t, s)

    def get_config(self):
        return {
            "query_segments": _saved(self.query_segments),
            "key_segments": _saved(self.key_segments),
        }


class _Pair(Mask):
    def __init__(self, left, right):
        self.left = left
        self.right = right

    @property
    def by_distance(self):
        return self.left.by_distance and self.right.by_distance

    def check(self, who, argument, shape):
        self.left.check(who, argument, shape)
        self.right.check(who, argument, shape)

    def on(self, grid):
        left, right = self.left.on(grid), self.right.on(grid)
        rank = max(len(left.shape), len(right.shape))
        return self.join(pairs.with_heads(left, rank), pairs.with_heads(right, rank))

    def get_config(self):
        serialize = keras.saving.serialize_keras_object
        return {"left": serialize(self.left), "right": serialize(self.right)}


@_registered
class _Both(_Pair):
    join = staticmethod(ops.logical_and)

    def key_bounds(self, grid):
        return ranges.overlap(
            ranges.ends(self.left.key_bounds(grid)), ranges.ends(self.right.key_bounds(grid))
        )

    def width(self, grid):
        # Each side by itself: padding, whose bounds are tensors, does not make a window wider.
        return min(super().width(grid), self.left.width(grid), self.right.width(grid))

    def open_bounds(self, grid):
        return ranges.overlap(
            ranges.ends(self.left.open_bounds(grid)), ranges.ends(self.right.open_bounds(grid))
        )

    def seen_keys(self, num_queries, num_keys):
        return _known(
            ops.logical_and,
            [side.seen_keys(num_queries, num_keys) for side in (self.left, self.right)],
        )

    def common_keys(self, num_queries, num_keys):
        return _if_both(
            ops.logical_and,
            [side.common_keys(num_queries, num_keys) for side in (self.left, self.right)],
        )


@_registered
class _Either(_Pair):
    join = staticmethod(ops.logical_or)

    def key_bounds(self, grid):
        return ranges.hull(
            ranges.ends(self.left.key_bounds(grid)), ranges.ends(self.right.key_bounds(grid))
        )

    def open_bounds(self, grid):
        return ranges.longer(
            ranges.ends(self.left.open_bounds(grid)), ranges.ends(self.right.open_bounds(grid))
        )

    def seen_keys(self, num_queries, num_keys):
        return _if_both(
            ops.logical_or,
            [side.seen_keys(num_queries, num_keys) for side in (self.left, self.right)],
        )

    def common_keys(self, num_queries, num_keys):
        return _known(
            ops.logical_or,
            [side.common_keys(num_queries, num_keys) for side in (self.left, self.right)],
        )


@_registered
class _Not(Mask):
    def __init__(self, inner):
        self.inner = inner

    @property
    def by_distance(self):
        return self.inner.by_distance

    def check(self, who, argument, shape):
        self.inner.check(who, argument, shape)

    def on(self, grid):
        return ops.logical_not(self.inner.on(grid))

    def seen_keys(self, num_queries, num_keys):
        return _flipped(self.inner.common_keys(num_queries, num_keys))

    def common_keys(self, num_queries, num_keys):
        return _flipped(self.inner.seen_keys(num_queries, num_keys))

    def key_bounds(self, grid):
        return ranges.left_over(ranges.ends(self.inner.open_bounds(grid)), grid.num_keys)

    def open_bounds(self, grid):
        """The longer of the two ranges outside of what the inner rule lets in."""
        low, high = ranges.ends(self.inner.key_bounds(grid))
        return ranges.longer((0, low), (high, grid.num_keys))

    def get_config(self):
        return {"inner": keras.saving.serialize_keras_object(self.inner)}


def _greatest(keys):
    """The greatest of some numbers of keys; 0 of none, as a batch or a sequence without tokens has."""
    return ops.max(keys, initial=0)


def _least(keys, grid):
    """The least of some numbers of keys; all keys of none."""
    return ops.min(keys, initial=grid.num_keys)


def _known(join, sides):
    """The sides that are known, joined."""
    known = [side for side in sides if side is not None]
    return join(*known) if len(known) == 2 else (known or [None])[0]


def _if_both(join, sides):
    return None if any(side is None for side in sides) else join(*sides)


def _flipped(keys):
    return None if keys is None else ops.logical_not(keys)


def every(*parts):
    """AND over the masks that are there; None where there are none."""
    parts = [_as_rule(part) for part in parts if part is not None]
    joined = parts[0] if parts else None
    for part in parts[1:]:
        joined = joined & part
    return joined


from tfattn.core.masks._tmp import flatten, unflatten, is_known  # noqa
