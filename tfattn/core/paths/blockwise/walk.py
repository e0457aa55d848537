"""The two walks over the blocks of the square, forward and backward.

Both go over the steps (`layouts`), in each over the blocks of queries, and for each of these over
the blocks of keys that the mask lets it see; on the way forward but for those that an `edge` has
pooled before. Two steps are under way at a time, so that one of them keeps the cores busy while the
other waits for an operation's last thread; where there is one step alone, two blocks of its queries
are, on the way forward. All else is serial (the backward walk too where the bias has a gradient,
which all steps add to): no more than two blocks of scores, or two runs of strips, are in memory at
once. Shape letters are those of `blocks`; m counts steps, i blocks of queries, j blocks of keys.
"""

import tensorflow as tf

from tfattn.core import pairs
from tfattn.core.paths.blockwise.block_bias import Bias
from tfattn.core.paths.blockwise.block_scores import less, with_ones
from tfattn.core.paths.blockwise.edge import Edge
from tfattn.core.paths.blockwise.loops import add, loop
from tfattn.core.paths.blockwise.pooling import Merges, Sums, lowest
from tfattn.core.paths.blockwise.reach import Diagonals, Reach

__all__ = ["Walk"]

_AT_ONCE = 2
_INF = float("inf")


class Walk:
    """What a walk needs besides its operands."""

    def __init__(self, layout, score, dropout=None, bias=None, parameters=(), recorded=False):
        self.layout = layout
        self.square = square = layout.square
        self.score = score
        self.mask = layout.mask
        self.diagonals = Diagonals.of(self.mask, square)
        self.dropout = dropout
        self.bias = None if bias is None else Bias(bias, square)
        self.parameters = list(parameters)
        # `recorded` is what is differentiated in its turn: sums that overflow have no gradient.
        self.by_sums = score.moderate and not recorded

    def forward(self, query, key, value):
        """The output `(B, H, T, Dv)`, and for `backward` the two numbers of each query that
        `pooling` has.
        """
        layout, steps = self.layout, self.layout.steps
        laid = [layout.laid(x) for x in (query, key, value)]
        # Dropout must find its pattern again on the way back, which has no edge.
        plain = self.by_sums and self.bias is None and self.dropout is None
        edge = Edge.of(self.mask, self.square, self.diagonals, self.score) if plain else None

        def over_steps(m, *arrays):
            output, *softmax = self._forward(m, edge, *self._blocks(m, *laid))
            parts = [layout.joined_queries(output), *softmax]
            return [array.write(m, part) for array, part in zip(arrays, parts, strict=True)]

        shapes = [[*laid[0].shape[1:-1], value.shape[-1]], None, None]
        arrays = [tf.TensorArray(query.dtype, steps, element_shape=shape) for shape in shapes]
        output, *softmax = [
            array.stack() for array in loop(0, steps, over_steps, *arrays, at_once=_AT_ONCE)
        ]
        return layout.whole(output, query), softmax  # of both numbers (steps, blocks, c, G, R, 1)

    def _blocks(self, m, query, key, value):
        """Blocks of step m: queries `(blocks, c, G, R, X)`; keys and values as they lie for
        `layout.block`.
        """
        layout = self.layout
        return (
            layout.queries_at(query, m, copies=True) * self.score.scale(query),
            layout.keys_at(key, m, copies=True),
            layout.keys_at(value, m),
        )

    def _forward(self, m, edge, queries, keys, values):
        """Blocks of outputs `(blocks, c, G, R, Dv)`, and of the two numbers `(blocks, c, G, R, 1)`."""
        sums, merges = (
            Sums(self.dropout),
            Merges(self.dropout, self.mask is not None or self.square.padded),
        )
        begun = edge and edge.begun(sums, queries, keys, values)

        def over_queries(i, *arrays):
            query, reach = queries[i], self._reach(m, i)  # (c, G, R, X)

            def pooled(way, reach, state):
                def over_keys(j, *state):
                    scores = self.score.scores(
                        self.square, query, self.layout.block(keys, i, j), self.parameters
                    )  # (c, G, R, s)
                    scores = self._biased(scores, m, i, j)
                    # exp(−inf) is 0 by itself
                    scores = self._finite(scores) if way is merges else scores
                    scores = self._hide(scores, way.hidden(scores.dtype), m, i, j, reach)
                    return way.more(
                        *state, scores, self.layout.block(values, i, j), self._number(m, i, j)
                    )

                return loop(reach.first, reach.end, over_keys, *state)

            def merged():
                return merges.result(*pooled(merges, reach, merges.start(query, values)))

            def summed():
                if edge is None:
                    state = pooled(sums, reach, sums.start(query, values))
                else:
                    state = pooled(sums, edge.left(i), [x[i] for x in begun])
                well = sums.well(*state)
                blind = tf.zeros_like(well)
                if self.mask is not None:
                    blind = tf.cond(
                        tf.reduce_all(well), lambda: blind, lambda: self._blind(m, i, reach)
                    )
                result, well = sums.result(*state, blind), well | blind
                return tf.cond(
                    tf.reduce_all(well),
                    lambda: result,
                    lambda: tuple(
                        tf.where(well, *both) for both in zip(result, merged(), strict=True)
                    ),
                )

            output, *softmax = summed() if self.by_sums else merged()
            found = [output if self.dropout is None else output * self.dropout.scale, *softmax]
            return [array.write(i, x) for array, x in zip(arrays, found, strict=True)]

        blocks = self.layout.query_blocks
        shapes = [[*queries.shape[1:-1], width] for width in (values.shape[-1], 1, 1)]
        arrays = [tf.TensorArray(queries.dtype, blocks, element_shape=shape) for shape in shapes]
        # Where there is one step alone, its blocks of queries take the place of steps: they wait
        # for nothing but each other.
        at_once = _AT_ONCE if isinstance(self.layout.steps, int) and self.layout.steps == 1 else 1
        return [array.stack() for array in loop(0, blocks, over_queries, *arrays, at_once=at_once)]

    def backward(self, query, key, value, output, softmax, upstream):
        """Gradients of query, key and value, of the bias where there is one, and of the parameters."""
        layout, steps = self.layout, self.layout.steps
        # Σ_keys weight · ∂weight, which the softmax's gradient subtracts, is known from the output
        # alone.
        delta = tf.reduce_sum(upstream * output, -1, keepdims=True)  # (B, H, T, 1)
        laid, pulled = (
            [layout.laid(x) for x in (query, key, value)],
            [layout.laid(x) for x in (upstream, delta)],
        )

        def over_steps(m, of_query, of_key, of_value, of_bias, of_parameters):
            here = (
                *self._blocks(m, *laid),
                *[x[m] for x in softmax],
                *[layout.queries_at(x, m) for x in pulled],
            )
            queries, keys, values, of_bias, more = self._backward(m, *here, of_bias)
            return (
                of_query.write(m, layout.joined_queries(queries) * self.score.scale(query)),
                of_key.write(m, layout.joined_keys(keys)),
                of_value.write(m, layout.joined_keys(values)),
                of_bias,
                _sums(of_parameters, more),
            )

        arrays = [tf.TensorArray(query.dtype, steps, element_shape=x.shape[1:]) for x in laid]
        of_bias = [] if self.bias is None else self.bias.zeros(query.dtype)
        of_parameters = [tf.zeros_like(x) for x in self.parameters]
        *arrays, of_bias, of_parameters = loop(
            0, steps, over_steps, *arrays, of_bias, of_parameters, at_once=_AT_ONCE
        )
        gradients = [
            layout.whole(x.stack(), like)
            for x, like in zip(arrays, (query, key, value), strict=True)
        ]
        return *gradients, *([] if self.bias is None else [self.bias.join(of_bias)]), *of_parameters

    def _backward(self, m, queries, keys, values, tops, totals, upstream, deltas, of_bias):
        """Gradients of the blocks of queries, keys and values, of the bias up to this step, of the
        parameters by it.
        """
        shifted_keys, shifted_values = self.score.prepared_keys(keys), with_ones(values)

        def over_queries(i, of_queries, of_keys, of_values, of_bias, of_parameters):
            query, reach = queries[i], self._reach(m, i)
            # Weights are exp(score − top) / total. Tokens are fewer than pairs: they are what is
            # divided.
            of_output, delta = upstream[i] / totals[i], deltas[i] / totals[i]
            shifted_query = self.score.prepared_query(query, tops[i])
            shifted_output = less(of_output, delta)

            def over_keys(j, of_query, of_keys, of_values, of_bias, of_parameters):
                key = self.layout.block(keys, i, j)
                if self.bias is None:
                    scores = self.score.shifted(
                        self.square,
                        shifted_query,
                        self.layout.block(shifted_keys, i, j),
                        self.parameters,
                    )
                # in the order of the forward walk: beside a large bias any other rounds to other
                # weights
                else:
                    scores = self.score.scores(self.square, query, key, self.parameters)
                    scores = self._finite(self._biased(scores, m, i, j)) - tops[i]
                weights = tf.exp(self._hide(scores, -_INF, m, i, j, reach))  # times total
                if self.dropout is None:
                    value = self.layout.block(shifted_values, i, j)
                    kept, of_weights = weights, tf.matmul(shifted_output, value, transpose_b=True)
                else:
                    keep = self.dropout.keep(
                        self._number(m, i, j), tf.shape(weights), weights.dtype
                    )
                    keep *= self.dropout.scale
                    value = self.layout.block(values, i, j)
                    kept, of_weights = (
                        weights * keep,
                        tf.matmul(of_output, value, transpose_b=True) * keep - delta,
                    )
                of_scores = weights * of_weights
                of_value = tf.matmul(kept, of_output, transpose_a=True)
                more_of_query, of_key, more = self.score.pull(
                    self.square, query, key, self.parameters, of_scores
                )
                if self.bias is not None:
                    of_bias = add(of_bias, *self.bias.more(of_scores, m, i, j))
                return (
                    of_query + more_of_query,
                    self.layout.more(of_keys, j, of_key),
                    self.layout.more(of_values, j, of_value),
                    of_bias,
                    _sums(of_parameters, more),
                )

            sums = self.layout.opened(of_keys, keys), self.layout.opened(of_values, values)
            of_query, *sums_here, of_bias, of_parameters = loop(
                reach.first,
                reach.end,
                over_keys,
                tf.zeros_like(query),
                *sums,
                of_bias,
                of_parameters,
            )
            of_keys, of_values = map(self.layout.closed, (of_keys, of_values), sums_here, (i, i))
            return of_queries.write(i, of_query), of_keys, of_values, of_bias, of_parameters

        blocks = self.layout.query_blocks
        of_queries = tf.TensorArray(queries.dtype, blocks, element_shape=queries.shape[1:])
        nothing_yet = [tf.zeros_like(x) for x in self.parameters]
        of_queries, of_keys, of_values, of_bias, of_parameters = loop(
            0,
            blocks,
            over_queries,
            of_queries,
            *map(self.layout.sums, (keys, values)),
            of_bias,
            nothing_yet,
        )
        return of_queries.stack(), of_keys, of_values, of_bias, of_parameters

    def _grid(self, m, i, j):
        return self.square.grid(*self.layout.at(m, i), j)

    def _reach(self, m, i):
        return Reach.of(self.mask, self.square, *self.layout.at(m, i))

    def _blind(self, m, i, reach):
        """Which queries of a block see no key: `(c, G, R, 1)`."""
        square = self.square
        shape = [square.chunk, square.heads, square.rows, 1]

        def over_keys(j, blind):
            def hidden():
                visible = self._visible(self._grid(m, i, j))
                return tf.broadcast_to(
                    tf.logical_not(tf.reduce_any(visible, -1, keepdims=True)), shape
                )

            if reach.closed:
                return (blind & hidden(),)
            return (
                blind & tf.cond(reach.is_open(square, j), lambda: tf.zeros(shape, tf.bool), hidden),
            )

        (blind,) = loop(reach.first, reach.end, over_keys, tf.ones(shape, tf.bool))
        return square.fold(blind)

    def _finite(self, scores):
        """A score of −inf, which hides its key, as `lowest`, and any lower than 0.4 of that, of
        which biases are, as 0.4.
        """
        if self.bias is None and self.score.always_finite:
            return scores
        least, lower = (
            tf.constant(part * lowest(scores.dtype), scores.dtype) for part in (0.4, 1.0)
        )
        low = tf.where(tf.equal(scores, -_INF), lower, least)
        return tf.where(scores < least, low, scores)

    def _biased(self, scores, m, i, j):
        return scores if self.bias is None else self.bias.added(scores, self._grid(m, i, j))

    def _hide(self, scores, low, m, i, j, reach):
        """`low` where the mask hides a key, or where there is only padding."""
        square = self.square
        if reach.opened:
            return scores

        def hidden():
            visible = self._visible(self._grid(m, i, j))
            return square.fold(
                tf.where(visible, square.unfold(scores), tf.constant(low, scores.dtype))
            )

        return (
            hidden() if reach.closed else tf.cond(reach.is_open(square, j), lambda: scores, hidden)
        )

    def _visible(self, grid):
        """The mask on `grid`, broadcastable to `(c, H, t, s)`."""
        inside = grid.key_positions() < self.square.keys  # (1, s)
        if self.mask is None:
            return inside
        rule = self.mask if self.diagonals is None else self.diagonals
        visible = pairs.with_heads(rule.on(grid), 4)
        return visible & inside if self.square.padded else visible

    def _number(self, m, i, j):
        return (m * self.layout.query_blocks + i) * self.square.key_blocks + j


def _sums(left, right):
    return [a + b for a, b in zip(left, right, strict=True)]
