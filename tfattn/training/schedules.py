"""Learning rates over time."""

import keras
from keras import ops

from tfattn import _checks

__all__ = ["InverseSquareRootSchedule", "TransformerSchedule"]


@keras.saving.register_keras_serializable("tfattn")
class InverseSquareRootSchedule(keras.optimizers.schedules.LearningRateSchedule):
    """Warm-up to a peak: the rate rises in a straight line, then falls with the inverse square root of the step.

        rate = peak · min(n / warmup_steps, √(warmup_steps / n)),   n = step + 1

    So the first update, step 0, has peak / warmup_steps and already moves; step warmup_steps − 1 has the peak; four
    times as far it is half of that. With `gradient_accumulation_steps=N` Keras counts batches and not updates: the same
    curve then needs N · warmup_steps.

    Args:
        peak: positive number, the highest rate.
        warmup_steps: positive int, the updates up to the peak.
    Call arguments:
        step: integer, updates done so far.
    Returns:
        The rate, float32.
    Raises:
        ValueError: `peak` is not above 0; `warmup_steps` is no positive int.
    Example:
        >>> schedule = InverseSquareRootSchedule(peak=0.005, warmup_steps=2000)
        >>> print([round(float(schedule(step)), 7) for step in (0, 1999, 7999)])
        [2.5e-06, 0.005, 0.0025]

    Source: Vaswani et al. 2017, arXiv:1706.03762, equation 3, the peak said outright and not by way of the width.
    """

    def __init__(self, peak, warmup_steps=4000):
        self.peak = _checks.positive_number(type(self).__name__, "peak", peak)
        self.warmup_steps = _checks.positive_int(type(self).__name__, "warmup_steps", warmup_steps)

    def __call__(self, step):
        step = ops.cast(step, "float32") + 1.0
        return self.peak * ops.minimum(step / self.warmup_steps, ops.sqrt(self.warmup_steps / step))

    def get_config(self):
        return {"peak": self.peak, "warmup_steps": self.warmup_steps}


@keras.saving.register_keras_serializable("tfattn")
class TransformerSchedule(InverseSquareRootSchedule):
    """The paper's warm-up: `InverseSquareRootSchedule` with a peak that the model's width gives.

        rate = scale · width^−0.5 · min(n^−0.5, n · warmup_steps^−1.5),   n = step + 1

    Args:
        width: positive int, the model's width.
        warmup_steps: positive int, the updates up to the highest rate, scale / √(width · warmup_steps).
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
        self.scale = _checks.positive_number("TransformerSchedule", "scale", scale)
        warmup_steps = _checks.positive_int("TransformerSchedule", "warmup_steps", warmup_steps)
        super().__init__(self.scale * (self.width * warmup_steps) ** -0.5, warmup_steps)

    def get_config(self):
        return {"width": self.width, "warmup_steps": self.warmup_steps, "scale": self.scale}
