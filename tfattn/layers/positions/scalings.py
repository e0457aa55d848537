"""Scalings of rotary positions, for sequences longer than in training.

A scaling gives the frequency of each pair of features. It is passed to
`RotaryPositions(scaling=...)`, and saved with it:

    >>> from tfattn import scalings
    >>> print(scalings.linear(2.0).frequencies(base=100.0, width=4))
    [0.5  0.05]

A new scaling is a class with one method, `frequencies`.
"""

import math

import keras
import numpy as np

from tfattn import _checks
from tfattn._arguments import Configurable

__all__ = ["Scaling", "linear", "llama3"]


def unscaled_frequencies(base: float, width: int) -> np.ndarray:
    """Unscaled frequencies in radians per token: base^(−2j/width) for pair j."""
    return base ** (-2.0 * np.arange(width // 2) / width)


class Scaling(Configurable):
    """Base of all scalings: the frequency of each pair of features.

    A subclass defines `frequencies`, and keeps its constructor's arguments as attributes of their
    names. Register it with Keras to save it.
    """

    def frequencies(self, base: float, width: int) -> np.ndarray:
        """Radians per token of each pair.

        Args:
            base: positive number, of `RotaryPositions`.
            width: even int, number of rotated features.
        Returns:
            `(width/2,)`.
        """
        raise NotImplementedError


@keras.saving.register_keras_serializable("tfattn", "scalings.linear")
class linear(Scaling):
    """Position interpolation: all frequencies are divided by one factor.

        frequency_j = base^(−2j/D) / factor

    Args:
        factor: positive number, the length of the longest sequences relative to training.
    Example:
        >>> positions = RotaryPositions(scaling=scalings.linear(4.0))

    Source: Chen et al. 2023, arXiv:2306.15595, section 2.3.
    """

    def __init__(self, factor: float):
        self.factor = _checks.positive_number("scalings.linear", "factor", factor)

    def frequencies(self, base: float, width: int) -> np.ndarray:
        return unscaled_frequencies(base, width) / self.factor


@keras.saving.register_keras_serializable("tfattn", "scalings.llama3")
class llama3(Scaling):
    """Llama 3.1's scaling: high frequencies do not change, low frequencies are divided by `factor`.

        frequency_j = base^(−2j/D) · (kept_j + (1 − kept_j) / factor)
        kept_j      = (n_j − low_freq_factor) / (high_freq_factor − low_freq_factor), in [0, 1]

    n_j is the number of periods of pair j in `original_length` tokens.

    Args:
        factor: positive number, the length of the longest sequences relative to training.
        low_freq_factor, high_freq_factor: positive numbers of periods, the second the greater.
        original_length: positive int, tokens of the sequences in training.
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

    def frequencies(self, base: float, width: int) -> np.ndarray:
        unscaled = unscaled_frequencies(base, width)
        periods = self.original_length * unscaled / (2.0 * math.pi)  # in training
        low, high = self.low_freq_factor, self.high_freq_factor
        kept = np.clip((periods - low) / (high - low), 0.0, 1.0)
        return unscaled * (kept + (1.0 - kept) / self.factor)
