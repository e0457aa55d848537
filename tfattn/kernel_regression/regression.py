"""Kernel regression in NumPy: from x and y in any units to predictions in the same units."""

import copy
import inspect
import numbers
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

from tfattn import _checks
from tfattn._types import ArrayLike
from tfattn.kernel_regression import arrays, kernels
from tfattn.kernel_regression.points import Metric, Places, Points, arranged
from tfattn.kernel_regression.scaler import ColumnScaler
from tfattn.kernel_regression.smoother import Smoother
from tfattn.kernel_regression.threads import one_blas_thread

Array = np.ndarray
Option = TypeVar("Option", str, int)


class Band(NamedTuple):
    """A prediction and its pointwise band, `(M,)` or `(M, V)` each."""

    value: Array
    low: Array
    high: Array


class LeaveOneOut(NamedTuple):
    """Each point predicted from all others.

    Attributes:
        predictions, residuals: shaped as y; a residual is y − prediction.
        error: the mean of the squared residuals.
        r2: 1 − error / variance of y; NaN if y is constant.
    """

    predictions: Array
    residuals: Array
    error: float
    r2: float


class _Report:
    """Prints, once a second, what the search for a bandwidth has tried."""

    def __init__(self, who: str, in_units: Callable[[float], float]):
        self.who, self.in_units, self.printed = who, in_units, time.monotonic()
        self.tried, self.least, self.points = 0, np.inf, 0

    def __call__(self, error: float, points: int) -> None:
        if points != self.points:  # errors of a sample do not compare with those of all
            self.least, self.points = np.inf, points
        self.tried, self.least = self.tried + 1, min(self.least, error)
        if time.monotonic() - self.printed >= 1.0:
            self.print()

    def print(self) -> None:
        self.printed = time.monotonic()
        least = f"least leave-one-out error {self.in_units(self.least):.6g}"
        tried = f"{self.tried} bandwidths tried"
        print(f"{self.who}: {tried}, {least} of {self.points} points", flush=True)


class KernelRegression:
    """Local constant (Nadaraya–Watson) or local linear regression, in float64.

        prediction(x) = Σ_i K(‖(x − x_i) / h‖) y_i / Σ_i K(‖(x − x_i) / h‖)

    A local constant lies between the least and the greatest y, to the last digit: a mean of zeros
    and ones is a probability. A local line may leave that range.

    `fit` chooses the bandwidth of the least leave-one-out error, to convergence and from several
    starts. x and y are shifted and scaled internally, so units and offsets change no fit. Memory
    grows with the points and queries, never with their pairs. Time grows with the pairs of
    neighbors: those within the kernel's support, or whose weights a float64 shows. In one column,
    with a Gaussian wide enough, it is linear in the points and queries. In several columns most
    points are neighbors at the bandwidths that `fit` tries: with many, choose on a `sample`.

    Args:
        kernel: a name of `tfattn.kernel_regression.kernels.names()`, or a `Kernel`.
        bandwidth: in the units of x; `fit` keeps it. A number, or one per column. A categorical
            column has λ of Aitchison and Aitken, from 0 (categories separate) to (c − 1) / c (all
            equal). Defaults to None: `fit` chooses one per column.
        degree: 0, a local constant; 1, a local line, which has less bias at the boundary.
        categorical: indices of the columns of x that contain categories, as numbers; each once.
        empty: the prediction for a query without a point in a compact kernel's support: "nearest",
            the value of the nearest point; or "nan".
        leave_out: "point", or "place": leave out all points with the same x while choosing, since
            repeated rows would predict one another.
        sample: int, from how many points, drawn at random but always the same, `fit` chooses the
            bandwidth: the best of n points times (n / N)^(1 / (D + 4)) for all N, and their λ.
            Defaults to None: from all.
        verbose: whether `fit` prints a line a second while it chooses.
    Attributes:
        search_errors: list, after `fit` the least leave-one-out error (of the sample) after each
            evaluated bandwidth; empty if the bandwidth was given.
    Raises:
        ValueError: an invalid argument; a number that is not finite, with its row and column; x and
            y of different lengths.
    Example:
        >>> from tfattn.kernel_regression import KernelRegression
        >>> x = np.linspace(0.0, 5.0, 50)
        >>> model = KernelRegression().fit(x, np.sin(x))
        >>> bool(np.all(np.abs(model.predict(x) - np.sin(x)) < 0.05))
        True

    Source: Nadaraya 1964; Watson 1964; local linear, Fan 1992; leave-one-out, Wasserman, All of
    Nonparametric Statistics, 5.3; categories, Racine, Li 2004.
    """

    _who, _x = "KernelRegression", "x"  # for messages; the estimator has other names

    def __init__(
        self,
        kernel: str | kernels.Kernel = "gaussian",
        bandwidth: float | Sequence[Any] | Array | None = None,
        degree: int = 0,
        categorical: Sequence[int] = (),
        empty: str = "nearest",
        leave_out: str = "point",
        sample: int | None = None,
        verbose: bool = False,
    ):
        self.kernel = kernels.get(kernel, self._who)
        self.bandwidth = bandwidth
        self.degree = self._one_of("degree", degree, (0, 1))
        if not np.iterable(categorical):
            expected = "be a sequence of indices of columns"
            _checks.fail(self._who, "categorical", expected, categorical)
        self.categorical = list(categorical)
        self.empty = self._one_of("empty", empty, ("nearest", "nan"))
        self.leave_out = self._one_of("leave_out", leave_out, ("point", "place"))
        if sample is not None and _checks.positive_int(self._who, "sample", sample) < 2:
            _checks.fail(self._who, "sample", "be at least 2, to leave one out", sample)
        self.sample = sample
        self.verbose = _checks.boolean(self._who, "verbose", verbose)
        self.points: Points | None = None
        self.search_errors: list[float] = []

    def __repr__(self) -> str:
        plain, names = vars(KernelRegression()), inspect.signature(KernelRegression).parameters
        given = [
            f"{n}={getattr(self, n)!r}" for n in names if repr(getattr(self, n)) != repr(plain[n])
        ]
        code = f"KernelRegression({', '.join(given)})"
        if self.points is None or self.bandwidth is not None:
            return code
        with np.printoptions(precision=4):
            chosen = self.current_bandwidth()
            shown = f"{chosen:.4g}" if isinstance(chosen, float) else str(chosen)
        return f"{code}  # bandwidth {shown}"

    @one_blas_thread()
    def fit(
        self,
        x: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        start: ArrayLike | None = None,
    ) -> "KernelRegression":
        """Keeps the points and chooses the bandwidth, unless it is given.

        Args:
            x: `(N, D)` or `(N,)`.   y: `(N, V)` or `(N,)`.
            sample_weight: `(N,)`, at least 0. A point of weight 0 has no effect.
            start: a bandwidth as the only start of the search: a number, or one per column. Not
                allowed with a given bandwidth.
        """
        fitted = copy.copy(self)  # an error leaves this object unchanged
        fitted._fit(x, y, sample_weight, start)
        vars(self).update(vars(fitted))
        return self

    def _fit(
        self,
        x: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None,
        start: ArrayLike | None,
    ) -> None:
        x, targets = arrays.table(self._who, self._x, x), arrays.table(self._who, "y", y)
        self.is_flat, y = np.ndim(y) == 1, targets
        _checks.same_size(self._who, "y", len(y), self._x, len(x), "points")
        if not x.size or not y.size:
            _checks.fail(self._who, self._x, "hold at least one point", x.shape)
        if start is not None and self.bandwidth is not None:
            _checks.fail(self._who, "start", "be None if `bandwidth` is given", start)
        weight = arrays.weights(self._who, sample_weight, len(x))
        self.count, self.kept = len(x), np.arange(len(x))
        if weight is not None:
            self.kept = np.flatnonzero(weight)
            x, y, weight = x[self.kept], y[self.kept], weight[self.kept]
        columns = arrays.columns(self._who, self.categorical, self._x, x.shape[1])
        self.scaler = ColumnScaler.of(x, columns)
        # One scale for all outputs, so that the error remains the mean of all squares.
        self.y_range = low, high = y.min(axis=0), y.max(axis=0)
        self.y_center = 0.5 * low + 0.5 * high
        self.y_scale = float((0.5 * high - 0.5 * low).max()) or 1.0
        heights, counts = (y - self.y_center) / self.y_scale, self.scaler.counts
        given = (self.scaler.places(x), heights, weight, counts)
        self.points, self.search_errors = arranged(*given), []
        if self.bandwidth is not None:
            self.chosen = self.scaler.metric(self._who, self.bandwidth)
            return
        points = arranged(*given, merged=True) if self.leave_out == "place" else self.points
        if len(points) < 2:
            # A single point determines no bandwidth.
            self.chosen = Metric(np.ones(len(self.scaler.continuous)), 0.5 * (counts - 1) / counts)
            return
        from tfattn.kernel_regression.bandwidth import choose  # it imports SciPy

        begin = None if start is None else self.scaler.metric(self._who, start, "start")
        report = _Report(self._who, self._squared) if self.verbose else None
        settings = (self.kernel, points, self.degree, self.empty)
        self.chosen, errors = choose(*settings, begin, self.sample, report)
        if report is not None:
            report.print()
        self.search_errors = [self._squared(error) for error in errors]

    def current_bandwidth(self) -> Array:
        """The bandwidth in use, in the units of x: a number if there is one column, not of
        categories; else one per column.
        """
        self._fitted()
        return self.scaler.bandwidth(self.chosen)

    @one_blas_thread()
    def predict(self, x: ArrayLike) -> Array:
        """`(M, V)`, or `(M,)` if y was a vector."""
        queries, back = self._queries(x)
        return self._shaped(self._predicted(self._smoother.at(queries))[back])

    @one_blas_thread()
    def derivative(self, x: ArrayLike) -> Array:
        """The slope of the prediction along each continuous column, `(M, D, V)` or `(M, D)`.

        For a local constant it is the derivative of the formula; for a local line, its slope. A
        query without neighbors has 0, or NaN if `empty` is "nan".
        """
        queries, back = self._queries(x)
        slope = self._smoother.slopes(queries)
        # By roots, since the ratio may overflow or underflow where the slope does not.
        root = np.sqrt(self.y_scale) / np.sqrt(self.scaler.spread[:, None])
        with np.errstate(over="ignore"):
            slope = slope * root * root
        return slope[back][..., 0] if self.is_flat else slope[back]

    @one_blas_thread()
    def weights(self, x: ArrayLike) -> Array:
        """`(M, N)`: the weight of each training y in each prediction. Rows sum to 1.

        Weights of a local line may be negative. A row is 0 if the query has no neighbor and `empty`
        is "nan". This array has an entry for every pair.
        """
        queries, back = self._queries(x)
        whole = np.zeros((len(queries), self.count))
        row, column = np.arange(len(queries)), self.kept[self._fitted().order]
        for tile in self._smoother.tiles(queries):
            whole[np.ix_(row[tile.rows], column[tile.keys])] = tile.share * tile.equivalent()
        return whole[back]

    @one_blas_thread()
    def effective_neighbors(self, x: ArrayLike) -> Array:
        """`(M,)`: 1 / Σ weights², the number of points whose equal weights give the same variance;
        0 if the query has no neighbor and `empty` is "nan".
        """
        queries, back = self._queries(x)
        squares = self._smoother.squared_weights(queries)[back]
        return np.divide(1.0, squares, out=np.zeros_like(squares), where=squares > 0)

    @one_blas_thread()
    def leave_one_out(self) -> LeaveOneOut:
        """Each point predicted from all others, in the order of `fit`, without points of
        weight 0.
        """
        points = self._fitted()
        if len(points) < 2:
            expected = "hold at least two points, to leave one out"
            _checks.fail(self._who, self._x, expected, len(points))
        value = self._smoother.at(points.places, np.arange(len(points)))
        away = points.y - np.average(points.y, axis=0, weights=points.weights)
        error, spread = (
            float(np.sum(points.importance[:, None] * np.square(each)))
            for each in (points.y - value, away)
        )
        back = np.argsort(points.order)
        return LeaveOneOut(
            self._shaped(self._predicted(value)[back]),
            self._shaped((points.y - value)[back] * self.y_scale),
            self._squared(error),
            1.0 - error / spread if spread > 0 else float("nan"),
        )

    @one_blas_thread()
    def variance(self, x: ArrayLike) -> Array:
        """`(M, V)` or `(M,)`: the variance of y about the curve, at each x.

        A local constant of the squared leave-one-out residuals, with the same bandwidth, each over
        1 + Σ weights², the factor by which leaving a point out increases its mean.
        Source: Fan, Yao 1998; differs from it in that residuals are leave-one-out.
        """
        queries, back = self._queries(x)
        return self._shaped(self._squared(self._smoother.variance(queries)[back]))

    @one_blas_thread()
    def bands(self, x: ArrayLike, level: float = 0.95, method: str = "robust") -> Band:
        """A pointwise confidence band that contains the mean curve at x with probability `level`.

        The band is for the curve, not for new points. It is NaN if the query has no neighbor and
        `empty` is "nan", and for a category that has one point and no other column.

        Args:
            level: in (0, 1).
            method: "robust", the local quadratic fit with the same bandwidth, which has less bias
                than the prediction, ± t · √(variance · Σ weights²) of that fit. A biased
                prediction, say at the boundary, may lie outside of this band. "asymptotic",
                prediction ± z · √(variance · Σ weights²), ignores the bias of smoothing and
                contains the curve less often.
        Source: Calonico, Cattaneo, Farrell 2018; Härdle 1990, 4.2.
        """
        if not isinstance(level, numbers.Real) or not 0.0 < level < 1.0:
            _checks.fail(self._who, "level", "be a number between 0 and 1", level)
        self._one_of("method", method, ("robust", "asymptotic"))
        queries, back = self._queries(x)
        value = self._predicted(self._smoother.at(queries))
        ends = getattr(self._smoother, method)(queries, level)
        low, high = (end * self.y_scale + self.y_center for end in ends)
        return Band(*(self._shaped(v[back]) for v in (value, low, high)))

    @property
    def _smoother(self) -> Smoother:
        return Smoother(self.kernel, self.chosen, self._fitted(), self.degree, self.empty)

    def _queries(self, x: ArrayLike) -> tuple[Places, Array]:
        """(Queries, sorted if they lie on a line; the indices that restore their order)."""
        points = self._fitted()
        x = arrays.reals(self._who, self._x, x, "be an array of real numbers")
        if x.size == 0 and x.ndim < 2:
            x = np.empty((0, self.scaler.width))
        x = arrays.table(self._who, self._x, x)
        if x.shape[1] != self.scaler.width:
            expected = f"have the {self.scaler.width} columns of the training points"
            _checks.fail(self._who, self._x, expected, x.shape)
        queries = self.scaler.places(x)
        if not points.is_line:
            return queries, np.arange(len(x))
        order = np.argsort(queries.x[:, 0], kind="stable")
        return queries.take(order), np.argsort(order)

    def _squared(self, value: Any) -> Any:
        """Squared y in the units of y; inf on overflow."""
        with np.errstate(over="ignore"):
            return value * np.float64(self.y_scale) * self.y_scale

    def _predicted(self, value: Array) -> Array:
        """Predictions in the units of y; rounding takes no local constant out of their range."""
        value = value * self.y_scale + self.y_center
        return value if self.degree else np.clip(value, *self.y_range)

    def _shaped(self, value: Array) -> Array:
        return value[:, 0] if self.is_flat else value

    def _fitted(self) -> Points:
        if self.points is None:
            expected = "`fit` must come before a prediction. Received: no points yet"
            raise ValueError(f"{self._who}: {expected}")
        return self.points

    def _one_of(self, argument: str, value: Option, allowed: tuple[Option, ...]) -> Option:
        known = isinstance(value, str | int | np.integer) and not isinstance(value, bool)
        if not known or value not in allowed:
            options = ", ".join(repr(option) for option in allowed)
            _checks.fail(self._who, argument, f"be one of {options}", value)
        return value
