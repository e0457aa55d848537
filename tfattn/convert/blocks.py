"""Specifications of Transformer blocks that other libraries have too."""

from typing import Any, NamedTuple

import keras

from tfattn.convert import weights
from tfattn.layers.attention.multi_head import MultiHeadAttention
from tfattn.layers.transformer.block import TransformerBlock
from tfattn.layers.transformer.decoder_block import TransformerDecoderBlock
from tfattn.layers.transformer.encoder_block import TransformerEncoderBlock
from tfattn.layers.transformer.feed_forward import PositionwiseFeedForward

BLOCKS = (TransformerEncoderBlock, TransformerDecoderBlock)
_MAPS = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "attention_output": "out_proj"}


def attention_maps(path: str, name: str) -> dict[str, str]:
    """From the path of each linear map of an attention to its name in PyTorch's module."""
    return {f"{path}{part}": f"{name}{module}" for part, module in _MAPS.items()}


class BlockSpec(NamedTuple):
    """The specification of a block of the Transformer paper.

    `activation` and `inner_dropout` follow the inner layer of the feed-forward network.
    `memory_width` is None without cross-attention.
    """

    width: int
    num_heads: int
    key_dim: int
    hidden_dim: int
    activation: Any = "relu"
    epsilon: float = 1e-5
    norm_first: bool = False
    dropout: float = 0.0
    attention_dropout: float = 0.0
    inner_dropout: float = 0.0
    memory_width: int | None = None


def from_spec(cls: type[TransformerBlock], sizes: BlockSpec, **options: Any) -> TransformerBlock:
    """Builds a block from its specification; `options` are `name` and `dtype`."""
    attention = None
    if sizes.key_dim * sizes.num_heads != sizes.width:
        attention = MultiHeadAttention(
            sizes.num_heads, sizes.key_dim, dropout=sizes.attention_dropout
        )
    feed_forward = None
    if sizes.inner_dropout or keras.activations.get(sizes.activation) != keras.activations.relu:
        feed_forward = PositionwiseFeedForward(
            sizes.hidden_dim, activation=sizes.activation, dropout=sizes.inner_dropout
        )
    norm = None
    if sizes.epsilon != 1e-5:
        norm = keras.layers.LayerNormalization(epsilon=sizes.epsilon)
    block = cls(
        num_heads=sizes.num_heads,
        hidden_dim=sizes.hidden_dim,
        dropout=sizes.dropout,
        attention_dropout=sizes.attention_dropout,
        norm_first=sizes.norm_first,
        attention=attention,
        feed_forward=feed_forward,
        norm=norm,
        **options,
    )
    tokens = (None, None, sizes.width)
    if sizes.memory_width is None:
        block.build(tokens)
    else:
        block.build(tokens, (None, None, sizes.memory_width))
    return block


def to_spec(who: str, block: TransformerBlock) -> BlockSpec:
    """The specification of a built block; raises for features that it cannot express."""
    weights.check_type(who, "layer", block, BLOCKS)
    weights.check_built(who, block)
    attention, network = block.self_attention, block.feed_forward
    norm = block.self_attention_norm.norm
    width = attention.query_dense.kernel.shape[0]
    weights.check_plain(who, attention)
    layer_norm = isinstance(norm, keras.layers.LayerNormalization)
    layer_norm = layer_norm and norm.gamma is not None and norm.beta is not None
    only_plain = "only activation(x · W_1 + b_1) · W_2 + b_2 is supported"
    weights.refuse(who, "feed_forward", type(network) is not PositionwiseFeedForward, only_plain)
    weights.refuse(
        who, "norm", not layer_norm, "only layer normalization with both weights is supported"
    )
    weights.refuse(
        who,
        "value_dim",
        attention.value_dim != attention.key_dim,
        "keys and values must have one size",
    )
    weights.refuse(who, "use_bias", not attention.use_bias, "all linear maps must have biases")
    cross = getattr(block, "cross_attention", None)
    return BlockSpec(
        width=width,
        num_heads=attention.num_heads,
        key_dim=attention.key_dim,
        hidden_dim=network.hidden_dim,
        activation=network.activation,
        epsilon=norm.epsilon,
        norm_first=block.norm_first,
        dropout=block.dropout,
        attention_dropout=attention.dropout,
        inner_dropout=network.dropout,
        memory_width=None if cross is None else cross.key_dense.kernel.shape[0],
    )
