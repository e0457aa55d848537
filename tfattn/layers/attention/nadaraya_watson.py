"""Nadaraya–Watson kernel regression: the first attention."""

from collections.abc import Callable, Sequence
from typing import Any

import keras
from keras import ops

from tfattn import _checks
from tfattn._types import Tensor
from tfattn.core import kernels, masks
from tfattn.core.call import AttentionCall
from tfattn.layers.attention.scores import KernelScore, checked_smoothing
from tfattn.layers.attention.single_head import NamedAttention


@keras.saving.register_keras_serializable("tfattn")
class NadarayaWatson(NamedAttention):
    """Kernel regression: a mean of the values, weighted by how near each key is to the query.

        weights = K((query − key) / bandwidth) / Σ_keys K((query − key) / bandwidth)
        output  = weights · value

    Computed in log space: a query far from every key still gets finite weights that sum to 1. A
    kernel of compact support (see `tfattn.kernels.support`) gives 0 where no key lies within a
    bandwidth. Rounding may move an output slightly out of the range of the values: clip means of
    zeros and ones before √(p · (1 − p)). `tfattn.kernel_regression.KernelRegression` stays in
    this range, except with `degree=1`.

    Args:
        kernel: a name of `tfattn.kernels.names()`, such as "gaussian", or a function from squared
            distances in bandwidths to log weights (see `tfattn.kernels`).
        bandwidth: positive number, or a sequence of them, one per dimension; in the unit of query
            and key. The learned parameter w of D2L (d2l.ai) is 1 / bandwidth.
        trainable_bandwidth: whether training changes the bandwidth, which stays positive.
            `current_bandwidth()` returns its value.
        leave_one_out: whether key i is hidden from query i, so that each training point is
            predicted from all others. Query and key are then the same points in the same order.
        dropout: probability in [0, 1) of dropping a weight in training.
        seed: int, for the dropout.
    Call arguments, Returns: see `tfattn.Attention`; `(query, value, key)` in Keras's order, query
    and key of one width D. The weights come with `return_attention_scores=True`, or from
    `tfattn.attention_weights`; a row also sums to 0 where every key has a kernel of 0.
    Raises:
        ValueError: an unknown kernel; a bandwidth that is not positive, or not one per dimension;
            query and key differ in width, or in length under `leave_one_out`.
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

    def pool(self, call: AttentionCall) -> tuple[Tensor, Any]:
        mask = call.mask
        if self.leave_one_out:
            queries, keys = call.query.shape[1], call.key.shape[1]
            _checks.same_size("NadarayaWatson", "query", queries, "key", keys)
            # A window of one token is the diagonal.
            mask = masks.all_of(mask, ~masks.window(1))
        value = ops.cast(call.value, self.compute_dtype)
        return super().pool(call.replace(value=value, mask=mask))

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "kernel": kernels.serialize(self.kernel)}
