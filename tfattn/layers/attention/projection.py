"""The linear maps into and out of heads."""

from typing import Any

import keras
from keras import ops

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

    def add_kernel(self, shape: tuple, matrix: tuple) -> None:
        """The kernel of that shape, initialised as the `matrix` (rows, columns) that it is.

        On three axes Keras's initializers take the first for a receptive field, and the weights
        come out too small: by √(D · (H + P) / (D + H·P)), six times at width 512 with 8 heads.
        """
        initializer = own_initializer(self.kernel_initializer)
        self.kernel = self.add_weight(
            name="kernel",
            shape=shape,
            initializer=lambda shape, dtype: ops.reshape(initializer(matrix, dtype=dtype), shape),
            regularizer=self.kernel_regularizer,
            constraint=self.kernel_constraint,
        )

    def add_bias(self, shape: tuple) -> None:
        self.bias = None
        if self.use_bias:
            self.bias = self.add_weight(
                name="bias",
                shape=shape,
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

    def build(self, input_shape):
        width, columns = input_shape[-1], self.num_heads * self.head_dim
        self.add_kernel((width, self.num_heads, self.head_dim), (width, columns))
        self.add_bias((self.num_heads, self.head_dim))

    def call(self, inputs: Any) -> Any:
        columns = self.num_heads * self.head_dim
        matrix = ops.reshape(self.kernel, (-1, columns))  # (D, H·P)
        flat = products.matmul_shared(inputs, matrix)  # (B, T, H·P)
        if self.bias is not None:
            flat = flat + ops.reshape(self.bias, (columns,))
        length = ops.shape(inputs)[1]
        # (B, H, T, P)
        return ops.swapaxes(ops.reshape(flat, (-1, length, self.num_heads, self.head_dim)), 1, 2)


class FromHeads(_Projection):
    """`(B, H, T, P)` to `(B, T, E)`: the heads side by side, then one linear map."""

    def __init__(self, width: int, **kwargs: Any):
        super().__init__(**kwargs)
        self.width = width

    def build(self, input_shape):
        _, heads, _, head_dim = input_shape
        self.add_kernel((heads, head_dim, self.width), (heads * head_dim, self.width))
        self.add_bias((self.width,))

    def call(self, inputs: Any) -> Any:
        _, heads, length, head_dim = ops.shape(inputs)
        # (B, T, H·P)
        rows = ops.reshape(ops.swapaxes(inputs, 1, 2), (-1, length, heads * head_dim))
        # (B, T, E)
        output = products.matmul_shared(rows, ops.reshape(self.kernel, (-1, self.width)))
        return output if self.bias is None else output + self.bias
