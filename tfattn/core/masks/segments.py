"""Sequences packed into one row stay apart."""

from collections.abc import Hashable
from typing import Any

from keras import ops

from tfattn import _checks
from tfattn._types import Shape, Tensor
from tfattn.core import pairs
from tfattn.core.masks.base import Mask, refuse_symbols, registered, saved
from tfattn.core.masks.grid import Grid

__all__ = ["segments"]


@registered
class segments(Mask):
    """A query sees the keys of its own segment.

        may attend = segment of the key == segment of the query

    With this mask, several short sequences that are packed into one row do not attend to each
    other.

    Args:
        query_segments: integers `(B, T)`, the segment of each query.
        key_segments: integers `(B, S)`. Defaults to `query_segments` (self-attention).
    Raises:
        ValueError: the ids are not integers of rank 2.
    Example:
        >>> print(masks.segments([[0, 0, 1]]).dense(3, 3).numpy().astype(int))
        [[[1 1 0]
          [1 1 0]
          [0 0 1]]]
    """

    def __init__(self, query_segments: Tensor, key_segments: Tensor | None = None):
        if key_segments is None:
            key_segments = query_segments
        self.query_segments = self._ids("query_segments", query_segments)
        self.key_segments = self._ids("key_segments", key_segments)

    @staticmethod
    def _ids(argument: str, ids):
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

    def flatten(self) -> tuple[tuple, Hashable]:
        return (self.query_segments, self.key_segments), ()

    def get_config(self) -> dict[str, Any]:
        return {
            "query_segments": saved(self.query_segments),
            "key_segments": saved(self.key_segments),
        }
