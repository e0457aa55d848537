"""One layer of a Transformer's encoder."""

from typing import Any

import keras

from tfattn._types import Shape, Tensor
from tfattn.core.guard import zero_nonfinite_padding
from tfattn.layers.tokens import mask_of_tokens
from tfattn.layers.transformer.block import TransformerBlock


@keras.saving.register_keras_serializable("tfattn")
class TransformerEncoderBlock(TransformerBlock):
    """Self-attention and a position-wise network, each with residual, dropout and norm.

        x = add_norm(x, attention(query=x, value=x))
        x = add_norm(x, feed_forward(x))

    For a standard block, pass `num_heads` and `hidden_dim`. For another attention, feed-forward
    network or norm, pass a layer. The block uses copies of it, each with its own name, seed and
    dtype, and does not change the layer itself.

    Args:
        num_heads: positive int that divides the width D of the inputs; each head has D / num_heads
            features. Omit it if `attention` is passed.
        hidden_dim: positive int, inner width of the position-wise network. Omit it if
            `feed_forward` is passed.
        dropout: probability in [0, 1) of dropping a feature of a sublayer's output in training.
        attention_dropout: probability in [0, 1) of dropping an attention weight in training. Omit
            it if `attention` is passed.
        norm_first: pre-norm instead of the paper's post-norm. A stack of such blocks needs one more
            norm after the last block.
        attention: a `MultiHeadAttention`, for another score, shared key heads, positions or
            initializers. Defaults to `num_heads` heads with the scaled dot product. Its linear maps
            have Glorot's uniform initializer; those to queries, keys and values are scaled by 1/√2.
        feed_forward: a layer from `(B, T, D)` to `(B, T, D)`, the same at each position. Defaults
            to `PositionwiseFeedForward(hidden_dim)`.
        norm: a norm layer. Defaults to layer normalization with an epsilon of 1e-5.
        seed: int, for the dropouts.
    Call arguments:
        inputs: float `(B, T, D)`.
        mask: bool `(B, T)`, True = real token. Keras passes the implicit mask of `inputs` here.
        attention_mask, valid_lens, use_causal_mask, bias: as in every attention layer, see
            `tfattn.Attention`.
        return_attention_scores: whether to return the attention weights too.
        training: whether dropout is active.
    Returns:
        `(B, T, D)`, with the inputs' mask; with `return_attention_scores=True` also the weights
        `(B, H, T, T)`. `tfattn.attention_weights` returns the weights of all layers of a model.
    Raises:
        ValueError: `num_heads` does not divide the width; a size is not a positive int, or differs
            from that of a layer passed in; a layer returns another width; a mask does not fit.
    Example:
        >>> tokens = np.ones((2, 3, 8), "float32")
        >>> tuple(TransformerEncoderBlock(num_heads=2, hidden_dim=16)(tokens).shape)
        (2, 3, 8)

        Shared key heads, and Keras's RMS norm before each sublayer:

        >>> block = TransformerEncoderBlock(
        ...     attention=MultiHeadAttention(num_heads=4, key_dim=2, num_key_value_heads=1),
        ...     hidden_dim=16,
        ...     norm=keras.layers.RMSNormalization(epsilon=1e-6),
        ...     norm_first=True,
        ... )
        >>> tuple(block(tokens).shape)
        (2, 3, 8)

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
