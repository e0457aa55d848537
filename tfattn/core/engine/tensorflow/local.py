"""Local attention: chunked attention under a mask that leaves a narrow band along the diagonal.

Under a window a block of queries sees a few neighboring blocks of keys, and under a relative mask
all blocks see the same pattern. So a run of neighboring blocks of queries, each with a copy of the
keys that it sees, is one batched product:

    queries    4      5      6
    keys     3 4 5  4 5 6  5 6 7

All keys that a query sees are in one block, so the softmax is the plain softmax. The backward pass
computes the weights of a run again.

Source: Beltagy, Peters, Cohan 2020, arXiv:2004.05150, section 3.1 and appendix A.
"""

from typing import Any

import tensorflow as tf

from tfattn._types import Size
from tfattn.core import masks
from tfattn.core.engine import devices, sizes
from tfattn.core.engine.tensorflow.block_dropout import BlockDropout
from tfattn.core.engine.tensorflow.block_scores import BlockScore, append_ones, append_shift
from tfattn.core.engine.tensorflow.loops import Block, ceil, loop, size, wide
from tfattn.core.engine.tensorflow.online_softmax import HIDDEN
from tfattn.core.engine.tensorflow.tiling import is_narrow
from tfattn.core.masks import Mask, ranges


class LocalPasses:
    """The forward and the backward pass, for a `Product` score and a mask that is relative.

    Shapes: N = B · G matrices, each shared by R/t = H/G heads; n runs of r blocks of t queries; a
    block sees `count` blocks of t keys, starting `first` blocks after its own position.
    """

    def __init__(
        self,
        score: BlockScore,
        mask: Mask,
        dropout: BlockDropout | None,
        lengths: tuple[int, int, int],
        side: int,
        first: int,
        count: int,
        most_scores: int,
        log_sum_exp: bool = False,
    ):
        self.score = score
        self.log_sum_exp = log_sum_exp
        self.dropout = dropout
        self.queries, self.keys, self.repeats = lengths
        self.side, self.first, self.count = side, first, count
        blocks = ceil(self.queries, side)
        numbers = self.repeats * side * count * side
        run = max(1, count - 1, min(blocks, most_scores // numbers))
        self.runs = ceil(blocks, run)
        self.run = ceil(blocks, self.runs) if ceil(blocks, self.runs) >= count - 1 else run
        grid = masks.Grid(self.queries, self.keys, 0, first * side, side, count * side)
        self.visible = tf.broadcast_to(mask.on(grid), [side, count * side])

    @classmethod
    def of(
        cls,
        query: tf.Tensor,
        key: tf.Tensor,
        score: BlockScore,
        mask: Mask | None,
        dropout: BlockDropout | None = None,
        block: Block = None,
        log_sum_exp: bool = False,
    ) -> "LocalPasses | None":
        """The passes where the mask leaves a narrow band, known before the graph runs; else None,
        also for a `block` whose t and s differ.
        """
        queries, keys = size(query, 2), size(key, 2)
        most, few = sizes.LOCAL_MAX_KEYS, sizes.LOCAL_FEW_KEYS
        if mask is None or not mask.is_relative or not is_narrow(mask, queries, keys, most):
            return None
        side = sizes.LOCAL_BLOCK
        if is_narrow(mask, queries, keys, few):
            side = sizes.LOCAL_SMALL_BLOCK
        side, columns = block or (side, side)
        blocks = ceil(queries, side)
        if side != columns or blocks < (2 if block else sizes.LOCAL_MIN_BLOCKS):
            return None
        firsts, ends, num_visible = [], [], 0
        for i in range(blocks):
            grid = masks.Grid(queries, keys, i * side, 0, side, keys, aligned=True)
            low, high = ranges.overlap(ranges.Bounds.of(mask, grid).hull, (0, keys))
            if not (isinstance(low, int) and isinstance(high, int)):
                return None
            if low < high:
                firsts.append(low // side - i)
                ends.append(ceil(high, side) - i)
                num_visible += ends[-1] - firsts[-1]
        if not firsts:
            return None
        first, count = min(firsts), max(ends) - min(firsts)
        # Where most queries see no key, the plain passes skip more.
        if count * blocks > sizes.LOCAL_MAX_WASTE * num_visible:
            return None
        repeats = query.shape[1] // key.shape[1]
        lengths = queries, keys, repeats
        most_scores = devices.entry(sizes.BLOCKS, query).local_scores
        return cls(score, mask, dropout, lengths, side, first, count, most_scores, log_sum_exp)

    def forward(
        self, query: tf.Tensor, key: tf.Tensor, value: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor | None, tuple[()]]:
        """The output `(B, H, T, Dv)`, the log of the sums `(B, H, T, 1)` or None, and nothing to
        keep for `backward`.
        """
        query, key, value = map(wide, (query, key, value))
        runs = _Runs(self, query, key, value)

        def over_runs(n: Size, *arrays: tf.TensorArray) -> list[tf.TensorArray]:
            found = self._attend(n, *runs.at(n))
            return [array.write(n, x) for array, x in zip(arrays, found, strict=True)]

        widths = [value.shape[-1], 1] if self.log_sum_exp else [value.shape[-1]]
        shapes = [[self.repeats, self.run * self.side, width] for width in widths]
        arrays = [tf.TensorArray(query.dtype, runs.count, element_shape=shape) for shape in shapes]
        arrays = loop(0, runs.count, over_runs, *arrays, at_once=sizes.STEPS_AT_ONCE)
        output, *sums = [runs.merge_queries(array.stack()) for array in arrays]
        return output, sums[0] if sums else None, ()

    def backward(
        self,
        query: tf.Tensor,
        key: tf.Tensor,
        value: tf.Tensor,
        kept: tuple[()],
        grad_output: tf.Tensor,
        delta: tf.Tensor,
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Gradients of query, key and value, by the formulas of `passes`."""
        query, key, value = map(wide, (query, key, value))
        runs = _Runs(self, query, key, value)
        grad_outputs, deltas = runs.split_queries(grad_output), runs.split_queries(delta)

        def over_runs(n: Size, *arrays: tf.TensorArray) -> list[tf.TensorArray]:
            grads = runs.query_run(grad_outputs, n), runs.query_run(deltas, n)
            found = self._gradients(n, *runs.at(n), *grads)
            return [array.write(n, x) for array, x in zip(arrays, found, strict=True)]

        shapes = [[self.repeats, self.run * self.side, query.shape[-1]]]
        shapes += [[(self.run + self.count - 1) * self.side, x.shape[-1]] for x in (key, value)]
        arrays = [tf.TensorArray(query.dtype, runs.count, element_shape=shape) for shape in shapes]
        arrays = loop(0, runs.count, over_runs, *arrays, at_once=sizes.STEPS_AT_ONCE)
        grad_query, grad_key, grad_value = [array.stack() for array in arrays]
        return (
            runs.merge_queries(grad_query),
            runs.merge_keys(grad_key, key),
            runs.merge_keys(grad_value, value),
        )

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
        if self.dropout is None:
            kept = weights
            grad_weights = tf.matmul(
                append_shift(grad_output, delta), append_ones(value), transpose_b=True
            )
        else:
            keep = self.dropout.keep(n, tf.shape(weights), weights.dtype) * self.dropout.scale
            kept = weights * keep
            grad_weights = tf.matmul(grad_output, value, transpose_b=True) * keep - delta
        grad_scores = tf.math.multiply_no_nan(grad_weights, weights)  # 0 for a hidden pair
        return (
            self._merged(tf.matmul(grad_scores, key)) * scale,
            self._overlapped(tf.matmul(grad_scores, query, transpose_a=True)),
            self._overlapped(tf.matmul(kept, grad_output, transpose_a=True)),
        )

    def _weights(
        self, n: Size, query: tf.Tensor, key: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, Any]:
        """The weights `(r, R, count·t)` of a run's blocks, the queries that see a key, bool
        `(r, R, 1)`, and with `log_sum_exp` the greatest scores `(r, R, 1)`.

        Queries without visible keys get the finite weights of scores of 0, and the caller sets
        their output to 0.
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


class _Runs:
    """Operands cut into runs, and gradients merged; run n belongs to matrix n // runs."""

    def __init__(self, passes: LocalPasses, query: tf.Tensor, key: tf.Tensor, value: tf.Tensor):
        self.passes = passes
        self.batch, self.groups = size(key, 0), key.shape[1]
        self.count = self.batch * self.groups * passes.runs
        self.query = self.split_queries(query)
        self.key, self.value = self._split_keys(key), self._split_keys(value)

    def at(self, n: Size) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        passes = self.passes
        begin = [n // passes.runs, n % passes.runs * passes.run * passes.side, 0]
        length = (passes.run + passes.count - 1) * passes.side
        key, value = (
            tf.slice(x, begin, [1, length, x.shape[-1]])[0] for x in (self.key, self.value)
        )
        return self.query_run(self.query, n), key, value

    def split_queries(self, x: tf.Tensor) -> tf.Tensor:
        """`(B, H, T, X)` to `(N, R/t, runs·r·t, X)`, padded with zeros."""
        passes = self.passes
        more = passes.runs * passes.run * passes.side - passes.queries
        x = tf.reshape(x, [-1, passes.repeats, passes.queries, x.shape[-1]])
        return tf.pad(x, [[0, 0], [0, 0], [0, more], [0, 0]])

    def query_run(self, x: tf.Tensor, n: Size) -> tf.Tensor:
        """The n-th run of `split_queries`, `(R/t, r·t, X)`."""
        passes = self.passes
        length = passes.run * passes.side
        begin = [n // passes.runs, 0, n % passes.runs * length, 0]
        return tf.slice(x, begin, [1, passes.repeats, length, x.shape[-1]])[0]

    def merge_queries(self, x: tf.Tensor) -> tf.Tensor:
        """Runs `(N·runs, R/t, r·t, X)` to `(B, H, T, X)`."""
        passes = self.passes
        length = passes.run * passes.side
        x = tf.reshape(x, [-1, passes.runs, passes.repeats, length, x.shape[-1]])
        x = tf.transpose(x, [0, 2, 1, 3, 4])
        heads = self.groups * passes.repeats
        x = tf.reshape(x, [self.batch, heads, passes.runs * length, x.shape[-1]])
        return x[:, :, : passes.queries]

    def _split_keys(self, x: tf.Tensor) -> tf.Tensor:
        """`(B, G, S, X)` to `(N, (runs·r + count − 1)·t, X)`, from the first visible key on."""
        passes = self.passes
        total = (passes.runs * passes.run + passes.count - 1) * passes.side
        start = passes.first * passes.side
        x = tf.reshape(x, [-1, passes.keys, x.shape[-1]])[:, max(0, start) :][
            :, : total + min(0, start)
        ]
        before = max(0, -start)
        return tf.pad(x, [[0, 0], [before, total - before - x.shape[1]], [0, 0]])

    def merge_keys(self, x: tf.Tensor, like: tf.Tensor) -> tf.Tensor:
        """The sum over the runs `(N·runs, (r + count − 1)·t, X)`, as `(B, G, S, X)`."""
        passes = self.passes
        own, width = passes.run * passes.side, x.shape[-1]
        x = tf.reshape(x, [-1, passes.runs, (passes.run + passes.count - 1) * passes.side, width])
        # The keys beyond a run belong to the next run, and are no more than it has.
        beyond = tf.pad(x[:, :, own:], [[0, 0], [1, 0], [0, 2 * own - x.shape[2]], [0, 0]])
        x = tf.pad(x[:, :, :own], [[0, 0], [0, 1], [0, 0], [0, 0]]) + beyond
        x = tf.reshape(x, [-1, (passes.runs + 1) * own, width])
        start = passes.first * passes.side
        x = tf.pad(x, [[0, 0], [max(0, start), max(0, start) + passes.keys], [0, 0]])
        x = x[:, max(0, -start) :][:, : passes.keys]
        return tf.reshape(x, [self.batch, self.groups, passes.keys, width])
