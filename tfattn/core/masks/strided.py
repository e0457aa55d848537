"""A query sees the keys at multiples of a step, counted from its own position."""

from collections.abc import Hashable

from tfattn import _checks
from tfattn._types import Size, Tensor
from tfattn.core.masks.base import Mask, registered
from tfattn.core.masks.grid import Grid
from tfattn.core.masks.ranges import by_distance, no_more_keys


@registered
class strided(Mask):
    """A query sees the keys whose distance is a multiple of `step`, on both sides.

        may attend = (position of the key − position of the query) mod step == 0

    Joined with other masks it is

    - a dilated window of n keys on each side, including the query's own position:
      `window(n * step) & strided(step)`;
    - the strided pattern of Sparse Transformers: `causal() & (window(step) | strided(step))`.

    Alone it hides no block: the streamed path saves memory, but no time.

    Args:
        step: Positive int, in tokens; 1 hides nothing.
    Raises:
        ValueError: `step` is not a positive integer.
    Example:
        >>> dilated = masks.window(4) & masks.strided(2)
        >>> print(np.asarray(dilated.dense(3, 6)).astype(int))
        [[0 1 0 1 0 1]
         [0 0 1 0 1 0]
         [0 0 0 1 0 1]]

    Source: Beltagy, Peters, Cohan 2020, arXiv:2004.05150, section 3.1 (dilated windows); Child et
    al. 2019, arXiv:1904.10509, section 4.3 (strided).
    """

    is_relative = True
    _sees_itself = True

    def __init__(self, step: int):
        self.step = _checks.positive_int("masks.strided", "step", step)

    def on(self, grid: Grid) -> Tensor:
        return (grid.key_positions() - grid.query_positions()) % self.step == 0  # (t, s)

    def seen_keys(self, num_queries: Size, num_keys: Size) -> Tensor | None:
        if no_more_keys(num_queries, num_keys):
            return None
        return by_distance(self, num_queries, num_keys)

    def flatten(self) -> tuple[tuple[Tensor, ...], Hashable]:
        return (), (self.step,)
