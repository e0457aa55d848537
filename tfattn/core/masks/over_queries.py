"""The keys that some query or every query sees, without the T × S pairs."""

from typing import Any

from keras import ops

from tfattn._types import Size, Tensor
from tfattn.core.masks.grid import Grid
from tfattn.core.masks.ranges import Range


def by_distance(mask: Any, num_queries: Size, num_keys: Size, every: bool = False) -> Tensor:
    """The keys that some query, or every query, sees under a relative mask: bool `(1, S)`.

    The distances of key s to the T queries are T neighbors in the row of all T + S − 1 distances,
    so differences of cumulative sums along the row count the queries that see the key.
    """
    # T + S distances, since T and S may both be 0.
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
    """Whether there are known to be no more keys than queries: each key then shares its position
    with a query.
    """
    known = isinstance(num_queries, int) and isinstance(num_keys, int)
    return known and num_keys <= num_queries
