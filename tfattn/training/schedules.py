"""Learning rates over time."""

import keras
from keras import ops

from tfattn import _checks

__all__ = ["TransformerSchedule"]


@keras.saving.register_keras_serializable("tfattn")
class TransformerSchedule(keras.optimizers.schedules.LearningRateSchedule):
    """The paper's warm-up: the rate rises in a straight line, then falls with the inverse square root of the step.

        rate = scale · width^−0.5 · min(step^−0.5, step · warmup_steps^−1.5)

    Steps count from 1, so that the first update already moves.

    Args:
        width: positive int, the model's width.
        warmup_steps: positive int, the step of the highest rate, scale / √(width · warmup_steps).
        scale: positive number.
    Call arguments:
        step: integer, updates done so far.
    Returns:
        The rate, float32.
    Raises:
        ValueError: a size is no positive int; `scale` is not above 0.
    Example:
        >>> schedule = TransformerSchedule(width=512, warmup_steps=4000)
        >>> print(f"{float(schedule(3999)):.6f}")
        0.000699

    Source: Vaswani et al. 2017, arXiv:1706.03762, equation 3.
    """

    def __init__(self, width, warmup_steps=4000, scale=1.0):
        self.width = _checks.positive_int("TransformerSchedule", "width", width)
        self.warmup_steps = _checks.positive_int("TransformerSchedule", "warmup_steps", warmup_steps)
        self.scale = _checks.positive_number("TransformerSchedule", "scale", scale)

    def __call__(self, step):
        step = ops.cast(step, "float32") + 1.0
        rising = step * self.warmup_steps**-1.5
        return self.scale * self.width**-0.5 * ops.minimum(ops.rsqrt(step), rising)

    def get_config(self):
        return {"width": self.width, "warmup_steps": self.warmup_steps, "scale": self.scale}
