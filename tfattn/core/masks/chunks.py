"""Positions cut into chunks of one size."""

from collections.abc import Hashable

from keras import ops

from tfattn import _checks
from tfattn._types import Size, Tensor
from tfattn.core.masks import hooks
from tfattn.core.masks.base import Mask, registered
from tfattn.core.masks.grid import Grid
from tfattn.core.masks.ranges import Range, in_range, no_more_keys


@registered
class chunks(Mask):
    """A query sees the keys of its own chunk of positions.

        may attend = ⌊position of the key / size⌋ == ⌊position of the query / size⌋

    Args:
        size: Positive int, in tokens. Chunks begin at position 0.
    Raises:
        ValueError: `size` is not a positive integer.
    Example:
        >>> print(np.asarray((masks.causal() & masks.chunks(2)).dense(4, 4)).astype(int))
        [[1 0 0 0]
         [1 1 0 0]
         [0 0 1 0]
         [0 0 1 1]]

    Source: Child et al. 2019, arXiv:1904.10509, section 4.3, the first half of the fixed pattern;
    Llama 4 uses this mask in three of four layers.
    """

    _sees_itself = True

    def __init__(self, size: int):
        self.size = _checks.positive_int("masks.chunks", "size", size)

    def on(self, grid: Grid) -> Tensor:
        return grid.key_positions() // self.size == grid.query_positions() // self.size  # (t, s)

    def key_bounds(self, grid: Grid) -> Range:
        first, last = grid.first_position() // self.size, grid.last_position() // self.size
        return first * self.size, (last + 1) * self.size

    def full_bounds(self, grid: Grid) -> Range:
        # The chunk of all queries; empty where the queries lie in several chunks.
        first, last = grid.first_position() // self.size, grid.last_position() // self.size
        return last * self.size, (first + 1) * self.size

    def seen_keys(self, num_queries: Size, num_keys: Size) -> Tensor | None:
        if no_more_keys(num_queries, num_keys):
            return None
        return in_range(hooks.key_bounds(self, Grid.whole(num_queries, num_keys)), num_keys)

    def flatten(self) -> tuple[tuple[Tensor, ...], Hashable]:
        return (), (self.size,)


@registered
class chunk_ends(Mask):
    """Every query sees the last keys of each chunk of positions.

        may attend = position of the key mod size ≥ size − count

    `causal() & (chunks(size) | chunk_ends(size, count))` is the fixed pattern of Sparse
    Transformers: the last tokens of a chunk can summarize it for later tokens.

    Args:
        size: Positive int, tokens of a chunk. Chunks begin at position 0.
        count: Positive int, the number of keys of each chunk; at most `size`.
    Raises:
        ValueError: `size` or `count` is not a positive integer, or `count` is above `size`.
    Example:
        >>> fixed = masks.causal() & (masks.chunks(3) | masks.chunk_ends(3))
        >>> print(np.asarray(fixed.dense(5, 5)).astype(int))
        [[1 0 0 0 0]
         [1 1 0 0 0]
         [1 1 1 0 0]
         [0 0 1 1 0]
         [0 0 1 1 1]]

    Source: Child et al. 2019, arXiv:1904.10509, section 4.3.
    """

    _ignores_queries = True

    def __init__(self, size: int, count: int = 1):
        self.size = _checks.positive_int("masks.chunk_ends", "size", size)
        self.count = _checks.positive_int("masks.chunk_ends", "count", count)
        if count > size:
            _checks.fail("masks.chunk_ends", "count", f"be at most `size`={size}", count)

    def on(self, grid: Grid) -> Tensor:
        return self._is_end(grid.key_positions())  # (1, s)

    def seen_keys(self, num_queries: Size, num_keys: Size) -> Tensor | None:
        return self._is_end(ops.arange(num_keys, dtype="int32")[None])  # (1, S)

    def _is_end(self, positions: Tensor) -> Tensor:
        return positions % self.size >= self.size - self.count

    def flatten(self) -> tuple[tuple[Tensor, ...], Hashable]:
        return (), (self.size, self.count)
