"""Two dropouts, one prediction: R-Drop."""

import keras
from keras import ops

from tfattn import _checks
from tfattn.training.losses import MaskedCrossentropy

__all__ = ["RDropCrossentropy"]


@keras.saving.register_keras_serializable("tfattn")
class RDropCrossentropy(MaskedCrossentropy):
    """Cross-entropy, and how far two predictions for the same tokens differ where dropout alone
    tells them apart.

        loss = −log p[target] + weight / 2 · ½ (KL(p ‖ q) + KL(q ‖ p))        p of a token, q of its twin

    It is taken where the second half of a batch has the targets of the first, as `data.rdrop_batches` makes
    it, or chance: two sources of one target, alone in a batch, are taken for twins. Any other
    batch, as validation has them, has the cross-entropy alone. Under `tf.distribute`, which cuts
    batches in parts of its own, twins are parted and not found.

    Args:
        weight: number of at least 0, the paper's α.
        label_smoothing, padding_id, reduction, name, **kwargs: as in `MaskedCrossentropy`.
    Call arguments, Returns: those of `MaskedCrossentropy`.
    Raises:
        ValueError: `weight` is negative; those of `MaskedCrossentropy`.
    Example:
        >>> target, scores = np.array([[1], [1]]), np.array([[[0.0, 1.0]], [[0.0, 2.0]]], "float32")
        >>> print(round(float(RDropCrossentropy(weight=0.0)(target, scores)), 4))
        0.2201
        >>> print(round(float(RDropCrossentropy(weight=4.0)(target, scores)), 4))
        0.3698

    Source: Wu et al. 2021 ("R-Drop"), arXiv:2106.14448, equation 4, here by its half, so that the
    cross-entropy keeps its scale and the learning rate its meaning.
    """

    def __init__(
        self, weight=5.0, label_smoothing=0.0, padding_id=0, name="rdrop_crossentropy", **kwargs
    ):
        super().__init__(
            label_smoothing=label_smoothing, padding_id=padding_id, name=name, **kwargs
        )
        self.weight = _checks.non_negative_number("RDropCrossentropy", "weight", weight)

    def call(self, y_true, y_pred):
        """Loss of each token, `(B, T)`, 0 at padding."""
        losses = super().call(y_true, y_pred)
        y_true, scores = ops.cast(y_true, "int32"), ops.cast(y_pred, "float32")
        rows = ops.shape(y_true)[0]
        half = rows // 2
        twins = ops.logical_and(rows == 2 * half, ops.all(y_true[:half] == y_true[half : 2 * half]))

        def with_distances():
            return losses + self.weight / 2 * _distances(scores, y_true != self.padding_id)

        return ops.cond(twins, with_distances, lambda: losses)

    def get_config(self):
        return {**super().get_config(), "weight": self.weight}


def _distances(logits, real):
    """½ (KL(p ‖ q) + KL(q ‖ p)) of each token and its twin, half a batch away: `(B, T)`, 0 at
    padding.
    """
    # Hidden before the softmax: what padding holds, NaN among it, has no gradient then.
    log_p = ops.log_softmax(ops.where(real[..., None], logits, 0.0), axis=-1)  # (B, T, V)
    p = ops.exp(log_p)
    # Rolled, and not cut in two: XLA does not differentiate slices within a branch, and compiles it
    # for odd batches too.
    q, log_q = (ops.roll(x, ops.shape(logits)[0] // 2, axis=0) for x in (p, log_p))
    # A word that both rule out is no difference, and not −∞ + ∞.
    ratio = ops.where(p == q, 0.0, log_p - log_q)
    return ops.sum((p - q) * ratio, axis=-1) / 2
