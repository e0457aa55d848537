"""The first keys of each row are real, the other keys padding."""

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
class padding(Mask):
    """The first `valid_lens` keys are real, the other keys padding.

        may attend = position of the key < valid_lens

    Args:
        valid_lens: integers, `(B,)` one length per row of the batch, or `(B, T)` one length per
            query.
    Raises:
        ValueError: `valid_lens` holds no integers, its rank is not 1 or 2, or a length is known to
            be negative, or in a call to be above the number of keys.
    Example:
        >>> print(np.asarray(masks.padding([3, 0]).dense(1, 4)).astype(int))
        [[[1 1 1 0]]
        <BLANKLINE>
         [[0 0 0 0]]]
    """

    def __init__(self, valid_lens: Any):
        self.valid_lens = pairs.checked_int("masks.padding", "valid_lens", valid_lens)
        _checks.rank("masks.padding", "valid_lens", self.valid_lens.shape, (1, 2), "(B,) or (B, T)")
        pairs.check_lengths("masks.padding", "valid_lens", self.valid_lens)

    def check(self, who: str, argument: str, shape: Shape) -> None:
        refuse_symbols(who, argument, self.valid_lens)
        target = (shape[0], shape[-2])[: len(self.valid_lens.shape)]
        _checks.broadcasts(who, argument, self.valid_lens.shape, target, "(B,) or (B, T)")
        pairs.check_lengths(who, argument, self.valid_lens, shape[-1])

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
