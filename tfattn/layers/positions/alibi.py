"""ALiBi as the `positions` of an attention layer."""

from typing import Any

import keras

from tfattn._types import Shape
from tfattn.core import biases
from tfattn.core.biases import Bias
from tfattn.layers.positions.base import HeadPositions


@keras.saving.register_keras_serializable("tfattn")
class AlibiPositions(HeadPositions):
    """Attention with linear biases: scores decrease with the distance of query and key.

        score_h(query, key) − slope_h · |position of the query − position of the key|

    Each of the H heads has its own slope, from 2^(−8/H) down to 2^(−8) where H is a power of two.
    Nothing is learned, and nothing is added to the inputs, so a model works on longer sequences
    than it was trained with. No T × S array is held. Decoding step by step uses the same distances.

    Args:
        **kwargs: `name`, `dtype` of `keras.layers.Layer`.
    Example: in an attention layer, and in each block of a model.
        >>> attention = MultiHeadAttention(num_heads=2, key_dim=4, positions=AlibiPositions())
        >>> block = TransformerDecoderBlock(hidden_dim=16, attention=attention)
        >>> nothing_added = keras.layers.Identity()
        >>> sizes = {"num_layers": 2, "width": 8}
        >>> model = CausalLM(11, **sizes, block=block, positions=nothing_added)
        >>> tuple(model(np.array([[2, 4, 7]])).shape)
        (1, 3, 11)

    Source: Press, Smith, Lewis 2022, arXiv:2108.12409, section 3; see `tfattn.biases.alibi`.
    """

    def __init__(self, **kwargs: Any):
        super().__init__(**kwargs)
        self.num_heads: Any = None

    def build(self, query_shape: Shape, key_shape: Shape) -> None:
        self.num_heads = query_shape[1]

    def bias(self) -> Bias:
        return biases.alibi(self.num_heads)
