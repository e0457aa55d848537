"""The position-wise network, and the one with a gate."""

from typing import Any

import keras
from keras import ops

from tfattn import _checks
from tfattn._types import Shape
from tfattn.layers.base import CheckedCall
from tfattn.layers.configs import copy_initializer
from tfattn.layers.dropout import Dropout


@keras.saving.register_keras_serializable("tfattn")
class PositionwiseFeedForward(CheckedCall, keras.layers.Layer):
    """Two linear maps with an activation between them, the same at every position.

        output = activation(input · W_1 + b_1) · W_2 + b_2

    Args:
        hidden_dim: positive int, width of the inner layer.
        output_dim: positive int, width of the output. Defaults to the input's.
        activation: name or function, as in Keras.
        dropout: probability in [0, 1) of dropping an inner unit in training.
        kernel_initializer: initializer of both matrices, as in Keras.
        seed: int, for the dropout.
    Call arguments:
        inputs: float `(B, T, D)`.   training: whether dropout is active.
    Returns:
        `(B, T, output_dim)`, with the inputs' mask.
    Example:
        >>> tuple(PositionwiseFeedForward(hidden_dim=32)(np.ones((2, 3, 8), "float32")).shape)
        (2, 3, 8)

    Source: Vaswani et al. 2017, arXiv:1706.03762, equation 2.
    """

    use_bias: bool = True

    def __init__(
        self,
        hidden_dim: int,
        output_dim: int | None = None,
        activation: Any = "relu",
        dropout: float = 0.0,
        kernel_initializer: Any = "glorot_uniform",
        seed: int | None = None,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        who = type(self).__name__
        self.hidden_dim = _checks.positive_int(who, "hidden_dim", hidden_dim)
        if output_dim is not None:
            output_dim = _checks.positive_int(who, "output_dim", output_dim)
        self.output_dim = output_dim
        self.activation = keras.activations.get(activation)
        self.dropout = _checks.probability(who, "dropout", dropout)
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.seed = _checks.seed(who, seed)
        self.supports_masking = True

    def build(self, input_shape: Shape) -> None:
        who = type(self).__name__
        width: Any = input_shape[-1]
        if len(input_shape) < 2:
            _checks.fail(who, "inputs", "have shape (B, T, D)", tuple(input_shape))
        _checks.has_width(who, "inputs", input_shape)
        _checks.known_width(who, "inputs", input_shape)
        self.build_inner(width)
        self.outer = self.dense("outer", self.hidden_dim, self.output_dim or width)
        self.inner_dropout = Dropout(
            self.dropout, seed=self.seed, dtype=self.dtype_policy, name="inner_dropout"
        )

    def build_inner(self, width: int) -> None:
        self.inner = self.dense("inner", width, self.hidden_dim, self.activation)

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        # Flat, so that each map and its gradient is a single product, not a batched product.
        rows = ops.reshape(inputs, (-1, inputs.shape[-1]))  # (B·T, D)
        hidden = self.inner_dropout(self._hidden(rows), training=training)  # (B·T, hidden)
        return ops.reshape(self.outer(hidden), (*ops.shape(inputs)[:-1], self.outer.units))

    def _hidden(self, rows: Any) -> Any:
        return self.inner(rows)

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return (*input_shape[:-1], self.output_dim or input_shape[-1])

    def dense(
        self, name: str, width: int, units: int, activation: Any = None
    ) -> keras.layers.Dense:
        """A built linear map from `width` to `units` features."""
        layer = keras.layers.Dense(
            units,
            activation=activation,
            use_bias=self.use_bias,
            kernel_initializer=copy_initializer(self.kernel_initializer),
            dtype=self.dtype_policy,
            name=name,
        )
        layer.build((None, width))
        return layer


@keras.saving.register_keras_serializable("tfattn")
class GatedFeedForward(PositionwiseFeedForward):
    """A position-wise network in which one linear map gates another: SwiGLU by default.

        output = (activation(input · W_g) * (input · W_u)) · W_d

    With 2/3 of the `hidden_dim` of a `PositionwiseFeedForward` it has the same number of weights.

    Args:
        activation: name or function for the gate, as in Keras: "silu" makes SwiGLU, "gelu" GEGLU,
            "relu" ReGLU, "sigmoid" GLU.
        use_bias: whether the three maps have a bias; False in the paper.
    The other arguments, Call arguments, Returns: those of `PositionwiseFeedForward`.
    Example:
        >>> tuple(GatedFeedForward(hidden_dim=22)(np.ones((2, 3, 8), "float32")).shape)
        (2, 3, 8)

    Source: Shazeer 2020, arXiv:2002.05202, equations 5 and 6; the gate, Dauphin et al. 2017,
    arXiv:1612.08083.
    """

    def __init__(
        self,
        hidden_dim: int,
        output_dim: int | None = None,
        activation: Any = "silu",
        dropout: float = 0.0,
        use_bias: bool = False,
        kernel_initializer: Any = "glorot_uniform",
        seed: int | None = None,
        **kwargs: Any,
    ):
        given = (hidden_dim, output_dim, activation, dropout, kernel_initializer, seed)
        super().__init__(*given, **kwargs)
        self.use_bias = _checks.boolean("GatedFeedForward", "use_bias", use_bias)

    def build_inner(self, width: int) -> None:
        self.gate = self.dense("gate", width, self.hidden_dim, self.activation)
        self.inner = self.dense("inner", width, self.hidden_dim)

    def _hidden(self, rows: Any) -> Any:
        return self.gate(rows) * self.inner(rows)
