"""The softmax over keys that come block by block, with a running maximum.

    row_max'  = max(row_max, max over the block of score)
    rescale   = exp(row_max − row_max')
    row_sum'  = row_sum · rescale + Σ exp(score − row_max')
    pooled'   = pooled · rescale  + Σ exp(score − row_max') · value

At the end output = pooled / row_sum. The backward pass computes each weight again as
exp(score − row_max) / row_sum. The log of the sum of all exp(score) is row_max + log(row_sum). A
hidden key has a score of −inf and a weight of exactly 0.

Source: Milakov, Gimelshein 2018, arXiv:1805.02867; Rabe, Staats 2021, arXiv:2112.05682; Dao et al.
2022, arXiv:2205.14135.
"""

import tensorflow as tf

from tfattn._types import Size
from tfattn.core.engine.tensorflow.block_dropout import BlockDropout
from tfattn.core.engine.tensorflow.loops import size

# The score of a key that the mask hides.
HIDDEN = -float("inf")

# row_max of a query without visible keys: exp(score − 1e30) is 0, and no product turns it into NaN.
# Not a round number, so that no real score equals it.
_BEYOND_ANY_SCORE = 1.2345e30


class OnlineSoftmax:
    """The state of a block of queries: `pooled` `(c, G, R, Dv)`, `row_max` and `row_sum`
    `(c, G, R, 1)`.
    """

    def __init__(self, num_keys: Size, dropout: BlockDropout | None = None):
        # Values are divided by the number of keys before the sum: a sum of numbers near the
        # largest float overflows where their mean does not.
        self.num_keys = num_keys
        self.dropout = dropout

    def prepared(self, values: tf.Tensor) -> tf.Tensor:
        return values / tf.cast(tf.maximum(1, self.num_keys), values.dtype)

    def start(self, query: tf.Tensor, width: Size) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        zero = tf.zeros_like(query[..., :1])  # (c, G, R, 1)
        # The least number and not −inf, since −inf − (−inf) is NaN.
        return zero * tf.zeros([width], zero.dtype), zero + zero.dtype.min, zero

    def update(
        self,
        pooled: tf.Tensor,
        row_max: tf.Tensor,
        row_sum: tf.Tensor,
        scores: tf.Tensor,
        values: tf.Tensor,
        block_number: Size,
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """The state after a block of scores `(c, G, R, s)` and prepared values `(c, G, s, Dv)`."""
        new_max = tf.maximum(row_max, tf.reduce_max(scores, -1, keepdims=True))
        # The result does not depend on the maximum, so the maximum needs no derivative.
        new_max = tf.stop_gradient(new_max)
        rescale = tf.exp(row_max - new_max)
        weights = tf.exp(scores - new_max)
        kept = weights if self.dropout is None else self.dropout.dropped(weights, block_number)
        pooled = pooled * rescale + tf.matmul(kept, values)
        return pooled, new_max, row_sum * rescale + _row_sums(weights)

    def result(
        self, pooled: tf.Tensor, row_max: tf.Tensor, row_sum: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """(output, row_max, row_sum); output and weights are 0 where no key is visible."""
        is_empty = tf.equal(row_sum, 0)
        row_sum = tf.where(is_empty, tf.ones_like(row_sum), row_sum)
        row_max = tf.where(is_empty, tf.constant(_BEYOND_ANY_SCORE, row_max.dtype), row_max)
        scale = tf.cast(tf.maximum(1, self.num_keys), pooled.dtype)
        if self.dropout is not None:
            scale *= self.dropout.scale
        return pooled * (scale / row_sum), row_max, row_sum


def log_of_sums(row_max: tf.Tensor, row_sum: tf.Tensor) -> tf.Tensor:
    """log Σ exp(score) of each row of a `result`; −inf where no key is visible.

    Not differentiable, since row_max has no derivative.
    """
    is_empty = tf.equal(row_max, tf.constant(_BEYOND_ANY_SCORE, row_max.dtype))
    return tf.where(is_empty, tf.constant(HIDDEN, row_max.dtype), row_max + tf.math.log(row_sum))


def _row_sums(x: tf.Tensor) -> tf.Tensor:
    """`tf.reduce_sum` over the last axis as a product, which takes half the time on a CPU."""
    columns = size(x, -1)
    sums = tf.matmul(tf.reshape(x, [-1, columns]), tf.ones([columns, 1], x.dtype))
    return tf.reshape(sums, [*[size(x, axis) for axis in range(len(x.shape) - 1)], 1])
