"""What the mask leaves of the square's blocks: which are skipped, which are open, and how the
others look.
"""

from typing import NamedTuple

import tensorflow as tf

from tfattn.core.masks import hooks, ranges
from tfattn.core.paths.blockwise.blocks import ceil

__all__ = ["Diagonals", "Reach"]

# Blocks that are made before the walk, and held through it: few, and each smaller than the scores
# of a block.
_MOST = 8


class Reach(NamedTuple):
    """What a block of queries can see: blocks of keys `first` to `end`; all of its queries see keys
    `open_low` to `open_high`.
    """

    first: object
    end: object
    open_low: object
    open_high: object
    opened: bool = False  # whether it is known that all these blocks are open

    @classmethod
    def of(cls, mask, square, b, i):
        """That of the i-th queries of the b-th rows of the batch; of ints where the mask tells by
        ints.
        """
        if mask is None:
            return cls(0, square.key_blocks, 0, square.keys, not square.padded)
        grid = square.query_grid(b, i)
        low, high = ranges.overlap(hooks.key_bounds(mask, grid), (0, square.keys))
        return cls(
            low // square.columns, ceil(high, square.columns), *hooks.full_bounds(mask, grid)
        )

    @property
    def closed(self):
        """Whether it is known that no block is open."""
        return _ints((self.open_low, self.open_high)) and self.open_high <= self.open_low

    def cut_through(self, square):
        """The blocks of keys that the mask cuts through: those of the reach that are not open. For
        a reach of ints.
        """
        first_open, end_open = self.open_blocks(square)
        return [*range(self.first, first_open), *range(end_open, self.end)]

    def open_blocks(self, square):
        """And those that are, from the first to the end of them."""
        low, high = self._open(square)
        first_open = min(max(self.first, ceil(low, square.columns)), self.end)
        return first_open, max(first_open, min(high // square.columns, self.end))

    def is_open(self, square, j):
        """Whether the queries see all of the j-th keys."""
        low, high = self._open(square)
        return (j * square.columns >= low) & ((j + 1) * square.columns <= high)

    def _open(self, square):
        return ranges.overlap((self.open_low, self.open_high), (0, square.keys))


class Diagonals(NamedTuple):
    """The blocks that a mask cuts through, where it asks for distance alone: the same one all along
    a diagonal.

    A window cuts through two diagonals of blocks or three, of 32 blocks each at 8,192 tokens, and
    in every head again: they are compared once.
    """

    offsets: list  # of the first key from the first query
    blocks: object  # bool (diagonals, t, s)

    @classmethod
    def of(cls, mask, square):
        """None where the mask asks for more, where a size is not known, or where it cuts through
        many diagonals.
        """
        sizes = (square.queries, square.keys, square.rows, square.columns)
        if mask is None or not hooks.is_relative(mask) or not _ints(sizes):
            return None
        found = {}
        for i in range(square.query_blocks):
            reach = Reach.of(mask, square, 0, i)
            if not _ints(reach):
                return None
            for j in reach.cut_through(square):
                found[j * square.columns - i * square.rows] = square.grid(0, i, j)
                if len(found) > _MOST:
                    return None
        if not found:
            return None
        shape = (square.rows, square.columns)
        return cls(
            list(found),
            tf.stack([tf.broadcast_to(mask.on(grid), shape) for grid in found.values()]),
        )

    def on(self, grid):
        """The mask on a block of its square, `(t, s)`."""
        here = tf.equal(self.offsets, grid.key_start - grid.query_start)
        return self.blocks[tf.argmax(tf.cast(here, tf.int32), output_type=tf.int32)]


def _ints(sizes):
    return all(isinstance(size, int) for size in sizes)
