"""The softmax over keys that come block by block, with a running maximum.

    row_max'  = max(row_max, max over the block of score)
    rescale   = exp(row_max − row_max')
    row_sum'  = row_sum · rescale + Σ exp(score − row_max')
    pooled'   = pooled · rescale  + Σ exp(score − row_max') · value

At the end output = pooled / row_sum, and exp(score − row_max) / row_sum is a weight, by which the
backward pass finds it again. The log of the sum of all exp(score) is row_max + log(row_sum). A
score of −inf, which a hidden key has, weighs exactly 0.

Source: Milakov, Gimelshein 2018, arXiv:1805.02867; Rabe, Staats 2021, arXiv:2112.05682; Dao et al.
2022, arXiv:2205.14135.
"""

import tensorflow as tf

from tfattn.core.engine.tensorflow.block_dropout import BlockDropout
from tfattn.core.engine.tensorflow.loops import Size, size

__all__ = ["HIDDEN", "OnlineSoftmax", "log_of_sums"]

# The score of a key under the mask.
HIDDEN = -float("inf")

# The maximum of a query that sees no key: exp(score − 1e30) is 0, and no product makes a NaN of it.
# No round number, so that it is never the greatest score of a query that sees one.
_BEYOND_ANY_SCORE = 1.2345e30


class OnlineSoftmax:
    """The state of a block of queries: `pooled` `(c, G, R, Dv)`, `row_max` and `row_sum`
    `(c, G, R, 1)`.
    """

    def __init__(self, num_keys: Size, dropout: BlockDropout | None = None):
        # Values are divided by the number of keys before they are summed up: a sum of numbers near
        # the largest float overflows where their mean does not.
        self.num_keys = num_keys
        self.dropout = dropout

    def prepared(self, values: tf.Tensor):
        return values / tf.cast(tf.maximum(1, self.num_keys), values.dtype)

    def start(self, query: tf.Tensor, width: int):
        zero = tf.zeros_like(query[..., :1])  # (c, G, R, 1)
        # The lowest number and not −inf: −inf − (−inf) is NaN.
        return zero * tf.zeros([width], zero.dtype), zero + zero.dtype.min, zero

    def update(
        self,
        pooled: tf.Tensor,
        row_max: tf.Tensor,
        row_sum: tf.Tensor,
        scores: tf.Tensor,
        values: tf.Tensor,
        block_number: Size,
    ):
        """The state with a block's scores `(c, G, R, s)` and prepared values `(c, G, s, Dv)`."""
        new_max = tf.maximum(row_max, tf.reduce_max(scores, -1, keepdims=True))
        # The result does not depend on the maximum, so that no derivative goes through it.
        new_max = tf.stop_gradient(new_max)
        rescale = tf.exp(row_max - new_max)
        weights = tf.exp(scores - new_max)
        kept = weights if self.dropout is None else self.dropout.dropped(weights, block_number)
        pooled = pooled * rescale + tf.matmul(kept, values)
        return pooled, new_max, row_sum * rescale + _row_sums(weights)

    def result(self, pooled: tf.Tensor, row_max: tf.Tensor, row_sum: tf.Tensor):
        """(output, row_max, row_sum); an output of 0 and weights of 0 where no key was seen."""
        nothing = tf.equal(row_sum, 0)
        row_sum = tf.where(nothing, tf.ones_like(row_sum), row_sum)
        row_max = tf.where(nothing, tf.constant(_BEYOND_ANY_SCORE, row_max.dtype), row_max)
        scale = tf.cast(tf.maximum(1, self.num_keys), pooled.dtype)
        if self.dropout is not None:
            scale *= self.dropout.scale
        return pooled * (scale / row_sum), row_max, row_sum


def log_of_sums(row_max: tf.Tensor, row_sum: tf.Tensor):
    """log Σ exp(score) of each row of a `result`; −inf where no key was seen.

    For numbers only: row_max has no derivative here.
    """
    nothing = tf.equal(row_max, tf.constant(_BEYOND_ANY_SCORE, row_max.dtype))
    return tf.where(nothing, tf.constant(HIDDEN, row_max.dtype), row_max + tf.math.log(row_sum))


def _row_sums(x: tf.Tensor):
    """`tf.reduce_sum` over the last axis as a product, which takes half the time on a CPU."""
    columns = size(x, -1)
    sums = tf.matmul(tf.reshape(x, [-1, columns]), tf.ones([columns, 1], x.dtype))
    return tf.reshape(sums, [*[size(x, axis) for axis in range(len(x.shape) - 1)], 1])
