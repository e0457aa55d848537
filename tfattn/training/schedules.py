"""Learning-rate schedules."""

from typing import Any

import keras
from keras import ops

from tfattn import _checks
from tfattn._types import Tensor


@keras.saving.register_keras_serializable("tfattn")
class InverseSquareRootSchedule(keras.optimizers.schedules.LearningRateSchedule):
    """Linear warm-up to a peak, then decay with the inverse square root of the step.

        rate = peak · min(n / warmup_steps, √(warmup_steps / n)),   n = step + 1

    With `gradient_accumulation_steps=N` Keras counts batches instead of updates: pass
    N · warmup_steps for the same curve.

    Args:
        peak: positive number, the highest rate.
        warmup_steps: positive int, the updates up to the peak. Defaults to 4000.
    Call arguments:
        step: integer, updates done so far.
    Returns:
        The rate, float32.
    Raises:
        ValueError: `peak` is not above 0; `warmup_steps` is not a positive int.
    Example:
        >>> schedule = InverseSquareRootSchedule(peak=0.005, warmup_steps=2000)
        >>> print([round(float(schedule(step)), 7) for step in (0, 1999, 7999)])
        [2.5e-06, 0.005, 0.0025]

    Source: Vaswani et al. 2017, arXiv:1706.03762, equation 3, with the peak as an argument.
    """

    def __init__(self, peak: float, warmup_steps: int = 4000):
        self.peak = _checks.positive_number(type(self).__name__, "peak", peak)
        self.warmup_steps = _checks.positive_int(type(self).__name__, "warmup_steps", warmup_steps)

    def __call__(self, step: Tensor | int) -> Tensor:
        step = ops.cast(step + 1, "float32")
        return self.peak * ops.minimum(step / self.warmup_steps, ops.sqrt(self.warmup_steps / step))

    def get_config(self) -> dict[str, Any]:
        return {"peak": self.peak, "warmup_steps": self.warmup_steps}


@keras.saving.register_keras_serializable("tfattn")
class TransformerSchedule(InverseSquareRootSchedule):
    """The Transformer paper's schedule: warm-up to a peak that depends on the model's width.

        rate = scale · width^−0.5 · min(n^−0.5, n · warmup_steps^−1.5),   n = step + 1

    Args:
        width: positive int, the model's width.
        warmup_steps: positive int, as in `InverseSquareRootSchedule`. Defaults to 4000.
        scale: positive number. Defaults to 1.
    Call arguments, Returns, Raises: those of `InverseSquareRootSchedule`.
    Example:
        >>> schedule = TransformerSchedule(width=512, warmup_steps=4000)
        >>> print(f"{float(schedule(3999)):.6f}")
        0.000699

    Source: Vaswani et al. 2017, arXiv:1706.03762, equation 3.
    """

    def __init__(self, width: int, warmup_steps: int = 4000, scale: float = 1.0):
        self.width = _checks.positive_int("TransformerSchedule", "width", width)
        self.scale = _checks.positive_number("TransformerSchedule", "scale", scale)
        warmup_steps = _checks.positive_int("TransformerSchedule", "warmup_steps", warmup_steps)
        super().__init__(self.scale * (self.width * warmup_steps) ** -0.5, warmup_steps)

    def get_config(self) -> dict[str, Any]:
        return {"width": self.width, "warmup_steps": self.warmup_steps, "scale": self.scale}


@keras.saving.register_keras_serializable("tfattn")
class Cooldown(keras.optimizers.schedules.LearningRateSchedule):
    """A given schedule, with a linear decay to zero at its end.

        rate = schedule(step) · min(1, max(0, (start + steps − step) / steps))

    A decay can thus start from any backup of one long run.

    Args:
        schedule: a `keras.optimizers.schedules.LearningRateSchedule`.
        start: non-negative int, the updates before the decay.
        steps: positive int, the updates of the decay. The last of them has 1 / steps of the
            schedule's rate, and all later ones 0.
    Call arguments, Returns: those of `InverseSquareRootSchedule`.
    Raises:
        ValueError: `schedule` is not a schedule, or a number of updates no such int.
    Example:
        >>> schedule = Cooldown(InverseSquareRootSchedule(peak=0.005), start=8000, steps=500)
        >>> print([round(float(schedule(step)), 4) for step in (3999, 8000, 8250, 8500)])
        [0.005, 0.0035, 0.0017, 0.0]

    Source: Hägele et al. 2024, arXiv:2405.18392, section 2 (there on top of a constant rate).
    """

    def __init__(
        self, schedule: keras.optimizers.schedules.LearningRateSchedule, start: int, steps: int
    ):
        if isinstance(schedule, dict) and "class_name" in schedule:  # of the config
            schedule = keras.optimizers.schedules.deserialize(schedule)
        if not isinstance(schedule, keras.optimizers.schedules.LearningRateSchedule):
            _checks.fail("Cooldown", "schedule", "be a Keras LearningRateSchedule", schedule)
        self.schedule = schedule
        self.start = _checks.non_negative_int("Cooldown", "start", start)
        self.steps = _checks.positive_int("Cooldown", "steps", steps)

    def __call__(self, step: Tensor | int) -> Tensor:
        # Integer subtraction: float32 cannot represent every integer above 2**24.
        remaining = ops.cast(self.start + self.steps - step, "float32") / self.steps
        return self.schedule(step) * ops.clip(remaining, 0.0, 1.0)

    def get_config(self) -> dict[str, Any]:
        schedule = keras.saving.serialize_keras_object(self.schedule)
        return {"schedule": schedule, "start": self.start, "steps": self.steps}
