"""Scaling of columns, and categories as numbers."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tfattn import _checks
from tfattn._types import ArrayLike
from tfattn.kernel_regression import arrays
from tfattn.kernel_regression.points import Metric, Places

Array = np.ndarray
_FINITE = np.finfo("float64")


@dataclass(frozen=True)
class ColumnScaler:
    """The scales of continuous columns, and the values of categorical columns."""

    continuous: Array  # (D,) int, indices of columns
    categorical: Array  # (K,) int
    # (D,), median and interquartile range of the distinct values of continuous columns: a few
    # distant points change neither, nor do repeated rows. For evenly spaced values the spread is
    # half the range.
    center: Array
    spread: Array
    categories: list[Array]  # sorted values of each categorical column

    @classmethod
    def of(cls, x: Array, categorical: Sequence[int]) -> "ColumnScaler":
        """The scales of the points x."""
        chosen = np.asarray(sorted(categorical), int)
        continuous = np.setdiff1d(np.arange(x.shape[1]), chosen)
        center, spread = np.zeros(len(continuous)), np.ones(len(continuous))
        for column, index in enumerate(continuous):
            values = np.unique(x[:, index])
            # Quarters of the values, since the difference of two large numbers may overflow.
            low, middle, high = np.percentile(0.25 * values, [25, 50, 75])
            center[column] = 4.0 * middle
            if len(values) > 1:
                # A lower bound, so that squares of distant scaled values do not overflow.
                least = 1e-30 * values[-1] - 1e-30 * values[0]
                spread[column] = 4.0 * np.clip(
                    high - low, max(least, _FINITE.tiny), 0.25 * _FINITE.max
                )
        return cls(continuous, chosen, center, spread, [np.unique(x[:, k]) for k in chosen])

    @property
    def counts(self) -> Array:
        return np.array([len(values) for values in self.categories], int)

    @property
    def width(self) -> int:
        return len(self.continuous) + len(self.categorical)

    def places(self, x: Array) -> Places:
        """The scaled continuous columns of x, and the codes of the categorical ones."""
        codes = np.empty((len(x), len(self.categorical)), int)
        for k, (column, values) in enumerate(zip(self.categorical, self.categories, strict=True)):
            at = np.minimum(np.searchsorted(values, x[:, column]), len(values) - 1)
            codes[:, k] = np.where(values[at] == x[:, column], at, -1)
        # Halves, since the difference of two large numbers may overflow.
        scaled = (0.5 * x[:, self.continuous] - 0.5 * self.center) / (0.5 * self.spread)
        return Places(scaled, codes)

    def metric(self, who: str, bandwidth: ArrayLike, argument: str = "bandwidth") -> Metric:
        """A bandwidth in the units of the columns, as a metric."""
        expected = f"be one number, or one per column, {self.width}"
        if len(self.categorical):
            expected = f"be one number per column, {self.width} (λ for a categorical column)"
        given = arrays.reals(who, argument, bandwidth, expected)
        if given.ndim == 0 and not len(self.categorical):
            given = np.full(self.width, given)
        if given.shape != (self.width,):
            _checks.fail(who, argument, expected, bandwidth)
        h, widths = given[self.continuous], given[self.categorical]
        if not (np.isfinite(h) & (h > 0)).all():
            _checks.fail(who, argument, "be positive and finite", bandwidth)
        most = (self.counts - 1) / self.counts
        if not ((widths >= 0) & (widths <= most * (1 + 1e-12))).all():
            expected = f"be in [0, (c − 1) / c] for categorical columns, here up to {most.tolist()}"
            _checks.fail(who, argument, expected, widths.tolist())
        return Metric(self.spread / h, widths)

    def bandwidth(self, metric: Metric) -> Array:
        """The inverse of `metric`: a number, or `(D + K,)`."""
        result = np.empty(self.width)
        result[self.continuous] = self.spread / metric.scale
        result[self.categorical] = metric.widths
        return result[0] if self.width == 1 and not len(self.categorical) else result
