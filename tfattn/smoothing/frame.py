"""From columns in their own units to scaled ones, within [−1, 1], and categories as numbers."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tfattn import _checks
from tfattn.smoothing import arrays
from tfattn.smoothing.points import Metric, Queries, one_hot

__all__ = ["Frame"]

Array = np.ndarray


@dataclass(frozen=True)
class Frame:
    """How the columns of x are scaled, and which are categories.

    Attributes:
        continuous, categorical: `(D,)` and `(K,)`, indices of columns.
        centre, half: `(D,)`, middle and half range of the continuous ones.
        categories: for each categorical column its values, sorted.
    """

    continuous: Array
    categorical: Array
    centre: Array
    half: Array
    categories: list[Array]

    @classmethod
    def of(cls, x: Array, categorical: Sequence[int]) -> "Frame":
        """The frame of the points x."""
        chosen = np.asarray(sorted(categorical), int)
        continuous = np.setdiff1d(np.arange(x.shape[1]), chosen)
        # By halves: the sum of two great numbers could overflow.
        low, high = 0.5 * x[:, continuous].min(axis=0), 0.5 * x[:, continuous].max(axis=0)
        half = high - low
        half[half == 0.0] = 1.0
        return cls(continuous, chosen, low + high, half, [np.unique(x[:, k]) for k in chosen])

    @property
    def counts(self) -> Array:
        return np.array([len(values) for values in self.categories], int)

    @property
    def width(self) -> int:
        return len(self.continuous) + len(self.categorical)

    def scaled(self, x: Array) -> Array:
        """The continuous columns, `(N, D)`."""
        return (x[:, self.continuous] - self.centre) / self.half

    def codes(self, x: Array) -> Array:
        """`(N, K)` int, −1 for a category that no point has."""
        codes = np.empty((len(x), len(self.categorical)), int)
        for k, (column, values) in enumerate(zip(self.categorical, self.categories, strict=True)):
            at = np.minimum(np.searchsorted(values, x[:, column]), len(values) - 1)
            codes[:, k] = np.where(values[at] == x[:, column], at, -1)
        return codes

    def queries(self, x: Array) -> Queries:
        """x as places."""
        return Queries(self.scaled(x), one_hot(self.codes(x), self.counts))

    def metric(
        self, who: str, bandwidth: float | Sequence | Array, argument: str = "bandwidth"
    ) -> Metric:
        """A bandwidth in the units of the columns, as a metric.

        Raises:
            ValueError: not one number, one a column, or a square matrix; not positive; a λ that is
                not within its ends.
        """
        columns = len(self.continuous)
        wanted = f"be one number, or one a column of x, {self.width} (λ of a categorical one)"
        given = arrays.reals(who, argument, bandwidth, wanted)
        if given.ndim == 2:
            if len(self.categorical) or given.shape != (columns, columns):
                expected = f"be a matrix of {columns} by {columns}, without categorical columns"
                _checks.fail(who, argument, expected, given.shape)
            if not np.isfinite(given).all() or np.linalg.matrix_rank(given) < columns:
                _checks.fail(who, argument, "be an invertible matrix", given.tolist())
            return Metric(self.half[:, None] * np.linalg.inv(given), np.zeros(0))
        if given.ndim == 0 and not len(self.categorical):
            given = np.full(self.width, given)
        if given.shape != (self.width,):
            _checks.fail(who, argument, wanted, bandwidth)
        h, widths = given[self.continuous], given[self.categorical]
        if not (np.isfinite(h) & (h > 0)).all():
            _checks.fail(who, argument, "be positive and finite", bandwidth)
        most = (self.counts - 1) / self.counts
        if not ((widths >= 0) & (widths <= most * (1 + 1e-12))).all():
            expected = f"be in [0, (c − 1) / c] for categorical columns, here up to {most.tolist()}"
            _checks.fail(who, argument, expected, bandwidth)
        return Metric(np.diag(self.half / h), widths)

    def bandwidth(self, metric: Metric, kind: str) -> Array:
        """A metric as `metric` takes it: a number, `(D + K,)`, or `(D, D)`."""
        if kind == "full" and not len(self.categorical):
            return np.linalg.inv(metric.map / self.half[:, None])
        result = np.empty(self.width)
        result[self.continuous] = self.half / np.diag(metric.map)
        result[self.categorical] = metric.widths
        if self.width == 1 and not len(self.categorical):
            return result[0]
        return result
