"""Multi-head attention over any score."""

import keras

from tfattn import _checks
from tfattn.layers.attention.base import AttentionLayer
from tfattn.layers.attention.projection import FromHeads, ToHeads
from tfattn.layers.attention.single_head import score_or_default
from tfattn.layers.parts import deserialized, serialized

__all__ = ["MultiHeadAttention"]

# Arguments of Keras's layer that this one refuses by name, each with what to do instead.
_REFUSED = {
    "attention_axes": "sequences have one axis here; fold others into the batch",
    "sliding_window": "pass `attention_mask=tfattn.masks.window(size)` in the call",
    "flash_attention": "the engine picks its path by itself",
    "use_gate": "multiply the output by a gate of your own",
}


@keras.saving.register_keras_serializable("tfattn")
class MultiHeadAttention(AttentionLayer):
    """Several attentions side by side, each over its own projections of query, key and value.

        head_h = attention(query · W_h^q, key · W_h^k, value · W_h^v)
        output = concat(head_1 … head_H) · W_o

    With the default score it computes what `keras.layers.MultiHeadAttention` computes, with the
    same names, and takes that layer's `get_weights()`. The maps are `query_dense`, `key_dense`,
    `value_dense` and `output_dense`.

    Args:
        num_heads: positive int H, heads of the query.
        key_dim: positive int, width of each head's query and key.
        value_dim: positive int, width of each head's value; `key_dim` where it is not given.
        dropout: probability in [0, 1) of dropping a weight in training.
        use_bias: whether the four linear maps have a bias.
        output_shape: positive int, width of the output; the query's width where it is not given.
        score: a score layer, one attention function for all heads, with weights of its own for each
            where it has any; `DotProductScore()` where it is not given.
        num_key_value_heads: positive int G that divides H: heads of key and value, each shared by
            H/G heads of the query; H where it is not given. 1 is multi-query attention.
        kernel_initializer, bias_initializer, kernel_regularizer, bias_regularizer,
        kernel_constraint,
        bias_constraint: as in Keras, for the four linear maps.
        output_kernel_initializer: for the output map; `kernel_initializer` where it is not given.
        seed: int, for the dropout.
    Call arguments: those of every attention layer, see
    `tfattn.layers.attention.base.AttentionLayer`; the main ones:
        query: float `(B, T, Dq)`.   value: float `(B, S, Dv)`.   key: float `(B, S, Dk)`; else
            `value`.
        attention_mask: bool `(T, S)`, `(B, T, S)` or `(B, H, T, S)`, or a mask object; True = may
            attend.
    Returns:
        `(B, T, E)`, E the query's width or `output_shape`; on request also the weights
        `(B, H, T, S)`: each row sums to 1, or to 0 where every key is masked (the output there is
        the bias of the output map).
    Raises:
        ValueError: sizes are no positive ints, heads do not divide, an argument of Keras's layer
            that is not covered.
    Example:
        >>> tokens = np.ones((2, 7, 16), "float32")
        >>> MultiHeadAttention(num_heads=4, key_dim=4)(tokens, tokens, use_causal_mask=True).shape
        TensorShape([2, 7, 16])

    Source: Vaswani et al. 2017, arXiv:1706.03762, section 3.2.2; shared key heads, Ainslie et al.
    2023, arXiv:2305.13245. Differs from Keras's layer in its first weights, which follow the
    paper's 2-D matrices, in `use_causal_mask` with T < S, which lines up at the end here and at the
    start there, and in fully masked queries.
    """

    def __init__(
        self,
        num_heads,
        key_dim,
        value_dim=None,
        dropout=0.0,
        use_bias=True,
        output_shape=None,
        score=None,
        num_key_value_heads=None,
        kernel_initializer="glorot_uniform",
        bias_initializer="zeros",
        kernel_regularizer=None,
        bias_regularizer=None,
        kernel_constraint=None,
        bias_constraint=None,
        output_kernel_initializer=None,
        seed=None,
        **kwargs,
    ):
        who = "MultiHeadAttention"
        for name, instead in _REFUSED.items():
            given = kwargs.pop(name, None)
            if given not in (None, False):
                _checks.fail(who, name, f"not be given: {instead}", given)
        super().__init__(dropout=dropout, seed=seed, **kwargs)
        self.num_heads = _checks.positive_int(who, "num_heads", num_heads)
        self.key_dim = _checks.positive_int(who, "key_dim", key_dim)
        self.value_dim = (
            self.key_dim if value_dim is None else _checks.positive_int(who, "value_dim", value_dim)
        )
        self.num_key_value_heads = self.num_heads
        if num_key_value_heads is not None:
            self.num_key_value_heads = _checks.positive_int(
                who, "num_key_value_heads", num_key_value_heads
            )
            _checks.divides(who, "num_key_value_heads", num_key_value_heads, "num_heads", num_heads)
        # Not `self.output_shape`: Keras's models look for that name on their layers and read it as
        # another thing.
        self._output_shape = _width(who, output_shape)
        self.use_bias = _checks.boolean(who, "use_bias", use_bias)
        self.score = score_or_default(who, score, self.dtype_policy)
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.output_kernel_initializer = keras.initializers.get(output_kernel_initializer)
        self.bias_initializer = keras.initializers.get(bias_initializer)
        self.kernel_regularizer = keras.regularizers.get(kernel_regularizer)
        self.bias_regularizer = keras.regularizers.get(bias_regularizer)
        self.kernel_constraint = keras.constraints.get(kernel_constraint)
        self.bias_constraint = keras.constraints.get(bias_constraint)

    def build(self, query_shape, value_shape, key_shape=None):
        key_shape = value_shape if key_shape is None else key_shape
        groups = self.num_key_value_heads
        # In this order, which is the order of `get_weights()` in Keras's layer.
        self.query_dense = self._projection(
            ToHeads, "query", query_shape, self.num_heads, self.key_dim
        )
        self.key_dense = self._projection(ToHeads, "key", key_shape, groups, self.key_dim)
        self.value_dense = self._projection(ToHeads, "value", value_shape, groups, self.value_dim)
        pooled_shape = (query_shape[0], self.num_heads, query_shape[1], self.value_dim)
        width = self._output_shape or query_shape[-1]
        self.output_dense = self._projection(
            FromHeads,
            "attention_output",
            pooled_shape,
            width,
            initializer=self.output_kernel_initializer,
        )
        if not self.score.built:
            query_heads = (query_shape[0], self.num_heads, query_shape[1], self.key_dim)
            self.score.build(query_heads, (key_shape[0], groups, key_shape[1], self.key_dim))

    def pool(self, query, value, key, mask, bias, dropout, return_weights):
        keys, values = self.project_keys(value, key)
        return self.attend_projected(query, keys, values, mask, bias, dropout, return_weights)

    def project_keys(self, value, key=None):
        """Keys and values in heads: what is needed once a token, whichever query asks. Decoding
        keeps it between steps.

        Args:
            value: float `(B, S, Dv)`.   key: float `(B, S, Dk)`; `value` where it is not given.
        Returns:
            keys `(B, G, S, P)` and values `(B, G, S, V)`, G key heads.
        """
        return self.key_dense(value if key is None else key), self.value_dense(value)

    def attend_projected(
        self, query, keys, values, mask=None, bias=None, dropout=0.0, return_weights=False
    ):
        """Attention over what `project_keys` has made: the rest of a call.

        Args:
            query: float `(B, T, Dq)`.   keys, values: of `project_keys`.
            mask: a mask object or a bool array, as in `tfattn.attend`.   bias: float, likewise.
            dropout: probability in [0, 1) of dropping a weight.
            return_weights: whether weights are wanted.
        Returns:
            (output, weights), as in a call; weights are None where they are not wanted.
        """
        query = self.query_dense(query)  # (B, H, T, P)
        output, weights = self.attend(
            query, values, keys, self.score, mask, bias, dropout, return_weights
        )
        return self.output_dense(output), weights

    def score_shape(self, query_shape, key_shape):
        return (query_shape[0], self.num_heads, query_shape[1], key_shape[1])

    def compute_output_shape(self, query_shape, value_shape, key_shape=None):
        return (*query_shape[:-1], self._output_shape or query_shape[-1])

    def get_config(self):
        return {
            **super().get_config(),
            "num_heads": self.num_heads,
            "key_dim": self.key_dim,
            "value_dim": self.value_dim,
            "use_bias": self.use_bias,
            "output_shape": self._output_shape,
            "score": serialized(self.score),
            "num_key_value_heads": self.num_key_value_heads,
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
            "output_kernel_initializer": keras.initializers.serialize(
                self.output_kernel_initializer
            ),
            "bias_initializer": keras.initializers.serialize(self.bias_initializer),
            "kernel_regularizer": keras.regularizers.serialize(self.kernel_regularizer),
            "bias_regularizer": keras.regularizers.serialize(self.bias_regularizer),
            "kernel_constraint": keras.constraints.serialize(self.kernel_constraint),
            "bias_constraint": keras.constraints.serialize(self.bias_constraint),
        }

    @classmethod
    def from_config(cls, config):
        return cls(**deserialized(config, "score"))

    def _projection(self, kind, name, input_shape, *sizes, initializer=None):
        layer = kind(
            *sizes,
            use_bias=self.use_bias,
            kernel_initializer=initializer or self.kernel_initializer,
            bias_initializer=self.bias_initializer,
            kernel_regularizer=self.kernel_regularizer,
            bias_regularizer=self.bias_regularizer,
            kernel_constraint=self.kernel_constraint,
            bias_constraint=self.bias_constraint,
            dtype=self.dtype_policy,
            name=name,
        )
        layer.build(input_shape)
        return layer


def _width(who, output_shape):
    if isinstance(output_shape, (tuple, list)) and len(output_shape) == 1:
        output_shape = output_shape[0]
    return None if output_shape is None else _checks.positive_int(who, "output_shape", output_shape)
