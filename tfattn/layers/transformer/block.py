"""Base of encoder and decoder blocks, and one layer of a Transformer's encoder."""

from typing import Any

import keras

from tfattn import _checks
from tfattn._types import Shape, Tensor
from tfattn.core.guard import zero_nonfinite_padding
from tfattn.layers.attention.multi_head import MultiHeadAttention
from tfattn.layers.base import CheckedCall, spec_of_call
from tfattn.layers.configs import LayerTemplate, checked_layer
from tfattn.layers.tokens import mask_of_tokens
from tfattn.layers.transformer.feed_forward import PositionwiseFeedForward
from tfattn.layers.transformer.norm import AddNorm, LayerNormalization


class TransformerBlock(CheckedCall, keras.layers.Layer):
    """Base of both blocks. The arguments are those of `TransformerEncoderBlock`."""

    num_heads: int
    self_attention: MultiHeadAttention
    self_attention_norm: AddNorm
    feed_forward: keras.layers.Layer
    feed_forward_norm: AddNorm

    def __init__(
        self,
        num_heads: int | None = None,
        hidden_dim: int | None = None,
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
        norm_first: bool = False,
        attention: MultiHeadAttention | None = None,
        feed_forward: keras.layers.Layer | None = None,
        norm: keras.layers.Layer | None = None,
        seed: int | None = None,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        who = type(self).__name__
        expected = "be a tfattn.MultiHeadAttention, or None"
        checked_layer(who, "attention", attention, MultiHeadAttention, expected)
        self.num_heads = _size(who, "num_heads", num_heads, "attention", attention)
        self.attention_dropout = _checks.probability(who, "attention_dropout", attention_dropout)
        if attention is not None:
            self.attention_dropout = attention.dropout
            if attention_dropout not in (0.0, attention.dropout):
                expected = f"match the value of `attention`, {attention.dropout}, or be omitted"
                _checks.fail(who, "attention_dropout", expected, attention_dropout)
        checked_layer(who, "feed_forward", feed_forward)
        self.hidden_dim = _size(who, "hidden_dim", hidden_dim, "feed_forward", feed_forward)
        self.dropout = _checks.probability(who, "dropout", dropout)
        self.norm_first = _checks.boolean(who, "norm_first", norm_first)
        self._attention = LayerTemplate(attention)
        self._feed_forward = LayerTemplate(feed_forward)
        self._norm = LayerTemplate(checked_layer(who, "norm", norm))
        self.feed_forward = None  # created in `build`, like the other sublayers
        self.seed = _checks.seed(who, seed)
        self.supports_masking = True

    @property
    def attention(self) -> MultiHeadAttention | None:
        """A copy of the attention layer that was passed in, or None."""
        return self._attention.layer

    @property
    def norm(self) -> keras.layers.Layer | None:
        """A copy of the norm that was passed in, or None."""
        return self._norm.layer

    def _make_attention(
        self, name: str, query_shape: Shape, value_shape: Shape, **changes: Any
    ) -> MultiHeadAttention:
        """A built attention layer: a copy of the layer passed in, with these changes, or a default.

        The default's maps to queries, keys and values have 1/√2 of Glorot's standard deviation,
        with which Transformers learn better (fairseq, Ott et al. 2019, arXiv:1904.01038).
        """
        who = type(self).__name__
        width: Any = query_shape[-1]
        _checks.known_width(who, "inputs", query_shape)
        options = self._part_options(name)
        if self.attention is None:
            _checks.divides(who, "num_heads", self.num_heads, "width of the inputs", width)
            attention = MultiHeadAttention(
                num_heads=self.num_heads,
                key_dim=width // self.num_heads,
                dropout=self.attention_dropout,
                kernel_initializer=keras.initializers.VarianceScaling(0.5, "fan_avg", "uniform"),
                output_kernel_initializer="glorot_uniform",
                **options,
            )
        else:
            attention = self._attention.copy(**options, **changes)
            output_shape = attention.compute_output_shape(query_shape, value_shape)
            self._check_width("attention", output_shape, width)
        attention.build(query_shape, value_shape)
        return attention

    def _make_add_norm(self, name: str, shape: Shape) -> AddNorm:
        layer = AddNorm(
            dropout=self.dropout,
            norm_first=self.norm_first,
            norm=self.norm,
            **self._part_options(name),
        )
        layer.build(shape)
        return layer

    def _make_feed_forward(self, shape: Shape) -> keras.layers.Layer:
        layer, options = self._feed_forward.layer, self._part_options("feed_forward")
        if layer is None:
            layer = PositionwiseFeedForward(self.hidden_dim, **options)
            layer.build(shape)
            return layer
        layer = self._feed_forward.copy(**options)
        # A symbolic call instead of `build`: layers without a `build` create their weights in their
        # first call, and the call gives the output's width.
        tokens = keras.KerasTensor((None, None, shape[-1]), dtype=self.compute_dtype)
        self._check_width("feed_forward", layer(tokens).shape, shape[-1])
        return layer

    def _make_norm(self, name: str, dtype: Any = None) -> keras.layers.Layer:
        """An unbuilt norm like this block's, for the end of a stack of pre-norm blocks."""
        options = {"name": name, "dtype": self.dtype_policy if dtype is None else dtype}
        return self._norm.copy(**options) or LayerNormalization(epsilon=1e-5, **options)

    def compute_output_shape(self, inputs_shape: Shape, *other_shapes: Shape | None) -> Shape:
        return tuple(inputs_shape)

    # Not derived from `compute_output_shape`, which does not include returned weights.
    compute_output_spec = spec_of_call

    def _check_width(self, argument: str, shape: Shape, width: int | None) -> None:
        features = tuple(shape[2:])
        if features != (width,):
            expected = f"return the width of the inputs, {width}"
            received = features[0] if len(features) == 1 else features
            _checks.fail(type(self).__name__, argument, expected, received)


@keras.saving.register_keras_serializable("tfattn")
class TransformerEncoderBlock(TransformerBlock):
    """Self-attention and a position-wise network, each with residual, dropout and norm.

        x = add_norm(x, attention(query=x, value=x))
        x = add_norm(x, feed_forward(x))

    A layer that is passed in is copied, with a name, seed and dtype of its own.

    Args:
        num_heads: positive int that divides the width D of the inputs; each head has D / num_heads
            features. Omit it if `attention` is passed.
        hidden_dim: positive int, inner width of the position-wise network. Omit it if
            `feed_forward` is passed.
        dropout: probability in [0, 1) of dropping a feature of a sublayer's output in training.
        attention_dropout: probability in [0, 1) of dropping an attention weight in training. Omit
            it if `attention` is passed.
        norm_first: pre-norm instead of the paper's post-norm; see `AddNorm`.
        attention: a `MultiHeadAttention`, for another score, shared key heads or positions.
            Defaults to `num_heads` heads with the scaled dot product, whose maps to queries, keys
            and values begin 1/√2 smaller than Glorot's.
        feed_forward: a layer from `(B, T, D)` to `(B, T, D)`, the same at each position. Defaults
            to `PositionwiseFeedForward(hidden_dim)`.
        norm: a norm layer. Defaults to layer normalization with an epsilon of 1e-5.
        seed: int, for the dropouts.
    Call arguments:
        inputs: float `(B, T, D)`.
        mask: bool `(B, T)`, True = real token. Keras passes the implicit mask of `inputs` here.
        attention_mask, valid_lens, use_causal_mask, bias, return_attention_scores, training: as for
            `MultiHeadAttention`.
    Returns:
        `(B, T, D)`, with the inputs' mask; with `return_attention_scores=True` also the weights
        `(B, H, T, T)`.
    Example:
        >>> tokens = np.ones((2, 3, 8), "float32")
        >>> tuple(TransformerEncoderBlock(num_heads=2, hidden_dim=16)(tokens).shape)
        (2, 3, 8)
        >>> norm = keras.layers.RMSNormalization(epsilon=1e-6)
        >>> attention = MultiHeadAttention(num_heads=4, key_dim=2, num_key_value_heads=1)
        >>> block = TransformerEncoderBlock(hidden_dim=16, attention=attention, norm=norm)

    Source: Vaswani et al. 2017, arXiv:1706.03762, section 3.1. The linear maps of the attention
    have biases here, as in Keras.
    """

    call_axes = {"inputs": "BTD", "mask": "BT"}

    def build(self, inputs_shape: Shape) -> None:
        self.self_attention = self._make_attention("self_attention", inputs_shape, inputs_shape)
        self.self_attention_norm = self._make_add_norm("self_attention_norm", inputs_shape)
        self.feed_forward = self._make_feed_forward(inputs_shape)
        self.feed_forward_norm = self._make_add_norm("feed_forward_norm", inputs_shape)

    def call(
        self,
        inputs: Any,
        mask: Any = None,
        attention_mask: Any = None,
        valid_lens: Any = None,
        use_causal_mask: bool = False,
        bias: Any = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
    ) -> Tensor | tuple[Tensor, Tensor]:
        mask = mask_of_tokens(inputs, mask)
        if mask is not None:
            inputs = zero_nonfinite_padding(inputs, mask)
        x = self.self_attention_norm.pre_norm(inputs)
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
        attended, *weights = attended if return_attention_scores else (attended,)
        x = self.self_attention_norm(inputs, attended, training=training)
        x = self.feed_forward_norm(
            x,
            self.feed_forward(self.feed_forward_norm.pre_norm(x), training=training),
            training=training,
        )
        return (x, *weights) if weights else x


def _size(who: str, argument: str, given: Any, part_name: str, part: Any) -> Any:
    """The size of a layer that was passed in, which an explicit argument must match."""
    if part is not None:
        size = getattr(part, argument, None)
        if given not in (None, size):
            expected = f"match the value of `{part_name}`, {size}, or be omitted"
            if size is None:
                expected = f"be omitted, since `{part_name}` has none"
            _checks.fail(who, argument, expected, given)
        return size
    if given is None:
        _checks.fail(who, argument, f"be passed, unless `{part_name}` is", None)
    return _checks.positive_int(who, argument, given)
