"""How operands lie for the walks: what a step takes of them, block by block, and how what it gives
is put together again.

What a walk asks of a layout:

    steps, query_blocks   how many there are to walk over: of the layout, and not of its square
    square, mask          whose blocks the scores have, and the mask as it is there
    at                    which of the square's blocks one of a step is
    laid, whole           operands, laid out once for all steps, and their gradients as operands
    again queries_at, keys_at   a step's part of what is laid; `block` takes one block of keys
    joined_queries        what a step has found for its queries, as its part of what is laid sums
    ... joined_keys  what it has found for its keys: `sums` begins; for each block of queries
    `opened` begins, `more`
                          takes in a block of keys, and `closed` adds all to the sums; `joined_keys`
                          is a step's part again

Shape letters are those of `blocks`; m counts steps.
"""

import tensorflow as tf

from tfattn.core.paths.blockwise.blocks import ceil, same, size
from tfattn.core.paths.blockwise.loops import add, zeros

__all__ = ["Plain"]


class Plain:
    """Block after block of the tokens: an array of blocks, block first, so that taking one copies
    nothing.
    """

    def __init__(self, square, mask):
        self.plain = self.square = square
        self.mask = mask
        self.query_blocks = square.query_blocks

    @property
    def steps(self):
        return self.plain.steps

    def at(self, m, i):
        """`(b, i)` of `Square.grid` for the i-th queries of step m."""
        return m // self.square.parts, i

    def laid(self, x):
        """`(B, H or G, T or S, D)` to `(steps, c·H or c·G, T or S, D)`, which is the same memory."""
        matrices = self.plain.chunk * (size(x, 1) // self.plain.parts)
        return tf.reshape(x, [self.steps, matrices, size(x, 2), size(x, 3)])

    def whole(self, x, like):
        """And back."""
        return tf.reshape(x, [self.plain.batch, size(like, 1), size(like, 2), size(x, 3)])

    def queries_at(self, x, m, copies=False):
        """Those of step m, `(blocks, c, G, H/G·t, D)`: heads that share a key head lie below each
        other.

        Padded with zeros, or with `copies` of the last token: a score of one's own may have no
        value or no slope at zero, and a NaN in the padding would reach real tokens through the sums
        of their gradients.
        """
        square = self.plain
        shape = (square.groups, square.heads // square.groups * square.rows)
        return self._split(x[m], square.queries, square.rows, shape, copies)

    def keys_at(self, x, m, copies=False):
        """Those of step m, as `block` takes them: `(blocks, c, G, s, D)`, padded likewise."""
        square = self.plain
        return self._split(
            x[m], square.keys, square.columns, (square.groups, square.columns), copies
        )

    def block(self, keys, i, j):
        """The j-th keys for the i-th queries of a step, `(c, G, s, D)`."""
        return keys[j]

    def sums(self, keys):
        """Of the gradients of a step's keys: arrays of blocks, with nothing in them yet."""
        return zeros(tf.zeros_like(keys))

    def opened(self, sums, keys):
        """An array that one block of queries adds the gradients of its keys to."""
        return sums

    def more(self, opened, j, x):
        """`opened` with the gradient x of the j-th keys, which comes once."""
        return add(opened, j, x)

    def closed(self, sums, opened, i):
        """`sums` with what the i-th queries have added to `opened`."""
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
        x = tf.transpose(
            tf.reshape(x, [blocks, self.plain.chunk * heads, block * width]), [1, 0, 2]
        )
        x = tf.reshape(x, [self.plain.chunk * heads, blocks * block, width])
        return x if same(blocks * block, length) else x[:, :length]
