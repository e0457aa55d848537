"""The band along the diagonal that a narrow mask leaves of the square, as a square of its own.

Under a window the blocks that are left are small, and matrix products of one at a time keep no core
busy. But they are alike: where the mask goes by distance, each block of queries sees the block of
keys so many further on, and all of them under one mask. So blocks of queries become rows of a
batch, each with the few keys that it sees, and a step takes a run of them at once, in products as
large as those without a mask. A run of r = 4 blocks that see D = 3 each:

    queries      4  5  6  7
    keys, j = 0  3  4  5  6
          j = 1  4  5  6  7
          j = 2  5  6  7  8

The j-th keys of all blocks of a run are a slice of the sequence: none is copied D times.

Source: Beltagy, Peters, Cohan 2020, arXiv:2004.05150, section 3.1 and appendix A (the band in
chunks; there as one product for a chunk and all its keys).
"""

from typing import NamedTuple

import tensorflow as tf

from tfattn.core import masks
from tfattn.core.masks import hooks, ranges
from tfattn.core.paths.blockwise.blocks import NUMBERS_APART, Square, ceil, narrow, size
from tfattn.core.paths.blockwise.layouts import Plain

__all__ = ["Band"]

# Measured on two cores at T 8192, both ways. Blocks of 64 are the quicker ones where a query sees
# few keys; with a window of
# 256, where it sees 511, they took 1.1 times as long as blocks of 128. From 1,024 keys on a band
# gains nothing.
_FEW_KEYS, _MOST_KEYS = 256, 1024
# A run is as long as `NUMBERS_APART` lets it be, of blocks of 128 tokens 16: runs of 8 and 4 took
# 1.1 and 1.7 times as long.
_MOST_IN_A_RUN = 64
_LEAST_BLOCKS = 8  # of fewer, several heads or rows fill a step of the plain layout as well
# blocks of keys, which is what a window of 512 has; beyond, what a run has in memory grows for no
# gain
_MOST_SEEN = 9
# Numbers of a run's gradients, 8 MB: each of the blocks of keys that are seen has its own until
# they are added up.
_MOST_NUMBERS = 2**21


class Band(Plain):
    """The layout of it (`layouts`). The square that is walked over has a batch of blocks, of t
    queries and D · t keys each.

    Operands lie as in `Plain`, on the square `plain` of all tokens; its blocks are grouped by runs
    of r, and a run is what the walked square calls c rows of its batch. What reaches beyond the
    sequence is zeros: the mask hides such keys, and such queries are cut off again. For scores that
    have a value and a slope at zero, as every `heads_apart` one has.
    """

    def __init__(self, plain, run, seen):
        super().__init__(plain, None)
        self.run, self.seen = run, seen
        self.query_blocks = ceil(plain.query_blocks, run)  # runs
        self.square = plain._replace(
            batch=plain.steps * self.query_blocks * run,
            queries=seen.side,
            keys=seen.count * seen.side,
            chunk=run,
            parts=1,
        )
        self.mask = _InBand(self)

    @classmethod
    def of(cls, query, key, value, mask, block=None):
        """The band of the square of `query` `(B, H, T, X)`, `key` and `value` `(B, G, S, ...)`;
        None where there is none.

        Args:
            block: `(t, s)` where the caller wants other sizes than these; there is no band where
                they differ.
        """
        (batch, heads, queries), (groups, keys) = (
            (size(query, axis) for axis in range(3)),
            (size(key, 1), size(key, 2)),
        )
        if (
            mask is None
            or not hooks.is_relative(mask)
            or not narrow(mask, queries, keys, _MOST_KEYS)
        ):
            return None
        side, columns = block or (64 if narrow(mask, queries, keys, _FEW_KEYS) else 128,) * 2
        plain = Square(batch, queries, keys, 1, groups, heads // groups, 1, side, columns)
        if side != columns or plain.query_blocks < (2 if block else _LEAST_BLOCKS):
            return None
        seen = _Seen.of(mask, queries, keys, side)
        if seen is None or seen.count > _MOST_SEEN:
            return None
        width = max(query.shape[-1], value.shape[-1])
        most = (
            _MOST_IN_A_RUN,
            NUMBERS_APART // (plain.heads * side**2),
            _MOST_NUMBERS // (max(1, width) * seen.count * side),
        )
        if min(most) < 2:
            return None
        # Spread evenly over the runs; the blocks keep their side, of which windows are often a
        # multiple.
        run = ceil(plain.query_blocks, ceil(plain.query_blocks, min(most)))
        return None if seen.count > run + 1 else cls(plain, run, seen)

    def at(self, m, i):
        # A run is a chunk of the square's batch, and has one block of queries.
        return m * self.query_blocks + i, 0

    def queries_at(self, x, m, copies=False):
        """Those of step m, run by run: `(runs, r, 1, H/G·t, D)`."""
        blocks = super().queries_at(x, m, copies)
        blocks = _moved(blocks, 0, self.query_blocks * self.run)
        return tf.reshape(blocks, [self.query_blocks, self.run, *blocks.shape[2:]])

    def keys_at(self, x, m, copies=False):
        """Those of step m from the first that the first queries would see on: `(blocks, 1, t, D)`."""
        blocks = super().keys_at(x, m, copies)[:, 0]
        return _moved(blocks, -self.seen.first, self.query_blocks * self.run + self.seen.count - 1)

    def block(self, keys, i, j):
        """The j-th that each block of the i-th run sees, `(r, 1, t, D)`."""
        return tf.slice(keys, [i * self.run + j, 0, 0, 0], [self.run, *keys.shape[1:]])

    def sums(self, keys):
        """By runs: of its own keys, r blocks, and of those beyond that it sees, D − 1 blocks."""
        return [
            self._array(keys, self.query_blocks, blocks)
            for blocks in (self.run, self.seen.count - 1)
        ]

    def opened(self, sums, keys):
        return self._array(keys, self.seen.count, self.run)

    def more(self, opened, j, x):
        return opened.write(j, x)

    def closed(self, sums, opened, i):
        blocks = _slid([opened.read(j) for j in range(self.seen.count)])
        own, beyond = sums
        return [own.write(i, blocks[: self.run]), beyond.write(i, blocks[self.run :])]

    def _array(self, keys, count, blocks):
        return tf.TensorArray(keys.dtype, count, element_shape=[blocks, *keys.shape[1:]])

    def joined_queries(self, x):
        blocks = tf.reshape(x, [self.query_blocks * self.run, 1, *x.shape[2:]])
        return super().joined_queries(blocks[: self.plain.query_blocks])

    def joined_keys(self, sums):
        # (runs, r, 1, t, X) and (runs, D − 1, 1, t, X)
        own, beyond = [array.stack() for array in sums]
        beyond = tf.pad(beyond, [[0, 0], [0, self.run - beyond.shape[1]], [0, 0], [0, 0], [0, 0]])
        own, beyond = [
            tf.reshape(x, [self.query_blocks * self.run, *x.shape[2:]]) for x in (own, beyond)
        ]
        first, count = self.seen.first, self.plain.key_blocks
        blocks = _moved(own, first, count) + _moved(beyond, first + self.run, count)
        return self._join(blocks[:, None], 1, self.plain.keys, self.plain.columns)


class _Seen(NamedTuple):
    """What a block of t queries sees, where the mask goes by distance: D blocks of as many keys."""

    mask: object
    queries: int  # T
    keys: int  # S
    side: int  # t
    # how many blocks further on than the queries the first of them is; less than 0 where it is
    # before them
    first: int
    count: int  # D
    # all t queries see the keys from here, counted from the first of the queries, ...
    open_low: int
    open_high: int  # ... to here

    @classmethod
    def of(cls, mask, queries, keys, side):
        """None where the mask does not say by ints what is seen, or where a band has over 1.5 times
        the blocks it leaves.
        """
        blocks = ceil(queries, side)
        firsts, ends, left, opens = [], [], 0, [(0, 0)]
        for i in range(blocks):
            grid = masks.Grid(queries, keys, i * side, 0, side, keys, aligned=True)
            low, high = ranges.overlap(hooks.key_bounds(mask, grid), (0, keys))
            open_low, open_high = ranges.overlap(hooks.full_bounds(mask, grid), (0, keys))
            if not all(isinstance(end, int) for end in (low, high, open_low, open_high)):
                return None
            if low < high:
                firsts.append(low // side - i)
                ends.append(ceil(high, side) - i)
                left += ends[-1] - firsts[-1]
                # of queries beyond the square a rule may say anything
                if (i + 1) * side <= queries:
                    opens.append((open_low - i * side, open_high - i * side))
        # As where there are many more queries than keys, and most see nothing: the plain walk skips
        # those.
        if not firsts or 2 * (max(ends) - min(firsts)) * blocks > 3 * left:
            return None
        low, high = max(opens, key=lambda bounds: bounds[1] - bounds[0])
        return cls(mask, queries, keys, side, min(firsts), max(ends) - min(firsts), low, high)

    def visible(self):
        """Which of the t queries see which of the D · t keys by distance: bool `(D, t, t)`."""
        grids = [
            masks.Grid(
                self.queries, self.keys, 0, (self.first + j) * self.side, self.side, self.side
            )
            for j in range(self.count)
        ]
        return tf.stack([tf.broadcast_to(self.mask.on(grid), [self.side] * 2) for grid in grids])


class _InBand(masks.Mask):
    """The mask on the square of a band: what `seen` says by distance, and no keys beyond the
    sequence.
    """

    def __init__(self, band):
        self.band = band
        self.visible = band.seen.visible()  # compared once for all blocks

    def on(self, grid):
        first = self._first_keys(grid) + tf.range(grid.batch) * self.band.seen.side  # (r,)
        keys = first[:, None, None] + grid.key_positions()  # (r, 1, t)
        inside = (keys >= 0) & (keys < self.band.plain.keys)
        return self.visible[grid.key_start // self.band.seen.side] & inside  # (r, t, t)

    def full_bounds(self, grid):
        seen, first = self.band.seen, self._first_keys(grid)
        if ceil(seen.open_low, seen.side) >= seen.open_high // seen.side:
            return 0, 0  # no block lies within: known before the graph runs
        last = first + (grid.batch - 1) * seen.side
        by_distance = (
            seen.open_low - seen.first * seen.side,
            seen.open_high - seen.first * seen.side,
        )
        return ranges.overlap(by_distance, (-first, self.band.plain.keys - last))

    def _first_keys(self, grid):
        """Where the keys of the first of these rows begin in the sequence."""
        block = grid.batch_start % (self.band.query_blocks * self.band.run)
        return (block + self.band.seen.first) * self.band.seen.side


def _moved(blocks, by, count):
    """So many blocks, of which the first is now the one at `by`; zeros where there was none."""
    blocks = blocks[max(0, -by) : max(0, count - by)]
    by = min(max(0, by), count)
    around = [by, count - by - blocks.shape[0]]
    return tf.pad(blocks, [around, *[[0, 0]] * (len(blocks.shape) - 1)]) if any(around) else blocks


def _slid(parts):
    """The sum of arrays of r blocks, each one block further on than the one before: of D arrays r +
    D − 1 blocks.
    """
    run = parts[0].shape[0]
    edges = sorted({edge for j in range(len(parts)) for edge in (j, j + run)})
    stretches = []
    for low, high in zip(edges, edges[1:], strict=False):
        there = [
            part[low - j : high - j] for j, part in enumerate(parts) if j <= low and high <= j + run
        ]
        stretches.append(tf.add_n(there))
    return tf.concat(stretches, 0)
