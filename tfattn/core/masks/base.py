"""The base class of masks."""

from collections.abc import Callable
from typing import Any

from keras import ops

from tfattn import _checks
from tfattn._types import Size, Tensor
from tfattn.core.masks import ranges
from tfattn.core.masks.grid import Grid
from tfattn.core.masks.ranges import Bounds, Range
from tfattn.core.objects import GridFunction, registered_in

# Pairs of a mask that are evaluated at once, and rows of them where the lengths are unknown.
_PAIRS, _ROWS = 2**20, 64

# The functions of `&`, `|` and `~`, filled in by `joins` to avoid a circular import.
OPERATORS: dict[str, Callable[..., "Mask"]] = {}


class Mask(GridFunction):
    """Which query may attend to which key: True means *may attend*.

    A mask is a class with the method `on`. If its constructor has arguments, it also needs
    attributes of the same names, to be saved. That is enough for every path.

    The other methods are optional hooks, by which blocks are skipped, or computed without a mask.
    **A hook describes the `on` of its own class or of a base class**: a subclass that defines `on`
    and no hooks inherits the default hooks of this class, which are right for any mask.

    Attributes:
        is_relative: Hook. Whether `on` gives `(t, s)` and depends on nothing but the distance
            `grid.key_positions() - grid.query_positions()`. One block then serves for all blocks on
            a diagonal. Such a mask is evaluated at positions beyond the matrix too, and must depend
            on the distance there.
    Example: every second key, counted from the query.
        >>> class EverySecond(masks.Mask):
        ...     def on(self, grid):
        ...         distance = grid.key_positions() - grid.query_positions()  # (t, s)
        ...         return distance % 2 == 0
        >>> print(np.asarray(EverySecond().dense(2, 4)).astype(int))
        [[1 0 1 0]
         [0 1 0 1]]
    """

    _hooks = ("is_relative", "_ignores_queries", "_sees_itself", "bounds", "seen_keys")
    is_relative: bool = False
    _ignores_queries: bool = False  # whether all queries, and heads, see the same keys
    _sees_itself: bool = False  # whether a query sees the key of its own position

    def on(self, grid: Grid) -> Tensor:
        """Which pairs of `grid` may attend: bool, broadcastable to `(B, t, s)` or `(B, H, t, s)`.

        A mask that holds an array cuts this rectangle out of it with `grid.batch_of`,
        `grid.rows_of` and `grid.columns_of`. On the dense path the rectangle is the whole matrix,
        and these methods return the array as it is. So a mask that omits them is right on the
        dense path and wrong on the streamed path, which takes some rows of the batch at a time.
        """
        raise NotImplementedError

    def bounds(self, grid: Grid) -> tuple[Range, Range] | Bounds:
        """Hook. Two ranges of keys `(low, high)`, empty where low ≥ high: a key outside of the
        first is hidden from every query of `grid`, and skipped; a key inside of the second is seen
        by every query of `grid`, and needs no mask.

        Integers, or scalar integer tensors where they are not known before the graph runs.
        """
        return (0, grid.num_keys), (0, 0)

    def seen_keys(self, grid: Grid) -> Tensor | None:
        """Hook. The keys that some query may see, of the whole matrix: bool, broadcastable to
        `(B, S)`; None where every key is seen. Without the hook, `on` is evaluated once more, a
        part of the pairs at a time.

        A key that no query may see is padding. The result may name too many keys, never too few.
        """
        if self.is_relative:
            return ranges.by_distance(self, grid)
        num_queries, num_keys = grid.num_queries, grid.num_keys

        def by_rows(start: Size, rows: Size) -> Tensor:
            part = Grid(num_queries, num_keys, start, 0, rows, num_keys)
            pairs = ops.convert_to_tensor(self.on(part))
            for axis, length in ((-2, rows), (-1, num_keys)):
                found = pairs.shape[axis]
                known = isinstance(found, int) and isinstance(length, int)
                if known and found not in (1, length):
                    expected = f"have the length {length} or 1 on axis {axis}"
                    _checks.fail("attend", "mask", expected, tuple(pairs.shape))
            pairs = ops.logical_and(pairs, part.query_rows() < num_queries)
            keys = ops.any(pairs, axis=-2)
            keys = ops.any(keys, axis=1) if len(keys.shape) == 3 else keys
            return ops.logical_and(keys, ops.ones((1, num_keys), "bool"))

        if self._ignores_queries:
            return by_rows(0, 1)
        is_known = isinstance(num_queries, int) and isinstance(num_keys, int)
        if is_known and num_queries * num_keys <= _PAIRS:
            return by_rows(0, num_queries)
        rows = max(1, _PAIRS // num_keys) if is_known else _ROWS
        return ops.fori_loop(
            0,
            -(-num_queries // rows),
            lambda n, seen: ops.logical_or(seen, by_rows(n * rows, rows)),
            by_rows(0, 0),
        )

    def dense(self, num_queries: Size, num_keys: Size) -> Tensor:
        """The mask as a bool tensor, broadcastable to `(B, T, S)` or `(B, H, T, S)`."""
        return self.on(Grid.whole(num_queries, num_keys))

    def __and__(self, other: Any) -> "Mask":
        return OPERATORS["&"](self, other)

    def __rand__(self, other: Any) -> "Mask":
        return OPERATORS["&"](other, self)

    def __or__(self, other: Any) -> "Mask":
        return OPERATORS["|"](self, other)

    def __ror__(self, other: Any) -> "Mask":
        return OPERATORS["|"](other, self)

    def __invert__(self) -> "Mask":
        return OPERATORS["~"](self)


# Class decorator: saved files name the mask `tfattn>masks.<class name>`.
registered = registered_in("masks")
