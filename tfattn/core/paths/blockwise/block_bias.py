"""The bias of one block of pairs and its gradient, for the streamed path."""

import tensorflow as tf

from tfattn.core.paths.blockwise import loops
from tfattn.core.paths.blockwise.blocks import size

__all__ = ["Bias"]


class Bias:
    """A bias `(B or 1, H or 1, T or 1, S or 1)`, by the blocks of a `Square`. Its gradient has
    blocks of its own.
    """

    def __init__(self, bias, square):
        self.bias = bias
        self.square = square

    def added(self, scores, grid):
        """The scores of a block and the bias of theirs."""
        # (c or 1, H or 1, t or 1, s or 1)
        bias = grid.columns_of(grid.rows_of(grid.batch_of(self.bias), 2), 3)
        return self.square.fold(self.square.unfold(scores) + tf.cast(bias, scores.dtype))

    def _counts(self):
        """Blocks of the bias's gradient over the batch, the queries and the keys; 1 where it
        repeats.
        """
        square = self.square
        counts = ((0, square.chunks), (2, square.query_blocks), (3, square.key_blocks))
        return [1 if self.bias.shape[axis] == 1 else count for axis, count in counts]

    def zeros(self, dtype):
        """Blocks of a gradient, for `more` to be added to."""
        square = self.square
        full = (square.chunk, square.heads, square.rows, square.columns)
        shape = [1 if now == 1 else block for now, block in zip(self.bias.shape, full, strict=True)]
        chunks, rows, columns = self._counts()
        return loops.zeros(tf.zeros([chunks * rows * columns, *shape], dtype))

    def more(self, of_scores, m, i, j):
        """Where the gradient of the bias grows by what."""
        of_scores = self.square.unfold(of_scores)  # (c, H, t, s)
        repeats = [axis for axis in range(4) if self.bias.shape[axis] == 1]
        chunk, i, j = (
            0 if axis in repeats else at
            for axis, at in ((0, m // self.square.parts), (2, i), (3, j))
        )
        _, rows, columns = self._counts()
        return (chunk * rows + i) * columns + j, tf.reduce_sum(of_scores, repeats, keepdims=True)

    def join(self, of_bias):
        """The gradient of the whole bias, out of its blocks."""
        blocks = of_bias.stack()  # (blocks, c or 1, H or 1, t or 1, s or 1)
        chunks, rows, columns = self._counts()
        c, heads, t, s = (size(blocks, axis) for axis in range(1, 5))
        blocks = tf.transpose(
            tf.reshape(blocks, [chunks, rows, columns, c, heads, t, s]), [0, 3, 4, 1, 5, 2, 6]
        )
        joined = tf.reshape(blocks, [chunks * c, heads, rows * t, columns * s])
        queries, keys = size(self.bias, 2), size(self.bias, 3)
        return tf.cast(joined[:, :, :queries, :keys], self.bias.dtype)
