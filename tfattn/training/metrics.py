"""The accuracy of sequence models, without padding."""

from typing import Any

import keras
from keras import ops

from tfattn import _checks
from tfattn._types import Tensor
from tfattn.training.losses import checked_inputs, streamable


@keras.saving.register_keras_serializable("tfattn")
class MaskedAccuracy(keras.metrics.Mean):
    """The fraction of tokens, without padding, whose highest logit is the target's.

    If `MaskedCrossentropy` avoids an array of all logits, so does this metric, by recomputing them.

    Args:
        padding_id: int, the id of padding. Defaults to 0.
        name, dtype, **kwargs: as in `keras.metrics.Mean`.
    Call arguments:
        y_true: integers `(B, T)`.
        y_pred: float `(B, T, V)`, logits.
        sample_weight: as in `MaskedCrossentropy`.
    Returns:
        A scalar in [0, 1]; 0 before the first token.
    Raises:
        ValueError: `padding_id` is not an int of at least 0; shapes do not fit.
    Example:
        >>> metric = MaskedAccuracy()
        >>> metric.update_state(np.array([[1, 2, 0]]), np.eye(3, dtype="float32")[[[1, 0, 0]]])
        >>> print(float(metric.result()))
        0.5
    """

    def __init__(
        self, padding_id: int = 0, name: str = "masked_accuracy", dtype: Any = None, **kwargs: Any
    ):
        super().__init__(name=name, dtype=dtype, **kwargs)
        self.padding_id = _checks.non_negative_int("MaskedAccuracy", "padding_id", padding_id)

    def update_state(
        self, y_true: Tensor, y_pred: Tensor, sample_weight: Tensor | None = None
    ) -> None:
        y_true, y_pred, weights = checked_inputs(
            "MaskedAccuracy", y_true, y_pred, sample_weight, self.padding_id
        )
        factors = streamable(y_pred)
        if factors is None or not factors.are_used:
            # `ops.argmax` is slower on TensorFlow: extra passes distinguish −0 from 0.
            best_ids = ops.cast(ops.top_k(y_pred, 1)[1], "int32")[..., 0]  # (B, T)
        else:
            from tfattn.training import streamed

            best_ids = streamed.best_ids(factors)
        right = ops.cast(y_true == best_ids, "float32")
        # Flat: Keras would average over each row first, so that tokens of longer rows count less.
        super().update_state(ops.reshape(right, (-1,)), ops.reshape(weights, (-1,)))

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "padding_id": self.padding_id}
