"""Scaling of columns, and categories as numbers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tfattn import _checks
from tfattn._types import ArrayLike
from tfattn.kernel_regression import arrays
from tfattn.kernel_regression.points import Metric, Queries, one_hot

Array = np.ndarray
_FINITE = np.finfo("float64")


@dataclass(frozen=True)
class Frame:
    """The scales of continuous columns, and the values of categorical columns.

    Attributes:
        continuous, categorical: `(D,)` and `(K,)`, indices of columns.
        center, spread: `(D,)`, median and interquartile range of the distinct values of continuous
            columns: a few distant points change neither, nor do repeated rows. For evenly spaced
            values the spread is half the range.
        categories: sorted values of each categorical column.
    """

    continuous: Array
    categorical: Array
    center: Array
    spread: Array
    categories: list[Array]

    @classmethod
    def of(cls, x: Array, categorical: Sequence[int]) -> "Frame":
        """The frame of the points x."""
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

    def scaled(self, x: Array) -> Array:
        """The scaled continuous columns, `(N, D)`."""
        # Halves, since the difference of two large numbers may overflow.
        return (0.5 * x[:, self.continuous] - 0.5 * self.center) / (0.5 * self.spread)

    def codes(self, x: Array) -> Array:
        """`(N, K)` int, −1 for an unknown category."""
        codes = np.empty((len(x), len(self.categorical)), int)
        for k, (column, values) in enumerate(zip(self.categorical, self.categories, strict=True)):
            at = np.minimum(np.searchsorted(values, x[:, column]), len(values) - 1)
            codes[:, k] = np.where(values[at] == x[:, column], at, -1)
        return codes

    def queries(self, x: Array) -> Queries:
        """x in scaled units, with one-hot categories."""
        return Queries(self.scaled(x), one_hot(self.codes(x), self.counts))

    def metric(self, who: str, bandwidth: ArrayLike, argument: str = "bandwidth") -> Metric:
        """A bandwidth in the units of the columns, as a metric.

        Raises:
            ValueError: not one number, one per column, a square matrix, or such a matrix and a λ
                for each categorical column; not positive; a λ outside of its range.
        """
        columns, categories = len(self.continuous), len(self.categorical)
        if has_matrix(bandwidth):
            matrix, widths = _matrix_and_widths(bandwidth)
            expected = f"be a matrix of {columns} by {columns}"
            if categories:
                expected = f"be (H, λ), with H {columns} by {columns} and {categories} numbers λ"
            matrix = arrays.reals(who, argument, matrix, expected)
            widths = arrays.reals(who, argument, widths, expected)
            if matrix.shape != (columns, columns) or widths.shape != (categories,):
                shapes = matrix.shape if not categories else (matrix.shape, widths.shape)
                _checks.fail(who, argument, expected, shapes)
            if not np.isfinite(matrix).all() or np.linalg.matrix_rank(matrix) < columns:
                _checks.fail(who, argument, "be an invertible matrix", matrix.tolist())
            self._check_widths(who, argument, widths)
            return Metric(self.spread[:, None] * np.linalg.inv(matrix), widths)
        expected = f"be one number, or one per column, {self.width}"
        if categories:
            expected = f"be one number per column, {self.width} (λ for a categorical column)"
        given = arrays.reals(who, argument, bandwidth, expected)
        if given.ndim == 0 and not categories:
            given = np.full(self.width, given)
        if given.shape != (self.width,):
            _checks.fail(who, argument, expected, bandwidth)
        h, widths = given[self.continuous], given[self.categorical]
        if not (np.isfinite(h) & (h > 0)).all():
            _checks.fail(who, argument, "be positive and finite", bandwidth)
        self._check_widths(who, argument, widths)
        return Metric(np.diag(self.spread / h), widths)

    def _check_widths(self, who: str, argument: str, widths: Array) -> None:
        most = (self.counts - 1) / self.counts
        if not ((widths >= 0) & (widths <= most * (1 + 1e-12))).all():
            expected = f"be in [0, (c − 1) / c] for categorical columns, here up to {most.tolist()}"
            _checks.fail(who, argument, expected, widths.tolist())

    def bandwidth(self, metric: Metric, full: bool) -> Array | tuple[Array, Array]:
        """The inverse of `metric`: a number, `(D + K,)`, `(D, D)`, or `((D, D), (K,))`.

        Args:
            full: whether the map of the metric may have entries off its diagonal.
        """
        if full and len(self.continuous):
            matrix = np.linalg.inv(metric.map / self.spread[:, None])
            return (matrix, metric.widths) if len(self.categorical) else matrix
        result = np.empty(self.width)
        result[self.continuous] = self.spread / np.diag(metric.map)
        result[self.categorical] = metric.widths
        if self.width == 1 and not len(self.categorical):
            return result[0]
        return result


def has_matrix(bandwidth: Any) -> bool:
    """Whether a bandwidth is a matrix H, or the pair (H, λ)."""
    pair = isinstance(bandwidth, tuple | list) and len(bandwidth) == 2
    return _rank(bandwidth[0] if pair and _rank(bandwidth[0]) == 2 else bandwidth) == 2


def _matrix_and_widths(bandwidth: Any) -> tuple[ArrayLike, ArrayLike]:
    if _rank(bandwidth) == 2:
        return bandwidth, np.zeros(0)
    return bandwidth[0], bandwidth[1]


def _rank(value: Any) -> int | None:
    """The rank of an array; None for other values, such as a pair of two shapes."""
    try:
        return np.ndim(value)
    except ValueError:
        return None
