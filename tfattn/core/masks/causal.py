"""A query sees no key after its own position."""

from tfattn._types import Tensor
from tfattn.core.masks.base import Mask, registered
from tfattn.core.masks.grid import Grid
from tfattn.core.masks.ranges import Range


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
