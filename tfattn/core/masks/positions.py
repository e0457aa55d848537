"""Masks of positions: causal, a window, chunks, a prefix."""

from typing import Any

from keras import ops

from tfattn import _checks
from tfattn._types import Shape, Tensor
from tfattn.core.masks import ranges
from tfattn.core.masks.base import Mask, registered
from tfattn.core.masks.grid import Grid
from tfattn.core.masks.ranges import Range, no_more_keys
from tfattn.core.tensors import check_lengths, checked_int


@registered
class causal(Mask):
    """A query sees the keys up to its own position and none after it.

        may attend = position of the key ≤ position of the query

    Example:
        >>> print(np.asarray(masks.causal().dense(2, 3)).astype(int))
        [[1 1 0]
         [1 1 1]]

    Source: Vaswani et al. 2017, arXiv:1706.03762, section 3.2.3.
    """

    is_relative = True
    _sees_itself = True

    def on(self, grid: Grid) -> Tensor:
        return grid.key_positions() <= grid.query_positions()  # (t, s)

    def bounds(self, grid: Grid) -> tuple[Range, Range]:
        return (0, grid.last_position() + 1), (0, grid.first_position() + 1)

    def seen_keys(self, grid: Grid) -> Tensor | None:
        return None  # the last query sees all keys


@registered
class window(Mask):
    """A query sees the keys less than `size` tokens away, on both sides.

        may attend = |position of the key − position of the query| < size

    `window(1)` is the diagonal. Joined with `causal()` it is the sliding window of autoregressive
    models. `size` means the same as `sliding_window` of `keras.layers.MultiHeadAttention`.

    Args:
        size: positive int, in tokens; the query's own position counts.
    Example:
        >>> print(np.asarray(masks.window(2).dense(3, 3)).astype(int))
        [[1 1 0]
         [1 1 1]
         [0 1 1]]

    Source: Beltagy, Peters, Cohan 2020, arXiv:2004.05150, section 3.1.
    """

    is_relative = True
    _sees_itself = True

    def __init__(self, size: int):
        self.size = _checks.positive_int("masks.window", "size", size)

    def on(self, grid: Grid) -> Tensor:
        return ops.abs(grid.key_positions() - grid.query_positions()) < self.size  # (t, s)

    def bounds(self, grid: Grid) -> tuple[Range, Range]:
        size, first, last = self.size, grid.first_position(), grid.last_position()
        return (first - size + 1, last + size), (last - size + 1, first + size)

    def seen_keys(self, grid: Grid) -> Tensor | None:
        return None if no_more_keys(grid) else ranges.by_distance(self, grid)


@registered
class chunks(Mask):
    """A query sees the keys of its own chunk of positions.

        may attend = ⌊position of the key / size⌋ == ⌊position of the query / size⌋

    Args:
        size: positive int, in tokens. Chunks begin at position 0.
    Example:
        >>> print(np.asarray((masks.causal() & masks.chunks(2)).dense(3, 3)).astype(int))
        [[1 0 0]
         [1 1 0]
         [0 0 1]]

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


@registered
class prefix(Mask):
    """Every query sees the first `length` keys: `causal() | prefix(n)` is the mask of a prefix
    language model.

        may attend = position of the key < length

    Args:
        length: number of tokens: an int of at least 0, or integers `()` or `(B,)`.
    Example:
        >>> print(np.asarray((masks.causal() | masks.prefix(2)).dense(3, 3)).astype(int))
        [[1 1 0]
         [1 1 0]
         [1 1 1]]

    Source: Raffel et al. 2020, arXiv:1910.10683, figure 3.
    """

    _ignores_queries = True

    def __init__(self, length: Any):
        if not hasattr(length, "shape") and not isinstance(length, (list, tuple)):
            self.length = _checks.non_negative_int("masks.prefix", "length", length)
        else:
            length = checked_int("masks.prefix", "length", length)
            _checks.rank("masks.prefix", "length", length.shape, (0, 1), "() or (B,)")
            check_lengths("masks.prefix", "length", length)
            self.length = ops.reshape(length, (-1,))  # a scalar repeats over the batch

    def check(self, who: str, argument: str, shape: Shape) -> None:
        super().check(who, argument, shape)
        if not isinstance(self.length, int):
            _checks.broadcasts(who, argument, self.length.shape, shape[:1], "() or (B,)")

    def on(self, grid: Grid) -> Tensor:
        length = self.length
        if not isinstance(length, int):
            length = grid.batch_of(length)[:, None, None]  # (B, 1, 1)
        return grid.key_positions() < length  # (1, s) or (B, 1, s)

    def bounds(self, grid: Grid) -> tuple[Range, Range]:
        if isinstance(self.length, int):
            return (0, self.length), (0, self.length)
        lengths = grid.batch_of(self.length)
        return (0, ranges.greatest(lengths)), (0, ranges.least(lengths, grid.num_keys))

    def seen_keys(self, grid: Grid) -> Tensor | None:
        return grid.key_positions() < ops.reshape(self.length, (-1, 1))  # (1 or B, S)
