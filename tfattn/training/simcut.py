"""SimCut: a loss that makes predictions from whole and cut inputs agree."""

from typing import Any

import keras
from keras import ops

from tfattn import _checks
from tfattn._factors import LogitFactors
from tfattn._types import Tensor
from tfattn.training.losses import MaskedCrossentropy


@keras.saving.register_keras_serializable("tfattn")
class SimCutCrossentropy(MaskedCrossentropy):
    """Cross-entropy of whole inputs, plus the divergence of the predictions from cut inputs.

        loss = −log p[target] + weight · KL(p ‖ q)

    The first half of the batch has whole inputs, the second half the same rows with some tokens
    cut, as from `data.simcut_batches`. p is the prediction for a token in the first half, q the
    prediction for its paired token in the second half; both receive gradients. Both tokens of a
    pair have this loss, so the mean is the paper's. The loss detects duplicated rows by their
    targets. Any other batch, as in validation, has the cross-entropy alone, and so has every batch
    under `tf.distribute`, which splits batches in another way. Under `keras.distribution` call
    `data.shard_batches` after `data.simcut_batches`.

    A step has twice the rows of a plain step. In a TensorFlow graph on a CPU it needs no array of
    tokens × vocabulary, as described at `MaskedCrossentropy`.

    Args:
        weight: number of at least 0, the paper's α. Defaults to 3.
        label_smoothing, padding_id, name, **kwargs: as in `MaskedCrossentropy`.
    Call arguments, Returns: those of `MaskedCrossentropy`.
    Raises:
        ValueError: `weight` is negative; those of `MaskedCrossentropy`.
    Example:
        >>> target, scores = np.array([[1], [1]]), np.array([[[0.0, 1.0]], [[0.0, 2.0]]], "float32")
        >>> print(round(float(SimCutCrossentropy(weight=0.0)(target, scores)), 4))
        0.3133
        >>> print(round(float(SimCutCrossentropy(weight=3.0)(target, scores)), 4))
        0.5611

    Source: Gao, He, Wu, Wang 2022 ("Bi-SimCut"), arXiv:2206.02368, section 3, with gradients
    through both p and q. `data.simcut_batches` describes the cut.
    """

    def __init__(
        self,
        weight: float = 3.0,
        label_smoothing: float = 0.0,
        padding_id: int = 0,
        name: str = "simcut_crossentropy",
        **kwargs: Any,
    ):
        super().__init__(
            label_smoothing=label_smoothing, padding_id=padding_id, name=name, **kwargs
        )
        self.weight = _checks.non_negative_number(type(self).__name__, "weight", weight)

    def call(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        losses = super().call(y_true, y_pred)
        y_true, logits = ops.cast(y_true, "int32"), ops.cast(y_pred, "float32")
        return ops.cond(
            has_duplicated_rows(y_true),
            lambda: self._with_divergence(losses, logits, y_true != self.padding_id),
            lambda: losses,
        )

    def _with_divergence(self, losses: Tensor, logits: Tensor, is_real: Tensor) -> Tensor:
        """The loss of each token, `(B, T)`, of a batch whose second half has cut inputs."""
        # Padding has no gradient, even where it holds NaN.
        log_p = ops.log_softmax(ops.where(is_real[..., None], logits, 0.0), axis=-1)  # (B, T, V)
        p = ops.exp(log_p)
        whole = _in_first_half(losses)  # (B, 1)
        # Where p is 0, the term is 0, whatever q is.
        is_counted = ops.logical_and(whole[..., None], p > 0)
        ratio = ops.where(is_counted, log_p - _partner_rows(log_p), 0.0)
        losses = losses + self.weight * ops.sum(p * ratio, axis=-1)
        return ops.where(whole, losses, _partner_rows(losses))

    def weighted_sum(self, factors: LogitFactors, y_true: Tensor, weights: Tensor) -> Tensor:
        from tfattn.training.streamed_divergence import weighted_divergence

        is_paired = has_duplicated_rows(y_true)
        # Both tokens of a pair have the first token's loss.
        pair_weights = ops.where(_in_first_half(y_true), weights + _partner_rows(weights), 0.0)
        crossentropy = super().weighted_sum(
            factors, y_true, ops.where(is_paired, pair_weights, weights)
        )
        half = ops.shape(y_true)[0] // 2
        whole, cut = factors.tokens[:half], factors.tokens[half : 2 * half]
        pair_weights = ops.where(is_paired, pair_weights[:half], 0.0)
        divergence = weighted_divergence(whole, cut, pair_weights, factors.vectors, factors.bias)
        return crossentropy + self.weight * divergence

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "weight": self.weight}


def has_duplicated_rows(y_true: Tensor) -> Tensor:
    """Whether the second half of the rows repeats the first: a scalar bool."""
    rows = ops.shape(y_true)[0]
    half = rows // 2
    return ops.logical_and(rows == 2 * half, ops.all(y_true[:half] == y_true[half : 2 * half]))


def _in_first_half(y_true: Tensor) -> Tensor:
    """Whether a row is in the first half of the batch: bool `(B, 1)`."""
    rows = ops.shape(y_true)[0]
    return (ops.arange(rows) < rows // 2)[:, None]


def _partner_rows(x: Tensor) -> Tensor:
    """The paired row of each row, half a batch away."""
    # Rolled, not sliced: XLA compiles the branch of paired rows for odd batches too, and does not
    # differentiate slices in a branch.
    return ops.roll(x, ops.shape(x)[0] // 2, axis=0)
