"""Layer normalization with an explicit gradient, and the residual connection with its norm."""

from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from tfattn import _checks
from tfattn._types import Shape, Tensor
from tfattn.core.engine.tensorflow.gradients import custom_gradient
from tfattn.core.tensors import matmul_shared
from tfattn.layers.base import CheckedCall
from tfattn.layers.configs import LayerTemplate, checked_layer
from tfattn.layers.dropout import Dropout


class LayerNormalization(keras.layers.LayerNormalization):
    """`keras.layers.LayerNormalization`, with fewer passes over the tokens on TensorFlow.

        output = gamma · h + beta,        h = (x − mean) / √(variance + epsilon)

    TensorFlow differentiates Keras's composition operation by operation, each a pass over all
    tokens. The explicit gradient, with g for gamma times the gradient of the output, needs two
    means per token, both products with a column:

        (g − mean(g) − h · mean(g · h)) / √(variance + epsilon)

    Second derivatives are correct too; those of Keras's composition are not, since TensorFlow's
    variance treats the mean as a constant. Other backends, and norms over other axes than the last
    or without gamma or beta, use that composition.

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
            mean = matmul_shared(upstream, column)  # (..., 1), mean(g)
            mean_h = matmul_shared(upstream_h, column)  # (..., 1), mean(g · h)
            grad_x = scale * (upstream * gamma - mean - h * mean_h)
            tokens = tuple(range(len(x.shape) - 1))  # the axes of the tokens
            return grad_x, ops.sum(upstream_h, axis=tokens), ops.sum(upstream, axis=tokens)

        return gamma * h + beta, gradient

    return normalize


@keras.saving.register_keras_serializable("tfattn")
class AddNorm(CheckedCall, keras.layers.Layer):
    """The residual connection around a sublayer, with dropout and a norm.

        post-norm (the paper):       norm(input + dropout(sublayer(input)))
        pre-norm (`norm_first`):     input + dropout(sublayer(norm(input)))

    Use both in the same way: `output = add_norm(x, sublayer(add_norm.pre_norm(x)))`. A stack of
    pre-norm blocks needs one more norm at its end; the models of this package add it.

    Args:
        dropout: probability in [0, 1) of dropping a feature of the sublayer's output in training.
        norm_first: whether to normalize before the sublayer (pre-norm).
        epsilon: positive number, added to the variance by the default norm.
        norm: a norm layer, which is copied. Defaults to layer normalization with `epsilon`.
        seed: int, for the dropout.
    Call arguments:
        inputs: float `(B, T, D)`, the inputs of the sublayer.
        outputs: float `(B, T, D)`, its outputs. Without outputs the layer only normalizes.
        training: whether dropout is active.
    Returns:
        `(B, T, D)`, with the mask of `inputs`.
    Example:
        >>> inputs = np.array([[[1.0, 3.0]]], "float32")
        >>> print(np.asarray(AddNorm()(inputs=inputs, outputs=inputs)).round(3))
        [[[-1.  1.]]]

    Source: He et al. 2016, arXiv:1512.03385; Ba, Kiros, Hinton 2016, arXiv:1607.06450; pre-norm,
    Xiong et al. 2020, arXiv:2002.04745.
    """

    call_axes = {"inputs": "BTD", "outputs": "BTD"}

    norm: keras.layers.Layer

    def __init__(
        self,
        dropout: float = 0.0,
        norm_first: bool = False,
        epsilon: float = 1e-5,
        norm: keras.layers.Layer | None = None,
        seed: int | None = None,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.dropout = _checks.probability("AddNorm", "dropout", dropout)
        self.norm_first = _checks.boolean("AddNorm", "norm_first", norm_first)
        self.epsilon = _checks.positive_number("AddNorm", "epsilon", epsilon)
        self.seed = _checks.seed(type(self).__name__, seed)
        self.supports_masking = True
        # The config contains the template, since some norms change their config in `build`.
        self._norm = LayerTemplate(checked_layer("AddNorm", "norm", norm))
        options = {"dtype": self.dtype_policy, "name": "norm"}
        self.norm = self._norm.copy(**options)
        if norm is None:
            self.norm = LayerNormalization(epsilon=self.epsilon, **options)
        self.norm.supports_masking = True  # it normalizes each token by itself

    def build(self, inputs_shape: Shape, outputs_shape: Shape | None = None) -> None:
        self.norm.build(inputs_shape)
        self.output_dropout = Dropout(
            self.dropout, seed=self.seed, dtype=self.dtype_policy, name="output_dropout"
        )

    def pre_norm(self, inputs: Any) -> Any:
        """The inputs of the sublayer: normalized for pre-norm, unchanged for post-norm."""
        return self(inputs) if self.norm_first else inputs

    def call(self, inputs: Any, outputs: Any = None, training: bool | None = None) -> Any:
        if outputs is None:
            return self.norm(inputs)
        total = inputs + self.output_dropout(outputs, training=training)
        return total if self.norm_first else self.norm(total)

    def compute_output_shape(
        self, inputs_shape: Shape, outputs_shape: Shape | None = None
    ) -> Shape:
        return tuple(inputs_shape)
