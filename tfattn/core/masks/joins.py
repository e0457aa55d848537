"""Masks combined from masks: `&`, `|`, `~`, and `all_of`."""

import functools
from typing import Any

from keras import ops

from tfattn._types import Shape, Tensor
from tfattn.core.masks import ranges
from tfattn.core.masks.arrays import explicit, segments
from tfattn.core.masks.base import OPERATORS, Mask, registered
from tfattn.core.masks.grid import Grid
from tfattn.core.masks.ranges import Bounds, Range, no_more_keys
from tfattn.core.tensors import with_heads


def all_of(*parts: Any) -> Mask | None:
    """The masks and boolean arrays joined by AND. None is skipped, and no masks give None."""
    joined = None
    for part in parts:
        if part is not None:
            joined = as_mask(part) if joined is None else joined & as_mask(part)
    return joined


class _Pair(Mask):
    """Two masks that `_join` joins."""

    def __init__(self, left: Mask, right: Mask):
        self.left = left
        self.right = right
        self.is_relative = left.is_relative and right.is_relative
        self._ignores_queries = left._ignores_queries and right._ignores_queries
        self._sees_itself = left._sees_itself and right._sees_itself

    @staticmethod
    def _join(left: Tensor, right: Tensor) -> Tensor:
        raise NotImplementedError

    def check(self, who: str, argument: str, shape: Shape) -> None:
        self.left.check(who, argument, shape)
        self.right.check(who, argument, shape)

    def on(self, grid: Grid) -> Tensor:
        left, right = self.left.on(grid), self.right.on(grid)
        rank = max(len(left.shape), len(right.shape))
        return self._join(with_heads(left, rank), with_heads(right, rank))

    def _bounds(self, grid: Grid) -> tuple[Bounds, Bounds]:
        return Bounds.of(self.left, grid), Bounds.of(self.right, grid)


@registered
class _Both(_Pair):
    _join = staticmethod(ops.logical_and)

    def __repr__(self) -> str:
        sides = (self.left, self.right)
        return " & ".join(f"({x!r})" if isinstance(x, _Either) else repr(x) for x in sides)

    def bounds(self, grid: Grid) -> Bounds:
        left, right = self._bounds(grid)
        seen = [ranges.overlap(a, b) for a in left.seen for b in right.seen]
        return Bounds(tuple(seen), ranges.overlap(left.full, right.full), (left, right))

    def _parts(self) -> list[Mask]:
        sides = (self.left, self.right)
        return [x for side in sides for x in (side._parts() if type(side) is _Both else [side])]

    def seen_keys(self, grid: Grid) -> Tensor | None:
        parts = self._parts()
        others = [part for part in parts if not part._ignores_queries]
        found = [part.seen_keys(grid) for part in parts if part._ignores_queries]
        # Two masks together may hide a key from all queries that neither hides alone.
        square = no_more_keys(grid) or any(type(part) is segments for part in others)
        if len(others) == 1:
            found.append(others[0].seen_keys(grid))
        elif others and not (square and all(part._sees_itself for part in others)):
            found.append(Mask.seen_keys(functools.reduce(_Both, others), grid))
        told = [keys for keys in found if keys is not None]
        return functools.reduce(ops.logical_and, told) if told else None


@registered
class _Either(_Pair):
    _join = staticmethod(ops.logical_or)

    def __init__(self, left: Mask, right: Mask):
        super().__init__(left, right)
        self._sees_itself = left._sees_itself or right._sees_itself

    def __repr__(self) -> str:
        return f"{self.left!r} | {self.right!r}"

    def bounds(self, grid: Grid) -> Bounds:
        left, right = self._bounds(grid)
        return Bounds((*left.seen, *right.seen), ranges.longer(left.full, right.full))

    def seen_keys(self, grid: Grid) -> Tensor | None:
        left, right = self.left.seen_keys(grid), self.right.seen_keys(grid)
        return None if left is None or right is None else ops.logical_or(left, right)


@registered
class _Not(Mask):
    def __init__(self, inner: Mask):
        self.inner = inner
        self.is_relative = inner.is_relative
        self._ignores_queries = inner._ignores_queries

    def __repr__(self) -> str:
        return f"~({self.inner!r})" if isinstance(self.inner, _Pair) else f"~{self.inner!r}"

    def check(self, who: str, argument: str, shape: Shape) -> None:
        self.inner.check(who, argument, shape)

    def on(self, grid: Grid) -> Tensor:
        return ops.logical_not(self.inner.on(grid))

    def bounds(self, grid: Grid) -> tuple[Range, Range]:
        low, high = Bounds.of(self.inner, grid).hull
        return (0, grid.num_keys), ranges.longer((0, low), (high, grid.num_keys))


def as_mask(mask: Any) -> Mask:
    """A mask object from a mask object or a bool array."""
    return mask if isinstance(mask, Mask) else explicit(mask)


OPERATORS["&"] = lambda left, right: _Both(as_mask(left), as_mask(right))
OPERATORS["|"] = lambda left, right: _Either(as_mask(left), as_mask(right))
OPERATORS["~"] = _Not
