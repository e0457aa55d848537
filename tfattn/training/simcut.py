"""SimCut: a loss that makes predictions agree with those from inputs of which words were cut."""

from typing import Any

import keras
from keras import ops

from tfattn._factors import Factors
from tfattn._types import Tensor
from tfattn.training.twins import (
    TwinCrossentropy,
    are_twins,
    in_first_half,
    log_probabilities,
    of_twins,
)

__all__ = ["SimCutCrossentropy"]


@keras.saving.register_keras_serializable("tfattn")
class SimCutCrossentropy(TwinCrossentropy):
    """Cross-entropy of whole inputs, and the divergence of predictions from cut ones.

        loss = −log p[target] + weight · KL(p ‖ q)

    The first half of the batch has whole inputs, the second half the same with some tokens cut, as
    `data.simcut_batches` makes it. p is the prediction for a token in the first half, q that for
    the same token in the second; both learn. Both tokens of such a pair have this loss, so the mean
    is the paper's. Whether a batch has such halves is told by its targets, as in
    `RDropCrossentropy`. Any other batch, as in validation, gets the cross-entropy alone. So does
    every batch under `tf.distribute`, which splits batches in another way. Under
    `keras.distribution` the rows are repeated first, and `data.shard_batches` is called last.

    A step has twice the rows of a plain one. In a TensorFlow graph on a CPU it needs no array of
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
    through both p and q. For what is cut see `data.simcut_batches`.
    """

    def __init__(
        self,
        weight: float = 3.0,
        label_smoothing: float = 0.0,
        padding_id: int = 0,
        name: str = "simcut_crossentropy",
        **kwargs: Any,
    ):
        super().__init__(weight, label_smoothing, padding_id, name, **kwargs)

    def with_twins(self, losses: Tensor, logits: Tensor, real: Tensor) -> Tensor:
        """The loss of each token, `(B, T)`, of a batch whose second half has cut inputs."""
        log_p = log_probabilities(logits, real)  # (B, T, V)
        p = ops.exp(log_p)
        whole = in_first_half(losses)  # (B, 1)
        # A word that p rules out adds nothing, whatever its twin thinks of it.
        counts = ops.logical_and(whole[..., None], p > 0)
        ratio = ops.where(counts, log_p - of_twins(log_p), 0.0)
        losses = losses + self.weight * ops.sum(p * ratio, axis=-1)
        return ops.where(whole, losses, of_twins(losses))

    def weighted_sum(self, factors: Factors, y_true: Tensor, weights: Tensor) -> Tensor:
        """Σ weights · `call`, from the factors of the logits, in a graph of TensorFlow's."""
        from tfattn.training.streamed_divergence import weighted_divergence

        twins = are_twins(y_true)
        # Both tokens of a pair have the loss of the first.
        of_pairs = ops.where(in_first_half(y_true), weights + of_twins(weights), 0.0)
        crossentropy = super().weighted_sum(factors, y_true, ops.where(twins, of_pairs, weights))
        half = ops.shape(y_true)[0] // 2
        whole, cut = factors.tokens[:half], factors.tokens[half : 2 * half]
        of_pairs = ops.where(twins, of_pairs[:half], 0.0)
        divergence = weighted_divergence(whole, cut, of_pairs, factors.vectors, factors.bias)
        return crossentropy + self.weight * divergence
