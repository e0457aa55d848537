"""The bias of one block of pairs, and its gradients."""

from collections.abc import Callable, Sequence

import tensorflow as tf

from tfattn._gradients import custom_gradient
from tfattn.core import pairs
from tfattn.core.biases import Bias
from tfattn.core.engine.tensorflow.loops import Size, add, size, zeros
from tfattn.core.engine.tensorflow.tiling import Tiling
from tfattn.core.masks import Grid


class AnyBias:
    """Any bias object, differentiated block by block."""

    def __init__(self, bias: Bias, parameters: Sequence[tf.Tensor], tiling: Tiling):
        self.bias = bias
        self.parameters = list(parameters)
        self.tiling = tiling

    def added(self, scores: tf.Tensor, m: Size, i: Size, j: Size):
        """The scores of a block and the bias of theirs."""

        def with_bias(grid: Grid):
            return self.tiling.by_group(self.tiling.by_head(scores) + self._on(grid, scores.dtype))

        return self._of_grid(with_bias, self.tiling.grid(m, i, j))

    def _on(self, grid: Grid, dtype: tf.DType):
        bias = self.bias.on(grid, *self.parameters)
        return pairs.with_heads(tf.cast(bias, dtype), 4)  # broadcastable to (c, H, t, s)

    def _of_grid(self, function: Callable, grid: Grid):
        """`function` of the grid, or of a single pair where all pairs have the same bias."""
        flat = self.bias.is_flat(grid)
        one = grid._replace(queries=1, keys=1)
        if isinstance(flat, bool):
            return function(one if flat else grid)
        return tf.cond(flat, lambda: function(one), lambda: function(grid))

    def zeros(self, dtype: tf.DType):
        """Zero gradients of the parameters, to which `add_gradient` adds."""
        return [tf.zeros_like(x) for x in self.parameters]

    def add_gradient(self, sums: list, grad_scores: tf.Tensor, m: Size, i: Size, j: Size):
        learned = [x for x in self.parameters if x.dtype.is_floating]
        if not learned:
            return sums
        grad_scores = self.tiling.by_head(grad_scores)

        def gradients(grid: Grid):
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                tape.watch(learned)
                scores = tf.zeros_like(grad_scores) + self._on(grid, grad_scores.dtype)
            zero = tf.UnconnectedGradients.ZERO
            found = tape.gradient(scores, learned, grad_scores, zero)
            # The gradient of a gather is `tf.IndexedSlices`.
            return [tf.convert_to_tensor(x) for x in found]

        found = iter(self._of_grid(gradients, self.tiling.grid(m, i, j)))
        return [x + next(found) if x.dtype.is_floating else x for x in sums]

    def gradients(self, sums: list):
        return sums


class ArrayBias:
    """An array `(B or 1, H or 1, T or 1, S or 1)`, by the blocks of a `Tiling`.

    The gradient is held in blocks, and each block of scores adds to one of them: where the array
    repeats, its gradient is a sum.
    """

    def __init__(self, bias: tf.Tensor, tiling: Tiling):
        self.bias = bias
        self.tiling = tiling

    @staticmethod
    def expanded(bias: tf.Tensor, query: tf.Tensor, key: tf.Tensor):
        """`bias` with 2 to 4 axes as an array with 4, whose sizes are 1 or the matrix's."""
        if len(bias.shape) == 2:
            bias = bias[None]
        if len(bias.shape) == 3:
            bias = bias[:, None]
        if None not in bias.shape:
            return bias
        # An unknown size may be 1 at run time, but the gradient needs to know the sizes of 1.
        wanted = (*(size(query, axis) for axis in range(3)), size(key, 2))
        known = zip(tf.unstack(tf.shape(bias)), bias.shape, wanted, strict=True)
        return _broadcast(bias, [full if static is None else now for now, static, full in known])

    def added(self, scores: tf.Tensor, m: Size, i: Size, j: Size):
        """The scores of a block and the bias of theirs."""
        grid = self.tiling.grid(m, i, j)
        bias = grid.columns_of(grid.rows_of(grid.batch_of(self.bias), 2), 3)
        by_head = self.tiling.by_head(scores)  # (c, H, t, s)
        return self.tiling.by_group(by_head + tf.cast(bias, scores.dtype))

    def zeros(self, dtype: tf.DType):
        """Blocks of a zero gradient, to which `add_gradient` adds."""
        tiling = self.tiling
        full = (tiling.chunk, tiling.heads, tiling.rows, tiling.columns)
        shape = [1 if now == 1 else block for now, block in zip(self.bias.shape, full, strict=True)]
        chunks, rows, columns = self._counts()
        return zeros(tf.zeros([chunks * rows * columns, *shape], dtype))

    def add_gradient(
        self, blocks: tf.TensorArray, grad_scores: tf.Tensor, m: Size, i: Size, j: Size
    ):
        grad_scores = self.tiling.by_head(grad_scores)
        repeats = [axis for axis in range(4) if self.bias.shape[axis] == 1]
        places = ((0, m // self.tiling.head_steps), (2, i), (3, j))
        chunk, i, j = (0 if axis in repeats else at for axis, at in places)
        _, rows, columns = self._counts()
        place = (chunk * rows + i) * columns + j
        return add(blocks, place, tf.reduce_sum(grad_scores, repeats, keepdims=True))

    def gradients(self, blocks: tf.TensorArray):
        """The gradient of the whole array, joined from its blocks."""
        blocks = blocks.stack()  # (blocks, c or 1, H or 1, t or 1, s or 1)
        chunks, rows, columns = self._counts()
        c, heads, t, s = (size(blocks, axis) for axis in range(1, 5))
        blocks = tf.reshape(blocks, [chunks, rows, columns, c, heads, t, s])
        blocks = tf.transpose(blocks, [0, 3, 4, 1, 5, 2, 6])
        joined = tf.reshape(blocks, [chunks * c, heads, rows * t, columns * s])
        queries, keys = size(self.bias, 2), size(self.bias, 3)
        return [tf.cast(joined[:, :, :queries, :keys], self.bias.dtype)]

    def _counts(self):
        """Blocks of the gradient over the batch, the queries and the keys; 1 where it repeats."""
        tiling = self.tiling
        chunks = tiling.batch // tiling.chunk
        counts = ((0, chunks), (2, tiling.query_blocks), (3, tiling.key_blocks))
        return [1 if self.bias.shape[axis] == 1 else count for axis, count in counts]


BlockBias = AnyBias | ArrayBias


def _broadcast(x: tf.Tensor, shape):
    """`tf.broadcast_to` with another gradient: TensorFlow's needs `shape`, unknown to XLA in the
    backward pass.
    """

    @custom_gradient
    def function(x: tf.Tensor):
        def vjp(grad):
            _, repeated = tf.raw_ops.BroadcastGradientArgs(s0=tf.shape(grad), s1=tf.shape(x))
            return tf.reshape(tf.reduce_sum(grad, repeated), tf.shape(x))

        return tf.broadcast_to(x, shape), vjp

    return function(tf.identity(x))  # a tensor of this graph
