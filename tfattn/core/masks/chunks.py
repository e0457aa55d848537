"""Positions cut into chunks of one size."""

from keras import ops

from tfattn import _checks
from tfattn._types import Tensor
from tfattn.core.masks.base import Mask, registered
from tfattn.core.masks.grid import Grid
from tfattn.core.masks.ranges import Range, no_more_keys


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

    def bounds(self, grid: Grid) -> tuple[Range, Range]:
        size, first, last = self.size, grid.first_position(), grid.last_position()
        first, last = first // size * size, last // size * size
        # Full is the chunk of all queries; empty where they lie in several chunks.
        return (first, last + size), (last, first + size)

    def seen_keys(self, grid: Grid) -> Tensor | None:
        if no_more_keys(grid):
            return None
        (low, high), _ = self.bounds(grid)
        keys = grid.key_positions()  # (1, S)
        return ops.logical_and(keys >= low, keys < high)
