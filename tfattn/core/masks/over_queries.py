"""The keys that some query sees, or every one, without the square of pairs."""

from typing import Any

from keras import ops

from tfattn._types import Size, Tensor
from tfattn.core.masks.grid import Grid
from tfattn.core.masks.ranges import Range

__all__ = ["by_distance", "in_range", "no_more_keys"]


def by_distance(mask: Any, num_queries: Size, num_keys: Size, every: bool = False) -> Tensor:
    """Of a mask that asks for nothing but the distance: bool `(1, S)`, the keys that some query
    sees, or every one.

    Key s is as far from the T queries as T neighbors in the row of all T + S − 1 distances, so
    that the sums along this row tell how many of them see it.
    """
    # One distance more than that, since there may be neither queries nor keys.
    row = Grid(num_queries, num_keys, num_queries - 1, 0, 1, num_queries + num_keys)
    seen = ops.cast(mask.on(row)[0], "int32")  # by distances from −(S − 1) to T
    before = ops.pad(ops.cumsum(seen), [[1, 0]])  # (T + S + 1,)
    count = (before[num_queries:-1] - before[:num_keys])[None]  # (1, S)
    return count == num_queries if every else count > 0


def in_range(keys: Range, num_keys: Size) -> Tensor:
    """The keys of a range: bool `(1, S)`."""
    positions = ops.arange(num_keys, dtype="int32")[None]
    return ops.logical_and(positions >= keys[0], positions < keys[1])


def no_more_keys(num_queries: Size, num_keys: Size) -> bool:
    """Whether it is known that there are no more keys than queries: each then meets a query at its
    own position.
    """
    known = isinstance(num_queries, int) and isinstance(num_keys, int)
    return known and num_keys <= num_queries
