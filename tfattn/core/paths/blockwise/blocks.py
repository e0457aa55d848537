"""How the streamed path cuts the B × H squares of T × S pairs into blocks.

A step takes some rows of the batch, or some heads of one row, and cuts their tokens into blocks
(`layouts`). Lengths that the block size does not divide are padded; `Walk._visible` hides padded
keys, and padded queries are cut off again.
"""

from math import isqrt, prod
from typing import NamedTuple

import tensorflow as tf

from tfattn.core import masks
from tfattn.core.masks import hooks


class Square(NamedTuple):
    """The square of pairs, and its cut. Sizes are ints where they are known, scalar tensors
    elsewhere.
    """

    batch: object  # B
    queries: object  # T
    keys: object  # S
    chunk: int  # rows of the batch in a step
    parts: int  # steps that share a chunk, each with heads of its own
    heads: int  # query heads in a step
    groups: int  # key heads in a step; divides the query heads
    rows: object  # t, queries in a block
    columns: object  # s, keys in a block

    @classmethod
    def cut(cls, query, key, score, mask=None, block=None, apart=False):
        """Cuts the square of `query` `(B, H, T, X)` and `key` `(B, G, S, X)`.

        Args:
            score: a block form of `block_scores`, which says how many numbers a block may have.
            mask: a mask object or None; a narrow one gets narrow blocks, of which it fills more.
            block: `(t, s)` where the caller wants other sizes than these.
            apart: whether a head may be computed without the others.
        """
        batch, heads, queries = (size(query, axis) for axis in range(3))
        groups, keys = size(key, 1), size(key, 2)
        repeats = heads // groups  # heads that share a key head; their queries lie below each other
        if apart:
            most = block or _sides(mask, queries, keys, groups, repeats)
            rows, columns = even(queries, most[0]), even(keys, most[1])
            sides = zip((rows, columns), most, strict=True)
            # Several heads where one alone is less than a block.
            numbers = prod(most) if block else min(prod(most), NUMBERS_APART // repeats)
            fitting = numbers // max(
                1, prod(side if isinstance(side, int) else longest for side, longest in sides)
            )
            part = _divisor(groups, fitting)
            chunk = _divisor(batch, fitting // groups) if part == groups else 1
        else:
            part = groups
            # As many matrices as a product has threads for, and two steps at least.
            chunk = _divisor(batch, min(8 // heads, batch // 2)) if isinstance(batch, int) else 1
            rows = _rows(chunk * heads * score.work(query), score.block_numbers)
            columns = rows if narrow(mask, queries, keys, 4 * rows) else 2 * rows
            rows, columns = block or (rows, columns)
            rows, columns = even(queries, rows), even(keys, columns)
        parts = groups // part
        return cls(batch, queries, keys, chunk, parts, heads // parts, part, rows, columns)

    @property
    def all_heads(self):
        return self.heads * self.parts

    @property
    def chunks(self):
        return self.batch // self.chunk

    @property
    def steps(self):
        return self.chunks * self.parts

    @property
    def query_blocks(self):
        return ceil(self.queries, self.rows)

    @property
    def key_blocks(self):
        return ceil(self.keys, self.columns)

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
        return not same(self.key_blocks * self.columns, self.keys)

    def unfold(self, x):
        """The layout of scores `(c, G, H/G·t, s)` to `(c, H, t, s)`, which is the same memory."""
        if self.heads == self.groups:
            return x
        return tf.reshape(x, [self.chunk, self.heads, self.rows, size(x, 3)])

    def fold(self, x):
        """And back."""
        if self.heads == self.groups:
            return x
        return tf.reshape(
            x, [self.chunk, self.groups, self.heads // self.groups * self.rows, size(x, 3)]
        )


def size(x, axis):
    """The static size where it is known, otherwise a scalar tensor."""
    return tf.shape(x)[axis] if x.shape[axis] is None else x.shape[axis]


def ceil(a, b):
    return -(-a // b)


def same(a, b):
    return isinstance(a, int) and isinstance(b, int) and a == b


def even(length, block):
    """The size at most `block` that spreads `length` evenly over as few blocks; 1 where there is
    nothing to spread.
    """
    if isinstance(length, int):
        return max(1, ceil(length, max(1, ceil(length, block))))
    spread = ceil(length, tf.maximum(1, ceil(length, block)))
    # In steps, so that the run-time lengths of a corpus make a few shapes of blocks: XLA compiles
    # each of them anew.
    return tf.minimum(block, tf.maximum(1, ceil(spread, 64)) * 64)


# Scores in a block of heads that are computed apart, 1 MB: those of two blocks, and what is made of
# them, stay in the cache.
NUMBERS_APART = 2**18

# Without a mask nothing of a block is computed in vain, however tall it is, and each operation on
# one waits for the other core: at T 4096 such blocks of 2 MB took 0.96 of the time of 512 × 512
# both ways, and 0.8 by Eigen's products; wider ones took 1.05 there. Not where one head alone has
# few of them: two blocks of queries at a time keep the cores busy then.
_TALL = (2048, 256)


def _sides(mask, queries, keys, groups, repeats):
    """Queries and keys in such a block, of so many key heads; `repeats` heads share each."""
    if mask is None and isinstance(queries, int) and queries >= 1024 and groups > 1:
        return max(16, _TALL[0] // repeats), _TALL[1]
    columns = 256 if narrow(mask, queries, keys, 1024) else 512
    return _power_of_2(max(16, min(columns, NUMBERS_APART // (columns * repeats)))), columns


def _divisor(of, most):
    """The largest divisor up to `most`, at least 1; 1 where `of` is not known."""
    return (
        1
        if not isinstance(of, int)
        else max((d for d in range(1, min(of, most) + 1) if of % d == 0), default=1)
    )


def _rows(width, numbers):
    """Queries in a block of twice as many keys, where each pair has `width` numbers and the block
    at most `numbers`.
    """
    return _power_of_2(min(512, max(16, isqrt(numbers // (2 * width)))))


def _power_of_2(most):
    return 1 << (most.bit_length() - 1)


def narrow(mask, queries, keys, width):
    """Whether a query in the middle is known to see fewer than `width` keys, and fewer than half of
    them.
    """
    if mask is None or not all(isinstance(length, int) and length for length in (queries, keys)):
        return False
    middle = queries - (min(queries, keys) + 1) // 2  # of those that stand among the keys
    return hooks.max_keys(mask, masks.Grid(queries, keys, middle, 0, 1, keys)) < min(
        width, keys // 2
    )
