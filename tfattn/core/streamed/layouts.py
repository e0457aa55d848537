"""How operands lie for the walks: what a step takes of them, block by block, and how what it gives is put together again.

A layout has a `square`, which it has cut, and the `mask` as it is on that square. Operands are `laid` out once, and a step
takes its queries and keys from there. Shape letters are those of `blocks`; m counts steps.
"""

import tensorflow as tf

from tfattn.core.streamed.blocks import ceil, same, size
from tfattn.core.streamed.loops import add, zeros

__all__ = ["Plain"]


class Plain:
    """Block after block of the tokens: an array of blocks, block first, so that taking one copies nothing."""

    def __init__(self, square, mask):
        self.plain = self.square = square
        self.mask = mask
        self.query_blocks = square.query_blocks

    @property
    def steps(self):
        return self.plain.steps

    def at(self, m, i):
        """Rows of the batch and of the queries, in blocks of `square`, that are the i-th of step m."""
        return m // self.square.parts, i

    def laid(self, x):
        """`(B, H or G, T or S, D)` to `(steps, c·H or c·G, T or S, D)`, which is the same memory."""
        matrices = self.plain.chunk * (size(x, 1) // self.plain.parts)
        return tf.reshape(x, [self.steps, matrices, size(x, 2), size(x, 3)])

    def whole(self, x, like):
        """And back."""
        return tf.reshape(x, [self.plain.batch, size(like, 1), size(like, 2), size(x, 3)])

    def queries_at(self, x, m, copies=False):
        """Those of step m, `(blocks, c, G, H/G·t, D)`: heads that share a key head lie below each other.

        Padded with zeros, or with `copies` of the last token: a score of one's own may have no value or no slope at zero,
        and a NaN in the padding would reach real tokens through the sums of their gradients.
        """
        square = self.plain
        shape = (square.groups, square.heads // square.groups * square.rows)
        return self._split(x[m], square.queries, square.rows, shape, copies)

    def keys_at(self, x, m, copies=False):
        """Those of step m, as `block` takes them: `(blocks, c, G, s, D)`, padded likewise."""
        square = self.plain
        return self._split(x[m], square.keys, square.columns, (square.groups, square.columns), copies)

    def block(self, keys, i, j):
        """The j-th keys for the i-th queries of a step, `(c, G, s, D)`."""
        return keys[j]

    def sums(self, keys):
        """Of the gradients of a step's keys: arrays of blocks, with nothing in them yet."""
        return zeros(tf.zeros_like(keys))

    def opened(self, sums, keys):
        """What one block of queries adds to."""
        return sums

    def more(self, opened, j, x):
        """With the gradient of its j-th keys, which comes once."""
        return add(opened, j, x)

    def closed(self, sums, opened, i):
        """And all sums, once the i-th has."""
        return opened

    def joined_queries(self, x):
        """A step's blocks `(blocks, c, G, H/G·t, D)` as `(c·H, T, D)`."""
        return self._join(x, self.plain.heads, self.plain.queries, self.plain.rows)

    def joined_keys(self, sums):
        """Those of `sums`, likewise."""
        return self._join(sums.stack(), self.plain.groups, self.plain.keys, self.plain.columns)

    def _split(self, x, length, block, shape, copies):
        width, blocks = size(x, 2), ceil(length, block)
        if not same(blocks * block, length):
            more = blocks * block - length
            x = (
                tf.concat([x, tf.tile(x[:, -1:], [1, more, 1])], 1)
                if copies
                else tf.pad(x, [[0, 0], [0, more], [0, 0]])
            )
        x = tf.reshape(x, [size(x, 0), blocks, block * width])
        return tf.reshape(tf.transpose(x, [1, 0, 2]), [blocks, self.plain.chunk, *shape, width])

    def _join(self, x, heads, length, block):
        width, blocks = size(x, 4), ceil(length, block)
        x = tf.transpose(tf.reshape(x, [blocks, self.plain.chunk * heads, block * width]), [1, 0, 2])
        x = tf.reshape(x, [self.plain.chunk * heads, blocks * block, width])
        return x if same(blocks * block, length) else x[:, :length]
