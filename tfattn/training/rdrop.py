"""Two dropouts, one prediction: R-Drop."""

import keras
from keras import ops

from tfattn import _checks
from tfattn.training.losses import MaskedCrossentropy

__all__ = ["RDropCrossentropy"]


@keras.saving.register_keras_serializable("tfattn")
class RDropCrossentropy(MaskedCrossentropy):
    """Cross-entropy, and how far two predictions for the same tokens differ where dropout alone tells them apart.

        loss = −log p[target] + weight / 2 · ½ (KL(p ‖ q) + KL(q ‖ p))        p of a token, q of its twin

    It is taken where the second half of a batch has the targets of the first, as `data.twice` makes it. Any other batch,
    one of validation for example, has the cross-entropy alone.

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

    Source: Wu et al. 2021 ("R-Drop"), arXiv:2106.14448, equation 4, here by its half, so that the cross-entropy keeps its
    scale and the learning rate its meaning.
    """

    def __init__(self, weight=5.0, label_smoothing=0.0, padding_id=0, name="rdrop_crossentropy", **kwargs):
        super().__init__(label_smoothing=label_smoothing, padding_id=padding_id, name=name, **kwargs)
        self.weight = _checks.non_negative_number("RDropCrossentropy", "weight", weight)

    def call(self, y_true, y_pred):
        """Loss of each token, `(B, T)`, 0 at padding."""
        losses = super().call(y_true, y_pred)
        y_true, scores = ops.cast(y_true, "int32"), ops.cast(y_pred, "float32")
        rows = ops.shape(y_true)[0]
        first, second = y_true[: rows // 2], y_true[rows // 2 : rows // 2 * 2]
        twins = ops.logical_and(rows == rows // 2 * 2, ops.all(first == second))

        def with_distances():
            distances = _distances(scores, first != self.padding_id)
            return losses + self.weight / 2 * ops.concatenate([distances, distances])

        return ops.cond(twins, with_distances, lambda: losses)

    def get_config(self):
        return {**super().get_config(), "weight": self.weight}


def _distances(logits, real):
    """½ (KL(p ‖ q) + KL(q ‖ p)) of each token and its twin, `(B/2, T)`, 0 at padding, with its gradient written out."""

    @ops.custom_gradient
    def distances(logits):
        log_p, log_q = ops.split(ops.log_softmax(logits, axis=-1), 2)  # (B/2, T, V) each
        p, q, ratio = ops.exp(log_p), ops.exp(log_q), log_p - log_q
        difference = p - q

        def gradient(*arguments, upstream=None):
            upstream = ops.where(real, arguments[0] if upstream is None else upstream, 0.0) / 2
            of_p = p * (ratio - ops.sum(p * ratio, axis=-1, keepdims=True)) + difference
            of_q = q * (ops.sum(q * ratio, axis=-1, keepdims=True) - ratio) - difference
            # Not a product alone: 0 · NaN, of a padding that holds NaN, is NaN.
            return ops.concatenate([ops.where(real[..., None], upstream[..., None] * of, 0.0) for of in (of_p, of_q)])

        return ops.where(real, ops.sum(difference * ratio, axis=-1) / 2, 0.0), gradient

    return distances(logits)
