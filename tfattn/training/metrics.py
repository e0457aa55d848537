"""What to watch while a sequence model trains."""

import keras
from keras import ops

from tfattn import _checks
from tfattn._factors import Factors
from tfattn.training.losses import check_scores, streamable, token_weights

__all__ = ["MaskedAccuracy"]


@keras.saving.register_keras_serializable("tfattn")
class MaskedAccuracy(keras.metrics.Mean):
    """Share of real tokens whose best-scored id is the right one.

    Of logits that `MaskedCrossentropy` did without, it finds them a block at a time: one more
    product with the vocabulary.

    Args:
        padding_id: int, the id that does not count.
        name, dtype: as in Keras.
    Call arguments:
        y_true: integers `(B, T)`.   y_pred: float `(B, T, V)`.   sample_weight: as in
            `MaskedCrossentropy`.
    Returns:
        A scalar in [0, 1]; 0 before the first token.
    Raises:
        ValueError: `padding_id` is no integer of at least 0; shapes that do not fit.
    Example:
        >>> metric = MaskedAccuracy()
        >>> metric.update_state(np.array([[1, 2, 0]]), np.eye(3, dtype="float32")[[[1, 0, 0]]])
        >>> print(float(metric.result()))
        0.5
    """

    def __init__(self, padding_id=0, name="masked_accuracy", dtype=None, **kwargs):
        super().__init__(name=name, dtype=dtype, **kwargs)
        self.padding_id = _checks.non_negative_int("MaskedAccuracy", "padding_id", padding_id)

    def update_state(self, y_true, y_pred, sample_weight=None):
        y_true, y_pred = ops.cast(y_true, "int32"), ops.convert_to_tensor(y_pred)
        check_scores("MaskedAccuracy", y_true, y_pred)
        right = ops.cast(y_true == _best_ids(y_pred), "float32")  # (B, T)
        weights = token_weights("MaskedAccuracy", y_true, self.padding_id, sample_weight, "float32")
        # Flat, for Keras takes the mean over a row first, and a token of a wide batch would count
        # less.
        return super().update_state(
            ops.reshape(right, (-1,)), sample_weight=ops.reshape(weights, (-1,))
        )

    def get_config(self):
        return {**super().get_config(), "padding_id": self.padding_id}


def _best_ids(logits):
    factors = streamable(logits) if Factors.are_spared(logits) else None
    if factors is None:
        # Not by `ops.argmax`, which on TensorFlow tells −0 from 0, in passes over all scores: a
        # sixth of a training step.
        return ops.cast(ops.top_k(logits, 1)[1], "int32")[..., 0]
    from tfattn.training import streamed

    return streamed.best_ids(factors)
