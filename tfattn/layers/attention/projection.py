"""The linear maps into and out of heads."""

import math
from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from tfattn._types import Shape, Tensor
from tfattn.core.symbolic import shape_of
from tfattn.layers.configs import copy_initializer


class Projection(keras.layers.EinsumDense):
    """Keras's `EinsumDense` over the last axes, as one operation.

    Its weights, `enable_lora`, `quantize` and dtype policies are those of Keras. Differences:

    - The product is flat: on TensorFlow the operation `Einsum`, or `MatMul` in half precision.
      Keras computes a batched product, whose gradient holds a copy of the kernel for each row of
      the batch: with many short rows a step takes 1.4 times as long.
    - The kernel is initialized as a matrix. Before 3.15, Keras's initializers take the first of
      three axes as a receptive field, and the weights are too small by the factor
      √(D · (H + P) / (D + H·P)): six at width 512 with 8 heads.

    Args: those of `keras.layers.EinsumDense`; `output_shape` has None for the axes of tokens.
    """

    kernel_initializer: Any

    def build(self, input_shape: Shape) -> None:
        features = self._features()
        inputs = len(input_shape) + len(features) - 1 - len(self.partial_output_shape)
        if not isinstance(self.kernel_initializer, _AsMatrix):
            self.kernel_initializer = _AsMatrix(copy_initializer(self.kernel_initializer), inputs)
        super().build(input_shape)

    def call(self, inputs: Tensor, training: bool | None = None) -> Tensor:
        # Keras casts weights automatically, except symbolic weights on PyTorch.
        kernel = ops.cast(self.kernel, self.compute_dtype)
        if "16" in self.compute_dtype:
            output = self._flat_product(inputs, kernel)
        else:
            # With any option Keras uses the operation `Einsum`. There is one order of two operands.
            output = ops.einsum(self.equation, inputs, kernel, optimize="greedy")
        if self.bias is not None:
            output = output + ops.cast(self.bias, self.compute_dtype)
        return output if self.activation is None else self.activation(output)

    def _flat_product(self, inputs: Tensor, kernel: Tensor) -> Tensor:
        """The product in half precision: on a CPU `Einsum` would sum in half precision too."""
        features = self._features()
        taken = len(kernel.shape) - len(features)  # axes of the inputs that the product sums over
        rows, columns = math.prod(kernel.shape[:taken]), math.prod(features)
        tokens = shape_of(inputs)[:-taken]  # with the batch: for 0 tokens, −1 would be ambiguous
        matrix = ops.reshape(kernel, (rows, columns))
        flat = ops.matmul(ops.reshape(inputs, (-1, rows)), matrix)  # (B·T, columns)
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


def to_heads(num_heads: int, head_dim: int, use_bias: bool = True, **options: Any) -> Projection:
    """`(B, T, D)` to `(B, T, H, P)`: the linear maps of all heads, in one product."""
    bias_axes = "de" if use_bias else None
    shape = (None, num_heads, head_dim)
    return Projection("abc,cde->abde", shape, bias_axes=bias_axes, **options)


def from_heads(features: Shape, use_bias: bool = True, **options: Any) -> Projection:
    """`(B, T, H, P)` to `(B, T, *features)`: one linear map of the concatenated heads."""
    axes = "efghijklmnopqrstuvwxyz"[: len(features)]
    bias_axes = axes if use_bias else None
    return Projection(f"abcd,cd{axes}->ab{axes}", (None, *features), bias_axes=bias_axes, **options)


@keras.saving.register_keras_serializable("tfattn")
class _AsMatrix(keras.initializers.Initializer):
    """Initializes an array as the matrix from its first `inputs` axes to the others."""

    def __init__(self, initializer: Any, inputs: int):
        self.initializer = keras.initializers.get(initializer)
        self.inputs = inputs

    def __call__(self, shape: Sequence[int], dtype: Any = None) -> Tensor:
        matrix = (math.prod(shape[: self.inputs]), math.prod(shape[self.inputs :]))
        return ops.reshape(self.initializer(matrix, dtype=dtype), shape)

    def get_config(self) -> dict[str, Any]:
        return {
            "initializer": keras.initializers.serialize(self.initializer),
            "inputs": self.inputs,
        }
