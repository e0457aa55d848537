"""Normalizers: layers that turn scores into weights."""

from collections.abc import Callable
from typing import Any

import keras

from tfattn import _checks
from tfattn._types import Shape, Tensor
from tfattn.core import normalizers
from tfattn.layers.configs import Configured


class Normalizer(Configured, keras.layers.Layer):
    """Base of all normalizers, which turn scores into weights. This class itself is the softmax.

    A normalizer belongs to one attention layer. A subclass defines either a `function` that
    replaces the softmax, on the dense path, since it needs all scores of a query at once; or
    `row_scale`, which scales the softmax of each row, and streams. Create weights in `build`.
    Register the subclass with Keras to save it.

    Attributes:
        function: function from scores and visible pairs to weights, as in `tfattn.normalizers`; or
            None for the softmax.
        scales_rows: whether the subclass defines `row_scale`.
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
        """Creates the weights for scores `(B, T, S)` or `(B, H, T, S)`."""

    def row_scale(self, log_sum_exp: Tensor) -> Tensor:
        """The factor of each row's weights, from its log-sum-exp, `(B, T)` or `(B, H, T)`."""
        raise NotImplementedError


@keras.saving.register_keras_serializable("tfattn")
class AttentionSinks(Normalizer):
    """A softmax with a sink: the sum of each row contains a learned term, one per head.

        weight = exp(score) / (exp(sink) + Σ_keys exp(score))

    If no key fits a query, a head can give weight to the sink, whose value is 0, instead of to some
    key. The weights of a row sum to less than 1. Streams like the softmax.

    Args:
        initializer: initializer of the sinks. "zeros" is like one more key of score 0.
    Example:
        >>> attention = MultiHeadAttention(num_heads=2, key_dim=4, normalizer=AttentionSinks())
        >>> tokens = np.ones((1, 3, 8), "float32")
        >>> output, weights = attention(tokens, tokens, return_attention_scores=True)
        >>> bool(keras.ops.all(keras.ops.sum(weights, axis=-1) < 1))
        True

    Source: Xiao et al. 2023, arXiv:2309.17453, section 3.3; OpenAI 2025, arXiv:2508.10925, section
    2.
    """

    scales_rows = True

    def __init__(self, initializer: Any = "zeros", **kwargs: Any):
        super().__init__(**kwargs)
        self.initializer = keras.initializers.get(initializer)

    def build(self, scores_shape: Shape) -> None:
        # float32 or wider in every policy, like the sums.
        self.sinks = self.add_weight(
            name="sinks",
            shape=scores_shape[1:2] if len(scores_shape) == 4 else (),
            initializer=self.initializer,
            autocast=False,
        )

    def row_scale(self, log_sum_exp: Tensor) -> Tensor:
        return normalizers.sink_scale(log_sum_exp, self.sinks)


@keras.saving.register_keras_serializable("tfattn")
class Sparsemax(Normalizer):
    """Sparse weights: the point of the simplex nearest to the scores, with many exact zeros.

        weights = max(score − τ, 0)        with τ such that the row sums to 1

    Computed on the dense path.

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
    """The softmax over the k keys with the highest scores; other keys have a weight of 0.

    Keys with the same score as the k-th are included. Computed on the dense path.

    Args:
        k: positive int.
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
