"""Attention over any score, and the layers named after their scores."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import keras
from keras import ops

from tfattn import _checks
from tfattn._types import Shape, Tensor
from tfattn.core import kernels, masks
from tfattn.core.biases import Bias
from tfattn.core.call import AttentionCall
from tfattn.core.masks import Mask
from tfattn.layers.attention.base import AttentionLayer
from tfattn.layers.attention.scores import (
    AdditiveScore,
    BilinearScore,
    DotProductScore,
    KernelScore,
    Score,
    checked_smoothing,
)
from tfattn.layers.configs import build_part
from tfattn.layers.stepping import over_cache


@keras.saving.register_keras_serializable("tfattn")
class Attention(AttentionLayer):
    """Attention with any score: the output is a weighted mean of the values.

        weights = softmax over keys of score(query, key)
        output  = weights · value

    Args:
        score: a score layer. Two attention layers can share a score with weights, but cannot be
            saved by their configs then. Defaults to `DotProductScore()`.
        dropout: probability in [0, 1) of dropping a weight in training.
        seed: int, for the dropout.
        normalizer: a layer that turns scores into weights, such as `Sparsemax()`. Defaults to the
            softmax.
    Call arguments: `(query, value, key)` in Keras's order; pass them by name. All attention layers
    have them:
        query: float `(B, T, Dq)`.
        value: float `(B, S, Dv)`.
        key: float `(B, S, Dk)`. Defaults to `value`.
        query_mask, value_mask, key_mask: bool, `(B, T)` and `(B, S)`, True = real token. Keras
            passes implicit masks here. `query_mask` becomes the mask of the output, and hides no
            key; False in either of the others hides a key and its value.
        attention_mask: bool, or 0 and 1, broadcastable to `(B, T, S)`, or a mask object of
            `tfattn.masks`; True = may attend.
        return_attention_scores: whether to return the weights too. The name is Keras's; the result
            has the weights after the softmax, not the scores before it.
        training: whether dropout is active. Defaults to the model's mode.
        use_causal_mask: whether a query sees no later key. The last query is aligned with the last
            key, as decoding needs: with T > S the first T − S queries see no key, and their output
            is 0.
        valid_lens: integers, the number of real keys: `(B,)` one length per row of the batch, or
            `(B, T)` one length per query.
        bias: float, broadcastable to `(B, T, S)`, or a bias object such as
            `tfattn.biases.alibi(1)`; added to the scores before the softmax.
    Returns:
        `(B, T, Dv)`; with `return_attention_scores=True` also the weights `(B, T, S)`: each row
        sums to 1, or to 0 where every key is masked. `tfattn.attention_weights` returns the weights
        of all layers of a model.
    Raises:
        ValueError: a length in `valid_lens` is known to be beyond the keys; `bias` is for several
            heads.
    Example:
        >>> query, value = np.ones((2, 3, 5), "float32"), np.ones((2, 7, 5), "float32")
        >>> tuple(Attention(score=CosineScore(temperature=0.1))(query=query, value=value).shape)
        (2, 3, 5)

    Source: Nadaraya 1964; Watson 1964; see each score for its own source.
    """

    def build(self, query_shape: Shape, value_shape: Shape, key_shape: Any = None) -> None:
        key_shape = value_shape if key_shape is None else key_shape
        build_part(self, self.score, query_shape, key_shape)
        build_part(self, self.normalizer, (*query_shape[:2], key_shape[1]))

    def call(
        self,
        query: Tensor,
        value: Tensor,
        key: Tensor | None = None,
        query_mask: Tensor | None = None,
        value_mask: Tensor | None = None,
        key_mask: Tensor | None = None,
        attention_mask: Tensor | Mask | None = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
        use_causal_mask: bool = False,
        valid_lens: Tensor | None = None,
        bias: Tensor | Bias | None = None,
    ) -> Tensor | tuple[Tensor, Tensor]:
        tokens = (query, value, key, query_mask, value_mask, key_mask, attention_mask)
        options = (return_attention_scores, training, use_causal_mask, valid_lens, bias)
        call, query_mask = self._masked(*tokens, *options)
        call, _ = over_cache(type(self).__name__, call, lambda value, key, _=0: (key, value))
        output, weights = self.run(call, self.score)
        return self._results(output, weights, query_mask, return_attention_scores)


class NamedAttention(Attention):
    """An attention layer whose score is made from its own arguments, and not passed in."""

    def get_config(self) -> dict[str, Any]:
        given = super().get_config()
        return {name: given[name] for name in given if name != "score"}


@keras.saving.register_keras_serializable("tfattn")
class DotProductAttention(NamedAttention):
    """Attention with the scaled dot product.

        weights = softmax(scale · query · keyᵀ)
        output  = weights · value

    Args:
        scale: positive number; 1.0 is the unscaled product. Defaults to 1/√D.
        dropout, seed: as for `Attention`.
    Call arguments, Returns: those of `Attention`; query and key are of one width D.
    Example:
        >>> query = np.zeros((1, 1, 2), "float32")
        >>> value = np.array([[[1.0, 1.0], [3.0, 5.0], [100.0, 100.0]]], "float32")
        >>> layer = DotProductAttention()
        >>> print(np.asarray(layer(query=query, value=value, valid_lens=np.array([2]))))
        [[[2. 3.]]]

    Source: Vaswani et al. 2017, arXiv:1706.03762, equation 1.
    """

    def __init__(
        self,
        scale: float | None = None,
        dropout: float = 0.0,
        seed: int | None = None,
        **kwargs: Any,
    ):
        if scale is not None:
            _checks.positive_number("DotProductAttention", "scale", scale)
        score = DotProductScore(scale, dtype=kwargs.get("dtype"), name="score")
        super().__init__(score=score, dropout=dropout, seed=seed, **kwargs)
        self.scale = scale


@keras.saving.register_keras_serializable("tfattn")
class AdditiveAttention(NamedAttention):
    """Attention with the additive score, for queries and keys of any widths.

        weights = softmax over keys of w_v · tanh(W_q query + W_k key)
        output  = weights · value

    Args:
        units: positive int, width U of the hidden layer.
        dropout, seed: as for `Attention`.
    Call arguments, Returns: those of `Attention`.
    Example: equal keys get equal weights, so the output is the mean of the visible values.
        >>> query, key = np.ones((2, 1, 20), "float32"), np.ones((2, 10, 2), "float32")
        >>> value = np.tile(np.arange(40, dtype="float32").reshape(1, 10, 4), (2, 1, 1))
        >>> layer = AdditiveAttention(units=8, dropout=0.1)
        >>> output = layer(query=query, value=value, key=key, valid_lens=np.array([2, 6]))
        >>> print(np.asarray(output).round(3))
        [[[ 2.  3.  4.  5.]]
         [[10. 11. 12. 13.]]]

    Source: Bahdanau, Cho, Bengio 2015, arXiv:1409.0473, appendix A.1.2; without biases. Differs
    from `keras.layers.AdditiveAttention`, which has no projections.
    """

    def __init__(self, units: int, dropout: float = 0.0, seed: int | None = None, **kwargs: Any):
        _checks.positive_int("AdditiveAttention", "units", units)
        score = AdditiveScore(units, dtype=kwargs.get("dtype"), name="score")
        super().__init__(score=score, dropout=dropout, seed=seed, **kwargs)
        self.units = units


@keras.saving.register_keras_serializable("tfattn")
class BilinearAttention(NamedAttention):
    """Attention with a learned matrix between query and key.

        weights = softmax(query · W · keyᵀ)
        output  = weights · value

    Args: `dropout` and `seed`, as for `Attention`.
    Call arguments, Returns: those of `Attention`.
    Example:
        >>> query, value = np.ones((2, 3, 5), "float32"), np.ones((2, 7, 4), "float32")
        >>> tuple(BilinearAttention()(query=query, value=value).shape)
        (2, 3, 4)

    Source: Luong, Pham, Manning 2015, arXiv:1508.04025, section 3.1, general.
    """

    def __init__(self, dropout: float = 0.0, seed: int | None = None, **kwargs: Any):
        score = BilinearScore(dtype=kwargs.get("dtype"), name="score")
        super().__init__(score=score, dropout=dropout, seed=seed, **kwargs)


@keras.saving.register_keras_serializable("tfattn")
class NadarayaWatson(NamedAttention):
    """Kernel regression: a mean of the values, weighted by how near each key is to the query.

        weights = K((query − key) / bandwidth) / Σ_keys K((query − key) / bandwidth)
        output  = weights · value

    Computed in log space: a query far from every key still gets finite weights that sum to 1. A
    kernel of compact support (see `tfattn.kernels.support`) gives 0 where no key lies within a
    bandwidth. Rounding may move an output slightly out of the range of the values.

    Args:
        kernel: a name of `tfattn.kernels.names()`, such as "gaussian", or a function from squared
            distances in bandwidths to log weights (see `tfattn.kernels`).
        bandwidth: positive number, or a sequence of them, one per dimension; in the unit of query
            and key. The learned parameter w of D2L (d2l.ai) is 1 / bandwidth.
        trainable_bandwidth: whether training changes the bandwidth, which stays positive.
            `current_bandwidth()` returns its value.
        leave_one_out: whether key i is hidden from query i, so that each training point is
            predicted from all others. Query and key are then the same points in the same order.
        dropout, seed: as for `Attention`.
    Call arguments, Returns: those of `Attention`; query and key are of one width D, and a row of
    weights also sums to 0 where every key has a kernel of 0.
    Example:
        >>> points = np.array([[[0.0], [1.0], [2.0]]], "float32")
        >>> heights = np.array([[[0.0], [10.0], [20.0]]], "float32")
        >>> layer = NadarayaWatson()
        >>> output = layer(query=points, value=heights, key=points, use_causal_mask=True)
        >>> print(np.asarray(output[0, :2, 0]))
        [0.        6.2245936]

    Source: Nadaraya 1964; Watson 1964; leave-one-out, Wasserman, All of Nonparametric Statistics,
    5.3.
    """

    def __init__(
        self,
        kernel: str | Callable[[Tensor], Tensor] = "gaussian",
        bandwidth: float | Sequence[float] = 1.0,
        trainable_bandwidth: bool = False,
        leave_one_out: bool = False,
        dropout: float = 0.0,
        seed: int | None = None,
        **kwargs: Any,
    ):
        kernel, bandwidth = checked_smoothing("NadarayaWatson", kernel, bandwidth)
        _checks.boolean("NadarayaWatson", "trainable_bandwidth", trainable_bandwidth)
        score = KernelScore(
            kernel, bandwidth, trainable_bandwidth, dtype=kwargs.get("dtype"), name="score"
        )
        # No cast of query and key: in half precision, points far from the origin would coincide.
        kwargs.setdefault("autocast", False)
        super().__init__(score=score, dropout=dropout, seed=seed, **kwargs)
        self.kernel = kernel
        self.bandwidth = score.bandwidth
        self.trainable_bandwidth = trainable_bandwidth
        self.leave_one_out = _checks.boolean("NadarayaWatson", "leave_one_out", leave_one_out)

    def current_bandwidth(self) -> Tensor:
        """The current bandwidth: a scalar, or `(D,)`."""
        return self.score.current_bandwidth()

    def run(self, call: AttentionCall, score: Score) -> tuple[Tensor, Any]:
        mask = call.mask
        if self.leave_one_out:
            queries, keys = call.query.shape[1], call.key.shape[1]
            _checks.same_size("NadarayaWatson", "query", queries, "key", keys)
            # A window of one token is the diagonal.
            mask = masks.all_of(mask, ~masks.window(1))
        value = ops.cast(call.value, self.compute_dtype)
        return super().run(dataclasses.replace(call, value=value, mask=mask), score)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "kernel": kernels.serialize(self.kernel)}
