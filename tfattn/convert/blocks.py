"""Features of attention layers and Transformer blocks that another library may lack."""

from collections.abc import Collection

import keras

from tfattn.convert import weights
from tfattn.layers.attention.multi_head import MultiHeadAttention
from tfattn.layers.attention.scores import DotProductScore
from tfattn.layers.transformer.block import TransformerBlock, TransformerEncoderBlock
from tfattn.layers.transformer.decoder_block import TransformerDecoderBlock
from tfattn.layers.transformer.feed_forward import PositionwiseFeedForward

BLOCKS = (TransformerEncoderBlock, TransformerDecoderBlock)
_REASONS = {
    "score": "only the scaled dot product is supported",
    "normalizer": "only the softmax is supported",
    "positions": "positions within attention are not supported",
    "num_key_value_heads": "shared key heads are not supported",
    "use_gate": "gates of heads are not supported",
    "sliding_window": "pass a window as a mask to the call",
    "attention_axes": "sequences must have one axis",
    "use_bias": "all linear maps must have biases",
    "key_dim": "the width of a head must be the width of the inputs / num_heads",
    "value_dim": "keys and values must have one size",
    "output_shape": "the output must have the width of the query",
}


def check_attention(who: str, attention: MultiHeadAttention, allowed: Collection[str] = ()) -> None:
    """Raises for a feature that the Transformer paper's attention lacks, unless it is allowed."""
    heads, score = attention.num_heads, attention.score
    width = attention.query_dense.kernel.shape[0]
    plain = type(score) is DotProductScore and (score.scale is None or "scale" in allowed)
    used = {
        "score": not plain,
        "normalizer": attention.normalizer is not None,
        "positions": attention.positions is not None,
        "num_key_value_heads": attention.num_key_value_heads != heads,
        "use_gate": attention.use_gate,
        "sliding_window": attention.sliding_window is not None,
        "attention_axes": attention.attention_axes not in (None, (1,)),
        "use_bias": not attention.use_bias,
        "key_dim": attention.key_dim * heads != width,
        "value_dim": attention.value_dim != attention.key_dim,
        "output_shape": tuple(attention.output_dense.kernel.shape[2:]) != (width,),
    }
    for name, reason in _REASONS.items():
        weights.refuse(who, name, used[name] and name not in allowed, reason)


def check_block(who: str, block: TransformerBlock, allowed: Collection[str] = ()) -> None:
    """Raises for a feature that the paper's block lacks, unless one of the attention is allowed."""
    weights.check_type(who, "layer", block, BLOCKS)
    weights.check_built(who, block)
    check_attention(who, block.self_attention, allowed)
    other = type(block.feed_forward) is not PositionwiseFeedForward
    only = "only activation(x · W_1 + b_1) · W_2 + b_2 is supported"
    weights.refuse(who, "feed_forward", other, only)
    check_norm(who, block.self_attention_norm.norm)


def check_norm(who: str, norm: keras.layers.Layer) -> None:
    """Raises for another norm than layer normalization with both weights."""
    plain = isinstance(norm, keras.layers.LayerNormalization)
    plain = plain and norm.gamma is not None and norm.beta is not None
    only = "only layer normalization with both weights is supported"
    weights.refuse(who, "norm", not plain, only)
