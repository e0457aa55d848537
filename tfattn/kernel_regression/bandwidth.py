"""Bandwidth selection: minimizes the leave-one-out error to convergence, from several starts.

The error has several local minima. The search evaluates a grid over all parameters, on which a line
shows every minimum, and in several columns rules of thumb. From the best of them a quasi-Newton
method descends. The error of a compact kernel has kinks, where Nelder and Mead's method goes on, or
steps, for which there is coordinate descent.

Source: leave-one-out, Wasserman, All of Nonparametric Statistics, 5.3; starts, Scott 1992;
Silverman 1986, 3.4.2; the optimizer is SciPy's L-BFGS-B (Byrd, Lu, Nocedal, Zhu 1995).
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
from scipy import ndimage, optimize

from tfattn.kernel_regression import tuned
from tfattn.kernel_regression.kernels import Kernel
from tfattn.kernel_regression.left_out import LeftOut, leave_one_out
from tfattn.kernel_regression.points import Metric, Points
from tfattn.kernel_regression.smoother import Smoother

Array = np.ndarray
Report = Callable[[float, int], None]  # of an error, and of how many points
Minimum = tuple[float, Array]  # an error and its vector


@dataclass
class _Search:
    """The error as a function of a vector, with all evaluations. A vector has log bandwidths, one
    per column or one for all, and a logit of each categorical column's λ.
    """

    kernel: Kernel
    points: Points
    degree: int
    kind: str  # "each" or "one"
    empty: str
    report: Report | None
    evaluated: list[Minimum] = field(default_factory=list)

    def __post_init__(self) -> None:
        x, counts = self.points.places.x, self.points.counts
        self.columns = x.shape[1]
        self.free = min(self.columns, 1) if self.kind == "one" else self.columns
        self.max_widths = (counts - 1) / counts  # of λ
        # The greatest half range of a column.
        self.extent = max(1.0, 0.5 * float(np.ptp(x, axis=0).max(initial=0.0)))
        logs = (np.log(tuned.NARROWEST), np.log(tuned.WIDEST * self.extent))
        logits = (-tuned.MAX_LOGIT, tuned.MAX_LOGIT)
        self.bounds: Array = np.array([logs] * self.free + [logits] * len(counts)).reshape(-1, 2)
        self.size = len(self.bounds)  # the number of parameters

    def vector(self, bandwidth: Array, widths: Array) -> Array:
        """The vector for the bandwidths of continuous and the λ of categorical columns."""
        logs = np.log(bandwidth)
        if self.free < self.columns:
            logs = logs.mean(keepdims=True)
        share = np.clip(widths / np.maximum(self.max_widths, 1e-300), 1e-7, 1.0 - 1e-7)
        vector = np.concatenate([logs, np.log(share / (1.0 - share))])
        return np.clip(vector, *self.bounds.T)

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

    def error(self, vector: Array) -> float:
        """The error alone, since the gradient takes half of the time."""
        return self._left_out(vector, gradient=False).error

    def _left_out(self, vector: Array, gradient: bool = True) -> LeftOut:
        smoother = Smoother(self.kernel, self.metric(vector), self.points, self.degree, self.empty)
        found = leave_one_out(smoother, gradient)
        self.evaluated.append((found.error, np.array(vector)))
        if self.report is not None:
            self.report(found.error, len(self.points))
        return found

    def best(self) -> Minimum:
        """The least error and its vector; the widest of those without an error."""
        exact = [pair for pair in self.evaluated if pair[0] <= tuned.NO_ERROR]
        if exact:
            return max(exact, key=lambda pair: pair[1][: self.free].sum())
        return min(self.evaluated, key=lambda pair: pair[0])


def choose(
    kernel: Kernel,
    points: Points,
    degree: int,
    kind: str,
    empty: str,
    start: Metric | None = None,
    sample: int | None = None,
    report: Report | None = None,
) -> tuple[Metric, list[float]]:
    """(The metric of the least leave-one-out error, the least error after each evaluation; the
    first is that of Scott's rule). `start` is the only start; `sample`, how many points to use.
    """
    if sample is not None and sample < len(points):
        part = _sample(points, sample)
        narrower = _narrower(points, part)
        wider = None if start is None else Metric(start.scale * narrower, start.widths)
        chosen, errors = choose(kernel, part, degree, kind, empty, wider, report=report)
        return Metric(chosen.scale / narrower, chosen.widths), errors
    search = _Search(kernel, points, degree, kind, empty, report)
    if start is None:
        _find(search)
    else:
        _descend(search, [search.vector(1.0 / start.scale, start.widths)])
    error, vector = search.best()
    if search.free and error <= tuned.NO_ERROR:  # a straight line: of equals, the widest
        widest = vector.copy()
        widest[: search.free] = search.bounds[: search.free, 1]
        search.error(widest)
    least = np.minimum.accumulate([error for error, _ in search.evaluated])
    return search.metric(search.best()[1]), least.tolist()


def _rules_of_thumb(points: Points, kernel: Kernel) -> tuple[Array, Array]:
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


def _find(search: _Search, runs: int = tuned.RUNS) -> list[Minimum]:
    """Local minima, the least first, from so many starts."""
    points = search.points
    scott, *starts = _rules(search)
    pairs = [(search.error(scott), scott)]
    if not points.is_line and len(points) > 2 * tuned.SAMPLE:
        part = _sample(points, tuned.SAMPLE)
        pilot = replace(search, points=part, evaluated=[])
        vectors = [vector for _, vector in _find(pilot, tuned.RUNS_OF_SAMPLE)[:2]]
        for vector in vectors:
            vector[: search.free] += np.log(_narrower(points, part))
        return _descend(search, vectors)
    if points.is_line:
        minima = tuned.MINIMA if len(points) > tuned.MANY_POINTS else tuned.MINIMA_OF_FEW
        pairs = sorted([*pairs, *_grid_minima(search)], key=_error)
        starts = [vector for error, vector in pairs if error <= tuned.NEAR_LEAST * pairs[0][0]]
        return _descend(search, starts[:minima])
    pairs += [(search.error(vector), vector) for vector in starts]
    return _descend(search, _distinct([*pairs, *_grid_minima(search)])[:runs])


def _error(minimum: Minimum) -> float:
    return minimum[0]


def _distinct(pairs: list[Minimum]) -> list[Array]:
    """The vectors, the best first, except any that is close to a better one."""
    chosen: list[Array] = []
    for _, vector in sorted(pairs, key=_error):
        if all(np.abs(vector - other).max(initial=0.0) > tuned.SAME_START for other in chosen):
            chosen.append(vector)
    return chosen


def _rules(search: _Search) -> list[Array]:
    """Starts: rules of thumb, multiples of the narrower, and smoothing over each parameter."""
    scott, silverman = _rules_of_thumb(search.points, search.kernel)
    narrow = 0.1 * search.max_widths
    rule = search.vector(silverman, narrow)
    continuous = np.arange(search.size) < search.free
    endless = np.where(continuous, np.log(100.0), search.bounds[:, 1])
    clusters = search.vector(silverman * _clustering(search.points.places.x), narrow)
    # Multiples of the narrower rule, which is robust to a few distant points.
    shifts = np.log([0.1, 0.25, 0.5, 2.0, 5.0])
    starts = [rule, clusters, search.vector(silverman, 0.5 * search.max_widths)]
    starts += [rule + shift * continuous for shift in shifts]
    for chosen in np.eye(search.size, dtype=bool) if search.size > 1 else []:
        starts += [rule + shift * chosen for shift in shifts[1:4]]
        starts += [np.where(chosen, endless, rule), np.where(chosen, rule + shifts[2], endless)]
    return [search.vector(scott, narrow), *(np.clip(v, *search.bounds.T) for v in starts)]


def _clustering(x: Array) -> Array:
    """`(D,)`: the number of distinct values times their median gap, over twice the spread: small
    where the points form a few clusters.
    """
    distinct = [np.unique(column) for column in x.T]
    return np.array([0.5 * len(v) * np.median(np.diff(v)) if len(v) > 1 else 1.0 for v in distinct])


def _grid_minima(search: _Search) -> list[Minimum]:
    """Local minima on a grid over all parameters."""
    points = search.points
    gaps = [np.diff(np.unique(column)).min(initial=1.0) for column in points.places.x.T]
    # So narrow that the nearest point has nearly all of the weight.
    narrow = np.log(gaps) - 1.0
    if search.kind == "one":
        narrow = narrow[:1].clip(max=narrow.min(initial=0.0))
    wide = np.log(10.0 * search.extent)
    if points.is_line:
        many = len(points) > tuned.MANY_POINTS
        fine = np.isfinite(search.kernel.support) or len(points) <= tuned.FEW_POINTS
        step = tuned.COARSE_STEP if many else tuned.FINE_STEP if fine else tuned.MIDDLE_STEP
        size = min(int((wide - narrow[0]) / step) + 2, tuned.MAX_GRID)
    else:
        count = min(tuned.MAX_SCAN, tuned.SCAN_PAIRS / len(points) ** 2)
        size = int(count ** (1.0 / search.size))
        if count < tuned.MIN_SCAN or size < 3:
            return []
    axes = [np.linspace(low, wide, size) for low in narrow]
    shares = np.linspace(0.0, 1.0, size + 1)[1:]
    axes += [np.log(shares**2 / (1.0 + 1e-7 - shares**2)) for _ in points.counts]
    vectors = np.clip(np.stack(np.meshgrid(*axes, indexing="ij"), -1), *search.bounds.T)
    errors = np.apply_along_axis(search.error, -1, vectors)
    minima = errors <= ndimage.minimum_filter(errors, 3, mode="nearest")
    return list(zip(errors[minima], vectors[minima], strict=True))


def _narrower(points: Points, part: Points) -> float:
    """The best bandwidth of all points over that of a sample."""
    return (len(part) / len(points)) ** (1.0 / (points.places.x.shape[1] + 4))


def _sample(points: Points, size: int) -> Points:
    """So many of the points, at random with a fixed seed."""
    rows = np.sort(np.random.default_rng(0).choice(len(points), size, replace=False))
    weight = None if points.weight is None else points.weight[rows]
    if weight is not None:
        weight = weight / weight.mean() if weight.max() > 0 else None
    return Points(points.places.take(rows), points.y[rows], weight, points.counts, rows)


def _descend(search: _Search, starts: list[Array]) -> list[Minimum]:
    """The minima from the starts, the least first."""
    count = len(search.points)
    cheap = search.points.is_line or tuned.MAX_SCAN * count**2 <= tuned.SCAN_PAIRS
    polished = len(starts) if cheap else tuned.POLISHED
    if not search.kernel.smooth:
        return sorted((_coordinates(search, start) for start in starts[:polished]), key=_error)
    found = sorted((_quasi_newton(search, start) for start in starts), key=_error)
    if np.isfinite(search.kernel.support):
        found[:polished] = [_simplex(search, vector) for _, vector in found[:polished]]
    return sorted(found, key=_error)


def _quasi_newton(search: _Search, vector: Array) -> Minimum:
    """The minimum from a start, roughly if the error has kinks."""
    # Scaled outputs have a variance of order 1: the tolerance is absolute.
    tolerance = tuned.KINKED if np.isfinite(search.kernel.support) else 1e-14
    options = {"ftol": tolerance, "gtol": 1e-8, "maxiter": 500}
    found = optimize.minimize(
        search, vector, jac=True, method="L-BFGS-B", bounds=search.bounds, options=options
    )
    return found.fun, found.x


def _simplex(search: _Search, vector: Array) -> Minimum:
    """The minimum of an error with kinks, from nearby."""
    options = {"maxfev": 60 * len(vector), "xatol": 1e-4, "fatol": 1e-10, "adaptive": True}
    found = optimize.minimize(
        search.error, vector, method="Nelder-Mead", bounds=search.bounds, options=options
    )
    return found.fun, found.x


_STEPS = np.delete(np.linspace(-1.0, 1.0, 11), 5)  # without 0


def _coordinates(search: _Search, vector: Array) -> Minimum:
    """The minimum of an error with steps: coordinate descent on grids of decreasing reach."""
    best, reach = search.error(vector), 2.0
    while reach > 1e-3:
        before = best
        for column in range(search.size):
            others = np.tile(vector, (len(_STEPS), 1))
            others[:, column] += reach * _STEPS
            for other in np.clip(others, *search.bounds.T):
                error = search.error(other)
                if error < best:
                    best, vector = error, other
        reach *= 1.0 if best < before * (1.0 - tuned.GAIN) else 0.4
    return best, vector
