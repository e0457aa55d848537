"""Dropout from few random bits."""

import math

import keras
from keras import ops

from tfattn._types import Tensor

__all__ = ["Dropout"]


class Dropout(keras.layers.Dropout):
    """`keras.layers.Dropout`, with 8 random bits for a feature instead of 32.

    Most of a dropout's time goes into its random numbers. From 8 bits the rate is the nearest
    256th; where that is off by more than a fiftieth, 16 bits serve. The scale is that of the rate
    that is met, so that the expected sum stays.

    Args, Call arguments, Returns: those of `keras.layers.Dropout`.
    """

    def call(self, inputs: Tensor, training: bool = False) -> Tensor:
        rate = self.rate
        if not training or not 0.0 < rate < 1.0 or self.noise_shape is not None:
            return super().call(inputs, training=training)
        # A feature is dropped where its number is among the `dropped` lowest of so many bits.
        bits, dropped, dtype, lowest = 8, round(rate * 256), "uint8", 0
        if abs(dropped / 256 - rate) > min(rate, 1.0 - rate) / 50:
            bits, dropped = 16, min(max(round(rate * 65536), 1), 65535)
            dtype, lowest = "int16", -(2**15)  # Keras makes uint16 an int32 on PyTorch
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
        scale = 2**bits / (2**bits - dropped)
        return inputs * (ops.cast(kept, inputs.dtype) * scale)
