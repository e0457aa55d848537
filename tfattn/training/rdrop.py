"""R-Drop: a loss that makes predictions under two draws of dropout agree."""

from typing import Any

import keras
from keras import ops

from tfattn._types import Tensor
from tfattn.training.twins import TwinCrossentropy, log_probabilities, of_twins

__all__ = ["RDropCrossentropy"]


@keras.saving.register_keras_serializable("tfattn")
class RDropCrossentropy(TwinCrossentropy):
    """Cross-entropy, and the divergence of two predictions for the same tokens.

        loss = −log p[target] + weight / 2 · ½ (KL(p ‖ q) + KL(q ‖ p))

    Each row of the batch occurs twice, as `data.rdrop_batches` makes it: the second half of the
    batch repeats the first. p and q are the predictions for a token in the two copies, which differ
    by dropout alone. The loss detects this by the targets: if the second half has the targets of
    the first, the halves are taken for copies (also two different sources with one target, alone in
    a batch). Any other batch, as in validation, gets the cross-entropy alone. So does every batch
    under `tf.distribute`, which splits batches in another way. Under `keras.distribution` the rows
    are repeated first, and `data.shard_batches` is called last.

    Args:
        weight: number of at least 0, the paper's α. Defaults to 5.
        label_smoothing, padding_id, name, **kwargs: as in `MaskedCrossentropy`.
    Call arguments, Returns: those of `MaskedCrossentropy`.
    Raises:
        ValueError: `weight` is negative; those of `MaskedCrossentropy`.
    Example:
        >>> target, scores = np.array([[1], [1]]), np.array([[[0.0, 1.0]], [[0.0, 2.0]]], "float32")
        >>> print(round(float(RDropCrossentropy(weight=0.0)(target, scores)), 4))
        0.2201
        >>> print(round(float(RDropCrossentropy(weight=4.0)(target, scores)), 4))
        0.3698

    Source: Liang, Wu et al. 2021 ("R-Drop"), arXiv:2106.14448, equation 4; divided by 2 here, so
    that the cross-entropy keeps its scale and the same learning rate can be used.
    """

    def __init__(
        self,
        weight: float = 5.0,
        label_smoothing: float = 0.0,
        padding_id: int = 0,
        name: str = "rdrop_crossentropy",
        **kwargs: Any,
    ):
        super().__init__(weight, label_smoothing, padding_id, name, **kwargs)

    def with_twins(self, losses: Tensor, logits: Tensor, real: Tensor) -> Tensor:
        """The loss of each token, `(B, T)`, of a batch whose halves are copies."""
        return losses + self.weight / 2 * _divergence(logits, real)


def _divergence(logits: Tensor, real: Tensor) -> Tensor:
    """½ (KL(p ‖ q) + KL(q ‖ p)) of tokens and twins, half a batch away: `(B, T)`, 0 at padding."""
    log_p = log_probabilities(logits, real)  # (B, T, V)
    p = ops.exp(log_p)
    q, log_q = of_twins(p), of_twins(log_p)
    # For a word that both rule out, −∞ + ∞ would be NaN.
    ratio = ops.where(p == q, 0.0, log_p - log_q)
    return ops.sum((p - q) * ratio, axis=-1) / 2
