"""Positions inside attention: rotations of query and key heads, or a bias on the scores."""

from typing import Any

import keras

from tfattn import _checks
from tfattn._types import Shape
from tfattn.core import biases
from tfattn.core.biases import Bias
from tfattn.core.biases.distances import check_buckets
from tfattn.layers.configs import Configured, copy_initializer


class HeadPositions(Configured, keras.layers.Layer):
    """Base of positions that rotate the heads of queries and keys, or add a bias to the scores.

        score(rotate(query_t), rotate(key_s)) + bias(t, s)

    A subclass defines `rotate`, `bias` or both, for `MultiHeadAttention(positions=...)`. Create
    weights in `build`. Two attention layers can share positions with weights, but cannot be saved
    by their configs then. Register the subclass with Keras to save it.

    Example: a rotation of two features by one radian per token.
        >>> class Turned(HeadPositions):
        ...     def rotate(self, heads, start):
        ...         tokens = keras.ops.shape(heads)[2]
        ...         angle = keras.ops.cast(keras.ops.arange(tokens) + start, "float32")[:, None]
        ...         a, b = heads[..., :1], heads[..., 1:]
        ...         cos, sin = keras.ops.cos(angle), keras.ops.sin(angle)
        ...         turned = keras.ops.concatenate([a * cos - b * sin, a * sin + b * cos], axis=-1)
        ...         return keras.ops.cast(turned, heads.dtype)
        >>> attention = MultiHeadAttention(num_heads=3, key_dim=2, positions=Turned())
        >>> tokens = np.ones((1, 5, 6), "float32")
        >>> tuple(attention(query=tokens, value=tokens).shape)
        (1, 5, 6)
    """

    def build(self, query_shape: Shape, key_shape: Shape) -> None:
        """Creates any weights, for heads `(B, H, T, P)` and `(B, G, S, P)`."""

    def rotate(self, heads: Any, start: Any) -> Any:
        """The heads, rotated by their positions.

        Args:
            heads: float `(B, H, T, P)`, projected queries or keys.
            start: position of the first of the T tokens on the keys' axis: int, or a scalar integer
                tensor.
        Returns:
            `(B, H, T, P)`, of the same dtype. Compute angles in float32 for every dtype.
        """
        return heads

    def bias(self) -> Any:
        """A bias object of `tfattn.biases` to add to the scores, or None."""
        return None


@keras.saving.register_keras_serializable("tfattn")
class AlibiPositions(HeadPositions):
    """Attention with linear biases: scores decrease with the distance of query and key.

        score_h(query, key) − slope_h · |position of the query − position of the key|

    Each of the H heads has its own slope, from 2^(−8/H) down to 2^(−8) where H is a power of two.
    Nothing is learned, and nothing is added to the inputs, so a model works on longer sequences
    than it was trained with.

    Example: in an attention layer; see `RotaryPositions` for each block of a model.
        >>> attention = MultiHeadAttention(num_heads=2, key_dim=4, positions=AlibiPositions())
        >>> tokens = np.ones((1, 3, 8), "float32")
        >>> tuple(attention(query=tokens, value=tokens).shape)
        (1, 3, 8)

    Source: Press, Smith, Lewis 2022, arXiv:2108.12409, section 3; see `tfattn.biases.alibi`.
    """

    def __init__(self, **kwargs: Any):
        super().__init__(**kwargs)
        self.num_heads: Any = None

    def build(self, query_shape: Shape, key_shape: Shape) -> None:
        self.num_heads = query_shape[1]

    def bias(self) -> Bias:
        return biases.alibi(self.num_heads)


@keras.saving.register_keras_serializable("tfattn")
class RelativePositionBias(HeadPositions):
    """T5's relative position bias: a learned number per head and bucket of distances.

        score_h(query, key) + table[bucket(position of the key − position of the query), h]

    Small distances have a bucket each; buckets of larger distances are wider, and all distances
    from `max_distance` on share the last bucket.

    Args:
        num_buckets: int of at least 2, or even and at least 4 where `bidirectional`.
        max_distance: positive int, the distance in tokens at which the last bucket begins, beyond
            the buckets of a single distance.
        bidirectional: whether keys after the query have half of the buckets; for decoders, False.
        initializer: initializer of the table. Defaults to `RandomNormal(stddev=0.02)`.
    Example: in an attention layer; see `RotaryPositions` for each block of a model.
        >>> positions = RelativePositionBias(bidirectional=False)
        >>> attention = MultiHeadAttention(num_heads=2, key_dim=4, positions=positions)
        >>> tokens = np.ones((1, 3, 8), "float32")
        >>> tuple(attention(query=tokens, value=tokens).shape)
        (1, 3, 8)

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
        self.initializer = keras.initializers.get(initializer)

    def build(self, query_shape: Shape, key_shape: Shape) -> None:
        self.table = self.add_weight(
            name="table",
            shape=(self.num_buckets, query_shape[1]),
            initializer=copy_initializer(self.initializer),
            autocast=False,  # float32 in every policy: its gradient is a sum over all blocks
        )

    def bias(self) -> Bias:
        return biases.relative(self.table, self.bidirectional, self.max_distance)
