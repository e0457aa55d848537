"""Local attention: chunked attention under a mask that leaves a narrow band along the diagonal.

Under a relative mask all blocks of queries see the same pattern of neighboring blocks of keys. So a
run of blocks of queries, each with a copy of the keys that it sees, is one batched product:

    queries    4      5      6
    keys     3 4 5  4 5 6  5 6 7

All keys that a query sees are in one block, so the softmax is the plain softmax.

Source: Beltagy, Peters, Cohan 2020, arXiv:2004.05150, section 3.1 and appendix A.
"""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfattn._types import Size
from tfattn.core import masks
from tfattn.core.engine import devices, sizes
from tfattn.core.engine.tensorflow.block_scores import BlockScore
from tfattn.core.engine.tensorflow.loops import loop, size, wide
from tfattn.core.engine.tensorflow.online_softmax import HIDDEN
from tfattn.core.engine.tensorflow.tiling import is_narrow
from tfattn.core.masks import ranges


class LocalPasses:
    """The forward and the backward pass, for a `Product` score and a mask that is relative.

    Shapes: N = B · G matrices, each shared by R/t = H/G heads; in each matrix `runs` runs of r
    blocks of t queries, run n of all belonging to matrix n // runs; a block sees `count` blocks of
    t keys, starting `first` blocks after its own position.
    """

    def __init__(self, call: Any, score: BlockScore, band: tuple[int, int, int]):
        query, key = call.query, call.key
        self.score, self.dropout, self.log_sum_exp = score, call.draws, call.return_log_sum_exp
        self.batch, self.groups = size(key, 0), key.shape[1]
        self.repeats = query.shape[1] // self.groups
        self.queries, self.keys = query.shape[2], key.shape[2]
        self.side, self.first, self.count = side, first, count = band
        blocks, most = -(-self.queries // side), devices.entry(sizes.BLOCKS, query).local_scores
        run = max(1, count - 1, min(blocks, most // (self.repeats * side * count * side)))
        self.runs = -(-blocks // run)
        even = -(-blocks // self.runs)
        self.run = even if even >= count - 1 else run
        grid = masks.Grid(self.queries, self.keys, 0, first * side, side, count * side)
        self.visible = tf.broadcast_to(call.mask.on(grid), [side, count * side])

    @classmethod
    def of(cls, call: Any, score: BlockScore) -> "LocalPasses | None":
        """The passes if the mask is known to leave a narrow band before the graph runs."""
        queries, keys, mask = size(call.query, 2), size(call.key, 2), call.mask
        most, few = sizes.LOCAL_MAX_KEYS, sizes.LOCAL_FEW_KEYS
        if mask is None or not mask.is_relative or not is_narrow(mask, queries, keys, most):
            return None
        side = sizes.LOCAL_BLOCK
        if is_narrow(mask, queries, keys, few):
            side = sizes.LOCAL_SMALL_BLOCK
        side, columns = call.block or (side, side)
        blocks = -(-queries // side)
        if side != columns or blocks < (2 if call.block else sizes.LOCAL_MIN_BLOCKS):
            return None
        firsts, ends, num_visible = [], [], 0
        for i in range(blocks):
            grid = masks.Grid(queries, keys, i * side, 0, side, keys, aligned=True)
            low, high = ranges.overlap(ranges.Bounds.of(mask, grid).hull, (0, keys))
            if not (isinstance(low, int) and isinstance(high, int)):
                return None
            if low < high:
                firsts.append(low // side - i)
                ends.append(-(-high // side) - i)
                num_visible += ends[-1] - firsts[-1]
        if not firsts:
            return None
        first, count = min(firsts), max(ends) - min(firsts)
        # Where most queries see no key, the plain passes skip more.
        if count * blocks > sizes.LOCAL_MAX_WASTE * num_visible:
            return None
        return cls(call, score, (side, first, count))

    def forward(
        self, query: tf.Tensor, key: tf.Tensor, value: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor | None, tuple[()]]:
        """The output `(B, H, T, Dv)`, the log of the sums `(B, H, T, 1)` or None, and nothing."""
        operands = self._split(query, key, value)
        widths = [value.shape[-1], 1] if self.log_sum_exp else [value.shape[-1]]
        shapes = [[self.repeats, self.run * self.side, width] for width in widths]
        found = self._over_runs(
            lambda n: self._attend(n, *self._at(n, *operands)), shapes, operands[0].dtype
        )
        output, *sums = map(self._merge_queries, found)
        return output, sums[0] if sums else None, ()

    def backward(
        self,
        query: tf.Tensor,
        key: tf.Tensor,
        value: tf.Tensor,
        kept: tuple[()],
        grad_output: tf.Tensor,
        delta: tf.Tensor,
    ) -> tuple[tf.Tensor, ...]:
        """Gradients of query, key and value, by the formulas of `passes`."""
        operands = self._split(query, key, value)
        upstream = self._split_queries(grad_output), self._split_queries(delta)

        def gradients(n: Size) -> tuple[tf.Tensor, ...]:
            return self._gradients(
                n, *self._at(n, *operands), *(self._query_run(x, n) for x in upstream)
            )

        shapes = [[self.repeats, self.run * self.side, query.shape[-1]]]
        shapes += [[(self.run + self.count - 1) * self.side, x.shape[-1]] for x in (key, value)]
        grad_query, *grads = self._over_runs(gradients, shapes, operands[0].dtype)
        return self._merge_queries(grad_query), *map(self._merge_keys, grads)

    def _over_runs(
        self, function: Callable[[Size], Sequence[tf.Tensor]], shapes: Any, dtype: tf.DType
    ) -> list[tf.Tensor]:
        """The stacked results of `function` for the runs of all matrices."""

        def body(n: Size, *arrays: tf.TensorArray) -> list[tf.TensorArray]:
            return [array.write(n, x) for array, x in zip(arrays, function(n), strict=True)]

        count = self.batch * self.groups * self.runs
        arrays = [tf.TensorArray(dtype, count, element_shape=shape) for shape in shapes]
        arrays = loop(0, count, body, *arrays, at_once=sizes.STEPS_AT_ONCE)
        return [array.stack() for array in arrays]

    def _attend(
        self, n: Size, query: tf.Tensor, key: tf.Tensor, value: tf.Tensor
    ) -> list[tf.Tensor]:
        """The output `(R/t, r·t, Dv)` of a run, from queries `(R/t, r·t, X)` and keys
        `((r + count − 1)·t, X)`; with `log_sum_exp` also the log of the sums, `(R/t, r·t, 1)`.
        """
        query = self._blocks(query * self.score.scale(query))
        weights, sees, row_max = self._weights(n, query, self._neighbors(key))
        kept = weights
        if self.dropout is not None:
            kept = self.dropout.dropped(weights, n) * self.dropout.scale
        output = tf.matmul(kept, self._neighbors(value))
        found = [self._merged(tf.where(sees, output, 0.0))]
        if self.log_sum_exp:
            # The greatest weight is exp(row_max − log of the sum).
            sums = row_max - tf.math.log(tf.reduce_max(weights, -1, keepdims=True))
            found.append(self._merged(tf.where(sees, sums, tf.constant(HIDDEN, sums.dtype))))
        return found

    def _gradients(
        self,
        n: Size,
        query: tf.Tensor,
        key: tf.Tensor,
        value: tf.Tensor,
        grad_output: tf.Tensor,
        delta: tf.Tensor,
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        scale = self.score.scale(query)
        query = self._blocks(query * scale)
        key, value = self._neighbors(key), self._neighbors(value)
        weights, sees, _ = self._weights(n, query, key)
        grad_output, delta = (tf.where(sees, self._blocks(x), 0.0) for x in (grad_output, delta))
        kept, grad_weights = weights, tf.matmul(grad_output, value, transpose_b=True)
        if self.dropout is not None:
            keep = self.dropout.keep(n, tf.shape(weights), weights.dtype) * self.dropout.scale
            kept, grad_weights = weights * keep, grad_weights * keep
        grad_scores = tf.math.multiply_no_nan(grad_weights - delta, weights)  # 0 for a hidden pair
        return (
            self._merged(tf.matmul(grad_scores, key)) * scale,
            self._overlapped(tf.matmul(grad_scores, query, transpose_a=True)),
            self._overlapped(tf.matmul(kept, grad_output, transpose_a=True)),
        )

    def _weights(
        self, n: Size, query: tf.Tensor, key: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, Any]:
        """The weights `(r, R, count·t)` of a run's blocks, finite for a query without keys; which
        queries see a key, `(r, R, 1)`; with `log_sum_exp` the greatest scores `(r, R, 1)`.
        """
        run, side, count, repeats = self.run, self.side, self.count, self.repeats
        visible = self.visible & self._inside(n)  # (r, 1, t, count·t)
        sees = tf.reduce_any(visible, -1, keepdims=True)
        scores = tf.matmul(query, key, transpose_b=True)  # (r, R, count·t)
        scores = tf.reshape(scores, [run, repeats, side, count * side])
        hidden = tf.where(sees, tf.constant(HIDDEN, scores.dtype), 0.0)
        scores = tf.where(visible, scores, hidden)
        weights = tf.reshape(tf.nn.softmax(scores), [run, repeats * side, count * side])
        sees = tf.reshape(tf.repeat(sees, repeats, axis=1), [run, repeats * side, 1])
        row_max = None
        if self.log_sum_exp:
            row_max = tf.reshape(tf.reduce_max(scores, -1), [run, repeats * side, 1])
        return weights, sees, row_max

    def _blocks(self, x: tf.Tensor) -> tf.Tensor:
        """A run's queries `(R/t, r·t, X)` as blocks `(r, R, X)`; `_merged` is the inverse."""
        x = tf.reshape(x, [self.repeats, self.run, self.side, x.shape[-1]])
        x = tf.transpose(x, [1, 0, 2, 3])
        return tf.reshape(x, [self.run, self.repeats * self.side, x.shape[-1]])

    def _merged(self, x: tf.Tensor) -> tf.Tensor:
        x = tf.reshape(x, [self.run, self.repeats, self.side, x.shape[-1]])
        x = tf.transpose(x, [1, 0, 2, 3])
        return tf.reshape(x, [self.repeats, self.run * self.side, x.shape[-1]])

    def _neighbors(self, x: tf.Tensor) -> tf.Tensor:
        """The keys `(r, count·t, X)` of each block of a run, from `((r + count − 1)·t, X)`."""
        blocks = tf.reshape(x, [self.run + self.count - 1, self.side, x.shape[-1]])
        return tf.concat([blocks[j : j + self.run] for j in range(self.count)], 1)

    def _overlapped(self, x: tf.Tensor) -> tf.Tensor:
        """The transpose of `_neighbors`: `(r, count·t, X)`, summed over the copies."""
        blocks = tf.reshape(x, [self.run, self.count, self.side, x.shape[-1]])
        after = self.count - 1
        parts = [tf.pad(blocks[:, j], [[j, after - j], [0, 0], [0, 0]]) for j in range(self.count)]
        return tf.reshape(tf.add_n(parts), [(self.run + after) * self.side, x.shape[-1]])

    def _inside(self, n: Size) -> tf.Tensor:
        """Whether each key of `_neighbors` lies within the sequence, `(r, 1, 1, count·t)`."""
        block = n % self.runs * self.run + tf.range(self.run) + self.first
        keys = block[:, None] * self.side + tf.range(self.count * self.side)
        return ((keys >= 0) & (keys < self.keys))[:, None, None]

    def _split(
        self, query: tf.Tensor, key: tf.Tensor, value: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        query, key, value = map(wide, (query, key, value))
        return self._split_queries(query), self._split_keys(key), self._split_keys(value)

    def _at(
        self, n: Size, query: tf.Tensor, key: tf.Tensor, value: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """The operands of run n."""
        begin = [n // self.runs, n % self.runs * self.run * self.side, 0]
        length = (self.run + self.count - 1) * self.side
        key, value = (tf.slice(x, begin, [1, length, x.shape[-1]])[0] for x in (key, value))
        return self._query_run(query, n), key, value

    def _split_queries(self, x: tf.Tensor) -> tf.Tensor:
        """`(B, H, T, X)` to `(N, R/t, runs·r·t, X)`, padded with zeros."""
        more = self.runs * self.run * self.side - self.queries
        x = tf.reshape(x, [-1, self.repeats, self.queries, x.shape[-1]])
        return tf.pad(x, [[0, 0], [0, 0], [0, more], [0, 0]])

    def _query_run(self, x: tf.Tensor, n: Size) -> tf.Tensor:
        """The n-th run of `_split_queries`, `(R/t, r·t, X)`."""
        length = self.run * self.side
        begin = [n // self.runs, 0, n % self.runs * length, 0]
        return tf.slice(x, begin, [1, self.repeats, length, x.shape[-1]])[0]

    def _merge_queries(self, x: tf.Tensor) -> tf.Tensor:
        """Runs `(N·runs, R/t, r·t, X)` to `(B, H, T, X)`."""
        length = self.run * self.side
        x = tf.reshape(x, [-1, self.runs, self.repeats, length, x.shape[-1]])
        x = tf.transpose(x, [0, 2, 1, 3, 4])
        heads = self.groups * self.repeats
        x = tf.reshape(x, [self.batch, heads, self.runs * length, x.shape[-1]])
        return x[:, :, : self.queries]

    def _split_keys(self, x: tf.Tensor) -> tf.Tensor:
        """`(B, G, S, X)` to `(N, (runs·r + count − 1)·t, X)`, from the first visible key on."""
        total = (self.runs * self.run + self.count - 1) * self.side
        start = self.first * self.side
        x = tf.reshape(x, [-1, self.keys, x.shape[-1]])[:, max(0, start) :]
        x, before = x[:, : total + min(0, start)], max(0, -start)
        return tf.pad(x, [[0, 0], [before, total - before - x.shape[1]], [0, 0]])

    def _merge_keys(self, x: tf.Tensor) -> tf.Tensor:
        """The sum over the runs `(N·runs, (r + count − 1)·t, X)`, as `(B, G, S, X)`."""
        own, width = self.run * self.side, x.shape[-1]
        x = tf.reshape(x, [-1, self.runs, (self.run + self.count - 1) * self.side, width])
        # The keys beyond a run belong to the next run, and are no more than it has.
        beyond = tf.pad(x[:, :, own:], [[0, 0], [1, 0], [0, 2 * own - x.shape[2]], [0, 0]])
        x = tf.pad(x[:, :, :own], [[0, 0], [0, 1], [0, 0], [0, 0]]) + beyond
        x = tf.reshape(x, [-1, (self.runs + 1) * own, width])
        start = self.first * self.side
        x = tf.pad(x, [[0, 0], [max(0, start), max(0, start) + self.keys], [0, 0]])
        x = x[:, max(0, -start) :][:, : self.keys]
        return tf.reshape(x, [self.batch, self.groups, self.keys, width])
