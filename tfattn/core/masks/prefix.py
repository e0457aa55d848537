"""Every query sees the first keys."""

from typing import Any

from keras import ops

from tfattn import _checks
from tfattn._types import Shape, Tensor
from tfattn.core import pairs
from tfattn.core.masks import ranges
from tfattn.core.masks.base import Mask, refuse_symbols, registered
from tfattn.core.masks.grid import Grid
from tfattn.core.masks.ranges import Range


@registered
class prefix(Mask):
    """Every query sees the first `length` keys.

        may attend = position of the key < length

    `causal() | prefix(n)` is the mask of a prefix language model.

    Args:
        length: number of tokens: an int of at least 0, or integers `()` or `(B,)`.
    Raises:
        ValueError: `length` is neither an int of at least 0 nor an integer array of rank 0 or 1.
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
            length = pairs.checked_int("masks.prefix", "length", length)
            _checks.rank("masks.prefix", "length", length.shape, (0, 1), "() or (B,)")
            pairs.check_lengths("masks.prefix", "length", length)
            self.length = ops.reshape(length, (-1,))  # a scalar repeats over the batch

    def check(self, who: str, argument: str, shape: Shape) -> None:
        if not isinstance(self.length, int):
            refuse_symbols(who, argument, self.length)
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
