"""Ranges of keys `(low, high)`, and the keys that queries see, without the T × S pairs.

A range has the keys low ≤ key < high. Each end is an int or a scalar tensor. Ends computed from
ints are ints, and so known before a graph runs.
"""

import functools
import numbers
from typing import Any, NamedTuple

from keras import ops

from tfattn._types import Size, Tensor
from tfattn.core.masks.grid import Grid

Range = tuple[Size, Size]


class Bounds(NamedTuple):
    """What the hook `bounds` of a mask tells, of joined masks too."""

    seen: tuple[Range, ...]  # a key outside of all ranges is hidden from all queries of the grid
    full: Range  # all queries of the grid see all of its keys
    joined: tuple["Bounds", ...] = ()  # of masks joined by AND

    @classmethod
    def of(cls, mask: Any, grid: Grid) -> "Bounds":
        """The bounds of a mask, with NumPy's integers as ints, and tensors in int32."""
        found = mask.bounds(grid)
        if isinstance(found, Bounds):
            return found
        seen, full = ((_end(low), _end(high)) for low, high in found)
        return cls((seen,), full)

    @property
    def hull(self) -> Range:
        """The range from the lowest beginning to the highest end."""
        return functools.reduce(hull, self.seen)

    def most(self, keys: Any) -> int:
        """An upper bound on the number of the `keys` that are seen, known before a graph runs."""
        # Each side by itself too: the joined range has tensors where one side is padding.
        most = min([keys, *(side.most(keys) for side in self.joined)])
        low, high = self.hull
        if isinstance(low, int) and isinstance(high, int):
            most = min(most, max(0, min(high, keys) - max(low, 0)))
        return most


def _end(end: Any) -> Size:
    return int(end) if isinstance(end, numbers.Integral) else ops.cast(end, "int32")


def greatest(counts: Tensor, default: int = 0, axis: int | None = None) -> Tensor:
    """The greatest integer over `axis`, which is kept, but at least `default`."""
    # A negated minimum: on PyTorch `ops.max` compares with an `initial` on the CPU. −1 − n reverses
    # the order of int32 without an overflow.
    return -1 - least(-1 - counts, -1 - default, axis)


def least(counts: Tensor, default: Size, axis: int | None = None) -> Tensor:
    """The least integer over `axis`, which is kept, but at most `default`."""
    return ops.min(counts, axis=axis, keepdims=axis is not None, initial=default)


def around(seen: Tensor) -> Range:
    """The shortest range with all keys that are True in `(S,)`; empty if no key is."""
    num_keys, keys = _counted(seen)
    low = least(ops.where(seen, keys, num_keys), num_keys)
    return low, greatest(ops.where(seen, keys + 1, 0))


def first_run(seen: Tensor) -> Range:
    """The first range of keys that are True in `(S,)`; empty if no key is."""
    num_keys, keys = _counted(seen)
    low = least(ops.where(seen, keys, num_keys), num_keys)
    after = ops.where(ops.logical_or(seen, keys < low), num_keys, keys)
    return low, least(after, num_keys)


def _counted(seen: Tensor) -> tuple[Size, Tensor]:
    num_keys = ops.shape(seen)[0]
    return num_keys, ops.arange(num_keys, dtype="int32")


def overlap(first: Range, second: Range) -> Range:
    """The keys of both ranges."""
    return _higher(first[0], second[0]), _lower(first[1], second[1])


def hull(first: Range, second: Range) -> Range:
    """The range from the lower of both beginnings to the higher of both ends."""
    return _lower(first[0], second[0]), _higher(first[1], second[1])


def longer(first: Range, second: Range) -> Range:
    """The range with more keys."""
    shorter = first[1] - first[0] < second[1] - second[0]
    return _choose(shorter, second[0], first[0]), _choose(shorter, second[1], first[1])


def by_distance(mask: Any, grid: Grid) -> Tensor:
    """The keys that some query sees under a relative mask: bool `(1, S)`.

    The distances of key s to the T queries are T neighbors in the row of all T + S − 1 distances,
    so differences of cumulative sums along the row count the queries that see the key.
    """
    num_queries, num_keys = grid.num_queries, grid.num_keys
    # T + S distances, since T and S may both be 0.
    row = Grid(num_queries, num_keys, num_queries - 1, 0, 1, num_queries + num_keys)
    seen = ops.cast(mask.on(row)[0], "int32")  # by distances from −(S − 1) to T
    before = ops.pad(ops.cumsum(seen), [[1, 0]])  # (T + S + 1,)
    return (before[num_queries:-1] > before[:num_keys])[None]  # (1, S)


def no_more_keys(grid: Grid) -> bool:
    """Whether each key is known to share its position with a query."""
    queries, keys = grid.num_queries, grid.num_keys
    return isinstance(queries, int) and isinstance(keys, int) and keys <= queries


def _choose(condition: bool | Tensor, a: Size, b: Size) -> Size:
    if isinstance(condition, bool):
        return a if condition else b
    return ops.where(condition, a, b)


def _lower(a: Size, b: Size) -> Size:
    return min(a, b) if isinstance(a, int) and isinstance(b, int) else ops.minimum(a, b)


def _higher(a: Size, b: Size) -> Size:
    return max(a, b) if isinstance(a, int) and isinstance(b, int) else ops.maximum(a, b)
