"""Bandwidth selection: minimizes the leave-one-out error to convergence, from several starts.

The error has several local minima. On a line a grid brackets them and zeros of the exact gradient
refine them. In more dimensions a quasi-Newton method starts from rules of thumb, from wider and
narrower bandwidths, from bandwidths that smooth over one column, and from the minima of a grid.

Source: leave-one-out, Wasserman, All of Nonparametric Statistics, 5.3; starts, Scott 1992;
Silverman 1986, 3.4.2; the optimizer is SciPy's L-BFGS-B (Byrd, Lu, Nocedal, Zhu 1995).
"""

import dataclasses
import functools
from typing import NamedTuple

import numpy as np
from scipy import ndimage, optimize

from tfattn.kernel_regression import tuned
from tfattn.kernel_regression.kernels import Kernel
from tfattn.kernel_regression.left_out import leave_one_out
from tfattn.kernel_regression.points import Metric, Points
from tfattn.kernel_regression.spaces import Space

Array = np.ndarray


class Choice(NamedTuple):
    """The chosen bandwidths.

    Attributes:
        metric: the bandwidths.   error: their leave-one-out error.
        search_errors: the least error after each evaluation; the first is that of Scott's rule.
    """

    metric: Metric
    error: float
    search_errors: list[float]


class _Search:
    """The error as a function of a vector, with all evaluations."""

    def __init__(self, kernel: Kernel, points: Points, degree: int, space: Space, nearest: bool):
        self.space, self.points = space, points
        self.evaluate = functools.partial(leave_one_out, kernel, points=points, degree=degree)
        self.nearest = nearest
        self.evaluated: list[tuple[float, Array]] = []

    def __call__(self, vector: Array) -> tuple[float, Array]:
        found = self.evaluate(metric=self.space.metric(vector), nearest=self.nearest)
        self.evaluated.append((found.error, np.array(vector)))
        return found.error, self.space.gradient(vector, found)

    def error(self, vector: Array) -> float:
        """The error alone, since the gradient takes half of the time."""
        metric = self.space.metric(np.atleast_1d(vector))
        found = self.evaluate(metric=metric, nearest=self.nearest, gradient=False)
        self.evaluated.append((found.error, np.array(vector, ndmin=1)))
        return found.error

    @property
    def best(self) -> tuple[float, Array]:
        """The least error and its vector; the widest of those without an error."""
        best = min(self.evaluated, key=lambda pair: pair[0])
        exact = [pair for pair in self.evaluated if pair[0] <= tuned.NO_ERROR]
        return max(exact, key=lambda pair: self._width(pair[1]), default=best)

    def widen(self) -> None:
        """Tries the widest bandwidths where there is no error: a straight line goes on then."""
        error, vector = self.best
        count = min(self.space.free, self.space.columns)
        if count and error <= tuned.NO_ERROR:
            self.error(np.concatenate([np.full(count, np.log(self.space.widest)), vector[count:]]))

    def _width(self, vector: Array) -> float:
        return float(vector[: min(self.space.free, self.space.columns)].sum())


def choose(
    kernel: Kernel,
    points: Points,
    degree: int,
    kind: str,
    nearest: bool,
    start: Metric | None = None,
) -> Choice:
    """The metric of the least leave-one-out error.

    Args:
        kind: see `Space`.
        start: the only start of the search, with a diagonal map; None for several.
    """
    x = points.places.x
    extent = max(1.0, 0.5 * float(np.ptp(x, axis=0).max(initial=0.0)))
    space = Space(kind, x.shape[1], points.counts, extent)
    search = _Search(kernel, points, degree, space, nearest)
    if start is not None:
        vector = space.vector(1.0 / np.diag(start.map), start.widths)
        _minimize(search, kernel, vector)
    elif space.columns == 1 and not len(space.counts):
        _search_line(search, kernel)
    elif space.free + len(space.counts):
        _search_columns(search, kernel, degree)
        cheap = tuned.MAX_SCAN * len(points) ** 2 <= tuned.SCAN_PAIRS
        if cheap and space.free + len(space.counts) <= tuned.MAX_DESCENDED:
            _descend_coordinates(search, search.best[1])
    else:
        search(np.zeros(0))
    search.widen()
    error, vector = search.best
    least = np.minimum.accumulate([error for error, _ in search.evaluated])
    return Choice(space.metric(vector), error, least.tolist())


def rules_of_thumb(points: Points, kernel: Kernel) -> tuple[Array, Array]:
    """Scott's and Silverman's bandwidths, `(D,)` each, in scaled units."""
    x, weight = points.places.x, points.weights
    columns = x.shape[1]
    mean = np.average(x, axis=0, weights=weight)
    deviation = np.sqrt(np.average(np.square(x - mean), axis=0, weights=weight))
    robust = np.subtract(*np.percentile(x, [75, 25], axis=0)) / 1.349 if len(x) else deviation
    # Quartiles coincide if half of the points share a value; those of distinct values differ by 1.
    robust = np.minimum(np.where(robust > 0, robust, 1.0 / 1.349), deviation)
    width = tuned.COMPACT_WIDTH if np.isfinite(kernel.support) else 1.0
    shrink = len(x) ** (-1.0 / (columns + 4)) * width
    # The bandwidth of a constant column has no effect.
    scott, silverman = (np.where(h > 0, h, 1.0) for h in (1.06 * deviation, 0.9 * robust))
    return scott * shrink, silverman * shrink


def _search_line(search: _Search, kernel: Kernel) -> None:
    points = search.points
    x = points.places.x[:, 0]
    scott, silverman = (np.log(h) for h in rules_of_thumb(points, kernel))
    search.error(scott)
    places = np.unique(x)
    if len(places) < 2:
        return
    compact, many = np.isfinite(kernel.support), len(points) > tuned.MANY_POINTS
    if not kernel.smooth and len(places) <= tuned.MAX_STEPPED:
        # The error is piecewise constant, with steps at the points' distances.
        distances = np.unique(np.abs(np.subtract.outer(places, places)))[1:] / kernel.support
        distances = distances[np.diff(distances, prepend=0.0) > tuned.SAME_DISTANCE * distances]
        edges = np.log(np.concatenate([[0.5 * distances[0]], distances, [2.0 * distances[-1]]]))
        for log in 0.5 * (edges[1:] + edges[:-1]):
            search.error(log)
        return
    # Below `low` no compact support around a point contains another point.
    low = np.log(np.diff(places).min()) - (np.log(kernel.support) if compact else 1.5)
    high = np.log(10.0 * search.space.extent)
    fine = compact or len(points) <= tuned.FEW_POINTS
    step = tuned.COARSE_STEP if many else tuned.FINE_STEP if fine else tuned.MIDDLE_STEP
    grid = np.linspace(low - 0.1, high, min(int((high - low) / step) + 2, tuned.MAX_GRID))
    grid = np.unique(np.concatenate([grid, scott, silverman]))
    errors = [search.error(log) for log in grid]
    while not compact and len(grid) < tuned.MAX_GRID:
        if not abs(errors[1] - errors[0]) > tuned.FLAT_ERROR * errors[0]:  # also stops at NaN
            break
        grid = np.concatenate([[grid[0] - step], grid])
        errors.insert(0, search.error(grid[0]))
    best = min(errors)
    minima = [here for here in _local_minima(errors) if errors[here] <= tuned.NEAR_LEAST * best]
    for here in minima[: tuned.MINIMA if many else tuned.MINIMA_OF_FEW]:
        low, high = grid[max(here - 1, 0)], grid[min(here + 1, len(grid) - 1)]
        if here == len(grid) - 1:
            search.error(np.log(search.space.widest))
        elif kernel.smooth and not compact:
            _refine(search, low, high)
        else:
            _refine_by_grids(search, kernel, low, high)


def _local_minima(errors: list[float]) -> list[int]:
    """Indices of the local minima of a list, the least first."""
    padded = np.concatenate([[np.inf], errors, [np.inf]])
    low = (padded[1:-1] <= padded[:-2]) & (padded[1:-1] <= padded[2:])
    return sorted(np.flatnonzero(low), key=lambda i: errors[i])


def _refine(search: _Search, low: float, high: float) -> None:
    """Finds the zero of the gradient between two log bandwidths."""

    @functools.cache
    def gradient(log: float) -> float:
        return float(search(np.array([log]))[1][0])

    if gradient(low) < 0 < gradient(high):
        optimize.brentq(gradient, low, high, xtol=1e-7)
    else:
        optimize.minimize_scalar(search.error, bounds=(low, high), method="bounded")


def _refine_by_grids(search: _Search, kernel: Kernel, low: float, high: float) -> None:
    """Searches ever finer grids: with a compact kernel a minimum contains smaller minima, at
    bandwidths where further points enter the support.
    """
    for _ in range(2 if kernel.smooth else 3):
        grid = np.linspace(low, high, 21)
        here = int(np.argmin([search.error(log) for log in grid]))
        low, high = grid[max(here - 1, 0)], grid[min(here + 1, 20)]
    if kernel.smooth:
        _refine(search, low, high)


def _search_columns(search: _Search, kernel: Kernel, degree: int) -> None:
    space, points = search.space, search.points
    kind = "one" if space.kind == "one" else "each"
    simple = dataclasses.replace(space, kind=kind)
    pilot = _Search(kernel, _sample(points), degree, simple, search.nearest)
    widen = (len(pilot.points) / len(points)) ** (1.0 / (space.columns + 4))
    starts = [
        (pilot.error(vector), vector) for vector in _starts(points, kernel, simple, 1 / widen)
    ]
    starts += _grid_minima(pilot)
    first, *others = starts
    others.sort(key=lambda pair: pair[0])
    exact = len(pilot.points) == len(points)
    found, pairs = [], pilot.evaluated
    runs = tuned.RUNS if exact else tuned.RUNS_OF_SAMPLE
    for vector in _distinct_starts([first[1], *(vector for _, vector in others)])[:runs]:
        pilot.evaluated = []
        _minimize(pilot, kernel, vector)
        found.append(pilot.best)
        pairs = pairs + pilot.evaluated
    if exact:  # the pilot evaluated the errors of all points
        search.evaluated = [(error, _embedded(vector, simple, space)) for error, vector in pairs]
        if simple.kind == space.kind:
            return
    found.sort(key=lambda pair: pair[0])
    # All minima for a small set; only the two best for a large set, where each takes long.
    for _, vector in found if exact else found[:2]:
        vector = vector.copy()
        vector[: simple.free] += 0.0 if exact else np.log(widen)
        _minimize(search, kernel, _embedded(vector, simple, space))


def _grid_minima(search: _Search) -> list[tuple[float, Array]]:
    """Local minima on a grid over all parameters, as pairs of error and vector."""
    space, x = search.space, search.points.places.x
    free = space.free + len(space.counts)
    count = min(tuned.MAX_SCAN, tuned.SCAN_PAIRS / len(search.points) ** 2)
    size = int(count ** (1.0 / free))
    if count < tuned.MIN_SCAN or size < 3:
        return []
    narrow = np.array([np.diff(np.unique(column)).min(initial=np.inf) for column in x.T])
    narrow = np.log(np.where(np.isfinite(narrow), narrow, 1.0)) - 1.0
    if space.kind == "one":
        narrow = narrow[:1].clip(max=narrow.min()) if len(narrow) else narrow
    axes = [np.linspace(low, np.log(10.0 * space.extent), size) for low in narrow]
    shares = np.linspace(0.0, 1.0, size + 1)[1:]
    axes += [np.log(shares**2 / (1.0 + 1e-7 - shares**2)) for _ in space.counts]
    low, high = np.array(space.bounds).T
    vectors = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).clip(low, high)
    errors = np.apply_along_axis(search.error, -1, vectors)
    minima = errors <= ndimage.minimum_filter(errors, 3, mode="nearest")
    return list(zip(errors[minima], vectors[minima], strict=True))


def _distinct_starts(vectors: list[Array]) -> list[Array]:
    """The vectors, except any that is close to an earlier vector and would end at its minimum."""
    chosen: list[Array] = []
    for vector in vectors:
        if all(np.abs(vector - other).max(initial=0.0) > tuned.SAME_START for other in chosen):
            chosen.append(vector)
    return chosen


def _embedded(vector: Array, simple: Space, space: Space) -> Array:
    """A vector of the simple space as one of the whole space, with zeros off the diagonal."""
    rest = np.zeros(space.free - simple.free)
    return np.concatenate([vector[: simple.free], rest, vector[simple.free :]])


def _starts(points: Points, kernel: Kernel, space: Space, wider: float) -> list[Array]:
    scott, silverman = (h * wider for h in rules_of_thumb(points, kernel))
    middle, narrow = 0.5 * space.max_widths, 0.1 * space.max_widths
    starts = [space.vector(scott, narrow), space.vector(silverman, narrow)]
    # Multiples of the narrower rule, which is robust to a few distant points.
    for factor in (0.1, 0.25, 0.5, 2.0, 5.0, _clustering(points.places.x)):
        starts.append(space.vector(factor * silverman, narrow))
    if len(space.counts):
        starts.append(space.vector(silverman, middle))
    if space.kind != "one" and space.columns > 1:
        for column in range(space.columns):  # smooth over each column, or over all others
            chosen = np.arange(space.columns) == column
            for factor in (0.25, 0.5, 2.0):
                starts.append(space.vector(np.where(chosen, factor, 1.0) * silverman, narrow))
            starts.append(space.vector(np.where(chosen, 100.0, silverman), narrow))
            if space.columns > 2:
                starts.append(space.vector(np.where(chosen, 0.5 * silverman, 100.0), narrow))
    for category in range(len(space.counts)):
        widths = np.where(np.arange(len(space.counts)) == category, space.max_widths, narrow)
        starts.append(space.vector(silverman, widths))
    low, high = np.array(space.bounds).T
    return [np.clip(vector, low, high) for vector in starts]


def _clustering(x: Array) -> Array:
    """`(D,)`: the number of distinct values times their median gap, over twice the spread: small
    where the points form a few clusters.
    """
    distinct = [np.unique(column) for column in x.T]
    return np.array([0.5 * len(v) * np.median(np.diff(v)) if len(v) > 1 else 1.0 for v in distinct])


def _sample(points: Points) -> Points:
    """At most `tuned.SAMPLE` points, at random with a fixed seed."""
    if len(points) <= 2 * tuned.SAMPLE:
        return points
    rows = np.sort(np.random.default_rng(0).choice(len(points), tuned.SAMPLE, replace=False))
    weight = None if points.weight is None else points.weight[rows]
    if weight is not None:
        weight = weight / weight.mean() if weight.max() > 0 else None
    return Points(points.places.take(rows), points.y[rows], weight, points.counts, rows)


def _minimize(search: _Search, kernel: Kernel, vector: Array) -> None:
    """Minimizes the error from a start."""
    bounds = search.space.bounds
    vector = np.clip(vector, *np.array(bounds).T)
    if kernel.smooth:
        # Scaled outputs have a variance of order 1: errors are compared to their 14th digit.
        result = optimize.minimize(
            search,
            vector,
            jac=True,
            method="L-BFGS-B",
            bounds=bounds,
            options={"ftol": 1e-14, "gtol": 1e-8, "maxiter": 500},
        )
        vector = result.x
    else:
        search.error(vector)
    if not len(vector) or np.isinf(kernel.support) and kernel.smooth:
        return
    if not kernel.smooth:
        _descend_coordinates(search, vector)
    elif len(vector) <= tuned.MAX_POLISHED:
        limit = {"maxfev": 60 * len(vector), "xatol": 1e-4, "fatol": 1e-10, "adaptive": True}
        optimize.minimize(search.error, vector, method="Nelder-Mead", bounds=bounds, options=limit)


def _descend_coordinates(search: _Search, vector: Array) -> None:
    """Coordinate descent on grids of decreasing step."""
    low, high = np.array(search.space.bounds).T
    reach, best = 2.0, search.error(vector)
    while reach > 1e-2:
        before = best
        for column in range(len(vector)):
            for away in reach * np.linspace(-1.0, 1.0, 11):
                other = vector.copy()
                other[column] = np.clip(other[column] + away, low[column], high[column])
                error = search.error(other)
                if error < best:
                    best, found = error, other
            vector = found if best < before else vector
        reach *= 1.0 if best < before else 0.4
