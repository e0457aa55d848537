"""One layer of a Transformer's encoder, and what it shares with the decoder's."""

import keras

from tfattn import _checks
from tfattn.layers.attention.multi_head import MultiHeadAttention
from tfattn.layers.attention.single_head import checked_score
from tfattn.layers.parts import copy_of, deserialized, part_seed, serialized, without_broken_padding
from tfattn.layers.transformer.feed_forward import AddNorm, PositionwiseFeedForward

__all__ = ["TransformerEncoderBlock"]


class TransformerBlock(keras.layers.Layer):
    """What both blocks share: their arguments, and how their parts are made. See
    `TransformerEncoderBlock`.
    """

    def __init__(
        self,
        num_heads,
        hidden_dim,
        dropout=0.0,
        attention_dropout=0.0,
        activation="relu",
        norm_first=False,
        score=None,
        num_key_value_heads=None,
        kernel_initializer=None,
        seed=None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        who = type(self).__name__
        self.num_heads = _checks.positive_int(who, "num_heads", num_heads)
        self.hidden_dim = _checks.positive_int(who, "hidden_dim", hidden_dim)
        self.dropout = _checks.probability(who, "dropout", dropout)
        self.attention_dropout = _checks.probability(who, "attention_dropout", attention_dropout)
        self.activation = keras.activations.get(activation)
        self.norm_first = _checks.boolean(who, "norm_first", norm_first)
        self.score = checked_score(who, score)
        self.num_key_value_heads = num_key_value_heads
        if num_key_value_heads is not None:
            _checks.positive_int(who, "num_key_value_heads", num_key_value_heads)
            _checks.divides(who, "num_key_value_heads", num_key_value_heads, "num_heads", num_heads)
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.seed = seed
        self.supports_masking = True

    def make_attention(self, name, query_shape, value_shape):
        """A built attention whose heads part the width of the queries.

        The maps to queries, keys and values begin smaller than Glorot's rule has them, by 1/√2: as
        parts of the one map to all three that they could be. Transformers learn better from there
        (fairseq, Ott et al. 2019, arXiv:1904.01038).
        """
        who, width = type(self).__name__, query_shape[-1]
        _checks.rank(who, "inputs", query_shape, (3,), "(B, T, D)")
        _checks.rank(who, "memory", value_shape, (3,), "(B, S, D)")
        if width is None:
            _checks.fail(who, "inputs", "have a width that is known", query_shape)
        _checks.divides(who, "num_heads", self.num_heads, "width of the inputs", width)
        attention = MultiHeadAttention(
            num_heads=self.num_heads,
            key_dim=width // self.num_heads,
            dropout=self.attention_dropout,
            # A copy: each attention has a score with weights of its own.
            score=copy_of(self.score),
            num_key_value_heads=self.num_key_value_heads,
            kernel_initializer=self.kernel_initializer
            or keras.initializers.VarianceScaling(0.5, "fan_avg", "uniform"),
            output_kernel_initializer=self.kernel_initializer or "glorot_uniform",
            seed=part_seed(self.seed, name),
            dtype=self.dtype_policy,
            name=name,
        )
        attention.build(query_shape, value_shape)
        return attention

    def make_add_norm(self, name, shape):
        layer = AddNorm(
            dropout=self.dropout,
            norm_first=self.norm_first,
            seed=part_seed(self.seed, name),
            dtype=self.dtype_policy,
            name=name,
        )
        layer.build(shape)
        return layer

    def make_feed_forward(self, shape):
        layer = PositionwiseFeedForward(
            self.hidden_dim,
            activation=self.activation,
            kernel_initializer=self.kernel_initializer or "glorot_uniform",
            seed=part_seed(self.seed, "feed_forward"),
            dtype=self.dtype_policy,
            name="feed_forward",
        )
        layer.build(shape)
        return layer

    def compute_output_shape(self, inputs_shape, *other_shapes):
        return tuple(inputs_shape)

    def compute_output_spec(self, *args, **kwargs):
        # The call itself, traced with symbolic tensors, so that returned weights have their shapes
        # too.
        return keras.Operation.compute_output_spec(self, *args, **kwargs)

    def get_config(self):
        return {
            **super().get_config(),
            "num_heads": self.num_heads,
            "hidden_dim": self.hidden_dim,
            "dropout": self.dropout,
            "attention_dropout": self.attention_dropout,
            "activation": keras.activations.serialize(self.activation),
            "norm_first": self.norm_first,
            "score": serialized(self.score),
            "num_key_value_heads": self.num_key_value_heads,
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
            "seed": self.seed,
        }

    @classmethod
    def from_config(cls, config):
        return cls(**deserialized(config, "score"))


@keras.saving.register_keras_serializable("tfattn")
class TransformerEncoderBlock(TransformerBlock):
    """Self-attention and a position-wise network, each with residual, dropout and layer
    normalisation.

        x = add_norm(x, attention(x, x))
        x = add_norm(x, feed_forward(x))

    Args:
        num_heads: positive int that divides the width D of the inputs; each head has D / num_heads
            features.
        hidden_dim: positive int, inner width of the position-wise network.
        dropout: probability in [0, 1) of dropping a feature of a sublayer's output.
        attention_dropout: the same for attention weights.
        activation: of the position-wise network.
        norm_first: pre-norm instead of the paper's post-norm. A stack of such blocks ends with a
            norm of its own.
        score: a score layer that each attention copies; the scaled dot product where it is not
            given.
        num_key_value_heads: see `MultiHeadAttention`.
        kernel_initializer: of all linear maps; Glorot's uniform one where it is not given, and
            smaller by 1/√2 for the maps to queries, keys and values.
        seed: int, for the dropouts.
    Call arguments:
        inputs: float `(B, T, D)`.
        mask: bool `(B, T)`, True = real token; the mask that Keras carries on `inputs` arrives here
            by itself.
        attention_mask, valid_lens, use_causal_mask, bias: as in every attention layer, see
            `tfattn.layers.attention.base.AttentionLayer`.
        return_attention_scores: whether to return the weights too.
        training: whether dropout is active.
    Returns:
        `(B, T, D)`, with the inputs' mask; on request also the weights `(B, H, T, T)`.
    Raises:
        ValueError: `num_heads` does not divide the width; a size is no positive int; a mask does
            not fit.
    Example:
        >>> TransformerEncoderBlock(num_heads=2, hidden_dim=16)(np.ones((2, 3, 8), "float32")).shape
        TensorShape([2, 3, 8])

    Source: Vaswani et al. 2017, arXiv:1706.03762, section 3.1. The linear maps of the attention
    have biases here, as in Keras.
    """

    def build(self, inputs_shape):
        self.self_attention = self.make_attention("self_attention", inputs_shape, inputs_shape)
        self.self_attention_norm = self.make_add_norm("self_attention_norm", inputs_shape)
        self.feed_forward = self.make_feed_forward(inputs_shape)
        self.feed_forward_norm = self.make_add_norm("feed_forward_norm", inputs_shape)

    def call(
        self,
        inputs,
        mask=None,
        attention_mask=None,
        valid_lens=None,
        use_causal_mask=False,
        bias=None,
        return_attention_scores=False,
        training=None,
    ):
        if mask is not None:
            inputs = without_broken_padding(inputs, mask)
        x = self.self_attention_norm.before(inputs)
        attended = self.self_attention(
            query=x,
            value=x,
            key_mask=mask,
            attention_mask=attention_mask,
            valid_lens=valid_lens,
            use_causal_mask=use_causal_mask,
            bias=bias,
            return_attention_scores=return_attention_scores,
            training=training,
        )
        weights = ()
        if return_attention_scores:
            attended, *weights = attended
        x = self.self_attention_norm(inputs, attended, training=training)
        x = self.feed_forward_norm(
            x,
            self.feed_forward(self.feed_forward_norm.before(x), training=training),
            training=training,
        )
        return (x, *weights) if weights else x
