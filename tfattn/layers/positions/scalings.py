"""Scalings of rotary positions, for sequences longer than in training.

A scaling gives the frequency of each pair of features. It is passed to
`RotaryPositions(scaling=...)`, and saved with it:

    >>> from tfattn import scalings
    >>> print(scalings.linear(2.0).frequencies(base=100.0, width=4, length=5))
    [0.5  0.05]

A new scaling is a class with one method, `frequencies`.
"""

import math
from typing import Any, TypeVar

import keras
import numpy as np
from keras import ops

from tfattn import _checks
from tfattn._arguments import constructor_arguments, written
from tfattn._types import Size, Tensor

__all__ = ["Scaling", "dynamic", "linear", "llama3", "yarn"]


def unscaled_frequencies(base: float, width: int) -> Tensor:
    """Unscaled frequencies in radians per token: base^(−2j/width) for pair j."""
    return base ** (-2.0 * np.arange(width // 2) / width)


class Scaling:
    """Base of all scalings: the frequency of each pair of features.

    A subclass defines `frequencies`, and keeps its constructor's arguments as attributes of their
    names. Register it with Keras to save it.

    Attributes:
        magnitude: factor of the rotated features.
        max_cache_length: the length above which frequencies depend on the length, so that cached
            keys are not valid; None if they never do.
    """

    magnitude: float = 1.0
    max_cache_length: int | None = None

    def frequencies(self, base: float, width: int, length: Size) -> np.ndarray | Tensor:
        """Radians per token of each pair.

        Args:
            base: positive number, of `RotaryPositions`.
            width: even int, number of rotated features.
            length: tokens of the sequence: int, or an integer tensor `()` or `(B,)`.
        Returns:
            `(width/2,)`, or `(B, width/2)` where the rows differ in length.
        """
        raise NotImplementedError

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments, as JSON types."""
        return {name: getattr(self, name) for name in constructor_arguments(self)}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "Scaling":
        """A scaling from its config."""
        return cls(**config)

    def __repr__(self) -> str:
        return written(self, keras.saving.get_registered_name(type(self)).rpartition(">")[2])


Class = TypeVar("Class", bound=type[Scaling])


def _registered(cls: Class) -> Class:
    return keras.saving.register_keras_serializable("tfattn", f"scalings.{cls.__name__}")(cls)


@_registered
class linear(Scaling):
    """Position interpolation: all frequencies are divided by one factor.

        frequency_j = base^(−2j/D) / factor

    Args:
        factor: positive number, the length of the longest sequences relative to training.
    Raises:
        ValueError: `factor` is not a positive number.
    Example:
        >>> positions = RotaryPositions(scaling=scalings.linear(4.0))

    Source: Chen et al. 2023, arXiv:2306.15595, section 2.3.
    """

    def __init__(self, factor: float):
        self.factor = _checks.positive_number("scalings.linear", "factor", factor)

    def frequencies(self, base: float, width: int, length: Size) -> np.ndarray:
        return unscaled_frequencies(base, width) / self.factor


@_registered
class dynamic(Scaling):
    """NTK-aware scaling by the length of the sequence: the base increases with the length.

        frequency_j = base'^(−2j/D)
        base'       = base · (factor · length / original_length − factor + 1)^(D / (D − 2))

    Up to `original_length` nothing is scaled. Beyond it, rotations depend on the length,
    so cached keys are not valid, and a cache longer than `original_length` raises an error; without
    a cache every step computes all keys. The length is the number of keys of the call. So weights
    on earlier tokens depend on the number of later tokens, under a causal mask too.

    Args:
        factor: number of at least 1.
        original_length: positive int, tokens of the sequences in training.
    Raises:
        ValueError: `factor` is below 1; `original_length` is not a positive int.
    Example:
        >>> positions = RotaryPositions(scaling=scalings.dynamic(2.0, original_length=2048))

    Source: no paper; described by Peng et al. 2023, arXiv:2309.00071, section 3.3, for `factor` 1;
    the argument is from Hugging Face's transformers.
    """

    def __init__(self, factor: float, original_length: int):
        who = "scalings.dynamic"
        self.factor = _at_least_1(who, "factor", factor)
        self.original_length = _checks.positive_int(who, "original_length", original_length)

    @property
    def max_cache_length(self) -> int:  # type: ignore[override]
        return self.original_length

    def frequencies(self, base: float, width: int, length: Size) -> np.ndarray | Tensor:
        # base'^(−2j/D) as two factors, of which the first is computed in float64.
        exponents = -2.0 * np.arange(width // 2) / max(1, width - 2)
        if isinstance(length, int):
            growth = self._growth(max(length, self.original_length))
            return unscaled_frequencies(base, width) * growth**exponents
        length = ops.cast(ops.maximum(length, self.original_length), "float32")
        length = ops.expand_dims(length, -1)
        growth = ops.power(self._growth(length), ops.cast(exponents, "float32"))
        return ops.cast(unscaled_frequencies(base, width), "float32") * growth

    def _growth(self, length: Size) -> Any:
        return length * (self.factor / self.original_length) - (self.factor - 1.0)


@_registered
class yarn(Scaling):
    """YaRN: high frequencies do not change, low frequencies are divided by `factor`.

        frequency_j = base^(−2j/D) · (1 − ramp_j + ramp_j / factor)

    ramp_j rises from 0, at the pair with `beta_fast` periods in `original_length` tokens, to 1, at
    the pair with `beta_slow` periods. Queries and keys are multiplied by `attention_factor`, which
    makes the softmax sharper.

    Args:
        factor: number of at least 1, the length of the longest sequences relative to training.
        original_length: positive int, tokens of the sequences in training.
        beta_fast, beta_slow: positive numbers of periods, the first the greater.
        attention_factor: positive number. Defaults to 0.1 · ln(factor) + 1.
        truncate: whether the ramp's ends are rounded outwards to whole pairs.
    Raises:
        ValueError: a number is out of its range.
    Example:
        >>> scaling = scalings.yarn(16.0, original_length=4096)
        >>> print(round(scaling.magnitude, 4))
        1.2773

    Source: Peng et al. 2023, arXiv:2309.00071, equations 17 to 23; rounded outwards, as in the
    authors' code.
    """

    def __init__(
        self,
        factor: float,
        original_length: int,
        beta_fast: float = 32.0,
        beta_slow: float = 1.0,
        attention_factor: float | None = None,
        truncate: bool = True,
    ):
        who = "scalings.yarn"
        self.factor = _at_least_1(who, "factor", factor)
        self.original_length = _checks.positive_int(who, "original_length", original_length)
        self.beta_fast = _checks.positive_number(who, "beta_fast", beta_fast)
        self.beta_slow = _checks.positive_number(who, "beta_slow", beta_slow)
        if self.beta_slow >= self.beta_fast:
            _checks.fail(who, "beta_slow", f"be below `beta_fast`={self.beta_fast}", beta_slow)
        if attention_factor is not None:
            attention_factor = _checks.positive_number(who, "attention_factor", attention_factor)
        self.attention_factor = attention_factor
        self.truncate = _checks.boolean(who, "truncate", truncate)

    @property
    def magnitude(self) -> float:  # type: ignore[override]
        if self.attention_factor is not None:
            return self.attention_factor
        return 0.1 * math.log(self.factor) + 1.0

    def frequencies(self, base: float, width: int, length: Size) -> np.ndarray:
        periods = (self.beta_fast, self.beta_slow)
        first, last = (self._pair(number, base, width) for number in periods)
        if self.truncate:
            first, last = math.floor(first), math.ceil(last)
        first, last = max(first, 0), min(last, width - 1)
        ramp = (np.arange(width // 2) - first) / (last - first if last != first else 1e-3)
        ramp = np.clip(ramp, 0.0, 1.0)
        return unscaled_frequencies(base, width) * (1.0 - ramp + ramp / self.factor)

    def _pair(self, periods: float, base: float, width: int) -> float:
        """The index, maybe fractional, of the pair with `periods` periods in training."""
        wavelength = self.original_length / periods
        return width * math.log(wavelength / (2.0 * math.pi)) / (2.0 * math.log(base))


@_registered
class llama3(Scaling):
    """Llama 3.1's scaling: like `yarn`, with a ramp over the number of periods.

        frequency_j = base^(−2j/D) · (kept_j + (1 − kept_j) / factor)
        kept_j      = (n_j − low_freq_factor) / (high_freq_factor − low_freq_factor), in [0, 1]

    n_j is the number of periods of pair j in `original_length` tokens.

    Args:
        factor: positive number, the length of the longest sequences relative to training.
        low_freq_factor, high_freq_factor: positive numbers of periods, the second the greater.
        original_length: positive int, tokens of the sequences in training.
    Raises:
        ValueError: a number is out of its range.
    Example:
        >>> scaling = scalings.llama3(8.0, original_length=8192)

    Source: the code that comes with Llama 3.1 (Dubey et al. 2024, arXiv:2407.21783).
    """

    def __init__(
        self,
        factor: float,
        low_freq_factor: float = 1.0,
        high_freq_factor: float = 4.0,
        original_length: int = 8192,
    ):
        who = "scalings.llama3"
        self.factor = _checks.positive_number(who, "factor", factor)
        self.low_freq_factor = _checks.positive_number(who, "low_freq_factor", low_freq_factor)
        self.high_freq_factor = _checks.positive_number(who, "high_freq_factor", high_freq_factor)
        if self.low_freq_factor >= self.high_freq_factor:
            expected = f"be below `high_freq_factor`={self.high_freq_factor}"
            _checks.fail(who, "low_freq_factor", expected, low_freq_factor)
        self.original_length = _checks.positive_int(who, "original_length", original_length)

    def frequencies(self, base: float, width: int, length: Size) -> np.ndarray:
        unscaled = unscaled_frequencies(base, width)
        periods = self.original_length * unscaled / (2.0 * math.pi)  # in training
        low, high = self.low_freq_factor, self.high_freq_factor
        kept = np.clip((periods - low) / (high - low), 0.0, 1.0)
        return unscaled * (kept + (1.0 - kept) / self.factor)


def _at_least_1(who: str, argument: str, value: float) -> float:
    value = _checks.positive_number(who, argument, value)
    if value < 1.0:
        _checks.fail(who, argument, "be at least 1", value)
    return value
