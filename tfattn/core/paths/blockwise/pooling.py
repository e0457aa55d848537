"""How the walk forward pools the values of the keys, block by block.

Each way here begins a block of queries with `start`, takes in one block of keys after the other
with `more`, and ends with `result`: the pooled values, and two numbers of each query, `top` and
`total`, by which the way back finds a weight again: exp(score − top) / total. `hidden` is the score
that stands for a key under the mask. Shape letters are those of `blocks`.
"""

import tensorflow as tf

from tfattn.core.paths.blockwise.blocks import size

__all__ = ["Merges", "Sums", "lowest"]

# In place of the `top` of a query without keys: exp(score − 1e30) is 0, and no product makes a NaN
# of it.
_NEVER = 1e30


def lowest(dtype):
    """A score in place of −inf, of which a softmax makes NaN.

    A row whose highest score is below half of it has seen nothing; what may be seen has at least
    0.4 of it (`Walk._finite`), or comes from operands that nobody has, with products of −10³⁸.
    Beside such a score a hidden one's weight is exactly 0.
    """
    return 0.9 * dtype.min


class Sums:
    """Σ exp(score) · value and Σ exp(score), as they are: two products and an exponential a block,
    and no highest score.

    Right for the queries that `well` says, nearly always all: those whose exponentials neither
    overflow nor vanish. It asks nothing but the sums, so that no key that a query may not see
    decides how that query is computed.
    """

    def __init__(self, dropout):
        self.dropout = dropout

    def hidden(self, dtype):
        return -float("inf")

    def start(self, query, values):
        zero = tf.zeros_like(query[..., :1])  # (c, G, R, 1)
        return zero * tf.zeros([values.shape[-1]], zero.dtype), zero

    def more(self, pooled, total, scores, value, number):
        weights = tf.exp(scores)  # (c, G, R, s)
        kept = weights if self.dropout is None else self.dropout.dropped(weights, number)
        return pooled + tf.matmul(kept, value), total + _row_sums(weights)

    def well(self, pooled, total):
        """Of which queries `result` is right: `(c, G, R, 1)`. Of none without keys: it cannot tell
        them from others.

        What overflows is not finite. From a sum of e⁻⁹ on, a key is lost only if its weight is
        below e⁻⁷⁸.
        """
        finite = tf.reduce_all(tf.math.is_finite(pooled), -1, keepdims=True) & tf.math.is_finite(
            total
        )
        return finite & (total > 1e-4)

    def result(self, pooled, total, blind):
        """`blind`: bool `(c, G, R, 1)`, the queries that see no key."""
        total = tf.where(blind, tf.ones_like(total), total)
        # One number says it all: log Σ exp(score) is further from 0 than a score by log S at most,
        # and rounds as well.
        top = tf.where(blind, tf.constant(_NEVER, total.dtype), tf.math.log(total))
        return tf.where(blind, tf.zeros_like(pooled), pooled / total), top, tf.ones_like(total)


def _row_sums(x):
    """`tf.reduce_sum` over the last axis, as a product of a matrix and a vector.

    Of a block on two cores it takes half the time. As another column of the product with 64 values,
    which asks for no pass of its own, it took three times as long: that product is a sixth slower
    for it.
    """
    columns = size(x, -1)
    sums = tf.matmul(tf.reshape(x, [-1, columns]), tf.ones([columns, 1], x.dtype))
    return tf.reshape(sums, [*[size(x, axis) for axis in range(len(x.shape) - 1)], 1])


class Merges:
    """The mean of the values, the highest score and Σ exp(score − highest) of the keys seen so far:
    right for any scores.
    """

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
        # Not from the largest weight, 1 / total: of scores that differ by less than their weights
        # can show, its gradient would be that of a mean over all of them, and that of `more_top`
        # goes to one.
        more_total = tf.reduce_sum(tf.exp(scores - more_top), -1, keepdims=True)
        kept = weights if self.dropout is None else self.dropout.dropped(weights, number)
        more_output = tf.matmul(kept, value)
        # Each of the two sets counts as much as its sum of exponentials.
        highest = tf.maximum(top, more_top)
        old, new = total * tf.exp(top - highest), more_total * tf.exp(more_top - highest)
        total = old + new
        # A row that sees none of the block has the mean of what is hidden there, which may have
        # overflowed: 0 of it.
        times = tf.math.multiply_no_nan if self.masked else tf.multiply
        return times(output, old / total) + times(more_output, new / total), highest, total

    def result(self, output, top, total):
        # no key was seen: what was pooled came from under the mask
        nothing = top < lowest(top.dtype) / 2
        pooled = (output, 0), (top, _NEVER), (total, 1)
        return tuple(tf.where(nothing, tf.constant(instead, x.dtype), x) for x, instead in pooled)
