"""R-Drop: a loss that makes predictions under two draws of dropout agree."""

from typing import Any

import keras
from keras import ops

from tfattn import _checks
from tfattn._types import Tensor
from tfattn.training.losses import MaskedCrossentropy

__all__ = ["RDropCrossentropy"]


@keras.saving.register_keras_serializable("tfattn")
class RDropCrossentropy(MaskedCrossentropy):
    """Cross-entropy, and the divergence of two predictions for the same tokens.

        loss = −log p[target] + weight / 2 · ½ (KL(p ‖ q) + KL(q ‖ p))

    Each row of the batch occurs twice, as `data.rdrop_batches` makes it: the second half of the
    batch repeats the first. p and q are the predictions for a token in the two copies, which differ
    by dropout alone. The loss detects this by the targets: if the second half has the targets of
    the first, the halves are taken for copies (also two different sources with one target, alone in
    a batch). Any other batch, as in validation, gets the cross-entropy alone. So does every batch
    under `tf.distribute`, which splits batches in another way.

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
        super().__init__(
            label_smoothing=label_smoothing, padding_id=padding_id, name=name, **kwargs
        )
        self.weight = _checks.non_negative_number("RDropCrossentropy", "weight", weight)

    def call(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        """Loss of each token, `(B, T)`, 0 at padding."""
        losses = super().call(y_true, y_pred)
        y_true, logits = ops.cast(y_true, "int32"), ops.cast(y_pred, "float32")
        rows = ops.shape(y_true)[0]
        half = rows // 2
        twins = ops.logical_and(rows == 2 * half, ops.all(y_true[:half] == y_true[half : 2 * half]))

        def with_divergence():
            return losses + self.weight / 2 * _divergence(logits, y_true != self.padding_id)

        return ops.cond(twins, with_divergence, lambda: losses)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "weight": self.weight}


def _divergence(logits: Tensor, real: Tensor) -> Tensor:
    """½ (KL(p ‖ q) + KL(q ‖ p)) of tokens and twins, half a batch away: `(B, T)`, 0 at padding."""
    # Masked before the softmax: so padding has no gradient, even where it holds NaN.
    log_p = ops.log_softmax(ops.where(real[..., None], logits, 0.0), axis=-1)  # (B, T, V)
    p = ops.exp(log_p)
    # Rolled, not sliced: XLA compiles this branch for odd batches too, and does not differentiate
    # slices in a branch.
    q, log_q = (ops.roll(x, ops.shape(logits)[0] // 2, axis=0) for x in (p, log_p))
    # For a word that both rule out, −∞ + ∞ would be NaN.
    ratio = ops.where(p == q, 0.0, log_p - log_q)
    return ops.sum((p - q) * ratio, axis=-1) / 2
