"""The linear maps into and out of heads."""

import math
from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from tfattn._types import Shape, Tensor
from tfattn.core.tensors import is_in_graph, shape_of
from tfattn.layers.configs import copy_initializer


class Projection(keras.layers.EinsumDense):
    """Keras's `EinsumDense` over the last axes, as one operation.

    - The product is flat. Keras computes a batched product, whose gradient holds a copy of the
      kernel for each row of the batch: with many short rows a step takes 1.4 times as long.
    - The kernel is initialized as a matrix. Before 3.15, Keras's initializers take the first of
      three axes as a receptive field: at width 512 with 8 heads, weights are too small by 6.
    """

    kernel_initializer: Any

    def build(self, input_shape: Shape) -> None:
        initializer, columns = self.kernel_initializer, math.prod(self._features())
        # One copy: in a stateless scope Keras computes the first value again and again.
        of_matrix = copy_initializer(initializer)

        def as_matrix(shape: Sequence[int], dtype: Any = None) -> Tensor:
            matrix = (math.prod(shape) // columns, columns)
            return ops.reshape(of_matrix(matrix, dtype=dtype), shape)

        self.kernel_initializer = as_matrix
        super().build(input_shape)
        self.kernel_initializer = initializer

    def call(self, inputs: Tensor, training: bool | None = None) -> Tensor:
        # Keras casts weights automatically, except symbolic weights on PyTorch.
        kernel = ops.cast(self.kernel, self.compute_dtype)
        bias = None if self.bias is None else ops.cast(self.bias, self.compute_dtype)
        # In half precision `Einsum` sums in half precision too, on a CPU. A graph adds the bias
        # within a product of matrices; call by call, that takes 1.4 times as long as `Einsum`.
        if "16" in self.compute_dtype or is_in_graph(inputs):
            output = self._flat_product(inputs, kernel, bias)
        else:
            # With any option Keras uses the operation `Einsum`. There is one order of two operands.
            output = ops.einsum(self.equation, inputs, kernel, optimize="greedy")
            output = output if bias is None else output + bias
        return output if self.activation is None else self.activation(output)

    def _flat_product(self, inputs: Tensor, kernel: Tensor, bias: Tensor | None) -> Tensor:
        features = self._features()
        taken = len(kernel.shape) - len(features)  # axes of the inputs that the product sums over
        rows, columns = math.prod(kernel.shape[:taken]), math.prod(features)
        tokens = shape_of(inputs)[:-taken]  # with the batch: for 0 tokens, −1 would be ambiguous
        flat = ops.matmul(ops.reshape(inputs, (-1, rows)), ops.reshape(kernel, (rows, columns)))
        flat = flat if bias is None else flat + ops.reshape(bias, (-1,))
        return ops.reshape(flat, (*tokens, *features))

    def quantized_call(self, inputs: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if 1 not in self._features()[1:]:
            return super().quantized_call(inputs, *args, **kwargs)
        # With H tokens, Keras adds a bias `(H, 1)` along the tokens. So each token becomes its own
        # sequence.
        tokens, rest = ops.shape(inputs)[1], ops.shape(inputs)[2:]
        single = ops.reshape(inputs, (-1, 1, *rest))  # (B·T, 1, ...)
        output = super().quantized_call(single, *args, **kwargs)
        return ops.reshape(output, (-1, tokens, *self._features()))

    def quantize(self, mode: Any = None, type_check: bool = True, config: Any = None) -> None:
        # With a type check, Keras refuses subclasses.
        super().quantize(mode, type_check=False, config=config)

    def _features(self) -> tuple[int, ...]:
        return tuple(size for size in self.partial_output_shape if size is not None)


def to_heads(inputs: Shape, num_heads: int, head_dim: int, **options: Any) -> Projection:
    """The built map from `(B, T, D)` to `(B, T, H, P)`: those of all heads, in one product."""
    return _built("abc,cde->abde", inputs, (num_heads, head_dim), **options)


def from_heads(inputs: Shape, features: Shape, **options: Any) -> Projection:
    """The built map from `(B, T, H, P)` to `(B, T, *features)`, of the concatenated heads."""
    axes = "efghijklmnopqrstuvwxyz"[: len(features)]
    return _built(f"abcd,cd{axes}->ab{axes}", inputs, features, **options)


def _built(equation: str, inputs: Shape, features: Shape, use_bias: bool, **options: Any) -> Any:
    bias_axes = equation.partition("->ab")[2] if use_bias else None
    layer = Projection(equation, (None, *features), bias_axes=bias_axes, **options)
    layer.build(inputs)
    return layer
