"""Bandwidth selection: minimizes the leave-one-out error to convergence, from several starts.

The error has several local minima. On a line a grid brackets them and zeros of the exact gradient
refine them. In more dimensions a quasi-Newton method starts from rules of thumb, from wider and
narrower bandwidths, from bandwidths that smooth over one column, and from the minima of a grid.

Source: leave-one-out, Wasserman, All of Nonparametric Statistics, 5.3; starts, Scott 1992;
Silverman 1986, 3.4.2; the optimizer is SciPy's L-BFGS-B (Byrd, Lu, Nocedal, Zhu 1995).
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
from scipy import ndimage, optimize

from tfattn.kernel_regression import tuned
from tfattn.kernel_regression.kernels import Kernel
from tfattn.kernel_regression.left_out import LeftOut, leave_one_out
from tfattn.kernel_regression.points import Metric, Points

Array = np.ndarray
Report = Callable[[float, int], None]  # of an error, and of how many points


@dataclass
class _Search:
    """The error as a function of a vector, with all evaluations. A vector has log bandwidths, one
    per column or one for all, and a logit of each categorical column's λ.

    Attributes:
        kind: "each" or "one".
        extent: the greatest half range of a column, in scaled units.
        evaluated: pairs of error and vector.
    """

    kernel: Kernel
    points: Points
    degree: int
    kind: str
    nearest: bool
    report: Report | None
    extent: float
    evaluated: list[tuple[float, Array]] = field(default_factory=list)

    @property
    def columns(self) -> int:
        """The number of continuous columns."""
        return self.points.places.x.shape[1]

    @property
    def free(self) -> int:
        """The number of parameters of the continuous columns."""
        return min(self.columns, 1) if self.kind == "one" else self.columns

    @property
    def widest(self) -> float:
        """The greatest log bandwidth."""
        return float(np.log(tuned.WIDEST * self.extent))

    @property
    def max_widths(self) -> Array:
        """`(K,)`, the greatest λ: (c − 1) / c."""
        return (self.points.counts - 1) / self.points.counts

    @property
    def bounds(self) -> list[tuple[float, float]]:
        logits = [(-tuned.MAX_LOGIT, tuned.MAX_LOGIT)] * len(self.points.counts)
        return [(float(np.log(tuned.NARROWEST)), self.widest)] * self.free + logits

    def clipped(self, vector: Array) -> Array:
        """The vector within the bounds."""
        return np.clip(vector, *np.array(self.bounds).T)

    def vector(self, bandwidth: Array, widths: Array) -> Array:
        """The vector for the bandwidths of continuous and the λ of categorical columns."""
        logs = np.log(bandwidth)
        if self.free < self.columns:
            logs = logs.mean(keepdims=True)
        share = np.clip(widths / np.maximum(self.max_widths, 1e-300), 1e-7, 1.0 - 1e-7)
        return np.concatenate([logs, np.log(share / (1.0 - share))])

    def metric(self, vector: Array) -> Metric:
        """The metric of a vector."""
        scale = np.exp(-np.broadcast_to(vector[: self.free], self.columns))
        return Metric(scale, self.max_widths / (1.0 + np.exp(-vector[self.free :])))

    def __call__(self, vector: Array) -> tuple[float, Array]:
        """The error and its gradient."""
        found = self._left_out(vector)
        by_log, share = found.by_log, 1.0 / (1.0 + np.exp(-vector[self.free :]))
        if self.free < self.columns:
            by_log = by_log.sum(keepdims=True)
        by_share = found.by_logit * (1.0 - share) / (1.0 - self.max_widths * share)
        return found.error, np.concatenate([by_log, by_share])

    def error(self, vector: Array | float) -> float:
        """The error alone, since the gradient takes half of the time."""
        return self._left_out(np.atleast_1d(vector), gradient=False).error

    def _left_out(self, vector: Array, gradient: bool = True) -> LeftOut:
        found = leave_one_out(
            self.kernel, self.metric(vector), self.points, self.degree, self.nearest, gradient
        )
        self.evaluated.append((found.error, np.array(vector)))
        if self.report is not None:
            self.report(found.error, len(self.points))
        return found

    def best(self, since: int = 0) -> tuple[float, Array]:
        """The least error and its vector; the widest of those without an error."""
        evaluated = self.evaluated[since:]
        exact = [pair for pair in evaluated if pair[0] <= tuned.NO_ERROR]
        if exact:
            return max(exact, key=lambda pair: pair[1][: self.free].sum())
        return min(evaluated, key=lambda pair: pair[0])

    def widen(self) -> None:
        """Tries the widest bandwidths where there is no error: a straight line goes on then."""
        error, vector = self.best()
        if self.free and error <= tuned.NO_ERROR:
            self.error(np.concatenate([np.full(self.free, self.widest), vector[self.free :]]))


def choose(
    kernel: Kernel,
    points: Points,
    degree: int,
    kind: str,
    nearest: bool,
    start: Metric | None = None,
    sample: int | None = None,
    report: Report | None = None,
) -> tuple[Metric, list[float]]:
    """(The metric of the least leave-one-out error, the least error after each evaluation; the
    first is that of Scott's rule).

    Args:
        kind: "each" or "one".
        start: the only start of the search; None for several.
        sample: how many points to choose on; None for all.
        report: called after each error.
    """
    if sample is not None and sample < len(points):
        part = _sample(points, sample)
        narrower = _narrower(points, part)
        wider = None if start is None else Metric(start.scale * narrower, start.widths)
        chosen, errors = choose(kernel, part, degree, kind, nearest, wider, report=report)
        return Metric(chosen.scale / narrower, chosen.widths), errors
    extent = max(1.0, 0.5 * float(np.ptp(points.places.x, axis=0).max(initial=0.0)))
    search = _Search(kernel, points, degree, kind, nearest, report, extent)
    if start is not None:
        _follow(search, [search.vector(1.0 / start.scale, start.widths)], 1)
    elif points.is_line:
        _search_line(search)
    else:
        _search_columns(search)
        if _is_cheap(points) and len(search.bounds) <= tuned.MAX_DESCENDED:
            _descend_coordinates(search, search.best()[1])
    search.widen()
    least = np.minimum.accumulate([error for error, _ in search.evaluated])
    return search.metric(search.best()[1]), least.tolist()


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


def _search_line(search: _Search) -> None:
    points, kernel = search.points, search.kernel
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
    high = np.log(10.0 * search.extent)
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
            search.error(search.widest)
        elif kernel.smooth and not compact:
            _refine(search, low, high)
        else:
            _refine_by_grids(search, low, high)


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


def _refine_by_grids(search: _Search, low: float, high: float) -> None:
    """Searches ever finer grids: with a compact kernel a minimum contains smaller minima, at
    bandwidths where further points enter the support.
    """
    for _ in range(2 if search.kernel.smooth else 3):
        grid = np.linspace(low, high, 21)
        here = int(np.argmin([search.error(log) for log in grid]))
        low, high = grid[max(here - 1, 0)], grid[min(here + 1, 20)]
    if search.kernel.smooth:
        _refine(search, low, high)


def _search_columns(search: _Search) -> None:
    points = search.points
    size = tuned.SAMPLE if len(points) > 2 * tuned.SAMPLE else len(points)
    part = _sample(points, size)
    exact = part is points
    pilot = search if exact else replace(search, points=part, evaluated=[])
    narrower = _narrower(points, part)
    first, *others = [(pilot.error(v), v) for v in _starts(search, 1 / narrower)]
    others += _grid_minima(pilot)
    others.sort(key=lambda pair: pair[0])
    runs = tuned.RUNS if exact else tuned.RUNS_OF_SAMPLE
    polished = runs if _is_cheap(points) else tuned.POLISHED
    vectors = _distinct_starts([first[1], *(vector for _, vector in others)])[:runs]
    found = _follow(pilot, vectors, polished)
    # Only the two best for a large set, where each takes long and kinks are small.
    for _, vector in [] if exact else found[:2]:
        vector = vector.copy()
        vector[: search.free] += np.log(narrower)
        (_descend if search.kernel.smooth else _polish)(search, vector)


def _is_cheap(points: Points) -> bool:
    """Whether there are so few points that every start is followed to its minimum."""
    return tuned.MAX_SCAN * len(points) ** 2 <= tuned.SCAN_PAIRS


def _narrower(points: Points, part: Points) -> float:
    """The best bandwidth of all points over that of a sample."""
    return (len(part) / len(points)) ** (1.0 / (points.places.x.shape[1] + 4))


def _grid_minima(search: _Search) -> list[tuple[float, Array]]:
    """Local minima on a grid over all parameters, as pairs of error and vector."""
    count = min(tuned.MAX_SCAN, tuned.SCAN_PAIRS / len(search.points) ** 2)
    size = int(count ** (1.0 / len(search.bounds)))
    if count < tuned.MIN_SCAN or size < 3:
        return []
    narrow = np.array(
        [np.diff(np.unique(column)).min(initial=np.inf) for column in search.points.places.x.T]
    )
    narrow = np.log(np.where(np.isfinite(narrow), narrow, 1.0)) - 1.0
    if search.kind == "one":
        narrow = narrow[:1].clip(max=narrow.min()) if len(narrow) else narrow
    axes = [np.linspace(low, np.log(10.0 * search.extent), size) for low in narrow]
    shares = np.linspace(0.0, 1.0, size + 1)[1:]
    axes += [np.log(shares**2 / (1.0 + 1e-7 - shares**2)) for _ in search.points.counts]
    vectors = search.clipped(np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1))
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


def _starts(search: _Search, wider: float) -> list[Array]:
    points, columns, counts = search.points, search.columns, search.points.counts
    scott, silverman = (h * wider for h in rules_of_thumb(points, search.kernel))
    middle, narrow = 0.5 * search.max_widths, 0.1 * search.max_widths
    starts = [search.vector(scott, narrow), search.vector(silverman, narrow)]
    # Multiples of the narrower rule, which is robust to a few distant points.
    for factor in (0.1, 0.25, 0.5, 2.0, 5.0, _clustering(points.places.x)):
        starts.append(search.vector(factor * silverman, narrow))
    if len(counts):
        starts.append(search.vector(silverman, middle))
    if search.kind != "one" and columns > 1:
        for column in range(columns):  # smooth over each column, or over all others
            chosen = np.arange(columns) == column
            for factor in (0.25, 0.5, 2.0):
                starts.append(search.vector(np.where(chosen, factor, 1.0) * silverman, narrow))
            starts.append(search.vector(np.where(chosen, 100.0, silverman), narrow))
            if columns > 2:
                starts.append(search.vector(np.where(chosen, 0.5 * silverman, 100.0), narrow))
    for category in range(len(counts)):
        widths = np.where(np.arange(len(counts)) == category, search.max_widths, narrow)
        starts.append(search.vector(silverman, widths))
    return [search.clipped(vector) for vector in starts]


def _clustering(x: Array) -> Array:
    """`(D,)`: the number of distinct values times their median gap, over twice the spread: small
    where the points form a few clusters.
    """
    distinct = [np.unique(column) for column in x.T]
    return np.array([0.5 * len(v) * np.median(np.diff(v)) if len(v) > 1 else 1.0 for v in distinct])


def _sample(points: Points, size: int) -> Points:
    """So many of the points, at random with a fixed seed."""
    if size == len(points):
        return points
    rows = np.sort(np.random.default_rng(0).choice(len(points), size, replace=False))
    weight = None if points.weight is None else points.weight[rows]
    if weight is not None:
        weight = weight / weight.mean() if weight.max() > 0 else None
    return Points(points.places.take(rows), points.y[rows], weight, points.counts, rows)


def _follow(search: _Search, starts: list[Array], polished: int) -> list[tuple[float, Array]]:
    """The minima from the starts, as pairs of error and vector, the least first.

    Args:
        polished: of how many the kinks or steps of a compact kernel's error are searched too.
    """
    found = []
    for vector in starts:
        since = len(search.evaluated)
        _descend(search, vector)
        found.append(search.best(since))
    found.sort(key=lambda pair: pair[0])
    if np.isfinite(search.kernel.support) or not search.kernel.smooth:
        for place, (_, vector) in enumerate(found[:polished]):
            since = len(search.evaluated)
            _polish(search, vector)
            found[place] = search.best(since)
        found.sort(key=lambda pair: pair[0])
    return found


def _descend(search: _Search, vector: Array) -> None:
    """Minimizes the error from a start, roughly if the error has kinks or steps."""
    vector, kernel = search.clipped(vector), search.kernel
    if not kernel.smooth:
        _descend_coordinates(search, vector, least=tuned.COARSE)
    else:
        _quasi_newton(search, vector, tuned.KINKED if np.isfinite(kernel.support) else 1e-14)


def _polish(search: _Search, vector: Array) -> None:
    """Minimizes an error with kinks or steps from near its minimum."""
    if not search.kernel.smooth:
        _descend_coordinates(search, vector, reach=0.8 * tuned.COARSE)
    elif len(vector) > tuned.MAX_POLISHED:
        _quasi_newton(search, vector, 1e-14)
    else:
        options = {"maxfev": 60 * len(vector), "xatol": 1e-4, "fatol": 1e-10, "adaptive": True}
        bounds = search.bounds
        optimize.minimize(
            search.error, vector, method="Nelder-Mead", bounds=bounds, options=options
        )


def _quasi_newton(search: _Search, vector: Array, tolerance: float) -> None:
    # Scaled outputs have a variance of order 1: the tolerance is absolute.
    optimize.minimize(
        search,
        vector,
        jac=True,
        method="L-BFGS-B",
        bounds=search.bounds,
        options={"ftol": tolerance, "gtol": 1e-8, "maxiter": 500},
    )


_STEPS = np.delete(np.linspace(-1.0, 1.0, 11), 5)  # without 0


def _descend_coordinates(
    search: _Search, vector: Array, reach: float = 2.0, least: float = 1e-2
) -> None:
    """Coordinate descent on grids of decreasing reach."""
    low, high = np.array(search.bounds).T
    best = search.error(vector)
    while reach > least:
        before = best
        for column in range(len(vector)):
            for away in reach * _STEPS:
                other = vector.copy()
                other[column] = np.clip(other[column] + away, low[column], high[column])
                error = search.error(other)
                if error < best:
                    best, found = error, other
            vector = found if best < before else vector
        reach *= 1.0 if best < before * (1.0 - tuned.GAIN) else 0.4
