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


def check_attention(who: str, layer: MultiHeadAttention, allowed: Collection[str] = ()) -> None:
    """Raises for a feature that the Transformer paper's attention lacks, unless it is allowed."""
    score, width = layer.score, layer.query_dense.kernel.shape[0]
    plain = type(score) is DotProductScore and (score.scale is None or "scale" in allowed)
    other_axes = layer.attention_axes not in (None, (1,))
    other_output = tuple(layer.output_dense.kernel.shape[2:]) != (width,)
    of_heads = "the width of a head must be the width of the inputs / num_heads"
    window = layer.sliding_window is not None
    features = {
        "score": (not plain, "only the scaled dot product is supported"),
        "normalizer": (layer.normalizer is not None, "only the softmax is supported"),
        "positions": (layer.positions is not None, "positions within attention are not supported"),
        "num_key_value_heads": (
            layer.num_key_value_heads != layer.num_heads,
            "shared key heads are not supported",
        ),
        "use_gate": (layer.use_gate, "gates of heads are not supported"),
        "sliding_window": (window, "pass a window as a mask to the call"),
        "attention_axes": (other_axes, "sequences must have one axis"),
        "use_bias": (not layer.use_bias, "all linear maps must have biases"),
        "key_dim": (layer.key_dim * layer.num_heads != width, of_heads),
        "value_dim": (layer.value_dim != layer.key_dim, "keys and values must have one size"),
        "output_shape": (other_output, "the output must have the width of the query"),
    }
    for name, (is_used, reason) in features.items():
        weights.refuse(who, name, is_used and name not in allowed, reason)


def check_block(who: str, block: TransformerBlock, allowed: Collection[str] = ()) -> None:
    """Raises for a feature that the paper's block lacks, unless one of the attention is allowed."""
    weights.check_built(who, "layer", block, BLOCKS)
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
