"""Dropout from few random bits."""

import math

import keras
from keras import ops

from tfattn._types import Tensor


class Dropout(keras.layers.Dropout):
    """`keras.layers.Dropout`, with 8 random bits per feature instead of 32.

    Random numbers take most of the time of a dropout. 8 bits round the rate to a multiple of 1/256;
    if the rounding error is above 2 %, 16 bits are used. The scale is computed from the rounded
    rate, so that the expected output is the input.

    Args, Call arguments, Returns: those of `keras.layers.Dropout`.
    """

    def call(self, inputs: Tensor, training: bool = False) -> Tensor:
        rate = self.rate
        if not training or not 0.0 < rate < 1.0 or self.noise_shape is not None:
            return super().call(inputs, training=training)
        # A feature is dropped if its random number is one of the `dropped` lowest.
        bits, dropped, dtype, lowest = 8, round(rate * 256), "uint8", 0
        if abs(dropped / 256 - rate) > min(rate, 1.0 - rate) / 50:
            bits, dropped = 16, min(max(round(rate * 65536), 1), 65535)
            dtype, lowest = "int16", -(2**15)  # on PyTorch Keras turns uint16 into int32
        shape = ops.shape(inputs)
        count, per_word = math.prod(shape), 32 // bits
        words = keras.random.randint(
            ((count + per_word - 1) // per_word, 1),
            -(2**31),
            2**31 - 1,
            dtype="int32",
            seed=self.seed_generator,
        )
        numbers = ops.reshape(ops.view(words, dtype), (-1,))[:count]
        kept = ops.reshape(numbers >= ops.cast(lowest + dropped, numbers.dtype), shape)
        # Not a product: its gradient would keep four bytes of the mask per feature, not one.
        return ops.where(kept, inputs * (2**bits / (2**bits - dropped)), 0.0)
