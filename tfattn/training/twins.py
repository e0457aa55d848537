"""What losses share that compare two predictions for the same tokens."""

from typing import Any

from keras import ops

from tfattn import _checks
from tfattn._types import Tensor
from tfattn.training.losses import MaskedCrossentropy

__all__ = ["TwinCrossentropy", "are_twins", "in_first_half", "log_probabilities", "of_twins"]


class TwinCrossentropy(MaskedCrossentropy):
    """Cross-entropy, and more where each row of a batch occurs twice: rows i and i + half.

    Twins are detected by the targets: the second half of the batch has those of the first. Any
    other batch gets the cross-entropy alone.

    Args:
        weight: number of at least 0, of what `with_twins` adds.
        label_smoothing, padding_id, name, **kwargs: as in `MaskedCrossentropy`.
    """

    def __init__(
        self,
        weight: float,
        label_smoothing: float = 0.0,
        padding_id: int = 0,
        name: str = "twin_crossentropy",
        **kwargs: Any,
    ):
        super().__init__(
            label_smoothing=label_smoothing, padding_id=padding_id, name=name, **kwargs
        )
        self.weight = _checks.non_negative_number(type(self).__name__, "weight", weight)

    def with_twins(self, losses: Tensor, logits: Tensor, real: Tensor) -> Tensor:
        """The loss of each token, `(B, T)`, of a batch of twins.

        Args:
            losses: float `(B, T)`, the cross-entropies, 0 at padding.
            logits: float32 `(B, T, V)`.
            real: bool `(B, T)`, False at padding.
        """
        raise NotImplementedError

    def call(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        """Loss of each token, `(B, T)`, 0 at padding."""
        losses = super().call(y_true, y_pred)
        y_true, logits = ops.cast(y_true, "int32"), ops.cast(y_pred, "float32")
        return ops.cond(
            are_twins(y_true),
            lambda: self.with_twins(losses, logits, y_true != self.padding_id),
            lambda: losses,
        )

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "weight": self.weight}


def are_twins(y_true: Tensor) -> Tensor:
    """Whether the second half of the rows repeats the first: a scalar bool."""
    rows = ops.shape(y_true)[0]
    half = rows // 2
    return ops.logical_and(rows == 2 * half, ops.all(y_true[:half] == y_true[half : 2 * half]))


def in_first_half(y_true: Tensor) -> Tensor:
    """Which rows have their twin behind them: bool `(B, 1)`."""
    rows = ops.shape(y_true)[0]
    return (ops.arange(rows) < rows // 2)[:, None]


def log_probabilities(logits: Tensor, real: Tensor) -> Tensor:
    """Log softmax `(B, T, V)`. Padding has no gradient, even where it holds NaN."""
    return ops.log_softmax(ops.where(real[..., None], logits, 0.0), axis=-1)


def of_twins(x: Tensor) -> Tensor:
    """The rows of each row's twin, half a batch away."""
    # Rolled, not sliced: XLA compiles the branch of twins for odd batches too, and does not
    # differentiate slices in a branch.
    return ops.roll(x, ops.shape(x)[0] // 2, axis=0)
