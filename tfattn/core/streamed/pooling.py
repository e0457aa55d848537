"""How the walk forward pools the values of the keys, block by block.

Each way here begins a block of queries with `start`, takes in one block of keys after the other with `more`, and ends with
`result`: the pooled values, and two numbers of each query, `top` and `total`, by which the way back finds a weight again:
exp(score − top) / total. `hidden` is the score that stands for a key under the mask. Shape letters are those of
`blocks`.
"""

import tensorflow as tf

from tfattn.core.streamed.block_scores import with_ones

__all__ = ["Merges", "Sums", "lowest"]

# In place of the `top` of a query without keys: exp(score − 1e30) is 0, and no product makes a NaN of it.
_NEVER = 1e30


def lowest(dtype):
    """A score in place of −inf, of which a softmax makes NaN.

    A row whose highest score is below half of it has seen nothing; what may be seen has at least 0.4 of it (`Walk._finite`),
    or comes from operands that nobody has, with products of −10³⁸. Beside such a score a hidden one's weight is exactly 0.
    """
    return 0.9 * dtype.min


class Sums:
    """Σ exp(score) · value and Σ exp(score), as they are: a product and an exponential a block, and no highest score.

    Right for the queries that `well` says, nearly always all: those whose exponentials neither overflow nor vanish. It asks
    nothing but the sums, so that no key that a query may not see decides how that query is computed.
    """

    def __init__(self, dropout):
        self.dropout = dropout

    def hidden(self, dtype):
        return -float("inf")

    def values(self, values):
        """With ones as another column: what they are pooled to is the sum of the exponentials."""
        return with_ones(values)

    def start(self, query, values):
        return (tf.zeros_like(query[..., :1]) * tf.zeros([values.shape[-1]], query.dtype),)  # (c, G, R, Dv + 1)

    def more(self, pooled, scores, value, number):
        weights = tf.exp(scores)  # (c, G, R, s)
        if self.dropout is None:
            return (pooled + tf.matmul(weights, value),)
        output = tf.matmul(self.dropout.dropped(weights, number), value[..., :-1])
        return (pooled + tf.concat([output, tf.reduce_sum(weights, -1, keepdims=True)], -1),)

    def well(self, pooled):
        """Of which queries `result` is right: `(c, G, R, 1)`. Of none without keys: it cannot tell them from others.

        What overflows is not finite. From a sum of e⁻⁹ on, a key is lost only if its weight is below e⁻⁷⁸.
        """
        return tf.reduce_all(tf.math.is_finite(pooled), -1, keepdims=True) & (pooled[..., -1:] > 1e-4)

    def result(self, pooled, blind):
        """`blind`: bool `(c, G, R, 1)`, the queries that see no key."""
        output, total = pooled[..., :-1], pooled[..., -1:]
        total = tf.where(blind, tf.ones_like(total), total)
        # One number says it all: log Σ exp(score) is further from 0 than a score by log S at most, and rounds as well.
        top = tf.where(blind, tf.constant(_NEVER, total.dtype), tf.math.log(total))
        return tf.where(blind, tf.zeros_like(output), output / total), top, tf.ones_like(total)


class Merges:
    """The mean of the values, the highest score and Σ exp(score − highest) of the keys seen so far: right for any scores."""

    def __init__(self, dropout, masked):
        self.dropout = dropout
        self.masked = masked  # whether keys may be hidden

    def hidden(self, dtype):
        return lowest(dtype)

    def start(self, query, values):
        zero = tf.zeros_like(query[..., :1])  # (c, G, R, 1)
        return zero * tf.zeros([values.shape[-1]], zero.dtype), zero + lowest(zero.dtype), zero

    def more(self, output, top, total, scores, value, number):
        more_top = tf.reduce_max(scores, -1, keepdims=True)  # (c, G, R, 1)
        weights = tf.nn.softmax(scores)  # (c, G, R, s)
        # Not from the largest weight, 1 / total: of scores that differ by less than their weights can show, its gradient
        # would be that of a mean over all of them, and that of `more_top` goes to one.
        more_total = tf.reduce_sum(tf.exp(scores - more_top), -1, keepdims=True)
        kept = weights if self.dropout is None else self.dropout.dropped(weights, number)
        more_output = tf.matmul(kept, value)
        # Each of the two sets counts as much as its sum of exponentials.
        highest = tf.maximum(top, more_top)
        old, new = total * tf.exp(top - highest), more_total * tf.exp(more_top - highest)
        total = old + new
        # A row that sees none of the block has the mean of what is hidden there, which may have overflowed: 0 of it.
        times = tf.math.multiply_no_nan if self.masked else tf.multiply
        return times(output, old / total) + times(more_output, new / total), highest, total

    def result(self, output, top, total):
        nothing = top < lowest(top.dtype) / 2  # no key was seen: what was pooled came from under the mask
        pooled = (output, 0), (top, _NEVER), (total, 1)
        return tuple(tf.where(nothing, tf.constant(instead, x.dtype), x) for x, instead in pooled)
