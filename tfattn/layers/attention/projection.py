"""The linear maps into and out of heads."""

from typing import Any

import keras
from keras import ops

from tfattn._types import Shape, Tensor
from tfattn.core import products
from tfattn.layers.parts import own_initializer

__all__ = ["FromHeads", "ToHeads"]


class _Projection(keras.layers.Layer):
    """A kernel and perhaps a bias, with Keras's own arguments for both, and in Keras's shapes."""

    def __init__(
        self,
        use_bias: bool = True,
        kernel_initializer: Any = "glorot_uniform",
        bias_initializer: Any = "zeros",
        kernel_regularizer: Any = None,
        bias_regularizer: Any = None,
        kernel_constraint: Any = None,
        bias_constraint: Any = None,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.use_bias = use_bias
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.bias_initializer = keras.initializers.get(bias_initializer)
        self.kernel_regularizer = keras.regularizers.get(kernel_regularizer)
        self.bias_regularizer = keras.regularizers.get(bias_regularizer)
        self.kernel_constraint = keras.constraints.get(kernel_constraint)
        self.bias_constraint = keras.constraints.get(bias_constraint)

    def add_kernel_and_bias(
        self, kernel_shape: Shape, matrix_shape: Shape, bias_shape: Shape
    ) -> None:
        """Makes the weights; the kernel is initialised as a matrix of `matrix_shape`.

        On three axes Keras's initializers take the first for a receptive field, and the weights
        come out too small: by √(D · (H + P) / (D + H·P)), six times at width 512 with 8 heads.
        """
        initializer = own_initializer(self.kernel_initializer)
        self.kernel = self.add_weight(
            name="kernel",
            shape=kernel_shape,
            initializer=lambda shape, dtype: ops.reshape(
                initializer(matrix_shape, dtype=dtype), shape
            ),
            regularizer=self.kernel_regularizer,
            constraint=self.kernel_constraint,
        )
        self.bias = None
        if self.use_bias:
            self.bias = self.add_weight(
                name="bias",
                shape=bias_shape,
                initializer=self.bias_initializer,
                regularizer=self.bias_regularizer,
                constraint=self.bias_constraint,
            )


class ToHeads(_Projection):
    """`(B, T, D)` to `(B, H, T, P)`: each head's own linear map, all in one product."""

    def __init__(self, num_heads: int, head_dim: int, **kwargs: Any):
        super().__init__(**kwargs)
        self.num_heads = num_heads
        self.head_dim = head_dim

    def build(self, input_shape: Shape) -> None:
        width, heads = input_shape[-1], (self.num_heads, self.head_dim)
        self.add_kernel_and_bias((width, *heads), (width, self.num_heads * self.head_dim), heads)

    def call(self, inputs: Tensor) -> Tensor:
        columns = self.num_heads * self.head_dim
        matrix = ops.reshape(self.kernel, (-1, columns))  # (D, H·P)
        flat = products.matmul_shared(inputs, matrix)  # (B, T, H·P)
        if self.bias is not None:
            flat = flat + ops.reshape(self.bias, (columns,))
        length = ops.shape(inputs)[1]
        heads = ops.reshape(flat, (-1, length, self.num_heads, self.head_dim))  # (B, T, H, P)
        return ops.swapaxes(heads, 1, 2)  # (B, H, T, P)


class FromHeads(_Projection):
    """`(B, H, T, P)` to `(B, T, E)`: the heads side by side, then one linear map."""

    def __init__(self, width: int, **kwargs: Any):
        super().__init__(**kwargs)
        self.width = width

    def build(self, input_shape: Shape) -> None:
        _, heads, _, head_dim = input_shape
        self.add_kernel_and_bias(
            (heads, head_dim, self.width), (heads * head_dim, self.width), (self.width,)
        )

    def call(self, inputs: Tensor) -> Tensor:
        _, heads, length, head_dim = ops.shape(inputs)
        tokens = ops.swapaxes(inputs, 1, 2)  # (B, T, H, P)
        rows = ops.reshape(tokens, (-1, length, heads * head_dim))  # (B, T, H·P)
        matrix = ops.reshape(self.kernel, (-1, self.width))  # (H·P, E)
        output = products.matmul_shared(rows, matrix)  # (B, T, E)
        return output if self.bias is None else output + self.bias
