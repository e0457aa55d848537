"""How the streamed path cuts the T × S square of pairs into blocks. TensorFlow only.

A tensor `(B, H, T, D)` becomes an array of blocks, block first, so that taking one copies nothing. Lengths that the block
size does not divide are padded; `Walk._visible` hides padded keys, and padded queries are cut off again.
"""

from math import isqrt
from typing import NamedTuple

import tensorflow as tf

from tfattn.core import masks


class Square(NamedTuple):
    """The square of pairs, and its cut. Sizes are ints where they are known, scalar tensors elsewhere."""

    batch: object  # B
    heads: int  # H
    groups: int  # G, heads of the keys; divides H
    queries: object  # T
    keys: object  # S
    chunk: int  # rows of the batch that are worked on together
    rows: object  # t, queries in a block
    columns: object  # s, keys in a block

    @classmethod
    def cut(cls, query, key, work, mask=None, block=None):
        """Cuts the square of `query` `(B, H, T, X)` and `key` `(B, G, S, X)`.

        Args:
            work: numbers that the score holds for each pair and head; a wider score gets smaller blocks.
            mask: a mask object or None; a narrow one gets narrow blocks, of which it fills more.
            block: `(t, s)` where the caller wants other sizes than these.
        """
        batch, heads, queries = (size(query, axis) for axis in range(3))
        groups, keys = size(key, 1), size(key, 2)
        chunk = _chunk(batch, heads)
        rows = _rows(chunk * heads * work, work)
        columns = rows if _narrow(mask, queries, keys, 4 * rows) else 2 * rows
        rows, columns = block or (rows, columns)
        return cls(batch, heads, groups, queries, keys, chunk, _even(queries, rows), _even(keys, columns))

    @property
    def batches(self):
        return self.batch // self.chunk

    @property
    def query_blocks(self):
        return ceil(self.queries, self.rows)

    @property
    def key_blocks(self):
        return ceil(self.keys, self.columns)

    def split_queries(self, x, copies=False):
        """`(B, H, T, D)` to `(blocks, c, G, H/G·t, D)`: heads that share a key head lie below each other.

        Padded with zeros, or with `copies` of the last token: a score of one's own may have no value or no slope at zero,
        and a NaN in the padding would reach real tokens through the sums of their gradients.
        """
        return self._split(x, self.queries, self.rows, (self.groups, self.heads // self.groups * self.rows), copies)

    def split_keys(self, x, copies=False):
        """`(B, G, S, D)` to `(blocks, c, G, s, D)`, padded likewise."""
        return self._split(x, self.keys, self.columns, (self.groups, self.columns), copies)

    def join_queries(self, x):
        return self._join(x, self.heads, self.queries, self.rows)

    def join_keys(self, x):
        return self._join(x, self.groups, self.keys, self.columns)

    def _split(self, x, length, block, shape, copies):
        width, blocks = size(x, 3), ceil(length, block)
        if not _same(blocks * block, length):
            more = blocks * block - length
            x = tf.concat([x, tf.tile(x[:, :, -1:], [1, 1, more, 1])], 2) if copies else _with_zeros(x, more)
        x = tf.reshape(x, [self.batches, self.chunk * size(x, 1), blocks, block * width])
        x = tf.transpose(x, [0, 2, 1, 3])
        return tf.reshape(x, [self.batches * blocks, self.chunk, *shape, width])

    def _join(self, x, heads, length, block):
        width, blocks = size(x, 4), ceil(length, block)
        x = tf.reshape(x, [self.batches, blocks, self.chunk * heads, block * width])
        x = tf.transpose(x, [0, 2, 1, 3])
        x = tf.reshape(x, [self.batch, heads, blocks * block, width])
        return x if _same(blocks * block, length) else x[:, :, :length]

    def grid(self, b, i, j):
        """The block of pairs of the b-th rows of the batch, i-th queries and j-th keys."""
        return masks.Grid(
            self.queries,
            self.keys,
            i * self.rows,
            j * self.columns,
            self.rows,
            self.columns,
            b * self.chunk,
            self.chunk,
            aligned=True,
        )

    def query_grid(self, b, i):
        """The i-th queries and all keys."""
        return self.grid(b, i, 0)._replace(key_start=0, keys=self.keys)

    @property
    def padded(self):
        """Whether the last block of keys may hold padding."""
        return not _same(self.key_blocks * self.columns, self.keys)

    def unfold(self, x):
        """The layout of scores `(c, G, H/G·t, s)` to `(c, H, t, s)`, which is the same memory."""
        if self.heads == self.groups:
            return x
        return tf.reshape(x, [self.chunk, self.heads, self.rows, size(x, 3)])

    def fold(self, x):
        """And back."""
        if self.heads == self.groups:
            return x
        return tf.reshape(x, [self.chunk, self.groups, self.heads // self.groups * self.rows, size(x, 3)])


def _with_zeros(x, more):
    return tf.pad(x, [[0, 0], [0, 0], [0, more], [0, 0]])


def size(x, axis):
    """The static size where it is known, otherwise a scalar tensor."""
    return tf.shape(x)[axis] if x.shape[axis] is None else x.shape[axis]


def ceil(a, b):
    return -(-a // b)


def _same(a, b):
    return isinstance(a, int) and isinstance(b, int) and a == b


def _even(length, block):
    """The size at most `block` that spreads `length` evenly over as few blocks; 1 where there is nothing to spread."""
    if isinstance(length, int):
        return max(1, ceil(length, max(1, ceil(length, block))))
    even = ceil(length, tf.maximum(1, ceil(length, block)))
    # In steps, so that the run-time lengths of a corpus make a few shapes of blocks: XLA compiles each of them anew.
    return tf.minimum(block, tf.maximum(1, ceil(even, 64)) * 64)


def _chunk(batch, heads):
    """Rows of the batch in a step: one, or as many as give the product 8 matrices to work on."""
    if not isinstance(batch, int):
        return 1
    return max((c for c in range(1, batch + 1) if batch % c == 0 and (c == 1 or c * heads <= 8)), default=1)


def _rows(width, work):
    """Queries in a block, so that a block with twice as many keys stays in the cache: `width` numbers for each pair."""
    budget = 2**20 if work == 1 else 2**22
    rows = min(512, max(16, isqrt(budget // (2 * width))))
    return 1 << (rows.bit_length() - 1)


def _narrow(mask, queries, keys, width):
    """Whether a query in the middle is known to see fewer than `width` keys."""
    if mask is None or not isinstance(queries, int) or not isinstance(keys, int):
        return False
    return mask.width(masks.Grid(queries, keys, queries // 2, 0, 1, keys)) < min(width, keys // 2)
