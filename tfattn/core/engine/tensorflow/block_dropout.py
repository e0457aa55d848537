"""Dropout of weights that are computed block by block, in the forward and the backward pass."""

import keras
import tensorflow as tf

from tfattn._types import Size
from tfattn.core.objects import Splittable


class BlockDropout(Splittable):
    """Keeps or drops each weight by 16 random bits, the same whenever a block is computed."""

    is_pure = True

    def __init__(self, rate: float, key: tf.Tensor):
        self.rate = rate
        self.threshold = min(round(rate * 65536), 65535)
        self.scale = 65536 / (65536 - self.threshold)
        self.key = key  # uint64 (1,), shared by all blocks

    @classmethod
    def draw(cls, rate: float, seed: int | keras.random.SeedGenerator | None) -> "BlockDropout":
        """Draws a key of four words from the caller's generator."""
        words = keras.random.randint((4,), 0, 65536, dtype="int32", seed=seed)
        words = tf.bitwise.left_shift(
            tf.cast(words, tf.uint64), tf.constant([0, 16, 32, 48], tf.uint64)
        )
        return cls(rate, tf.reduce_sum(words, keepdims=True))

    def drop(self, weights: tf.Tensor) -> tf.Tensor:
        """The weights of the whole matrix, some dropped and the others scaled up."""
        return weights * (self.keep(0, tf.shape(weights), weights.dtype) * self.scale)

    def dropped(self, weights: tf.Tensor, number: Size) -> tf.Tensor:
        """The weights of block `number` after dropout, not scaled up."""
        return weights * self.keep(number, tf.shape(weights), weights.dtype)

    def keep(self, number: Size, shape: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
        """1 where a weight of block `number` is kept, 0 elsewhere."""
        count = tf.reduce_prod(shape)
        counter = tf.stack([tf.zeros([], tf.uint64), tf.cast(number, tf.uint64)])
        # Philox, with a separate counter for each block.
        words = tf.raw_ops.StatelessRandomUniformFullIntV2(
            shape=[(count + 1) // 2], key=self.key, counter=counter, alg=1, dtype=tf.uint32
        )
        bits = tf.reshape(tf.bitcast(words, tf.uint16), [-1])[:count]
        return tf.cast(tf.reshape(bits, shape) >= tf.constant(self.threshold, tf.uint16), dtype)
