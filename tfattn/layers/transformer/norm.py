"""Layer normalization with an explicit gradient."""

from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from tfattn._gradients import custom_gradient
from tfattn._types import Tensor
from tfattn.core import products


class LayerNormalization(keras.layers.LayerNormalization):
    """`keras.layers.LayerNormalization`, with fewer passes over the tokens on TensorFlow.

        output = gamma · h + beta,        h = (x − mean) / √(variance + epsilon)

    TensorFlow has no layer normalization kernel for CPUs, and differentiates Keras's composition
    operation by operation, each a pass over all tokens. The explicit gradient, with g for gamma
    times the gradient of the output, needs two means per token, both products with a column:

        (g − mean(g) − h · mean(g · h)) / √(variance + epsilon)

    Second derivatives are correct too; those of Keras's composition are not, since TensorFlow's
    variance treats the mean as a constant. Other backends fuse Keras's composition, and use it; so
    does a norm over other axes than the last, or without gamma or beta.

    Args, Call arguments, Returns: those of `keras.layers.LayerNormalization`.

    Source: Ba, Kiros, Hinton 2016, arXiv:1607.06450.
    """

    def call(self, inputs: Tensor) -> Tensor:
        rank = len(inputs.shape)
        is_plain = (
            [axis % rank for axis in self.axis] == [rank - 1]
            and self.gamma is not None
            and self.beta is not None
        )
        if keras.backend.backend() != "tensorflow" or not is_plain:
            return super().call(inputs)
        # Statistics and sums in float32 or wider under every policy, as in Keras.
        dtype = keras.backend.result_type(inputs.dtype, "float32")
        tensors = (ops.cast(x, dtype) for x in (inputs, self.gamma, self.beta))
        return ops.cast(_normalization(self.epsilon)(*tensors), self.compute_dtype)


def _normalization(epsilon: float) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """Function of tokens `(..., D)`, gamma `(D,)` and beta `(D,)` to the normalized tokens."""

    @custom_gradient
    def normalize(x: Tensor, gamma: Tensor, beta: Tensor) -> tuple[Tensor, Callable[..., Any]]:
        centered = x - ops.mean(x, axis=-1, keepdims=True)  # (..., D)
        variance = ops.mean(ops.square(centered), axis=-1, keepdims=True)  # (..., 1)
        scale = ops.rsqrt(variance + epsilon)  # (..., 1)
        h = centered * scale

        def gradient(*args: Tensor, upstream: Tensor | None = None) -> tuple[Tensor, ...]:
            (upstream,) = args if upstream is None else (upstream,)
            upstream_h = upstream * h
            column = gamma[:, None] / gamma.shape[0]  # (D, 1): x · column is mean(gamma · x)
            mean = products.matmul_shared(upstream, column)  # (..., 1), mean(g)
            mean_h = products.matmul_shared(upstream_h, column)  # (..., 1), mean(g · h)
            grad_x = scale * (upstream * gamma - mean - h * mean_h)
            tokens = tuple(range(len(x.shape) - 1))  # the axes of the tokens
            return grad_x, ops.sum(upstream_h, axis=tokens), ops.sum(upstream, axis=tokens)

        return gamma * h + beta, gradient

    return normalize
