"""Positions inside attention: rotations of query and key heads, or a bias on the scores."""

from typing import Any

import keras

from tfattn._types import Shape
from tfattn.layers.configs import Configured


class HeadPositions(Configured, keras.layers.Layer):
    """Base of positions that rotate the heads of queries and keys, or add a bias to the scores.

        score(rotate(query_t), rotate(key_s)) + bias(t, s)

    A subclass defines `rotate`, `bias` or both, for `MultiHeadAttention(positions=...)`, in calls
    and in decoding with caches. Create weights in `build`. Two attention layers can share positions
    with weights, but cannot be saved by their configs then. Register the subclass with Keras to
    save it.

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
