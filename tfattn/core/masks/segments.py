"""Sequences packed into one row do not attend to each other."""

from typing import Any

from keras import ops

from tfattn import _checks
from tfattn._types import Shape, Tensor
from tfattn.core import pairs
from tfattn.core.masks import ranges
from tfattn.core.masks.base import Mask, refuse_symbols, registered
from tfattn.core.masks.grid import Grid
from tfattn.core.masks.ranges import Range

_NONE = 2**31 - 1  # above every id and position


def positions_in_segments(ids: Tensor) -> Tensor:
    """The position of each token in its own segment: counted from 0 wherever the id changes.

    A positional encoding with these positions (`positions=`) encodes a packed row as it would each
    document alone. Rotations and biases that depend on distance alone do not need them.

    Args:
        ids: integers `(B, T)`, the segment of each token; a segment is a run of one id.
    Returns:
        int32 `(B, T)`.
    Raises:
        ValueError: the ids are not integers of rank 2.
    Example:
        >>> print(np.asarray(masks.positions_in_segments([[7, 7, 7, 8, 8, 0]])))
        [[0 1 2 0 1 0]]
    """
    ids = pairs.checked_int("masks.positions_in_segments", "ids", ids)
    _checks.rank("masks.positions_in_segments", "ids", ids.shape, (2,), "(B, T)")
    tokens = ops.cumsum(ops.ones_like(ids), axis=1) - 1  # works for symbolic lengths
    begins = ops.logical_or(ids != ops.roll(ids, 1, axis=1), tokens == 0)
    starts = ops.sort(ops.where(begins, tokens, _NONE), axis=1)  # where the n-th run begins
    run = ops.cumsum(ops.cast(begins, "int32"), axis=1) - 1
    return tokens - ops.take_along_axis(starts, run, axis=1)


@registered
class segments(Mask):
    """A query sees the keys of its own segment.

        may attend = segment of the key == segment of the query

    With this mask, several short sequences that are packed into one row do not attend to each
    other. `causal() & segments(ids)` is the mask of documents packed for a language model. Where
    ids rise along the row, blocks of other segments are skipped. Positional encodings added to the
    inputs need `positions_in_segments`, to restart in each segment.

    Args:
        query_segments: integers `(B, T)`, the segment of each query.
        key_segments: integers `(B, S)`. Defaults to `query_segments` (self-attention).
    Raises:
        ValueError: the ids are not integers of rank 2.
    Example:
        >>> print(np.asarray(masks.segments([[0, 0, 1]]).dense(3, 3)).astype(int))
        [[[1 1 0]
          [1 1 0]
          [0 0 1]]]
    """

    def __init__(self, query_segments: Any, key_segments: Any = None):
        same = key_segments is None or key_segments is query_segments
        self.query_segments = self._ids("query_segments", query_segments)
        self.key_segments = self.query_segments
        if not same:
            self.key_segments = self._ids("key_segments", key_segments)
        batches = self.query_segments.shape[0], self.key_segments.shape[0]
        if None not in batches and 1 not in batches:
            shape, other = self.key_segments.shape, self.query_segments.shape
            _checks.same_batch("masks.segments", "key_segments", shape, "query_segments", other)

    @staticmethod
    def _ids(argument: str, ids: Any) -> Tensor:
        ids = pairs.checked_int("masks.segments", argument, ids)
        _checks.rank("masks.segments", argument, ids.shape, (2,), "(B, T) or (B, S)")
        return ids

    def check(self, who: str, argument: str, shape: Shape) -> None:
        refuse_symbols(who, argument, self.query_segments, self.key_segments)
        _checks.broadcasts(
            who, argument, self.query_segments.shape, (shape[0], shape[-2]), "(B, T)"
        )
        _checks.broadcasts(who, argument, self.key_segments.shape, (shape[0], shape[-1]), "(B, S)")

    def on(self, grid: Grid) -> Tensor:
        # (B, t, 1)
        of_query = ops.expand_dims(grid.rows_of(grid.batch_of(self.query_segments), 1), 2)
        # (B, 1, s)
        of_key = ops.expand_dims(grid.columns_of(grid.batch_of(self.key_segments), 1), 1)
        return of_query == of_key  # (B, t, s)

    # Documents packed one after the other have rising ids, and a block of queries sees few of them.
    # The bounds hold for ids in any order, but are wider.
    def bounds(self, grid: Grid) -> tuple[Range, Range]:
        of_query = grid.rows_of(grid.batch_of(self.query_segments), 1)  # (B, t)
        low = ranges.least(of_query, _NONE, axis=1)  # (B, 1)
        high = ranges.greatest(of_query, -_NONE, axis=1)
        of_key = grid.batch_of(self.key_segments)  # (B, S)
        some = ops.any(ops.logical_and(of_key >= low, of_key <= high), axis=0)
        every = ops.all(ops.logical_and(of_key == low, low == high), axis=0)
        some, every = (ops.broadcast_to(x, (grid.num_keys,)) for x in (some, every))
        return ranges.around(some), ranges.first_run(every)

    @property
    def _sees_itself(self) -> bool:  # type: ignore[override]
        return self.key_segments is self.query_segments

    def seen_keys(self, grid: Grid) -> Tensor | None:
        return None if self._sees_itself else super().seen_keys(grid)
