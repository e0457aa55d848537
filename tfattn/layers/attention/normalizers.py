"""What turns the scores of an attention layer into weights, other than the plain softmax."""

from collections.abc import Callable
from typing import Any

import keras

from tfattn import _checks
from tfattn._types import Shape, Tensor
from tfattn.core import normalizers
from tfattn.layers.configs import keras_object

__all__ = ["AttentionSinks", "Normalizer", "Sparsemax", "TopKSoftmax"]


class Normalizer(keras.layers.Layer):
    """Base of what turns scores into weights. This class itself is the softmax.

    `Attention` and `MultiHeadAttention` take one as `normalizer=`; one object serves one attention.
    A subclass changes one of two things. With a `function` it takes the place of the softmax, on
    the dense path, since such a function sees all scores of a query at once. With `row_scale` it
    scales what the softmax has made of each row, which streams. Weights are made in `build`. It is
    registered with Keras, as any layer that is to come back from a file.

    Attributes:
        function: function of scores and visible pairs to weights, as those of
            `tfattn.normalizers`; or None for the softmax.
        scales_rows: whether `row_scale` is to be asked.
    Example: the square of each score over the sum of all squares.
        >>> class Squares(Normalizer):
        ...     def function(self, scores, visible=None):
        ...         squares = keras.ops.square(scores)
        ...         if visible is not None:
        ...             squares = keras.ops.where(visible, squares, 0.0)
        ...         return squares / (keras.ops.sum(squares, axis=-1, keepdims=True) + 1e-9)
        >>> query, value = np.ones((1, 2, 4), "float32"), np.ones((1, 3, 4), "float32")
        >>> tuple(Attention(normalizer=Squares())(query, value).shape)
        (1, 2, 4)
    """

    function: Callable[..., Tensor] | None = None
    scales_rows: bool = False

    def build(self, scores_shape: Shape) -> None:
        """Makes the weights, for scores of that shape, `(B, T, S)` or `(B, H, T, S)`."""

    def row_scale(self, log_sum_exp: Tensor) -> Tensor:
        """The factor of each row's weights, from the log of its sum of exponentials; both `(B, T)`
        or `(B, H, T)`.
        """
        raise NotImplementedError


@keras.saving.register_keras_serializable("tfattn")
class AttentionSinks(Normalizer):
    """A softmax with a sink: a learned number, one a head, joins the sum of each row.

        weight = exp(score) / (exp(sink) + Σ_keys exp(score))

    A head that finds nothing for a query may give its weight to the sink, whose value is 0, instead
    of to some key. The weights of a row sum to less than 1. Streams as the softmax does.

    Args:
        initializer: of the sinks. The default, "zeros", begins with one more key of score 0.
        **kwargs: `name`, `dtype` of `keras.layers.Layer`.
    Example:
        >>> attention = MultiHeadAttention(num_heads=2, key_dim=4, normalizer=AttentionSinks())
        >>> tokens = np.ones((1, 3, 8), "float32")
        >>> output, weights = attention(tokens, tokens, return_attention_scores=True)
        >>> bool(keras.ops.all(keras.ops.sum(weights, axis=-1) < 1))
        True

    Source: Xiao et al. 2023, arXiv:2309.17453, section 3.3; OpenAI 2025, arXiv:2508.10925, section
    2; see `tfattn.normalizers.add_sinks`.
    """

    scales_rows = True

    def __init__(self, initializer: Any = "zeros", **kwargs: Any):
        super().__init__(**kwargs)
        self.initializer = keras_object("AttentionSinks", "initializer", initializer)

    def build(self, scores_shape: Shape) -> None:
        # In float32 or wider in every policy, as the sums are.
        self.sinks = self.add_weight(
            name="sinks",
            shape=scores_shape[1:2] if len(scores_shape) == 4 else (),
            initializer=self.initializer,
            autocast=False,
        )

    def row_scale(self, log_sum_exp: Tensor) -> Tensor:
        return normalizers.sink_scale(log_sum_exp, self.sinks)

    def get_config(self) -> dict[str, Any]:
        initializer = keras.initializers.serialize(self.initializer)
        return {**super().get_config(), "initializer": initializer}


@keras.saving.register_keras_serializable("tfattn")
class Sparsemax(Normalizer):
    """Weights of which many are exactly 0: the point of the simplex nearest to the scores.

        weights = max(score − τ, 0)        with τ such that the row sums to 1

    Computed on the dense path: it holds all T × S scores.

    Example:
        >>> layer = Attention(DotProductScore(scale=1.0), normalizer=Sparsemax())
        >>> query, value = np.array([[[3.0]]], "float32"), np.array([[[1.0], [0.0]]], "float32")
        >>> print(np.asarray(layer(query, value, return_attention_scores=True)[1]))
        [[[1. 0.]]]

    Source: Martins, Astudillo 2016, arXiv:1602.02068; see `tfattn.normalizers.sparsemax`.
    """

    function = staticmethod(normalizers.sparsemax)


@keras.saving.register_keras_serializable("tfattn")
class TopKSoftmax(Normalizer):
    """The softmax over the k keys that score best for a query; all others have a weight of 0.

    Keys that score as much as the k-th best stay too. Computed on the dense path: it holds all
    T × S scores.

    Args:
        k: positive int.
        **kwargs: `name`, `dtype` of `keras.layers.Layer`.
    Raises:
        ValueError: `k` is no positive int.
    Example:
        >>> layer = Attention(normalizer=TopKSoftmax(2))
        >>> value = np.array([[[1.0], [3.0], [3.0]]], "float32")
        >>> print(np.asarray(layer(np.ones((1, 1, 1), "float32"), value)))
        [[[3.]]]

    Source: Gupta et al. 2021, arXiv:2106.06899; see `tfattn.normalizers.top_k`.
    """

    def __init__(self, k: int, **kwargs: Any):
        super().__init__(**kwargs)
        self.k = _checks.positive_int("TopKSoftmax", "k", k)
        self.function = normalizers.top_k(self.k)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "k": self.k}


def checked_normalizer(who: str, normalizer: Any) -> Normalizer | None:
    """The normalizer itself, if it is one or None."""
    if normalizer is not None and not isinstance(normalizer, Normalizer):
        expected = "be a Normalizer layer, such as tfattn.AttentionSinks(), or None"
        _checks.fail(who, "normalizer", expected, normalizer)
    return normalizer
