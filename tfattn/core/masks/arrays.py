"""Masks of arrays: a boolean array, lengths of padded rows, segments of packed rows."""

from collections.abc import Callable
from typing import Any

from keras import ops

from tfattn import _checks
from tfattn._types import Shape, Tensor
from tfattn.core.masks import ranges
from tfattn.core.masks.base import Mask, registered
from tfattn.core.masks.grid import Grid
from tfattn.core.masks.ranges import Range
from tfattn.core.tensors import SHAPES, check_lengths, check_shape, checked_bool, checked_int

_NONE = 2**31 - 1  # above every id and position


@registered
class explicit(Mask):
    """A boolean array as a mask.

    Args:
        mask: bool `(T, S)`, `(B, T, S)` or `(B, H, T, S)`; axes of size 1 broadcast; True = may
            attend.
    Example:
        >>> mask = masks.explicit(np.array([[True, False, True]])) & masks.causal()
        >>> print(np.asarray(mask.dense(3, 3)).astype(int))
        [[1 0 0]
         [1 0 0]
         [1 0 1]]
    """

    def __init__(self, mask: Any):
        self.mask = checked_bool("masks.explicit", "mask", mask)
        _checks.rank("masks.explicit", "mask", self.mask.shape, (2, 3, 4), SHAPES[4])

    def check(self, who: str, argument: str, shape: Shape) -> None:
        super().check(who, argument, shape)
        check_shape(who, argument, self.mask.shape, shape)

    @property
    def _ignores_queries(self) -> bool:  # type: ignore[override]
        shape = self.mask.shape
        return shape[-2] == 1 and (len(shape) < 4 or shape[1] == 1)

    def on(self, grid: Grid) -> Tensor:
        return grid.columns_of(grid.rows_of(self._rows_of_the_batch(grid), -2), -1)

    # One row for all queries is the padding of the keys, and cheap to reduce. Arrays with more rows
    # use the defaults of `Mask`.
    def bounds(self, grid: Grid) -> tuple[Range, Range]:
        if self.mask.shape[-2] != 1:
            return (0, grid.num_keys), (0, 0)
        some, every = self._row(grid, ops.any), self._row(grid, ops.all)
        return ranges.around(some), ranges.first_run(every)

    def _row(self, grid: Grid, reduce: Callable[..., Tensor]) -> Tensor:
        """The keys that some (`ops.any`) or all (`ops.all`) rows of `mask` allow, `(S,)`."""
        mask = self._rows_of_the_batch(grid)
        keys = reduce(mask, axis=tuple(range(len(mask.shape) - 1)))  # (S,) or (1,)
        return ops.broadcast_to(keys, (grid.num_keys,))

    def _rows_of_the_batch(self, grid: Grid) -> Tensor:
        return self.mask if len(self.mask.shape) == 2 else grid.batch_of(self.mask)

    def seen_keys(self, grid: Grid) -> Tensor | None:
        keys = ops.any(self.mask, axis=-2)  # (S,), (B, S) or (B, H, S)
        if len(keys.shape) == 1:
            return ops.expand_dims(keys, 0)
        return ops.any(keys, axis=1) if len(keys.shape) == 3 else keys


@registered
class padding(Mask):
    """The first `valid_lens` keys are real, the other keys padding.

        may attend = position of the key < valid_lens

    Args:
        valid_lens: integers, `(B,)` one length per row of the batch, or `(B, T)` one length per
            query. A length that is known to be negative, or in a call to be above the number of
            keys, raises a ValueError.
    Example:
        >>> print(np.asarray(masks.padding([3, 0]).dense(1, 4)).astype(int).tolist())
        [[[1, 1, 1, 0]], [[0, 0, 0, 0]]]
    """

    def __init__(self, valid_lens: Any):
        self.valid_lens = checked_int("masks.padding", "valid_lens", valid_lens)
        _checks.rank("masks.padding", "valid_lens", self.valid_lens.shape, (1, 2), "(B,) or (B, T)")
        check_lengths("masks.padding", "valid_lens", self.valid_lens)

    def check(self, who: str, argument: str, shape: Shape) -> None:
        super().check(who, argument, shape)
        target = (shape[0], shape[-2])[: len(self.valid_lens.shape)]
        _checks.broadcasts(who, argument, self.valid_lens.shape, target, "(B,) or (B, T)")
        check_lengths(who, argument, self.valid_lens, shape[-1])

    @property
    def _ignores_queries(self) -> bool:  # type: ignore[override]
        return len(self.valid_lens.shape) == 1

    def on(self, grid: Grid) -> Tensor:
        return grid.key_positions() < self._lengths(grid)  # (B, 1 or t, s)

    def _lengths(self, grid: Grid) -> Tensor:
        lengths = ops.expand_dims(grid.batch_of(self.valid_lens), -1)  # (B, 1) or (B, T, 1)
        if len(lengths.shape) == 2:
            lengths = ops.expand_dims(lengths, -1)  # (B, 1, 1)
        return grid.rows_of(lengths, 1)  # (B, 1 or t, 1)

    def bounds(self, grid: Grid) -> tuple[Range, Range]:
        lengths = self._lengths(grid)
        return (0, ranges.greatest(lengths)), (0, ranges.least(lengths, grid.num_keys))

    def seen_keys(self, grid: Grid) -> Tensor | None:
        if len(self.valid_lens.shape) == 1:
            lengths = self.valid_lens[:, None]  # (B, 1)
        else:  # (B, 1); on PyTorch Keras returns (1, 1) without queries
            lengths = ranges.greatest(self.valid_lens, axis=1)
        return grid.key_positions() < lengths  # (B, S)


def positions_in_segments(ids: Tensor) -> Tensor:
    """The position of each token in its own segment: counted from 0 wherever the id changes.

    A positional encoding with these positions (`positions=`) encodes a packed row as it would each
    document alone. Rotations and biases that depend on distance alone do not need them.

    Args:
        ids: integers `(B, T)`, the segment of each token; a segment is a run of one id.
    Returns:
        int32 `(B, T)`.
    Example:
        >>> print(np.asarray(masks.positions_in_segments([[7, 7, 7, 8, 8, 0]])))
        [[0 1 2 0 1 0]]
    """
    ids = _ids("masks.positions_in_segments", "ids", ids, "(B, T)")
    tokens = ops.cumsum(ops.ones_like(ids), axis=1) - 1  # works for symbolic lengths
    begins = ops.logical_or(ids != ops.roll(ids, 1, axis=1), tokens == 0)
    starts = ops.sort(ops.where(begins, tokens, _NONE), axis=1)  # where the n-th run begins
    run = ops.cumsum(ops.cast(begins, "int32"), axis=1) - 1
    return tokens - ops.take_along_axis(starts, run, axis=1)


def _ids(who: str, argument: str, ids: Any, letters: str) -> Tensor:
    ids = checked_int(who, argument, ids)
    _checks.rank(who, argument, ids.shape, (2,), letters)
    return ids


@registered
class segments(Mask):
    """A query sees the keys of its own segment: sequences packed into one row stay apart.

        may attend = segment of the key == segment of the query

    `causal() & segments(ids)` is the mask of documents packed for a language model. Where ids rise
    along the row, blocks of other segments are skipped. Positional encodings added to the inputs
    need `positions_in_segments`, to restart in each segment.

    Args:
        query_segments: integers `(B, T)`, the segment of each query.
        key_segments: integers `(B, S)`. Defaults to `query_segments` (self-attention).
    Example:
        >>> print(np.asarray(masks.segments([[0, 0, 1]]).dense(3, 3)).astype(int))
        [[[1 1 0]
          [1 1 0]
          [0 0 1]]]
    """

    def __init__(self, query_segments: Any, key_segments: Any = None):
        who = "masks.segments"
        same = key_segments is None or key_segments is query_segments
        queries = keys = _ids(who, "query_segments", query_segments, "(B, T)")
        if not same:
            keys = _ids(who, "key_segments", key_segments, "(B, S)")
        if 1 not in (queries.shape[0], keys.shape[0]):
            _checks.same_batch(who, "key_segments", keys.shape, "query_segments", queries.shape)
        self.query_segments, self.key_segments = queries, keys

    def check(self, who: str, argument: str, shape: Shape) -> None:
        super().check(who, argument, shape)
        queries, keys = self.query_segments.shape, self.key_segments.shape
        _checks.broadcasts(who, argument, queries, (shape[0], shape[-2]), "(B, T)")
        _checks.broadcasts(who, argument, keys, (shape[0], shape[-1]), "(B, S)")

    def on(self, grid: Grid) -> Tensor:
        # (B, t, 1)
        of_query = ops.expand_dims(grid.rows_of(grid.batch_of(self.query_segments), 1), 2)
        # (B, 1, s)
        of_key = ops.expand_dims(grid.columns_of(grid.batch_of(self.key_segments), 1), 1)
        return ops.equal(of_query, of_key)  # (B, t, s); of known rank, unlike `==`

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
