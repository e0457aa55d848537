"""A query sees the keys near its own position."""

from keras import ops

from tfattn import _checks
from tfattn._types import Tensor
from tfattn.core.masks.base import Mask, registered
from tfattn.core.masks.grid import Grid
from tfattn.core.masks.ranges import Range, by_distance, no_more_keys


@registered
class window(Mask):
    """A query sees the keys less than `size` tokens away, on both sides.

        may attend = |position of the key − position of the query| < size

    `window(1)` is the diagonal. Joined with `causal()` it is the sliding window of autoregressive
    models. `size` means the same as `sliding_window` of `keras.layers.MultiHeadAttention`.

    Args:
        size: Positive int, in tokens; the query's own position counts.
    Raises:
        ValueError: `size` is not a positive integer.
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
        return None if no_more_keys(grid) else by_distance(self, grid)
