"""T5's relative position bias as the `positions` of an attention layer."""

from typing import Any

import keras

from tfattn import _checks
from tfattn._types import Shape
from tfattn.core import biases
from tfattn.core.biases import Bias
from tfattn.core.biases.relative import check_buckets
from tfattn.layers.configs import copy_initializer, keras_object
from tfattn.layers.positions.base import HeadPositions


@keras.saving.register_keras_serializable("tfattn")
class RelativePositionBias(HeadPositions):
    """T5's relative position bias: a learned number per head and bucket of distances.

        score_h(query, key) + table[bucket(position of the key − position of the query), h]

    Small distances have a bucket each; buckets of larger distances are wider, and all distances
    from `max_distance` on share the last bucket. Bias and gradient are computed block by block: no
    T × S array is held.

    Args:
        num_buckets: int of at least 2, or even and at least 4 where `bidirectional`.
        max_distance: positive int, the distance in tokens at which the last bucket begins.
        bidirectional: whether keys after the query have half of the buckets; for decoders, False.
        initializer: initializer of the table. Defaults to `RandomNormal(stddev=0.02)`.
        **kwargs: `name`, `dtype` of `keras.layers.Layer`.
    Raises:
        ValueError: the buckets are too few, or odd in number though `bidirectional`;
            `max_distance` is in a bucket of a single distance.
    Example: in an attention layer, and in each block of a model.
        >>> positions = RelativePositionBias(bidirectional=False)
        >>> attention = MultiHeadAttention(num_heads=2, key_dim=4, positions=positions)
        >>> block = TransformerDecoderBlock(hidden_dim=16, attention=attention)
        >>> nothing_added = keras.layers.Identity()
        >>> sizes = {"num_layers": 2, "width": 8}
        >>> model = CausalLM(11, **sizes, block=block, positions=nothing_added)
        >>> tuple(model(np.array([[2, 4, 7]])).shape)
        (1, 3, 11)

    Source: Raffel et al. 2020, arXiv:1910.10683, section 2.1; see `tfattn.biases.relative`. Differs
    from it in that each layer has its own table, while T5's layers share the first layer's. T5 does
    not divide scores by √D: pass `score=DotProductScore(scale=1.0)`.
    """

    def __init__(
        self,
        num_buckets: int = 32,
        max_distance: int = 128,
        bidirectional: bool = True,
        initializer: Any = None,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        who = "RelativePositionBias"
        self.num_buckets = _checks.positive_int(who, "num_buckets", num_buckets)
        self.max_distance = _checks.positive_int(who, "max_distance", max_distance)
        self.bidirectional = _checks.boolean(who, "bidirectional", bidirectional)
        check_buckets(who, "num_buckets", num_buckets, bidirectional, max_distance)
        if initializer is None:
            initializer = keras.initializers.RandomNormal(stddev=0.02)
        self.initializer = keras_object(who, "initializer", initializer)

    def build(self, query_shape: Shape, key_shape: Shape) -> None:
        self.table = self.add_weight(
            name="table",
            shape=(self.num_buckets, query_shape[1]),
            initializer=copy_initializer(self.initializer),
            autocast=False,  # float32 in every policy: its gradient is a sum over all blocks
        )

    def bias(self) -> Bias:
        return biases.relative(self.table, self.bidirectional, self.max_distance)
