"""The regression with given bandwidths: values, errors, slopes and bands, in scaled units."""

import dataclasses
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from tfattn.kernel_regression import line
from tfattn.kernel_regression.fits import quadratic_weights
from tfattn.kernel_regression.kernels import Kernel
from tfattn.kernel_regression.line import LineFit
from tfattn.kernel_regression.points import Metric, Places, Points
from tfattn.kernel_regression.tiles import Tile, gathered, tiles

Array = np.ndarray


class LeftOut(NamedTuple):
    """The leave-one-out error of a metric."""

    error: float  # the weighted mean of squared errors, over points and outputs
    by_log: Array  # (D,), the derivatives with respect to the log bandwidths
    by_logit: Array  # (K,), those with respect to log λ / (1 − λ) of categorical columns


@dataclasses.dataclass(frozen=True, eq=False)
class Smoother:
    """A regression in scaled units; `degree` and `empty` as in `KernelRegression`."""

    kernel: Kernel
    metric: Metric
    points: Points  # N, with V outputs each
    degree: int
    empty: str

    def at(self, queries: Places, left: Array | None = None) -> Array:
        """`(M, V)`, the regression at sorted queries; without each query's own point, `left`."""
        value, _, accurate = self._on_line(queries, left)
        rows = np.flatnonzero(~accurate)
        for tile in self.tiles(queries.take(rows), None if left is None else left[rows]):
            value[rows[tile.rows]] = tile.value
        # Rounding must not make a mean of squares negative.
        low, high = self.points.y.min(axis=0), self.points.y.max(axis=0)
        return value if self.degree else np.clip(value, low, high)

    def tiles(
        self, queries: Places, left: Array | None = None, slopes: bool = False
    ) -> Iterator[Tile]:
        """The local fits; `empty` decides those of queries without neighbors, but a point that is
        left out gets a number.
        """
        nearest = self.empty == "nearest" or left is not None
        settings = (self.kernel, self.metric, self.points, queries, self.degree)
        return tiles(*settings, left, slopes, nearest)

    def _on_line(self, queries: Places, left: Array | None, change: bool = False) -> LineFit:
        """The fit by sums over boxes or over few neighbors, with no accurate row if tiles are
        faster.
        """
        points, count = self.points, len(queries)
        if line.is_faster(self.kernel, self.metric, points, count):
            return line.fit_line(self.metric, points, queries.x[:, 0], self.degree, left, change)
        value, others = None, left is not None and len(left) == len(points) > 1
        if others and points.is_line and np.isinf(self.kernel.support) and not self.degree:
            value = None if change else gathered(self.kernel, self.metric, points)
        if value is not None:
            return LineFit(value, None, np.ones(count, bool))
        return LineFit(np.empty((count, points.y.shape[1])), None, np.zeros(count, bool))

    def left_out(self, gradient: bool = True) -> LeftOut:
        """The error of predicting each point from all others, and its gradient: 0 without
        `gradient`, in about half of the time.
        """
        points, places, importance = self.points, self.points.places, self.points.importance
        gradient = gradient and self.kernel.smooth
        by_log, by_logit = np.zeros(len(self.metric.scale)), np.zeros(len(points.counts))
        boxes = self._on_line(places, np.arange(len(points)), gradient)
        accurate, rows = np.flatnonzero(boxes.accurate), np.flatnonzero(~boxes.accurate)
        errors = boxes.value[accurate] - points.y[accurate]
        error = float(importance[accurate] @ np.square(errors).sum(1))
        if boxes.change is not None:
            by_log += 2.0 * importance[accurate] @ np.sum(errors * boxes.change[accurate], axis=1)
        for tile in self.tiles(places.take(rows), rows, gradient):
            here = rows[tile.rows]
            errors = tile.value - points.y[here]
            error += float(importance[here] @ np.square(errors).sum(1))
            if gradient:
                by_weight = tile.by_weight(2.0 * importance[here, None] * errors, points.y)
                by_log -= 2.0 * tile.sum_of_squared_differences(by_weight * tile.slope)
                for column in range(len(by_logit)):
                    differ = points.differ(places.codes[here], tile.keys, column)
                    by_logit[column] += np.sum(by_weight * tile.share, where=differ)
        return LeftOut(error, by_log, by_logit)

    def slopes(self, queries: Places) -> Array:
        """`(M, D, V)`: the derivative along each continuous column."""
        slope = np.empty((len(queries), len(self.metric.scale), self.points.y.shape[1]))
        for tile in self.tiles(queries, slopes=not self.degree):
            if tile.line is not None:
                slope[tile.rows] = tile.line.slope
            elif slope.size:
                change = tile.slope_of_constant(self.points.y[tile.keys])
                slope[tile.rows] = self.metric.scale[:, None] * change
            if self.empty == "nan":
                slope[np.arange(len(queries))[tile.rows][tile.empty]] = np.nan
        return slope

    def squared_weights(self, queries: Places, left: Array | None = None) -> Array:
        """`(M,)`, Σ weights² of each query."""
        total = np.zeros(len(queries))
        for tile in self.tiles(queries, left):
            total[tile.rows] = np.square(tile.share * tile.equivalent()).sum(axis=1)
        return total

    def variance(self, queries: Places, noise: Array | None = None) -> Array:
        """`(M, V)`: a local constant of the squared noise; defaults to that of this regression."""
        points, rows = self.points, np.arange(len(self.points))
        if noise is None:
            noise = np.zeros(points.y.shape)
            if len(points) > 1:
                added = self.squared_weights(points.places, rows)
                noise = points.y - self.at(points.places, rows)
                noise /= np.sqrt(1.0 + added)[:, None]
        squared = dataclasses.replace(points, y=noise**2)
        return dataclasses.replace(self, points=squared, degree=0).at(queries)

    def asymptotic(self, queries: Places, level: float) -> tuple[Array, Array]:
        """The band that ignores bias, `(M, V)` each; NaN without neighbors."""
        from scipy import special

        squares = self.squared_weights(queries)[:, None]
        step = special.ndtri(0.5 + level / 2) * np.sqrt(self.variance(queries) * squares)
        step[squares[:, 0] == 0] = np.nan
        value = self.at(queries)
        return value - step, value + step

    def robust(self, queries: Places, level: float) -> tuple[Array, Array]:
        """The band of the local quadratic fit, `(M, V)` each; NaN without neighbors."""
        from scipy import special

        points = self.points
        value, squares, neighbors = self._quadratic(queries)
        noise = np.zeros(points.y.shape)
        if len(points) > 1:
            others, added, _ = self._quadratic(points.places, np.arange(len(points)))
            noise = (points.y - others) / np.sqrt(1.0 + added)
        # Student's t, since the variance is itself a mean over the neighbors; of categories alone
        # it is the variance around a mean.
        freedom = neighbors - (len(self.metric.scale) == 0)
        variance = self.variance(queries, noise)
        step = special.stdtrit(freedom, 0.5 + level / 2) * np.sqrt(variance * squares)
        step[squares[:, 0] == 0] = np.nan
        return value - step, value + step

    def _quadratic(self, queries: Places, left: Array | None = None) -> tuple[Array, Array, Array]:
        """At each query the local quadratic fit `(M, V)`, its Σ weights² `(M, 1)`, and 1 / Σ
        weights² of the local constant `(M, 1)`.
        """
        y, count = self.points.y, len(queries)
        value, squares, neighbors = np.empty((count, y.shape[1])), *np.ones((2, count, 1))
        for tile in dataclasses.replace(self, degree=0).tiles(queries, left):
            weights = tile.share
            if tile.key_u.shape[1]:
                weights = quadratic_weights(weights, tile.key_u - tile.query_u[:, None, :])
            value[tile.rows] = weights @ y[tile.keys]
            squares[tile.rows, 0] = np.square(weights).sum(axis=1)
            shares = np.square(tile.share).sum(axis=1)
            neighbors[tile.rows, 0] = 1.0 / np.where(shares > 0, shares, 1.0)
        return value, squares, neighbors
