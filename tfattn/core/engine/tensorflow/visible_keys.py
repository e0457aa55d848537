"""The visible blocks of keys in a row of blocks, and the full blocks among them."""

import functools
from typing import NamedTuple

import tensorflow as tf

from tfattn._types import Size
from tfattn.core.engine.tensorflow.loops import ceil
from tfattn.core.engine.tensorflow.tiling import Tiling
from tfattn.core.masks import Mask, ranges


class VisibleKeys(NamedTuple):
    """The blocks of keys that a block of queries sees: `at(n)`, for `first` ≤ n < `end`; a block is
    full where all its pairs are visible.
    """

    first: Size
    end: Size
    full_low: Size  # all queries of the block see the keys full_low ≤ key < full_high
    full_high: Size
    columns: Size  # keys in a block
    order: tf.Tensor | None = None  # the visible blocks, where there are holes between them

    @classmethod
    def of(cls, mask: Mask | None, tiling: Tiling, m: Size, i: Size) -> "VisibleKeys":
        """The keys visible to queries i of step m; ints where the mask's bounds are ints."""
        columns, keys = tiling.columns, tiling.keys
        if mask is None:
            return cls(0, tiling.key_blocks, 0, keys, columns)
        bounds = ranges.Bounds.of(mask, tiling.query_grid(m, i))
        low, high = ranges.overlap(bounds.hull, (0, keys))
        full = ranges.overlap(bounds.full, (0, keys))
        if len(bounds.seen) == 1:
            return cls(low // columns, ceil(high, columns), *full, columns)
        block = tf.range(tiling.key_blocks)
        start, end = block * columns, (block + 1) * columns
        seen = functools.reduce(
            tf.logical_or, [(start < high) & (end > low) for low, high in bounds.seen]
        )
        order = tf.sort(tf.where(seen, block, tiling.key_blocks))
        return cls(0, tf.reduce_sum(tf.cast(seen, tf.int32)), *full, columns, order)

    def at(self, n: Size) -> Size:
        """The n-th visible block of keys; without holes, block n of the row."""
        return n if self.order is None else self.order[n]

    def is_full(self, j: Size) -> bool | tf.Tensor:
        """Whether block j of keys is full: a bool where this is known, else a bool tensor."""
        low, high = self.full_low, self.full_high
        if isinstance(low, int) and isinstance(high, int):
            if high <= low:
                return False
            if isinstance(self.end, int) and isinstance(self.columns, int):
                if low <= self.first * self.columns and self.end * self.columns <= high:
                    return True
        return (j * self.columns >= low) & ((j + 1) * self.columns <= high)
