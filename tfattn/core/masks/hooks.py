"""The hooks of a mask, as the engine, the layers and joined masks call them.

A hook describes the `on` of its own class or of a base class. The bounds of a causal mask are wrong
for a subclass whose `on` hides more or fewer keys. So no other code calls a hook of a mask
directly. These functions call it; where a subclass has replaced `on` alone, they return the default
of `Mask`, which is right for any mask.
"""

from keras import ops

from tfattn import _checks
from tfattn._types import Size, Tensor
from tfattn.core.masks import ranges
from tfattn.core.masks.base import Mask
from tfattn.core.masks.grid import Grid
from tfattn.core.masks.ranges import Range

__all__ = [
    "full_bounds",
    "is_relative",
    "key_bounds",
    "max_keys",
    "seen_blocks",
    "seen_keys",
]


def ignores_queries(mask: Mask) -> bool:
    """Whether all queries, and all heads, see the same keys."""
    return _or_defaults(mask, "_ignores_queries")._ignores_queries


def sees_itself(mask: Mask) -> bool:
    """Whether a query sees the key of its own position."""
    return _or_defaults(mask, "_sees_itself")._sees_itself


def is_relative(mask: Mask) -> bool:
    """Whether the mask depends on nothing but the distance between key and query."""
    return _or_defaults(mask, "is_relative").is_relative


def key_bounds(mask: Mask, grid: Grid) -> Range:
    """Bounds on the keys that the queries of `grid` see, each an int or an int32 tensor."""
    return ranges.ends(_or_defaults(mask, "key_bounds").key_bounds(grid))


def full_bounds(mask: Mask, grid: Grid) -> Range:
    """A range `(low, high)` of keys that every query of `grid` sees."""
    return ranges.ends(_or_defaults(mask, "full_bounds").full_bounds(grid))


def max_keys(mask: Mask, grid: Grid) -> int:
    """An upper bound on the number of keys that the queries of `grid` see, known before a graph
    runs. Called only where the number of keys is an int.
    """
    most = _or_defaults(mask, "max_keys").max_keys(grid)
    low, high = key_bounds(mask, grid)
    if isinstance(low, int) and isinstance(high, int):
        most = min(most, max(0, min(high, grid.num_keys) - max(low, 0)))
    return most


def seen_blocks(mask: Mask, grid: Grid, columns: Size) -> Tensor | None:
    """Which blocks of `columns` keys have a key that some query of `grid` sees, `(⌈S / columns⌉,)`;
    None where only the bounds are known.
    """
    return _or_defaults(mask, "seen_blocks").seen_blocks(grid, columns)


def seen_keys(mask: Mask, num_queries: Size, num_keys: Size) -> Tensor | None:
    """The keys that some query may see: bool, broadcastable to `(B, S)`; None for every key."""
    owner = _or_defaults(mask, "seen_keys")
    if type(owner).seen_keys is not Mask.seen_keys:
        return owner.seen_keys(num_queries, num_keys)
    return seen_by_pairs(mask, num_queries, num_keys)


# Pairs of a mask that are evaluated at once, and rows of them where the lengths are unknown.
_PAIRS, _ROWS = 2**20, 64


def seen_by_pairs(mask: Mask, num_queries: Size, num_keys: Size) -> Tensor:
    """`seen_keys` of a mask without the hook: bool `(B or 1, S)`, from its pairs."""
    if is_relative(mask):
        return ranges.by_distance(mask, num_queries, num_keys)

    def by_rows(start: Size, rows: Size) -> Tensor:
        grid = Grid(num_queries, num_keys, start, 0, rows, num_keys)
        pairs = ops.convert_to_tensor(mask.on(grid))
        for axis, wanted in ((-2, rows), (-1, num_keys)):
            length = pairs.shape[axis]
            if isinstance(length, int) and isinstance(wanted, int) and length not in (1, wanted):
                expected = f"have the length {wanted} or 1 on axis {axis}"
                _checks.fail("attend", "mask", expected, tuple(pairs.shape))
        pairs = ops.logical_and(pairs, grid.query_rows() < num_queries)
        keys = ops.any(pairs, axis=-2)
        keys = ops.any(keys, axis=1) if len(keys.shape) == 3 else keys
        return ops.logical_and(keys, ops.ones((1, num_keys), "bool"))

    if ignores_queries(mask):
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


_DEFAULTS = Mask()


def _or_defaults(mask: Mask, hook: str) -> Mask:
    """The mask, or a `Mask` with the default hooks where a subclass of the hook's class defines
    `on`.
    """
    for cls in type(mask).__mro__:
        if hook in vars(cls):
            return mask
        if "on" in vars(cls):
            return _DEFAULTS
    raise AttributeError(f"{mask!r} is not a mask")
