"""What a mask can tell without being computed. The engine, the layers and joined masks ask here.

A hook describes the `on` of its own class or of a base class. It would be wrong where a subclass
defines another `on`: the bounds of a causal mask are wrong for a subclass that hides more or fewer
keys. So no other code calls a hook of a mask directly. These functions call it, and where a
subclass has replaced `on` alone, they give the answer of `Mask`, which is right for any mask.
"""

from tfattn._types import Size, Tensor
from tfattn.core.masks import ranges
from tfattn.core.masks.base import Mask
from tfattn.core.masks.grid import Grid
from tfattn.core.masks.ranges import Range

__all__ = [
    "common_keys",
    "full_bounds",
    "is_relative",
    "key_bounds",
    "max_keys",
    "seen_blocks",
    "seen_keys",
]


def is_relative(mask: Mask) -> bool:
    """Whether the mask asks for nothing but how far a key is from a query."""
    return _teller(mask, "is_relative").is_relative


def key_bounds(mask: Mask, grid: Grid) -> Range:
    """Bounds on the keys that the queries of `grid` see, each an int or an int32 tensor."""
    return ranges.ends(_teller(mask, "key_bounds").key_bounds(grid))


def full_bounds(mask: Mask, grid: Grid) -> Range:
    """A range `(low, high)` of keys that every query of `grid` sees."""
    return ranges.ends(_teller(mask, "full_bounds").full_bounds(grid))


def max_keys(mask: Mask, grid: Grid) -> int:
    """The most keys that the queries of `grid` see, as far as that is known before a graph runs;
    asked where the number of keys is an int.
    """
    most = _teller(mask, "max_keys").max_keys(grid)
    low, high = key_bounds(mask, grid)
    if isinstance(low, int) and isinstance(high, int):
        most = min(most, max(0, min(high, grid.num_keys) - max(low, 0)))
    return most


def seen_blocks(mask: Mask, grid: Grid, columns: Size) -> Tensor | None:
    """Which blocks of `columns` keys have a key that some query of `grid` sees, `(⌈S / columns⌉,)`;
    None where the bounds are all that is known.
    """
    return _teller(mask, "seen_blocks").seen_blocks(grid, columns)


def seen_keys(mask: Mask, num_queries: Size, num_keys: Size) -> Tensor | None:
    """The keys that some query may see: bool, broadcastable to `(B, S)`; None where unknown."""
    return _teller(mask, "seen_keys").seen_keys(num_queries, num_keys)


def common_keys(mask: Mask, num_queries: Size, num_keys: Size) -> Tensor | None:
    """The keys that every query may see: bool `(B, S)`, or None."""
    return _teller(mask, "common_keys").common_keys(num_queries, num_keys)


_ANY = Mask()


def _teller(mask: Mask, hook: str) -> Mask:
    """The mask, or one whose hooks are right of any, where `on` is newer than the hook."""
    for cls in type(mask).__mro__:
        if hook in vars(cls):
            return mask
        if "on" in vars(cls):
            return _ANY
    raise AttributeError(f"{mask!r} is no mask")
