"""The tiling of the B × H matrices of T × S pairs, and the blocks that a mask leaves visible.

A step computes some rows of the batch, or some heads of a single row. Lengths that a block does not
divide are padded: the passes hide padded keys, and cut padded queries off. Shape letters:

    c  rows of the batch in a step      m  index of a step
    G  key heads in a step              i  index of a block of t queries
    H  query heads in a step            j  index of a block of s keys
    R  = H/G · t, rows of a block: heads that share a key head are stacked
"""

import functools
from math import isqrt
from typing import Any, NamedTuple

import tensorflow as tf

from tfattn._types import Size
from tfattn.core import masks
from tfattn.core.engine import devices, sizes
from tfattn.core.engine.tensorflow.loops import Block, same, size
from tfattn.core.masks import Mask, ranges


class Tiling(NamedTuple):
    """The matrix and its blocks. Known sizes are ints, unknown sizes scalar tensors."""

    batch: Size  # B
    queries: Size  # T
    keys: Size  # S
    chunk: int  # c
    head_steps: int  # steps per chunk, each with other heads
    heads: int  # H
    groups: int  # G, divides H
    rows: Size  # t
    columns: Size  # s

    @classmethod
    def of(
        cls,
        query: tf.Tensor,
        key: tf.Tensor,
        score: Any,
        mask: Mask | None = None,
        block: Block = None,
        heads_independent: bool = False,
    ) -> "Tiling":
        """Tiles the matrix of `query` `(B, H, T, X)` and `key` `(B, G, S, X)`; a narrow mask gets
        narrow blocks, and so wastes less.
        """
        batch, heads, queries = (size(query, axis) for axis in range(3))
        groups, keys = size(key, 1), size(key, 2)
        repeats, bounds = heads // groups, devices.entry(sizes.BLOCKS, query)
        if heads_independent:
            narrow = is_narrow(mask, queries, keys, sizes.NARROW_KEYS)
            columns = sizes.NARROW_BLOCK_KEYS if narrow else bounds.keys
            rows = min(columns, bounds.scores // (columns * repeats))
            rows = _power_of_2(max(sizes.MIN_BLOCK_QUERIES, rows))
            most = block or (rows, columns)
            rows, columns = _even(queries, most[0]), _even(keys, most[1])
            # Several heads where a single head is less than a block.
            sides = zip((rows, columns), most, strict=True)
            rows_now, columns_now = (x if isinstance(x, int) else longest for x, longest in sides)
            limit = most[0] * most[1]
            if not block:
                limit = min(limit, bounds.scores // repeats)
            fitting = limit // max(1, rows_now * columns_now)
            part = _divisor(groups, fitting)
            chunk = _divisor(batch, fitting // groups) if part == groups else 1
        else:
            part = groups
            chunk = 1
            if isinstance(batch, int):  # two steps at least
                chunk = _divisor(batch, min(bounds.matrices // heads, batch // 2))
            numbers = score.most_pairs(bounds, query) // (2 * chunk * heads)
            rows = _power_of_2(max(sizes.MIN_BLOCK_QUERIES, min(bounds.keys, isqrt(numbers))))
            columns = rows if is_narrow(mask, queries, keys, 4 * rows) else 2 * rows
            rows, columns = block or (rows, columns)
            rows, columns = _even(queries, rows), _even(keys, columns)
        head_steps = groups // part
        return cls(
            batch, queries, keys, chunk, head_steps, heads // head_steps, part, rows, columns
        )

    @property
    def steps(self) -> Size:
        return self.batch // self.chunk * self.head_steps

    @property
    def query_blocks(self) -> Size:
        return -(-self.queries // self.rows)

    @property
    def key_blocks(self) -> Size:
        return -(-self.keys // self.columns)

    @property
    def padded(self) -> bool:
        """Whether the last block of keys may hold padding."""
        return not same(self.key_blocks * self.columns, self.keys)

    def grid(self, m: Size, i: Size, j: Size) -> masks.Grid:
        """The grid of step m, queries i and keys j, for masks and biases."""
        return masks.Grid(
            self.queries,
            self.keys,
            i * self.rows,
            j * self.columns,
            self.rows,
            self.columns,
            m // self.head_steps * self.chunk,
            self.chunk,
            aligned=True,
            head_start=m % self.head_steps * self.heads,
            heads=self.heads,
        )

    def query_grid(self, m: Size, i: Size) -> masks.Grid:
        """The grid of step m, queries i and all keys."""
        return self.grid(m, i, 0)._replace(key_start=0, keys=self.keys)

    def split_steps(self, x: tf.Tensor) -> tf.Tensor:
        """`(B, H or G, T or S, D)` to `(steps, c·H or c·G, T or S, D)`, without a copy."""
        matrices = self.chunk * (size(x, 1) // self.head_steps)
        return tf.reshape(x, [self.steps, matrices, size(x, 2), size(x, 3)])

    def merge_steps(self, x: tf.Tensor, like: tf.Tensor) -> tf.Tensor:
        """The inverse of `split_steps`, with the heads and tokens of `like`."""
        return tf.reshape(x, [self.batch, size(like, 1), size(like, 2), size(x, 3)])

    def split_queries(self, x: tf.Tensor, copies: bool = False) -> tf.Tensor:
        """A step's queries `(c·H, T, D)` as blocks `(blocks, c, G, R, D)`, padded with zeros, or
        with `copies` of the last token where a score may have no value or no slope at zero.
        """
        rows = self.heads // self.groups * self.rows
        return self._split(x, self.queries, self.rows, (self.groups, rows), copies)

    def split_keys(self, x: tf.Tensor, copies: bool = False) -> tf.Tensor:
        """A step's keys `(c·G, S, D)` as blocks `(blocks, c, G, s, D)`, padded likewise."""
        return self._split(x, self.keys, self.columns, (self.groups, self.columns), copies)

    def merge_queries(self, x: tf.Tensor) -> tf.Tensor:
        """Blocks `(blocks, c, G, R, D)` as a step's `(c·H, T, D)`."""
        return self._merge(x, self.heads, self.queries, self.rows)

    def merge_rows(self, x: tf.Tensor) -> tf.Tensor:
        """One number per row, `(steps, blocks, c, G, R, 1)` as `(steps, c·H, T, 1)`."""
        shape = [self.steps, self.query_blocks, self.chunk * self.heads, self.rows]
        x = tf.transpose(tf.reshape(x, shape), [0, 2, 1, 3])
        x = tf.reshape(x, [self.steps, shape[2], self.query_blocks * self.rows, 1])
        return x[:, :, : self.queries]

    def merge_keys(self, x: tf.Tensor) -> tf.Tensor:
        """Blocks `(blocks, c, G, s, D)` as a step's `(c·G, S, D)`."""
        return self._merge(x, self.groups, self.keys, self.columns)

    def by_head(self, scores: tf.Tensor) -> tf.Tensor:
        """Scores `(c, G, R, s)` in the shape of masks and biases, `(c, H, t, s)`; no copy."""
        if self.heads == self.groups:
            return scores
        return tf.reshape(scores, [self.chunk, self.heads, self.rows, size(scores, 3)])

    def by_group(self, scores: tf.Tensor) -> tf.Tensor:
        """The inverse of `by_head`."""
        if self.heads == self.groups:
            return scores
        rows = self.heads // self.groups * self.rows
        return tf.reshape(scores, [self.chunk, self.groups, rows, size(scores, 3)])

    def _split(
        self, x: tf.Tensor, length: Size, block: Size, shape: tuple[Size, ...], copies: bool
    ) -> tf.Tensor:
        width, blocks = size(x, 2), -(-length // block)
        if not same(blocks * block, length):
            more = blocks * block - length
            if copies:
                x = tf.concat([x, tf.tile(x[:, -1:], [1, more, 1])], 1)
            else:
                x = tf.pad(x, [[0, 0], [0, more], [0, 0]])
        x = tf.reshape(x, [size(x, 0), blocks, block * width])
        return tf.reshape(tf.transpose(x, [1, 0, 2]), [blocks, self.chunk, *shape, width])

    def _merge(self, x: tf.Tensor, heads: int, length: Size, block: Size) -> tf.Tensor:
        width, blocks = size(x, 4), -(-length // block)
        x = tf.reshape(x, [blocks, self.chunk * heads, block * width])
        x = tf.reshape(tf.transpose(x, [1, 0, 2]), [self.chunk * heads, blocks * block, width])
        return x if same(blocks * block, length) else x[:, :length]


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
            return cls(low // columns, -(-high // columns), *full, columns)
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


def _even(length: Size, block: Size) -> Size:
    """The least size that covers `length` with as many blocks as size `block`; at least 1."""
    if isinstance(length, int):
        return max(1, -(-length // max(1, -(-length // block))))
    spread = -(-length // tf.maximum(1, -(-length // block)))
    # In steps of 64, so that the lengths of a corpus make few shapes of blocks: XLA compiles once
    # per shape.
    return tf.minimum(block, tf.maximum(1, -(-spread // 64)) * 64)


def _divisor(number: Size, most: Size) -> int:
    """The largest divisor up to `most`, at least 1; 1 where `number` is unknown."""
    if not isinstance(number, int):
        return 1
    return max((d for d in range(1, min(number, most) + 1) if number % d == 0), default=1)


def _power_of_2(most: int) -> int:
    return 1 << (most.bit_length() - 1)


def is_narrow(mask: Mask | None, queries: Size, keys: Size, most: int) -> bool:
    """Whether a query in the middle is known to see fewer than `most` keys, and under half."""
    if mask is None or not all(isinstance(length, int) and length for length in (queries, keys)):
        return False
    middle = queries - (min(queries, keys) + 1) // 2  # of the queries that have a key's position
    bounds = ranges.Bounds.of(mask, masks.Grid(queries, keys, middle, 0, 1, keys))
    return bounds.most(keys) < min(most, keys // 2)
