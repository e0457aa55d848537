"""The Transformer's two small parts: the position-wise network, and the residual connection with
its norm.
"""

import keras
from keras import ops

from tfattn import _checks
from tfattn.layers.dropout import Dropout
from tfattn.layers.transformer.norm import LayerNormalization

__all__ = ["AddNorm", "PositionwiseFeedForward"]


@keras.saving.register_keras_serializable("tfattn")
class PositionwiseFeedForward(keras.layers.Layer):
    """Two linear maps with an activation between them, the same at every position.

        output = activation(input · W_1 + b_1) · W_2 + b_2

    Args:
        hidden_dim: positive int, width of the inner layer.
        output_dim: positive int, width of the output; the input's where it is not given.
        activation: name or function, as in Keras.
        dropout: probability in [0, 1) of dropping an inner unit in training.
        kernel_initializer: of both maps.
        seed: int, for the dropout.
    Call arguments:
        inputs: float `(B, T, D)`.   training: whether dropout is active.
    Returns:
        `(B, T, output_dim)`, with the inputs' mask.
    Raises:
        ValueError: a size is no positive int; `dropout` is not in [0, 1).
    Example:
        >>> PositionwiseFeedForward(hidden_dim=32)(np.ones((2, 3, 8), "float32")).shape
        TensorShape([2, 3, 8])

    Source: Vaswani et al. 2017, arXiv:1706.03762, equation 2.
    """

    def __init__(
        self,
        hidden_dim,
        output_dim=None,
        activation="relu",
        dropout=0.0,
        kernel_initializer="glorot_uniform",
        seed=None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        who = "PositionwiseFeedForward"
        self.hidden_dim = _checks.positive_int(who, "hidden_dim", hidden_dim)
        self.output_dim = (
            None if output_dim is None else _checks.positive_int(who, "output_dim", output_dim)
        )
        self.activation = keras.activations.get(activation)
        self.dropout = _checks.probability(who, "dropout", dropout)
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.seed = seed
        self.supports_masking = True

    def build(self, input_shape):
        width = self.output_dim or input_shape[-1]
        self.inner = self._dense(self.hidden_dim, "inner", self.activation)
        self.inner.build((None, input_shape[-1]))
        self.outer = self._dense(width, "outer", None)
        self.outer.build((None, self.hidden_dim))
        self.inner_dropout = Dropout(
            self.dropout, seed=self.seed, dtype=self.dtype_policy, name="inner_dropout"
        )

    def call(self, inputs, training=None):
        # Flat, so that each map and its gradient is one plain product and not a batched one.
        rows = ops.reshape(inputs, (-1, inputs.shape[-1]))  # (B·T, D)
        rows = self.inner_dropout(self.inner(rows), training=training)  # (B·T, hidden)
        return ops.reshape(self.outer(rows), (*ops.shape(inputs)[:-1], self.outer.units))

    def compute_output_shape(self, input_shape):
        return (*input_shape[:-1], self.output_dim or input_shape[-1])

    def get_config(self):
        return {
            **super().get_config(),
            "hidden_dim": self.hidden_dim,
            "output_dim": self.output_dim,
            "activation": keras.activations.serialize(self.activation),
            "dropout": self.dropout,
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
            "seed": self.seed,
        }

    def _dense(self, units, name, activation):
        initializer = self.kernel_initializer
        if isinstance(initializer, keras.initializers.Initializer):
            # A copy: Keras's initializers give the same numbers each time that one object is asked.
            initializer = type(initializer).from_config(initializer.get_config())
        return keras.layers.Dense(
            units,
            activation=activation,
            kernel_initializer=initializer,
            dtype=self.dtype_policy,
            name=name,
        )


@keras.saving.register_keras_serializable("tfattn")
class AddNorm(keras.layers.Layer):
    """The residual connection around a sublayer, with dropout and layer normalisation.

        post-norm (the paper):       norm(input + dropout(sublayer(input)))
        pre-norm (`norm_first`):     input + dropout(sublayer(norm(input)))

    Both are used in the same two steps, `output = add_norm(x, sublayer(add_norm.before(x)))`. A
    stack of pre-norm blocks needs one more norm after the last, which the models here add.

    Args:
        dropout: probability in [0, 1) of dropping a feature of the sublayer's output in training.
        norm_first: whether to normalise before the sublayer (pre-norm).
        epsilon: positive number, added to the variance.
        seed: int, for the dropout.
    Call arguments:
        inputs: float `(B, T, D)`, what went around the sublayer.
        outputs: float `(B, T, D)`, what came out of it; without it the layer only normalises, which
            is `before`.
        training: whether dropout is active.
    Returns:
        `(B, T, D)`, with the mask of `inputs`.
    Raises:
        ValueError: the two differ in width; `dropout` is not in [0, 1).
    Example:
        >>> inputs = np.array([[[1.0, 3.0]]], "float32")
        >>> print(AddNorm()(inputs, inputs).numpy().round(3))
        [[[-1.  1.]]]

    Source: He et al. 2016, arXiv:1512.03385; Ba, Kiros, Hinton 2016, arXiv:1607.06450; pre-norm,
    Xiong et al. 2020, arXiv:2002.04745.
    """

    def __init__(self, dropout=0.0, norm_first=False, epsilon=1e-5, seed=None, **kwargs):
        super().__init__(**kwargs)
        self.dropout = _checks.probability("AddNorm", "dropout", dropout)
        self.norm_first = _checks.boolean("AddNorm", "norm_first", norm_first)
        self.epsilon = _checks.positive_number("AddNorm", "epsilon", epsilon)
        self.seed = seed
        self.supports_masking = True

    def build(self, inputs_shape, outputs_shape=None):
        if outputs_shape is not None and inputs_shape[-1] != outputs_shape[-1]:
            _checks.fail(
                "AddNorm",
                "outputs",
                f"be as wide as `inputs`, {inputs_shape[-1]}",
                outputs_shape[-1],
            )
        self.norm = LayerNormalization(epsilon=self.epsilon, dtype=self.dtype_policy, name="norm")
        self.norm.build(inputs_shape)
        self.output_dropout = Dropout(
            self.dropout, seed=self.seed, dtype=self.dtype_policy, name="output_dropout"
        )

    def before(self, inputs):
        """What the sublayer is to be given: the inputs, normalised under pre-norm."""
        return self(inputs) if self.norm_first else inputs

    def call(self, inputs, outputs=None, training=None):
        if outputs is None:
            return self.norm(inputs)
        _checks.same_size("AddNorm", "outputs", outputs.shape[1], "inputs", inputs.shape[1])
        total = inputs + self.output_dropout(outputs, training=training)
        return total if self.norm_first else self.norm(total)

    def compute_output_shape(self, inputs_shape, outputs_shape=None):
        return tuple(inputs_shape)

    def get_config(self):
        return {
            **super().get_config(),
            "dropout": self.dropout,
            "norm_first": self.norm_first,
            "epsilon": self.epsilon,
            "seed": self.seed,
        }
