"""A boolean array as a mask."""

from collections.abc import Callable
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
class explicit(Mask):
    """A boolean array as a mask.

    Args:
        mask: bool `(T, S)`, `(B, T, S)` or `(B, H, T, S)`; axes of size 1 broadcast; True = may
            attend.
    Raises:
        ValueError: `mask` is not boolean, or its rank is not 2, 3 or 4.
    Example:
        >>> mask = masks.explicit(np.array([[True, False, True]])) & masks.causal()
        >>> print(np.asarray(mask.dense(3, 3)).astype(int))
        [[1 0 0]
         [1 0 0]
         [1 0 1]]
    """

    def __init__(self, mask: Any):
        self.mask = pairs.checked_bool("masks.explicit", "mask", mask)
        _checks.rank("masks.explicit", "mask", self.mask.shape, (2, 3, 4), pairs.SHAPES[4])

    def check(self, who: str, argument: str, shape: Shape) -> None:
        refuse_symbols(who, argument, self.mask)
        pairs.check_shape(who, argument, self.mask.shape, shape)

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
