"""A plan of blocks: the blocks that contain a visible pair."""

from collections.abc import Callable, Hashable
from typing import Any

from keras import ops

from tfattn import _checks
from tfattn._types import Shape, Size, Tensor
from tfattn.core import pairs
from tfattn.core.masks import ranges
from tfattn.core.masks.base import Mask, refuse_symbols, registered
from tfattn.core.masks.grid import Grid
from tfattn.core.masks.joins import as_mask
from tfattn.core.masks.ranges import Range

_LETTERS = "(T/size, S/size), (B, T/size, S/size) or (B, H, T/size, S/size)"


@registered
class blocks(Mask):
    """A query sees the keys of the blocks that a plan names.

        may attend = plan[⌊query / size⌋, ⌊key / size⌋]

    The plan is T/size × S/size and is computed once. The streamed path, which has its own blocks,
    skips those that the plan hides entirely, also between two visible blocks.

    Args:
        plan: bool `(T/size, S/size)`, `(B, T/size, S/size)` or `(B, H, T/size, S/size)`, rounded
            up; batch and heads of size 1 broadcast. `masks.plan` makes it from any mask.
        size: Positive int, queries and keys of a block.
    Raises:
        ValueError: `plan` is not boolean, its rank is not 2, 3 or 4, or its size does not fit the
            scores; `size` is not a positive integer.
    Example:
        >>> mask = masks.blocks([[True, False], [True, True]], size=2)
        >>> print(np.asarray(mask.dense(3, 4)).astype(int))
        [[1 1 0 0]
         [1 1 0 0]
         [1 1 1 1]]

    Source: Child et al. 2019, arXiv:1904.10509, section 5.5 (block-sparse kernels); Zaheer et al.
    2020, arXiv:2007.14062, appendix D.
    """

    def __init__(self, plan: Any, size: int):
        self.plan = pairs.checked_bool("masks.blocks", "plan", plan)
        _checks.rank("masks.blocks", "plan", self.plan.shape, (2, 3, 4), _LETTERS)
        self.size = _checks.positive_int("masks.blocks", "size", size)

    def check(self, who: str, argument: str, shape: Shape) -> None:
        refuse_symbols(who, argument, self.plan)
        rank = len(self.plan.shape)
        sides = [length and -(-length // self.size) for length in shape[-2:]]
        for side, wanted in zip(self.plan.shape[-2:], sides, strict=True):
            if None not in (side, wanted) and side != wanted:
                expected = f"have a plan of {tuple(sides)} blocks of {self.size}"
                _checks.fail(who, argument, expected, tuple(self.plan.shape))
        target = (*shape[:-2], *sides) if rank == 4 else (shape[0], *sides)[-rank:]
        _checks.broadcasts(who, argument, self.plan.shape, target, _LETTERS)

    def on(self, grid: Grid) -> Tensor:
        if 0 in self.plan.shape[-2:]:  # no queries or no keys
            return ops.zeros((1, 1), "bool")
        # The grid may reach beyond the matrix, where the plan has no blocks.
        queries = ops.minimum(grid.query_rows()[:, 0], grid.num_queries - 1)
        keys = ops.minimum(grid.key_positions()[0], grid.num_keys - 1)
        plan = self._rows_of_the_batch(grid)
        seen = ops.take(plan, queries // self.size, axis=-2)  # (..., t, S/size)
        return ops.take(seen, keys // self.size, axis=-1)  # (..., t, s)

    def key_bounds(self, grid: Grid) -> Range:
        return self._in_keys(ranges.around(self._row(grid, ops.any)))

    def full_bounds(self, grid: Grid) -> Range:
        return self._in_keys(ranges.first_run(self._row(grid, ops.all)))

    def seen_blocks(self, grid: Grid, columns: Size) -> Tensor | None:
        row = ops.cast(self._row(grid, ops.any), "int32")
        before = ops.pad(ops.cumsum(row), [[1, 0]])  # visible blocks before each block of the plan
        starts = ops.arange(-(-grid.num_keys // columns), dtype="int32") * columns
        first = starts // self.size
        end = ops.minimum((starts + columns - 1) // self.size + 1, ops.shape(row)[0])
        return ops.take(before, end) > ops.take(before, first)

    def seen_keys(self, num_queries: Size, num_keys: Size) -> Tensor | None:
        rank = len(self.plan.shape)
        seen = ops.any(self.plan, axis=(1, 2) if rank == 4 else rank - 2)  # (B, m) or (m,)
        seen = ops.expand_dims(seen, 0) if rank == 2 else seen
        return ops.take(seen, ops.arange(num_keys, dtype="int32") // self.size, axis=1)  # (B, S)

    def _row(self, grid: Grid, reduce: Callable[..., Tensor]) -> Tensor:
        """Whether some (`ops.any`) or all (`ops.all`) of the plan is True in each block of keys,
        over the grid's queries and rows of the batch, and over the heads.
        """
        plan = self._rows_of_the_batch(grid)
        at = ops.arange(ops.shape(plan)[-2], dtype="int32")
        first, last = grid.query_start, grid.query_start + grid.queries - 1
        inside = ops.logical_and(at >= first // self.size, at <= last // self.size)[:, None]
        if reduce is ops.any:
            plan = ops.logical_and(plan, inside)
        else:
            plan = ops.logical_or(plan, ops.logical_not(inside))
        return reduce(plan, axis=tuple(range(len(plan.shape) - 1)))  # (S/size,)

    def _in_keys(self, bounds: Range) -> Range:
        low, high = bounds
        return low * self.size, high * self.size

    def _rows_of_the_batch(self, grid: Grid) -> Tensor:
        return self.plan if len(self.plan.shape) == 2 else grid.batch_of(self.plan)

    def flatten(self) -> tuple[tuple[Tensor, ...], Hashable]:
        return (self.plan,), (self.size,)


def plan(mask: Any, num_queries: int, num_keys: int, size: int) -> Tensor:
    """The blocks of a mask in which some query sees some key: the plan for `masks.blocks`.

    The mask joined with its plan is the same mask, and the streamed path skips the blocks that the
    plan leaves out. A plan saves time where a mask has holes between its bounds, as a window joined
    with a prefix has, and where many calls use it: it evaluates every pair once, `size` queries at
    a time.

    Args:
        mask: a mask object, or a bool array `(T, S)`, `(B, T, S)` or `(B, H, T, S)`.
        num_queries, num_keys: positive ints T and S.
        size: Positive int, queries and keys of a block.
    Returns:
        bool `(T/size, S/size)`, rounded up; `(B, ...)` or `(B, H, ...)` where the mask has a batch
        or heads.
    Raises:
        ValueError: a size is not a positive integer.
    Example:
        >>> rule = masks.window(2) | masks.prefix(1)
        >>> plan = masks.plan(rule, 8, 8, size=2)
        >>> print(np.asarray(plan).astype(int))
        [[1 1 0 0]
         [1 1 1 0]
         [1 1 1 1]
         [1 0 1 1]]
        >>> planned = rule & masks.blocks(plan, size=2)
    """
    who = "masks.plan"
    for name, value in (("num_queries", num_queries), ("num_keys", num_keys), ("size", size)):
        _checks.positive_int(who, name, value)
    mask, columns = as_mask(mask), -(-num_keys // size)
    rows = []
    for start in range(0, num_queries, size):
        queries = min(size, num_queries - start)
        seen = mask.on(Grid(num_queries, num_keys, start, 0, queries, num_keys))
        seen = ops.any(seen, axis=-2)  # (..., 1 or S)
        seen = ops.broadcast_to(seen, (*seen.shape[:-1], num_keys))
        after = [[0, 0]] * (len(seen.shape) - 1) + [[0, columns * size - num_keys]]
        seen = ops.reshape(ops.pad(seen, after), (*seen.shape[:-1], columns, size))
        rows.append(ops.any(seen, axis=-1))  # (..., S/size)
    return ops.stack(rows, axis=-2)
