"""The position-wise network with a gate."""

from typing import Any

import keras
from keras import ops

from tfattn import _checks
from tfattn.layers.transformer.feed_forward import PositionwiseFeedForward


@keras.saving.register_keras_serializable("tfattn")
class GatedFeedForward(PositionwiseFeedForward):
    """A position-wise network in which one linear map gates another: SwiGLU by default.

        output = (activation(input · W_g) * (input · W_u)) · W_d

    It has three linear maps instead of two: with 2/3 of the `hidden_dim` of a
    `PositionwiseFeedForward` it has the same number of weights.

    Args:
        hidden_dim, output_dim, dropout, seed: as in `PositionwiseFeedForward`.
        activation: name or function for the gate, as in Keras: "silu" makes SwiGLU, "gelu" GEGLU,
            "relu" ReGLU, "sigmoid" GLU.
        use_bias: whether the three maps have a bias; False in the paper.
        kernel_initializer: initializer of the three matrices, as in Keras.
    Call arguments, Returns: those of `PositionwiseFeedForward`.
    Raises:
        ValueError: a size is not a positive int; `dropout` is not in [0, 1).
    Example:
        >>> tuple(GatedFeedForward(hidden_dim=22)(np.ones((2, 3, 8), "float32")).shape)
        (2, 3, 8)
        >>> block = TransformerEncoderBlock(num_heads=2, feed_forward=GatedFeedForward(22))
        >>> tuple(block(np.ones((2, 3, 8), "float32")).shape)
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
        super().__init__(
            hidden_dim,
            output_dim=output_dim,
            activation=activation,
            dropout=dropout,
            kernel_initializer=kernel_initializer,
            seed=seed,
            **kwargs,
        )
        self.use_bias = _checks.boolean("GatedFeedForward", "use_bias", use_bias)

    def build_inner(self, width: int) -> None:
        self.gate = self.dense("gate", width, self.hidden_dim, self.activation)
        self.inner = self.dense("inner", width, self.hidden_dim)

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        rows = ops.reshape(inputs, (-1, inputs.shape[-1]))  # (B·T, D), see PositionwiseFeedForward
        hidden = self.gate(rows) * self.inner(rows)  # (B·T, hidden)
        hidden = self.inner_dropout(hidden, training=training)
        return ops.reshape(self.outer(hidden), (*ops.shape(inputs)[:-1], self.outer.units))
