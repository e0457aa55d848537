"""The two walks over the blocks of the square, forward and backward. TensorFlow only.

Both go over the blocks of queries, and for each over the blocks of keys that the mask lets it see. The loops are serial, so
that no two blocks of scores are in memory at once. Shape letters are those of `core.blocks`; N counts blocks.
"""

from typing import NamedTuple

import tensorflow as tf

from tfattn.core import pairs
from tfattn.core.block_scores import less, with_ones
from tfattn.core.blocks import ceil, size

__all__ = ["Walk"]

_INF = float("inf")
# In place of lse = −inf for a query without keys: exp(score − 1e30) is 0, and no product makes a NaN of it.
_NEVER = 1e30


class _Reach(NamedTuple):
    """What a block of queries can see: blocks of keys `first` to `end`, and, without a mask, the keys `low` to `high`."""

    first: object
    end: object
    low: object
    high: object


class Walk:
    """What a walk needs besides its operands."""

    def __init__(self, square, score, mask, dropout=None, bias=None, parameters=()):
        self.square = square
        self.score = score
        self.mask = mask
        self.dropout = dropout
        self.bias = bias
        self.parameters = list(parameters)

    def forward(self, queries, keys, values):
        """Blocks of outputs `(N, c, G, R, Dv)`, and the logarithm of each query's sum of exponentials `(N, c, G, R, 1)`."""

        def over_queries(n, outputs, lses):
            query, reach = queries[n], self._reach(n)  # (c, G, R, X)

            def over_keys(j, output, lse):
                k = self._key_block(n, j)
                scores = self.score.scores(self.square, query, keys[k], self.parameters)  # (c, G, R, s)
                scores = self._hide(self._biased(scores, n, j), n, j, reach)
                return _merge(output, lse, *self._pool(scores, values[k], n, j))

            empty = tf.zeros_like(query[..., :1])
            output = empty * tf.zeros([values.shape[-1]], empty.dtype)  # (c, G, R, Dv)
            output, lse = _loop(reach.first, reach.end, over_keys, output, empty - _INF)
            return outputs.write(n, output), lses.write(n, lse)

        blocks = self.square.batches * self.square.query_blocks
        outputs = tf.TensorArray(queries.dtype, blocks, element_shape=[*queries.shape[1:-1], values.shape[-1]])
        lses = tf.TensorArray(queries.dtype, blocks, element_shape=[*queries.shape[1:-1], 1])
        outputs, lses = _loop(0, blocks, over_queries, outputs, lses)
        return outputs.stack(), lses.stack()

    def backward(self, queries, keys, values, outputs, lses, upstream):
        """Gradients of the blocks of queries, keys and values, of the bias where there is one, and of the parameters."""
        # Σ_keys weight · ∂weight, which the softmax's gradient subtracts, is known from the output alone.
        deltas = tf.reduce_sum(upstream * outputs, -1, keepdims=True)  # (N, c, G, R, 1)
        lses = tf.where(tf.equal(lses, -_INF), tf.constant(_NEVER, lses.dtype), lses)
        shifted_keys, shifted_values = self.score.prepared_keys(keys), with_ones(values)

        def over_queries(n, of_queries, of_keys, of_values, of_bias, of_parameters):
            query, reach = queries[n], self._reach(n)
            of_output, delta = upstream[n], deltas[n]
            shifted_query = self.score.prepared_query(query, lses[n])
            shifted_output = less(of_output, delta)

            def over_keys(j, of_query, of_keys, of_values, of_bias, of_parameters):
                k = self._key_block(n, j)
                scores = self.score.shifted(self.square, shifted_query, shifted_keys[k], self.parameters)
                weights = tf.exp(self._hide(self._biased(scores, n, j), n, j, reach))  # (c, G, R, s)
                if self.dropout is None:
                    kept, of_weights = weights, tf.matmul(shifted_output, shifted_values[k], transpose_b=True)
                else:
                    keep = self._keep(weights, n, j) * self.dropout.scale
                    kept, of_weights = weights * keep, tf.matmul(of_output, values[k], transpose_b=True) * keep - delta
                of_scores = weights * of_weights
                of_value = tf.matmul(kept, of_output, transpose_a=True)
                more_of_query, of_key, more = self.score.pull(self.square, query, keys[k], self.parameters, of_scores)
                if self.bias is not None:
                    of_bias = _add(of_bias, *self._bias_block(of_scores, n, j))
                return (
                    of_query + more_of_query,
                    _add(of_keys, k, of_key),
                    _add(of_values, k, of_value),
                    of_bias,
                    [a + b for a, b in zip(of_parameters, more, strict=True)],
                )

            of_query, *rest = _loop(
                reach.first, reach.end, over_keys, tf.zeros_like(query), of_keys, of_values, of_bias, of_parameters
            )
            return of_queries.write(n, of_query), *rest

        of_queries = tf.TensorArray(queries.dtype, size(queries, 0), element_shape=queries.shape[1:])
        of_parameters = [tf.zeros_like(x) for x in self.parameters]
        of_queries, of_keys, of_values, of_bias, of_parameters = _loop(
            0,
            size(queries, 0),
            over_queries,
            of_queries,
            _zeros(keys),
            _zeros(values),
            self._zero_bias(queries.dtype),
            of_parameters,
        )
        others = of_parameters if self.bias is None else [self._join_bias(of_bias), *of_parameters]
        return of_queries.stack(), of_keys.stack(), of_values.stack(), *others

    def _place(self, n):
        """The block of the batch and of the queries that n counts."""
        return n // self.square.query_blocks, n % self.square.query_blocks

    def _key_block(self, n, j):
        return self._place(n)[0] * self.square.key_blocks + j

    def _grid(self, n, j):
        return self.square.grid(*self._place(n), j)

    def _reach(self, n):
        square = self.square
        if self.mask is None:
            return _Reach(0, square.key_blocks, 0, square.keys)
        grid = square.query_grid(*self._place(n))
        low, high = self.mask.key_bounds(grid)
        first = tf.maximum(low, 0) // square.columns
        return _Reach(first, ceil(tf.minimum(high, square.keys), square.columns), *self.mask.open_bounds(grid))

    def _biased(self, scores, n, j):
        if self.bias is None:
            return scores
        grid = self._grid(n, j)
        bias = grid.columns_of(grid.rows_of(grid.batch_of(self.bias), 2), 3)  # (c or 1, H or 1, t or 1, s or 1)
        return self.square.fold(self.square.unfold(scores) + tf.cast(bias, scores.dtype))

    def _hide(self, scores, n, j, reach):
        """−inf where the mask hides a key, or where there is only padding."""
        square = self.square
        if self.mask is None and not square.padded:
            return scores

        def hidden():
            visible = self._visible(self._grid(n, j))
            return square.fold(tf.where(visible, square.unfold(scores), tf.constant(-_INF, scores.dtype)))

        if isinstance(reach.high, int) and isinstance(reach.low, int) and reach.high <= reach.low:
            return hidden()
        high = tf.minimum(reach.high, square.keys)
        is_open = (j * square.columns >= reach.low) & ((j + 1) * square.columns <= high)
        return tf.cond(is_open, lambda: scores, hidden)

    def _visible(self, grid):
        """The mask on `grid`, broadcastable to `(c, H, t, s)`."""
        inside = grid.key_positions() < self.square.keys  # (1, s)
        if self.mask is None:
            return inside
        visible = pairs.with_heads(self.mask.on(grid), 4)
        return visible & inside if self.square.padded else visible

    def _pool(self, scores, value, n, j):
        """Outputs and lse of the queries over one block of keys."""
        top = tf.reduce_max(scores, -1, keepdims=True)  # (c, G, R, 1)
        empty = tf.equal(top, -_INF)
        some_empty = tf.reduce_any(empty)
        # A row of −inf has no softmax; the one of zeros is taken away again below.
        scores = tf.cond(some_empty, lambda: tf.where(empty, tf.zeros([], scores.dtype), scores), lambda: scores)
        weights = tf.nn.softmax(scores)  # (c, G, R, s)
        # The largest weight is exp(top − lse): two maxima are quicker than a sum of exponentials of one's own.
        lse = top - tf.math.log(tf.reduce_max(weights, -1, keepdims=True))
        if self.dropout is not None:
            weights = weights * self._keep(weights, n, j)
        output = tf.matmul(weights, value)  # (c, G, R, Dv)
        if self.dropout is not None:
            output = output * self.dropout.scale

        def repaired():
            return tf.where(empty, tf.zeros([], output.dtype), output), tf.where(empty, top, lse)

        return tf.cond(some_empty, repaired, lambda: (output, lse))

    def _keep(self, weights, n, j):
        return self.dropout.keep(n * self.square.key_blocks + j, tf.shape(weights), weights.dtype)

    def shield(self, query, key, value):
        """Keeps keys and values away from the queries that may not see them, whatever they hold, as the dense path does.

        Returns the operands, and a function that hides what was replaced from their gradients.
        """
        if self.mask is None:
            return query, key, value, lambda *gradients: gradients
        # One sum of squares tells that all is well, as it nearly always is: nothing broken, nothing that overflows.
        clean = tf.math.is_finite(tf.nn.l2_loss(key) + tf.nn.l2_loss(value))

        def as_they_are():
            sees = tf.zeros_like(query[..., :1], tf.bool)  # (B, H, T, 1)
            return query, key, value, sees, tf.ones_like(key[..., :1], tf.bool)

        def replaced():
            finite = tf.reduce_all(tf.math.is_finite(key), -1) & tf.reduce_all(tf.math.is_finite(value), -1)
            sees = self._sees(tf.logical_not(tf.reduce_all(finite, 1)))  # (B, H, T, 1)
            kept = finite[..., None]  # (B, G, S, 1)
            seen = self.mask.seen_keys(self.square.queries, self.square.keys)
            if seen is not None:
                kept = kept & seen[:, None, :, None]
            zero = tf.zeros([], key.dtype)
            return (
                tf.where(sees, zero + float("nan"), query),
                tf.where(kept, key, zero),
                tf.where(kept, value, zero),
                sees,
                kept,
            )

        query, key, value, sees, kept = tf.cond(clean, as_they_are, replaced)

        def of_originals(of_query, of_key, of_value):
            zero = tf.zeros([], of_key.dtype)
            return tf.cond(
                clean,
                lambda: (of_query, of_key, of_value),
                lambda: (
                    tf.where(sees, zero, of_query),
                    tf.where(kept, of_key, zero),
                    tf.where(kept, of_value, zero),
                ),
            )

        return query, key, value, of_originals

    def _sees(self, broken):
        """Which queries may see one of the `broken` `(B, S)` keys: `(B, H, T, 1)`."""
        square = self.square

        def block(n, seen):
            grid = square.query_grid(*self._place(n))
            visible = pairs.with_heads(self.mask.on(grid), 4)  # (c or 1, H or 1, t or 1, S)
            rows = tf.reduce_any(visible & grid.batch_of(broken)[:, None, None], -1, keepdims=True)
            rows = tf.broadcast_to(rows, [square.chunk, square.heads, square.rows, 1])
            return (seen.write(n, square.fold(rows)),)

        blocks = square.batches * square.query_blocks
        (seen,) = _loop(0, blocks, block, tf.TensorArray(tf.bool, blocks))
        shape = [blocks, square.chunk, square.groups, square.heads // square.groups * square.rows, 1]
        return square.join_queries(tf.reshape(seen.stack(), shape))

    def _bias_repeats(self):
        """Whether the bias repeats over the batch, the queries and the keys."""
        return [self.bias.shape[axis] == 1 for axis in (0, 2, 3)]

    def _bias_blocks(self):
        square = self.square
        counts = (square.batches, square.query_blocks, square.key_blocks)
        return [1 if repeats else count for repeats, count in zip(self._bias_repeats(), counts, strict=True)]

    def _zero_bias(self, dtype):
        if self.bias is None:
            return []
        square = self.square
        full = (square.chunk, square.heads, square.rows, square.columns)
        shape = [1 if now == 1 else block for now, block in zip(self.bias.shape, full, strict=True)]
        batches, rows, columns = self._bias_blocks()
        return _zeros(tf.zeros([batches * rows * columns, *shape], dtype))

    def _bias_block(self, of_scores, n, j):
        """Where the gradient of the bias grows by what."""
        of_scores = self.square.unfold(of_scores)  # (c, H, t, s)
        axes = [axis for axis in range(4) if self.bias.shape[axis] == 1]
        b, i = self._place(n)
        b, i, j = (0 if repeats else at for repeats, at in zip(self._bias_repeats(), (b, i, j), strict=True))
        _, rows, columns = self._bias_blocks()
        return (b * rows + i) * columns + j, tf.reduce_sum(of_scores, axes, keepdims=True)

    def _join_bias(self, of_bias):
        blocks = of_bias.stack()  # (blocks, c or 1, H or 1, t or 1, s or 1)
        batches, rows, columns = self._bias_blocks()
        c, heads, t, s = (size(blocks, axis) for axis in range(1, 5))
        blocks = tf.reshape(blocks, [batches, rows, columns, c, heads, t, s])
        joined = tf.reshape(tf.transpose(blocks, [0, 3, 4, 1, 5, 2, 6]), [batches * c, heads, rows * t, columns * s])
        queries, keys = size(self.bias, 2), size(self.bias, 3)
        return tf.cast(joined[:, :, :queries, :keys], self.bias.dtype)


def _merge(output, lse, part, part_lse):
    """Pools two pooled sets of keys: each counts as much as its sum of exponentials."""
    top = tf.maximum(lse, part_lse)
    top = tf.where(tf.equal(top, -_INF), tf.zeros_like(top), top)
    old, new = tf.exp(lse - top), tf.exp(part_lse - top)
    total = old + new
    output = output * tf.math.divide_no_nan(old, total) + part * tf.math.divide_no_nan(new, total)
    none = tf.equal(total, 0)
    # The logarithm of 0 is −inf as it should be, but its slope there would make NaN of second derivatives.
    return output, tf.where(none, -_INF, top + tf.math.log(tf.where(none, tf.ones_like(total), total)))


def _loop(start, stop, body, *state):
    """`state` after body(i, *state) for each i from start to stop, one after the other."""

    def step(i, state):
        after = tuple(body(i, *state))
        tf.nest.map_structure(_keep_shape, state, after)
        return i + 1, after

    start = tf.convert_to_tensor(start, tf.int32)
    _, state = tf.while_loop(lambda i, _: i < stop, step, (start, state), parallel_iterations=1)
    return state


def _keep_shape(before, after):
    if isinstance(after, tf.Tensor):
        after.set_shape(before.shape)


def _zeros(x):
    """An array of zeros, one for each of the first axis of x, to be added to."""
    array = tf.TensorArray(x.dtype, size(x, 0), element_shape=x.shape[1:], clear_after_read=False)
    return array.unstack(tf.zeros_like(x))


def _add(array, at, x):
    return array.write(at, array.read(at) + x)
