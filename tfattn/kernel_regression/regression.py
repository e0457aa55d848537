"""Kernel regression in NumPy: fitted, asked, and asked how sure it is."""

import copy
import dataclasses
import numbers
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from tfattn import _checks
from tfattn.kernel_regression import arrays, kernels, left_out, line, near, tuned
from tfattn.kernel_regression.frame import Frame, has_matrix
from tfattn.kernel_regression.local import LocalFit, fit_tile, quadratic_weights
from tfattn.kernel_regression.points import Metric, Points, Queries, merged, sorted_points
from tfattn.kernel_regression.threads import one_blas_thread
from tfattn.kernel_regression.tiles import Tile, tiles

__all__ = ["Band", "KernelRegression", "LeaveOneOut"]

Array = np.ndarray


class Band(NamedTuple):
    """A prediction and a pointwise band about it, `(M,)` or `(M, V)` each."""

    value: Array
    low: Array
    high: Array


class LeaveOneOut(NamedTuple):
    """Each point predicted from all others.

    Attributes:
        predictions, residuals: as y; a residual is y − prediction.
        error: the mean of the squared residuals.
        r2: 1 − error / variance of y; NaN where y is constant.
    """

    predictions: Array
    residuals: Array
    error: float
    r2: float


class KernelRegression:
    """Local constant (Nadaraya–Watson) or local linear regression, in float64.

        prediction(x) = Σ_i K(‖(x − x_i) / h‖) y_i / Σ_i K(‖(x − x_i) / h‖)

    A local constant lies between the least and the greatest y, to the last digit: a mean of zeros
    and ones is a probability. A local line may leave that range.

    `fit` chooses the bandwidth of the least leave-one-out error, to convergence and from several
    starts. x and y are shifted and scaled inside, so units and offsets change no fit. Memory grows
    with the points and queries, never with their pairs. Time grows with the pairs that a kernel
    sees; for the Gaussian and one column it is linear in the points and queries, where bandwidths
    are wide enough that this is less.

    Args:
        kernel: a name of `tfattn.kernel_regression.kernels.names()`, or a `Kernel`.
        bandwidth: in the units of x, kept as given: a number, one a column, or a matrix H, where
            u = (x − x_i) · H⁻¹. For a categorical column it is λ of Aitchison and Aitken, from 0
            (categories apart) to (c − 1) / c (all alike); beside H they are given as (H, λ).
            Defaults to None: `fit` chooses.
        metric: "each", a bandwidth a column; "one" for all continuous ones, in units of their
            spreads (the distances of the quartiles of their distinct values); or "full", a linear
            map of them. Of what is chosen.
        degree: 0, a local constant; 1, a local line, which is less biased at the ends.
        categorical: indices of the columns of x that hold categories, as numbers; each once.
        empty: what a query without a point within a compact kernel's support gets: "nearest", the
            value of the nearest point; "mean", of all; or "nan".
        leave_out: what is left out while choosing: "point", or "place": every point with the same
            x. Rows that are in the data twice would else predict one another.
    Attributes:
        search_errors: list, after `fit` the least leave-one-out error so far after each bandwidth
            that was tried; empty where the bandwidth was given.
    Raises:
        ValueError: an argument that is not one of those; a number that is not finite, with its row
            and column; x and y of different lengths.
    Example:
        >>> from tfattn.kernel_regression import KernelRegression
        >>> x = np.linspace(0.0, 5.0, 50)
        >>> model = KernelRegression().fit(x, np.sin(x))
        >>> bool(np.all(np.abs(model.predict(x) - np.sin(x)) < 0.05))
        True

    Source: Nadaraya 1964; Watson 1964; local linear, Fan 1992; leave-one-out, Wasserman, All of
    Nonparametric Statistics, 5.3; categories, Racine, Li 2004.
    """

    _who, _x = "KernelRegression", "x"  # in messages; an estimator of another name has its own

    def __init__(
        self,
        kernel: str | kernels.Kernel = "gaussian",
        bandwidth: float | Sequence | Array | None = None,
        metric: str = "each",
        degree: int = 0,
        categorical: Sequence[int] = (),
        empty: str = "nearest",
        leave_out: str = "point",
    ):
        self.kernel = kernels.get(kernel, self._who)
        self.bandwidth = bandwidth
        self.metric = self._one_of("metric", metric, ("each", "one", "full"))
        self.degree = self._one_of("degree", degree, (0, 1))
        if not np.iterable(categorical):
            expected = "be a sequence of indices of columns"
            _checks.fail(self._who, "categorical", expected, categorical)
        self.categorical = list(categorical)
        self.empty = self._one_of("empty", empty, ("nearest", "mean", "nan"))
        self.leave_out = self._one_of("leave_out", leave_out, ("point", "place"))
        self.points: Points | None = None
        self.search_errors: list[float] = []

    @one_blas_thread
    def fit(
        self,
        x: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        start: ArrayLike | None = None,
        names: Sequence[str] | None = None,
    ) -> "KernelRegression":
        """Keeps the points and, if none was given, chooses the bandwidth.

        Args:
            x: `(N, D)` or `(N,)`.   y: `(N, V)` or `(N,)`.
            sample_weight: `(N,)`, at least 0. A point of weight 0 is as if it were not there.
            start: a bandwidth to start from, instead of several: a number, or one a column. Not
                where a bandwidth was given, which is kept.
            names: of the columns of x, for messages.
        """
        fitted = copy.copy(self)  # what is refused half-way leaves this one as it was
        fitted._fit(x, y, sample_weight, start, names)
        vars(self).update(vars(fitted))
        return self

    def _fit(
        self,
        x: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None,
        start: ArrayLike | None,
        names: Sequence[str] | None,
    ) -> None:
        x, heights = arrays.table(self._who, self._x, x, names), arrays.table(self._who, "y", y)
        self.is_flat, y = np.ndim(y) == 1, heights
        _checks.same_size(self._who, "y", len(y), self._x, len(x), "points")
        if not x.size or not y.size:
            _checks.fail(self._who, self._x, "hold at least one point", x.shape)
        if start is not None and self.bandwidth is not None:
            _checks.fail(self._who, "start", "be None where a bandwidth is given, and kept", start)
        weight = arrays.weights(self._who, sample_weight, len(x))
        self.count, self.kept = len(x), np.arange(len(x))
        if weight is not None:
            self.kept = np.flatnonzero(weight)
            x, y, weight = x[self.kept], y[self.kept], weight[self.kept]
        self.frame = Frame.of(x, self._categorical_columns(x))
        # One scale for all outputs: the error stays the mean of squares that it is named after.
        self.y_center = 0.5 * y.min(axis=0) + 0.5 * y.max(axis=0)
        self.y_scale = float((0.5 * y.max(axis=0) - 0.5 * y.min(axis=0)).max()) or 1.0
        scaled, codes = self.frame.scaled(x), self.frame.codes(x)
        heights = (y - self.y_center) / self.y_scale
        counts = self.frame.counts
        self.points = sorted_points(scaled, codes, heights, weight, counts)
        self.heights = y[self.points.order]
        if self.bandwidth is not None:
            self.chosen, self.search_errors = self.frame.metric(self._who, self.bandwidth), []
            return
        seen = self.points
        if self.leave_out == "place":
            seen = sorted_points(*merged(scaled, codes, heights, weight), counts)
        if len(seen) < 2:
            # A single place says nothing about distances.
            columns = len(self.frame.continuous)
            self.chosen = Metric(np.eye(columns), 0.5 * (counts - 1) / counts)
            self.search_errors = []
            return
        from tfattn.kernel_regression.bandwidth import choose  # it imports SciPy

        begin = None if start is None else self._start(start)
        choice = choose(self.kernel, seen, self.degree, self.metric, self._sees_nearest, begin)
        self.chosen = choice.metric
        self.search_errors = [self._squared(error) for error in choice.search_errors]

    def current_bandwidth(self) -> Array | tuple[Array, Array]:
        """The bandwidth in use, in the units of x, as `bandwidth` takes it: a number, one a column,
        a matrix, or (H, λ).
        """
        self._check_fitted()
        given = self.bandwidth is not None
        whole = has_matrix(self.bandwidth) if given else self.metric == "full"
        return self.frame.bandwidth(self.chosen, whole)

    @one_blas_thread
    def predict(self, x: ArrayLike) -> Array:
        """`(M, V)`, or `(M,)` where y was a vector."""
        queries, back = self._queries(x)
        value = self._in_units(self._smooth(self.points, queries))
        return self._shaped(self._within(value, queries)[back])

    @one_blas_thread
    def derivative(self, x: ArrayLike) -> Array:
        """The slope of the prediction along each continuous column, `(M, D, V)` or `(M, D)`.

        Of a local constant it is the derivative of the formula; of a local line, its slope. Where a
        query has no neighbor it is that of what `empty` says: 0, or NaN.
        """
        queries, back = self._queries(x)
        columns = len(self.frame.continuous)
        slope = np.empty((len(queries), columns, self.points.y.shape[1]))
        for tile, fit in self._fits(queries, slopes=self.degree == 0):
            if self.degree and columns:
                slope[tile.rows] = fit.slope
            else:
                slope[tile.rows] = self.chosen.map @ _slope_of_constant(tile, self.points, fit)
            if self.empty == "nan":
                slope[tile.rows][tile.empty] = np.nan
        # By roots: the ratio may leave float64 where the slope does not.
        root = np.sqrt(self.y_scale) / np.sqrt(self.frame.spread[:, None])
        with np.errstate(over="ignore"):
            slope = slope * root * root
        return slope[back][..., 0] if self.is_flat else slope[back]

    @one_blas_thread
    def weights(self, x: ArrayLike) -> Array:
        """`(M, N)`: how much each training height counts in each prediction. Rows sum to 1.

        Those of a local line may be negative. A row is 0 where a query has no neighbor and
        `empty` is not "nearest". This array is as large as all pairs.
        """
        queries, back = self._queries(x)
        rows = np.zeros((len(queries), len(self.kept)))
        for tile, fit in self._fits(queries):
            rows[tile.rows, tile.keys] = tile.share * fit.equivalent()
        whole = np.zeros((len(queries), self.count))
        whole[:, self.kept[self.points.order]] = rows
        return whole[back]

    @one_blas_thread
    def effective_neighbors(self, x: ArrayLike) -> Array:
        """`(M,)`: 1 / Σ weights², how many points with equal weights would say as much; 0 where a
        query has no neighbor and `empty` is not "nearest".
        """
        queries, back = self._queries(x)
        squares = self._squared_weights(queries)[back]
        return np.divide(1.0, squares, out=np.zeros_like(squares), where=squares > 0)

    @one_blas_thread
    def leave_one_out(self) -> LeaveOneOut:
        """Each point predicted from all others, in the order of `fit`; those of weight 0 are left
        out.
        """
        self._check_fitted()
        points = self.points
        if len(points) < 2:
            expected = "hold at least two points, to leave one out"
            _checks.fail(self._who, self._x, expected, len(points))
        value = left_out.predictions(
            self.kernel, self.chosen, points, self.degree, self._sees_nearest
        )
        residuals, rows = points.y - value, np.arange(len(points))
        weight = points.weights[:, None] / points.weights.sum() / points.y.shape[1]
        error = float(np.sum(weight * residuals**2))
        spread = float(np.sum(weight * (points.y - points.mean()) ** 2))
        back = np.argsort(points.order)
        return LeaveOneOut(
            self._shaped(self._within(self._in_units(value), points.places, rows)[back]),
            self._shaped(residuals[back] * self.y_scale),
            self._squared(error),
            1.0 - error / spread if spread > 0 else float("nan"),
        )

    @one_blas_thread
    def variance(self, x: ArrayLike) -> Array:
        """`(M, V)` or `(M,)`: the variance of y about the curve, at each x.

        A local constant of the squared leave-one-out residuals, with the same bandwidth, each over
        1 + Σ weights², which is what leaving out adds to its mean.
        Source: Fan, Yao 1998, with residuals that are left out.
        """
        return self._shaped(self._squared(self._scaled_variance(x)))

    def _scaled_variance(self, x: ArrayLike) -> Array:
        queries, back = self._queries(x)
        noise = dataclasses.replace(self.points, y=self._noise() ** 2)
        return self._smooth(noise, queries, 0)[back]

    @one_blas_thread
    def bands(
        self,
        x: ArrayLike,
        level: float = 0.95,
        method: str = "robust",
        replicas: int = 200,
        seed: int | None = None,
    ) -> Band:
        """A band at each x, that holds the mean curve with that probability.

        Pointwise, and of the curve, not of new points. NaN where a query has no neighbor and
        `empty` is not "nearest".

        Args:
            level: in (0, 1).
            method: "robust", the local quadratic fit with the same bandwidth, which bends less
                than the prediction, ± t · √(variance · Σ weights²) of that fit. Where the
                prediction is biased, at an end of the data say, it may lie outside of this band.
                The others are of the smoothed curve, without what smoothing bends, and hold the
                curve itself less often: "asymptotic", value ± z · √(variance · Σ weights²); and
                "bootstrap", quantiles of smoothed residuals with random signs.
            replicas: positive int, of the bootstrap.   seed: int, of its signs.
        Source: robust, Calonico, Cattaneo, Farrell 2018; Härdle 1990, 4.2; wild bootstrap, Wu
        1986; Liu 1988.
        """
        if not isinstance(level, numbers.Real) or not 0.0 < level < 1.0:
            _checks.fail(self._who, "level", "be a number between 0 and 1", level)
        self._one_of("method", method, ("robust", "asymptotic", "bootstrap"))
        _checks.positive_int(self._who, "replicas", replicas)
        seed = _checks.seed(self._who, seed)
        queries, back = self._queries(x)
        value = self._within(self._in_units(self._smooth(self.points, queries)), queries)
        if method == "robust":
            low, high = self._robust(queries, level)
        else:
            noise, squares = self._noise(), self._squared_weights(queries)[:, None]
            if method == "asymptotic":
                spread = self._smooth(dataclasses.replace(self.points, y=noise**2), queries, 0)
                step = np.sqrt(spread * squares) * self.y_scale
                from scipy import special

                low, high = (special.ndtri(0.5 + side * level / 2) * step for side in (-1, 1))
            else:
                low, high = self._bootstrap(queries, noise, level, replicas, seed)
            low, high = (value + np.where(squares > 0, side, np.nan) for side in (low, high))
        return Band(*(self._shaped(v[back]) for v in (value, low, high)))

    def _robust(self, queries: Queries, level: float) -> tuple[Array, Array]:
        """The ends of the band of the local quadratic fit, in units of y."""
        from scipy import special

        points = self.points
        value, squares, neighbors = self._quadratic(queries)
        noise = np.zeros(points.y.shape)
        if len(points) > 1:
            others, added, _ = self._quadratic(points.places, np.arange(len(points)))
            noise = (points.y - others) / np.sqrt(1.0 + added)
        variance = self._smooth(dataclasses.replace(points, y=noise**2), queries, 0)
        # The variance is itself a mean, of as many points as are neighbors.
        step = special.stdtrit(neighbors, 0.5 + level / 2) * np.sqrt(variance * squares)
        step[squares[:, 0] == 0] = np.nan
        return tuple(self._in_units(value + side * step) for side in (-1, 1))

    def _quadratic(self, queries: Queries, left: Array | None = None) -> tuple[Array, Array, Array]:
        """At each query the local quadratic fit `(M, V)`, its Σ weights² `(M, 1)`, and 1 / Σ
        weights² of the local constant `(M, 1)`.
        """
        points, count, sees = self.points, len(queries), self._sees_nearest
        value, squares, neighbors = np.empty((count, points.y.shape[1])), *np.ones((2, count, 1))
        for tile in tiles(self.kernel, self.chosen, points, queries, left, nearest=sees):
            weights = quadratic_weights(tile)
            value[tile.rows] = weights @ points.y[tile.keys]
            squares[tile.rows] = np.square(weights).sum(axis=1, keepdims=True)
            shares = np.square(tile.share).sum(axis=1, keepdims=True)
            np.divide(1.0, shares, where=shares > 0, out=neighbors[tile.rows])
            value[tile.rows][squares[tile.rows, 0] == 0] = points.mean()
        return value, squares, neighbors

    def _bootstrap(
        self, queries: Queries, noise: Array, level: float, replicas: int, seed: int | None
    ) -> tuple[Array, Array]:
        generator = np.random.default_rng(seed)
        drawn = []
        for start in range(0, replicas, tuned.REPLICAS):
            count = min(tuned.REPLICAS, replicas - start)
            signs = generator.choice([-1.0, 1.0], (len(noise), count, 1))
            many = (signs * noise[:, None, :]).reshape(len(noise), -1)
            smooth = self._smooth(dataclasses.replace(self.points, y=many), queries)
            drawn.append(smooth.reshape(len(queries), count, -1))
        ends = [0.5 - level / 2, 0.5 + level / 2]
        low, high = np.quantile(np.concatenate(drawn, axis=1), ends, axis=1)
        return low * self.y_scale, high * self.y_scale

    def _noise(self) -> Array:
        """`(N, V)`: residuals that have the variance of the noise, in scaled units."""
        points, rows = self.points, np.arange(len(self.points))
        if len(points) < 2:
            return np.zeros(points.y.shape)
        value = left_out.predictions(
            self.kernel, self.chosen, points, self.degree, self._sees_nearest
        )
        return (points.y - value) / np.sqrt(1.0 + self._squared_weights(points.places, rows))[
            :, None
        ]

    def _squared_weights(self, queries: Queries, left: Array | None = None) -> Array:
        total = np.zeros(len(queries))
        for tile, fit in self._fits(queries, left=left):
            total[tile.rows] = np.square(tile.share * fit.equivalent()).sum(axis=1)
        return total

    def _smooth(self, points: Points, queries: Queries, degree: int | None = None) -> Array:
        """`(M, V)` in scaled units: the heights of `points` at sorted queries."""
        degree = self.degree if degree is None else degree
        value, rows = np.empty((len(queries), points.y.shape[1])), np.arange(len(queries))
        if line.pays(self.kernel, self.chosen, points, len(queries)):
            fast = line.fit_line(self.chosen, points, queries.x[:, 0], degree)
            value, rows = fast.value, np.flatnonzero(~fast.good)
        elif degree == 0 and near.pays(points, queries):
            fast = near.fit_near(self.kernel, self.chosen, points, queries)
            value, rows = fast.value, np.flatnonzero(~fast.good)
        for tile, fit in self._fits(queries.take(rows), points=points, degree=degree):
            value[rows[tile.rows]] = fit.value
        # Of squares no mean is negative.
        return value if degree else np.clip(value, points.y.min(axis=0), points.y.max(axis=0))

    def _fits(
        self,
        queries: Queries,
        slopes: bool = False,
        left: Array | None = None,
        points: Points | None = None,
        degree: int | None = None,
    ) -> Iterator[tuple[Tile, LocalFit]]:
        points = self.points if points is None else points
        degree = self.degree if degree is None else degree
        sees = self._sees_nearest
        for tile in tiles(self.kernel, self.chosen, points, queries, left, slopes, sees):
            fit = fit_tile(tile, points, queries, degree)
            if self.empty != "nearest" and tile.empty.any():
                fit.value[tile.empty] = np.nan if self.empty == "nan" else points.mean()
            yield tile, fit

    def _queries(self, x: ArrayLike) -> tuple[Queries, Array]:
        """Places, sorted where they lie on a line, and the way back."""
        self._check_fitted()
        found = arrays.table(self._who, self._x, x)
        if found.size == 0 and np.ndim(x) < 2:
            found = np.empty((0, self.frame.width))
        x = found
        if x.shape[1] != self.frame.width:
            expected = f"have the {self.frame.width} columns of the training points"
            _checks.fail(self._who, self._x, expected, x.shape)
        queries = self.frame.queries(x)
        if not self.points.is_line:
            return queries, np.arange(len(x))
        order = np.argsort(queries.x[:, 0], kind="stable")
        return queries.take(order), np.argsort(order)

    def _start(self, start: ArrayLike) -> Metric:
        if has_matrix(start):
            expected = f"be one number, or one a column of {self._x}"
            _checks.fail(self._who, "start", expected, start)
        return self.frame.metric(self._who, start, "start")

    def _categorical_columns(self, x: Array) -> list[int]:
        for column in self.categorical:
            whole = isinstance(column, int | np.integer) and not isinstance(column, bool)
            if not whole or not 0 <= column < x.shape[1]:
                expected = f"hold indices of the {x.shape[1]} columns of {self._x}"
                _checks.fail(self._who, "categorical", expected, self.categorical)
        if len(set(self.categorical)) < len(self.categorical):
            _checks.fail(self._who, "categorical", "hold each column once", self.categorical)
        return self.categorical

    @property
    def _sees_nearest(self) -> bool:
        return self.empty == "nearest"

    def _within(self, value: Array, queries: Queries, left: Array | None = None) -> Array:
        """Means, no less than the least and no more than the greatest height that each weighs:
        rounding may have put them outside. A local line may leave that range, and is left as it is.
        """
        if self.degree:
            return value
        low, high = (np.full(value.shape, end(self.heights, 0)) for end in (np.min, np.max))
        # Kernels without end weigh all heights. In large planes to look for ends would take longer
        # than the means.
        if np.isfinite(self.kernel.support) and not near.pays(self.points, queries):
            for tile in tiles(
                self.kernel, self.chosen, self.points, queries, left, nearest=self._sees_nearest
            ):
                heights = self.heights[tile.keys]
                some = tile.share.any(axis=1)
                seen = (tile.share[some] > 0)[:, :, None]
                low[tile.rows][some] = np.where(seen, heights, np.inf).min(axis=1, initial=np.inf)
                high[tile.rows][some] = np.where(seen, heights, -np.inf).max(
                    axis=1, initial=-np.inf
                )
        return np.clip(value, low, high)

    def _squared(self, value: Array | float) -> Array | float:
        """Squares of heights in their units; inf where float64 ends."""
        with np.errstate(over="ignore"):
            return value * np.float64(self.y_scale) * self.y_scale

    def _in_units(self, value: Array) -> Array:
        return value * self.y_scale + self.y_center

    def _shaped(self, value: Array) -> Array:
        return value[:, 0] if self.is_flat else value

    def _check_fitted(self) -> None:
        if self.points is None:
            expected = "`fit` must come before a prediction. Received: no points yet"
            raise ValueError(f"{self._who}: {expected}")

    def _one_of(self, argument: str, value: object, allowed: tuple) -> object:
        known = isinstance(value, str | int | np.integer) and not isinstance(value, bool)
        if not known or value not in allowed:
            known = ", ".join(repr(one) for one in allowed)
            _checks.fail(self._who, argument, f"be one of {known}", value)
        return value


def _slope_of_constant(tile: Tile, points: Points, fit: LocalFit) -> Array:
    """`(r, D, V)`: the derivative of a local constant by the query, in bandwidths."""
    y = points.y[tile.keys]
    middle = tile.query_u.mean(axis=0)
    query, key = tile.query_u - middle, tile.key_u - middle
    products = (key[:, :, None] * y[:, None, :]).reshape(len(key), key.shape[1] * y.shape[1])
    mixed = (tile.slope @ products).reshape(len(query), key.shape[1], y.shape[1])
    pull = tile.slope @ y - fit.value * tile.slope.sum(axis=1, keepdims=True)  # (r, V)
    away = mixed - (tile.slope @ key)[:, :, None] * fit.value[:, None, :]
    return 2.0 * (query[:, :, None] * pull[:, None, :] - away)
