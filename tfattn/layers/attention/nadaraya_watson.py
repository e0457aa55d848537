"""Nadaraya–Watson kernel regression: the first attention."""

from collections.abc import Callable, Sequence
from typing import Any

import keras
from keras import ops

from tfattn import _checks
from tfattn._types import Tensor
from tfattn.core import kernels, masks
from tfattn.core.biases import Bias
from tfattn.core.masks import Mask
from tfattn.layers.attention.scores import KernelScore, checked_smoothing
from tfattn.layers.attention.single_head import NamedAttention

__all__ = ["NadarayaWatson"]


@keras.saving.register_keras_serializable("tfattn")
class NadarayaWatson(NamedAttention):
    """The weighted mean of the values, weighted by how close each key lies to the query.

        weights = K((query − key) / bandwidth) / Σ_keys K((query − key) / bandwidth)
        output  = weights · value

    Computed in log space: a query far from every key still gets finite weights that sum to 1. A
    kernel of compact support (all but the Gaussian) gives 0 where no key lies within a bandwidth.

    Args:
        kernel: "gaussian", "boxcar", "triangular", "epanechnikov", or a function from squared
            distances in bandwidths to log weights (see `tfattn.kernels`).
        bandwidth: positive number, or a sequence of them, one a dimension; in the unit of query and
            key. D2L's learned parameter w is 1 / bandwidth.
        trainable_bandwidth: whether training moves the bandwidth, which stays positive whatever the
            optimizer does. `current_bandwidth()` tells where it is.
        leave_one_out: whether query i is kept from key i, so that a training point is predicted
            from all others. Query and key are then the same points in the same order.
        dropout: probability in [0, 1) of dropping a weight in training.
        seed: int, for the dropout.
    Call arguments: query, value, key in this order, Keras's, or by name; and those of every
    attention layer, see `tfattn.Attention`. `return_attention_scores=True` gives the weights too,
    and `tfattn.attention_weights` those of every layer of a model. The main ones:
        query: float `(B, T, D)`.
        value: float `(B, S, Dv)`.
        key: float `(B, S, D)`. Defaults to `value`.
    Returns:
        `(B, T, Dv)`; on request also the weights `(B, T, S)`.
    Raises:
        ValueError: an unknown kernel; a bandwidth that is not positive, or not one a dimension;
            query and key differ in width, or in length under `leave_one_out`.
    Example:
        >>> points = np.array([[[0.0], [1.0], [2.0]]], "float32")
        >>> heights = np.array([[[0.0], [10.0], [20.0]]], "float32")
        >>> print(NadarayaWatson()(points, heights, points, use_causal_mask=True)[0, :2, 0].numpy())
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
        # Query and key stay as wide as they come: in half precision, points far from the origin
        # would fall together.
        kwargs.setdefault("autocast", False)
        super().__init__(score=score, dropout=dropout, seed=seed, **kwargs)
        self.kernel = kernel
        self.bandwidth = score.bandwidth
        self.trainable_bandwidth = trainable_bandwidth
        self.leave_one_out = _checks.boolean("NadarayaWatson", "leave_one_out", leave_one_out)

    def current_bandwidth(self) -> Tensor:
        """The bandwidth as training has left it: a scalar, or `(D,)`."""
        return self.score.current_bandwidth()

    def pool(
        self,
        query: Tensor,
        value: Tensor,
        key: Tensor,
        mask: Mask | None,
        bias: Bias | None,
        dropout: float,
        return_weights: bool,
    ) -> tuple[Tensor, Tensor | None]:
        if self.leave_one_out:
            _checks.same_size("NadarayaWatson", "query", query.shape[1], "key", key.shape[1])
            # The window of one token is the diagonal.
            mask = masks.every(mask, ~masks.window(1))
        value = ops.cast(value, self.compute_dtype)
        return super().pool(query, value, key, mask, bias, dropout, return_weights)

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "kernel": kernels.serialize(self.kernel),
            "bandwidth": self.bandwidth,
            "trainable_bandwidth": self.trainable_bandwidth,
            "leave_one_out": self.leave_one_out,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "NadarayaWatson":
        return cls(**kernels.with_kernel(config))
