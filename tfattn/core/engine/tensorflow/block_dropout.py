"""Dropout of weights that are computed block by block, and again in the backward pass."""

import keras
import tensorflow as tf

from tfattn.core.engine.tensorflow.loops import Size

__all__ = ["BlockDropout"]


class BlockDropout:
    """Which weights of a block stay, from 16 random bits each: the same ones each time that the
    block is computed.
    """

    def __init__(self, rate: float, key: tf.Tensor):
        self.rate = rate
        self.threshold = min(round(rate * 65536), 65535)
        self.scale = 65536 / (65536 - self.threshold)
        self.key = key  # uint64 (1,), that of all blocks

    @classmethod
    def draw(cls, rate: float, seed):
        """With a key of four words from the caller's generator."""
        words = keras.random.randint((4,), 0, 65536, dtype="int32", seed=seed)
        words = tf.bitwise.left_shift(
            tf.cast(words, tf.uint64), tf.constant([0, 16, 32, 48], tf.uint64)
        )
        return cls(rate, tf.reduce_sum(words, keepdims=True))

    def drop(self, weights: tf.Tensor):
        """The weights of the whole matrix, without the dropped ones; the others are scaled up."""
        return weights * (self.keep(0, tf.shape(weights), weights.dtype) * self.scale)

    def dropped(self, weights: tf.Tensor, number: Size):
        """The weights of block `number`, less those that do not stay, and without the scale."""
        return weights * self.keep(number, tf.shape(weights), weights.dtype)

    def keep(self, number: Size, shape, dtype: tf.DType):
        """1 where a weight of block `number` stays, 0 elsewhere."""
        count = tf.reduce_prod(shape)
        counter = tf.stack([tf.zeros([], tf.uint64), tf.cast(number, tf.uint64)])
        # Philox; its counter keeps the blocks apart.
        words = tf.raw_ops.StatelessRandomUniformFullIntV2(
            shape=[(count + 1) // 2], key=self.key, counter=counter, alg=1, dtype=tf.uint32
        )
        bits = tf.reshape(tf.bitcast(words, tf.uint16), [-1])[:count]
        return tf.cast(tf.reshape(bits, shape) >= tf.constant(self.threshold, tf.uint16), dtype)
