"""The two walks over the blocks of the square, forward and backward. TensorFlow only.

Both go over the steps (`Square`), in each over the blocks of queries, and for each of these over the blocks of keys that the
mask lets it see. Two steps are under way at a time, so that one of them keeps the cores busy while the other waits for an
operation's last thread; where there is one step alone, two blocks of its queries are, on the way forward. All else is serial
(the backward walk too where the bias has a gradient, which all steps add to): no more than two blocks of scores are in memory
at once. Shape letters are those of `core.blocks`; m counts steps, i blocks of queries, j blocks of keys.
"""

from typing import NamedTuple

import tensorflow as tf

from tfattn.core import pairs
from tfattn.core.block_scores import less, with_ones
from tfattn.core.blocks import ceil, size

__all__ = ["Walk"]

_AT_ONCE = 2
_INF = float("inf")
# In place of the highest score of a query without keys: exp(score − 1e30) is 0, and no product makes a NaN of it.
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

    def forward(self, query, key, value):
        """The output `(B, H, T, Dv)`, and for `backward` each query's highest score, and Σ exp(score − highest)."""
        square = self.square
        by_step = [square.by_step(x) for x in (query, key, value)]

        def over_steps(m, *arrays):
            output, *softmax = self._forward(m, *self._blocks(m, *by_step))
            parts = [square.join_queries(output), *softmax]
            return [array.write(m, part) for array, part in zip(arrays, parts, strict=True)]

        shapes = [[*by_step[0].shape[1:-1], value.shape[-1]], None, None]
        arrays = [tf.TensorArray(query.dtype, square.steps, element_shape=shape) for shape in shapes]
        arrays = _loop(0, square.steps, over_steps, *arrays, at_once=_AT_ONCE)
        output, *softmax = [array.stack() for array in arrays]
        return square.whole(output, query), softmax  # of both numbers (steps, blocks, c, G, R, 1)

    def _blocks(self, m, query, key, value):
        """Blocks of step m: queries `(blocks, c, G, R, X)`, keys `(blocks, c, G, s, X)`, values `(blocks, c, G, s, Dv)`."""
        square = self.square
        return (
            square.split_queries(query[m] * self.score.scale(query), copies=True),
            square.split_keys(key[m], copies=True),
            square.split_keys(value[m]),
        )

    def _forward(self, m, queries, keys, values):
        """Blocks of outputs `(blocks, c, G, R, Dv)`, and of the two numbers `(blocks, c, G, R, 1)`."""
        lowest = _lowest(queries.dtype)

        def over_queries(i, *arrays):
            query, reach = queries[i], self._reach(m, i)  # (c, G, R, X)

            def over_keys(j, *pooled):
                scores = self.score.scores(self.square, query, keys[j], self.parameters)  # (c, G, R, s)
                scores = self._hide(self._finite(self._biased(scores, m, i, j)), lowest, m, i, j, reach)
                return self._merge(*pooled, *self._pool(scores, values[j], m, i, j))

            zero = tf.zeros_like(query[..., :1])
            output = zero * tf.zeros([values.shape[-1]], zero.dtype)  # (c, G, R, Dv)
            output, top, total = _loop(reach.first, reach.end, over_keys, output, zero + lowest, zero)
            nothing = top < lowest / 2  # no key was seen: what was pooled came from under the mask
            output = output if self.dropout is None else output * self.dropout.scale
            pooled = [
                tf.where(nothing, tf.constant(instead, x.dtype), x)
                for x, instead in ((output, 0), (top, _NEVER), (total, 1))
            ]
            return [array.write(i, x) for array, x in zip(arrays, pooled, strict=True)]

        blocks = self.square.query_blocks
        shapes = [[*queries.shape[1:-1], width] for width in (values.shape[-1], 1, 1)]
        arrays = [tf.TensorArray(queries.dtype, blocks, element_shape=shape) for shape in shapes]
        # Where there is one step alone, its blocks of queries take the place of steps: they wait for nothing but each other.
        at_once = _AT_ONCE if isinstance(self.square.steps, int) and self.square.steps == 1 else 1
        return [array.stack() for array in _loop(0, blocks, over_queries, *arrays, at_once=at_once)]

    def backward(self, query, key, value, output, softmax, upstream):
        """Gradients of query, key and value, of the bias where there is one, and of the parameters."""
        square = self.square
        # Σ_keys weight · ∂weight, which the softmax's gradient subtracts, is known from the output alone.
        delta = tf.reduce_sum(upstream * output, -1, keepdims=True)  # (B, H, T, 1)
        by_step = [square.by_step(x) for x in (query, key, value)]
        upstream, delta = square.by_step(upstream), square.by_step(delta)

        def over_steps(m, of_query, of_key, of_value, of_bias, of_parameters):
            blocks, pulled = self._blocks(m, *by_step), [square.split_queries(x[m]) for x in (upstream, delta)]
            softmax_here = [x[m] for x in softmax]
            queries, keys, values, of_bias, more = self._backward(m, *blocks, *softmax_here, *pulled, of_bias)
            return (
                of_query.write(m, square.join_queries(queries) * self.score.scale(query)),
                of_key.write(m, square.join_keys(keys)),
                of_value.write(m, square.join_keys(values)),
                of_bias,
                _sums(of_parameters, more),
            )

        arrays = [tf.TensorArray(query.dtype, square.steps, element_shape=x.shape[1:]) for x in by_step]
        of_bias, of_parameters = self._zero_bias(query.dtype), [tf.zeros_like(x) for x in self.parameters]
        *arrays, of_bias, of_parameters = _loop(
            0, square.steps, over_steps, *arrays, of_bias, of_parameters, at_once=_AT_ONCE
        )
        gradients = [square.whole(x.stack(), like) for x, like in zip(arrays, (query, key, value), strict=True)]
        return *gradients, *([] if self.bias is None else [self._join_bias(of_bias)]), *of_parameters

    def _backward(self, m, queries, keys, values, tops, totals, upstream, deltas, of_bias):
        """Gradients of the blocks of queries, keys and values, of the bias up to this step, of the parameters by it."""
        shifted_keys, shifted_values = self.score.prepared_keys(keys), with_ones(values)

        def over_queries(i, of_queries, of_keys, of_values, of_bias, of_parameters):
            query, reach = queries[i], self._reach(m, i)
            # Weights are exp(score − highest) / total. Tokens are fewer than pairs: they are what is divided.
            of_output, delta = upstream[i] / totals[i], deltas[i] / totals[i]
            shifted_query = self.score.prepared_query(query, tops[i])
            shifted_output = less(of_output, delta)

            def over_keys(j, of_query, of_keys, of_values, of_bias, of_parameters):
                if self.bias is None:
                    scores = self.score.shifted(self.square, shifted_query, shifted_keys[j], self.parameters)
                else:  # in the order of the forward walk: beside a large bias any other rounds to other weights
                    scores = self.score.scores(self.square, query, keys[j], self.parameters)
                    scores = self._finite(self._biased(scores, m, i, j)) - tops[i]
                weights = tf.exp(self._hide(scores, -_INF, m, i, j, reach))  # times total
                if self.dropout is None:
                    kept, of_weights = weights, tf.matmul(shifted_output, shifted_values[j], transpose_b=True)
                else:
                    keep = self._keep(weights, m, i, j) * self.dropout.scale
                    kept, of_weights = weights * keep, tf.matmul(of_output, values[j], transpose_b=True) * keep - delta
                of_scores = weights * of_weights
                of_value = tf.matmul(kept, of_output, transpose_a=True)
                more_of_query, of_key, more = self.score.pull(self.square, query, keys[j], self.parameters, of_scores)
                if self.bias is not None:
                    of_bias = _add(of_bias, *self._bias_block(of_scores, m, i, j))
                return (
                    of_query + more_of_query,
                    _add(of_keys, j, of_key),
                    _add(of_values, j, of_value),
                    of_bias,
                    _sums(of_parameters, more),
                )

            of_query, *rest = _loop(
                reach.first, reach.end, over_keys, tf.zeros_like(query), of_keys, of_values, of_bias, of_parameters
            )
            return of_queries.write(i, of_query), *rest

        blocks = self.square.query_blocks
        of_queries = tf.TensorArray(queries.dtype, blocks, element_shape=queries.shape[1:])
        zeros = [tf.zeros_like(x) for x in self.parameters]
        of_queries, of_keys, of_values, of_bias, of_parameters = _loop(
            0, blocks, over_queries, of_queries, _zeros(keys), _zeros(values), of_bias, zeros
        )
        return of_queries.stack(), of_keys.stack(), of_values.stack(), of_bias, of_parameters

    def _grid(self, m, i, j):
        return self.square.grid(m // self.square.parts, i, j)

    def _reach(self, m, i):
        square = self.square
        if self.mask is None:
            return _Reach(0, square.key_blocks, 0, square.keys)
        grid = square.query_grid(m // square.parts, i)
        low, high = self.mask.key_bounds(grid)
        first = tf.maximum(low, 0) // square.columns
        return _Reach(first, ceil(tf.minimum(high, square.keys), square.columns), *self.mask.open_bounds(grid))

    def _finite(self, scores):
        """A score of −inf, which hides its key, as `_lowest`, and any lower than 0.4 of that, of which biases are, as 0.4."""
        if self.bias is None and self.score.always_finite:
            return scores
        lowest = _lowest(scores.dtype)
        least = tf.constant(0.4 * lowest, scores.dtype)
        low = tf.where(tf.equal(scores, -_INF), tf.constant(lowest, scores.dtype), least)
        return tf.where(scores < least, low, scores)

    def _biased(self, scores, m, i, j):
        if self.bias is None:
            return scores
        grid = self._grid(m, i, j)
        bias = grid.columns_of(grid.rows_of(grid.batch_of(self.bias), 2), 3)  # (c or 1, H or 1, t or 1, s or 1)
        return self.square.fold(self.square.unfold(scores) + tf.cast(bias, scores.dtype))

    def _hide(self, scores, low, m, i, j, reach):
        """`low` where the mask hides a key, or where there is only padding."""
        square = self.square
        if self.mask is None and not square.padded:
            return scores

        def hidden():
            visible = self._visible(self._grid(m, i, j))
            return square.fold(tf.where(visible, square.unfold(scores), tf.constant(low, scores.dtype)))

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

    def _pool(self, scores, value, m, i, j):
        """Output of the queries over one block of keys, their highest score in it, and Σ exp(score − highest)."""
        top = tf.reduce_max(scores, -1, keepdims=True)  # (c, G, R, 1)
        weights = tf.nn.softmax(scores)  # (c, G, R, s)
        # The largest weight is 1 / total: two maxima are quicker than a sum of exponentials of one's own.
        total = 1 / tf.reduce_max(weights, -1, keepdims=True)
        kept = weights if self.dropout is None else weights * self._keep(weights, m, i, j)
        return tf.matmul(kept, value), top, total  # (c, G, R, Dv)

    def _merge(self, output, top, total, more_output, more_top, more_total):
        """Pools two pooled sets of keys: each counts as much as its sum of exponentials."""
        highest = tf.maximum(top, more_top)
        old, new = total * tf.exp(top - highest), more_total * tf.exp(more_top - highest)
        total = old + new
        # A row that sees none of the block has the mean of what is hidden there, which may have overflowed: 0 of it.
        times = tf.multiply if self.mask is None else tf.math.multiply_no_nan
        return times(output, old / total) + times(more_output, new / total), highest, total

    def _keep(self, weights, m, i, j):
        number = (m * self.square.query_blocks + i) * self.square.key_blocks + j
        return self.dropout.keep(number, tf.shape(weights), weights.dtype)

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
        heads, blocks = square.all_heads, square.query_blocks

        def block(n, seen):
            grid = square.query_grid(n // blocks, n % blocks)
            visible = pairs.with_heads(self.mask.on(grid), 4)  # (c or 1, H or 1, t or 1, S)
            rows = tf.reduce_any(visible & grid.batch_of(broken)[:, None, None], -1)
            return (seen.write(n, tf.broadcast_to(rows, [square.chunk, heads, square.rows])),)

        count = square.chunks * blocks
        (seen,) = _loop(0, count, block, tf.TensorArray(tf.bool, count))
        seen = tf.reshape(seen.stack(), [square.chunks, blocks, square.chunk, heads, square.rows])
        seen = tf.transpose(seen, [0, 2, 3, 1, 4])  # (B/c, c, H, blocks, t)
        return tf.reshape(seen, [square.batch, heads, blocks * square.rows])[:, :, : square.queries, None]

    def _bias_counts(self):
        """Blocks of the bias's gradient over the batch, the queries and the keys; 1 where it repeats."""
        square = self.square
        counts = ((0, square.chunks), (2, square.query_blocks), (3, square.key_blocks))
        return [1 if self.bias.shape[axis] == 1 else count for axis, count in counts]

    def _zero_bias(self, dtype):
        if self.bias is None:
            return []
        square = self.square
        full = (square.chunk, square.heads, square.rows, square.columns)
        shape = [1 if now == 1 else block for now, block in zip(self.bias.shape, full, strict=True)]
        chunks, rows, columns = self._bias_counts()
        return _zeros(tf.zeros([chunks * rows * columns, *shape], dtype))

    def _bias_block(self, of_scores, m, i, j):
        """Where the gradient of the bias grows by what."""
        of_scores = self.square.unfold(of_scores)  # (c, H, t, s)
        repeats = [axis for axis in range(4) if self.bias.shape[axis] == 1]
        chunk, i, j = (0 if axis in repeats else at for axis, at in ((0, m // self.square.parts), (2, i), (3, j)))
        _, rows, columns = self._bias_counts()
        return (chunk * rows + i) * columns + j, tf.reduce_sum(of_scores, repeats, keepdims=True)

    def _join_bias(self, of_bias):
        blocks = of_bias.stack()  # (blocks, c or 1, H or 1, t or 1, s or 1)
        chunks, rows, columns = self._bias_counts()
        c, heads, t, s = (size(blocks, axis) for axis in range(1, 5))
        blocks = tf.transpose(tf.reshape(blocks, [chunks, rows, columns, c, heads, t, s]), [0, 3, 4, 1, 5, 2, 6])
        joined = tf.reshape(blocks, [chunks * c, heads, rows * t, columns * s])
        queries, keys = size(self.bias, 2), size(self.bias, 3)
        return tf.cast(joined[:, :, :queries, :keys], self.bias.dtype)


def _lowest(dtype):
    """The score of a hidden key on the way forward, in place of −inf, of which a softmax makes NaN.

    A row whose highest score is below half of it has seen nothing; what may be seen has at least 0.4 of it (`_finite`), or
    comes from operands that nobody has, with products of −10³⁸. Beside such a score a hidden one's weight is exactly 0.
    """
    return 0.9 * dtype.min


def _loop(start, stop, body, *state, at_once=1):
    """`state` after body(i, *state) for each i from start to stop: one after the other, or at most so many at once."""

    def step(i, state):
        after = tuple(body(i, *state))
        tf.nest.map_structure(_keep_shape, state, after)
        return i + 1, after

    start = tf.convert_to_tensor(start, tf.int32)
    _, state = tf.while_loop(lambda i, _: i < stop, step, (start, state), parallel_iterations=at_once)
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


def _sums(left, right):
    return [a + b for a, b in zip(left, right, strict=True)]
