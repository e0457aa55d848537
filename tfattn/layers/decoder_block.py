"""One layer of a Transformer's decoder."""

import keras

from tfattn.layers.encoder_block import TransformerBlock
from tfattn.layers.parts import CarryMask, without_broken_padding

__all__ = ["TransformerDecoderBlock"]


@keras.saving.register_keras_serializable("tfattn")
class TransformerDecoderBlock(TransformerBlock):
    """Masked self-attention, attention over the encoder's output, and a position-wise network.

        x = add_norm(x, self_attention(x, x))            a position sees those up to its own
        x = add_norm(x, cross_attention(x, memory))      queries from here, keys and values from the encoder
        x = add_norm(x, feed_forward(x))

    Args: those of `TransformerEncoderBlock`.
    Call arguments:
        inputs: float `(B, T, D)`, the target so far.
        memory: float `(B, S, Dm)`, the encoder's output.
        inputs_mask: bool `(B, T)`, True = real token; arrives by itself where Keras carries it on `inputs`.
        memory_mask: bool `(B, S)`, likewise for `memory`.
        attention_mask: bool `(T, T)`, `(B, T, T)` or `(B, H, T, T)`, or a mask object, for the self-attention.
        memory_attention_mask: the same over the memory, `(T, S)`, `(B, T, S)` or `(B, H, T, S)`.
        valid_lens: integers `(B,)` or `(B, T)`: how many positions of the memory are real.
        use_causal_mask: whether the self-attention sees no later position.
        return_attention_scores: whether to return both kinds of weights too.
        training: whether dropout is active.
    Returns:
        `(B, T, D)`, with the mask of `inputs`; on request also the weights of the self-attention, `(B, H, T, T)`, and of
        the attention over the memory, `(B, H, T, S)`.
    Raises:
        ValueError: `num_heads` does not divide the width; a size is no positive int; a mask does not fit.
    Example:
        >>> target, memory = np.ones((2, 3, 8), "float32"), np.ones((2, 5, 8), "float32")
        >>> TransformerDecoderBlock(num_heads=2, hidden_dim=16)(target, memory).shape
        TensorShape([2, 3, 8])

    Source: Vaswani et al. 2017, arXiv:1706.03762, section 3.1.
    """

    def build(self, inputs_shape, memory_shape):
        self.carry = CarryMask(name="carry_mask", dtype=self.dtype_policy)
        self.self_attention = self.make_attention("self_attention", inputs_shape, inputs_shape)
        self.self_attention_norm = self.make_add_norm("self_attention_norm", inputs_shape)
        self.cross_attention = self.make_attention("cross_attention", inputs_shape, memory_shape)
        self.cross_attention_norm = self.make_add_norm("cross_attention_norm", inputs_shape)
        self.feed_forward = self.make_feed_forward(inputs_shape)
        self.feed_forward_norm = self.make_add_norm("feed_forward_norm", inputs_shape)

    def call(
        self,
        inputs,
        memory,
        inputs_mask=None,
        memory_mask=None,
        attention_mask=None,
        memory_attention_mask=None,
        valid_lens=None,
        use_causal_mask=True,
        return_attention_scores=False,
        training=None,
    ):
        options = {"training": training, "return_attention_scores": return_attention_scores}
        weights = []

        def pooled(result):
            if not return_attention_scores:
                return result
            weights.append(result[1])
            return result[0]

        if inputs_mask is not None:
            inputs = without_broken_padding(inputs, inputs_mask)
        x = self.self_attention_norm.before(inputs)
        attended = self.self_attention(
            query=x,
            value=x,
            key_mask=inputs_mask,
            attention_mask=attention_mask,
            use_causal_mask=use_causal_mask,
            **options,
        )
        inputs = self.self_attention_norm(inputs, pooled(attended), training=training)
        x = self.cross_attention_norm.before(inputs)
        attended = self.cross_attention(
            query=x,
            value=memory,
            key_mask=memory_mask,
            attention_mask=memory_attention_mask,
            valid_lens=valid_lens,
            **options,
        )
        inputs = self.cross_attention_norm(inputs, pooled(attended), training=training)
        x = self.feed_forward(self.feed_forward_norm.before(inputs), training=training)
        output = self.feed_forward_norm(inputs, x, training=training)
        if inputs_mask is not None:
            output = self.carry((output, inputs_mask))
        return (output, *weights) if weights else output
