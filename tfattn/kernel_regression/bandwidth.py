"""Bandwidth selection: minimizes the leave-one-out error to convergence, from several starts.

The error has several local minima. The search evaluates rules of thumb and a grid over all
parameters, on which a line shows every minimum. From the best of them a quasi-Newton method
descends. The error of a compact kernel has kinks or steps, for which there is coordinate descent.

Source: leave-one-out, Wasserman, All of Nonparametric Statistics, 5.3; starts, Scott 1992;
Silverman 1986, 3.4.2; the optimizer is SciPy's L-BFGS-B (Byrd, Lu, Nocedal, Zhu 1995).
"""

from collections.abc import Callable

import numpy as np
from scipy import ndimage, optimize

from tfattn.kernel_regression import tuned
from tfattn.kernel_regression.kernels import Kernel
from tfattn.kernel_regression.points import Metric, Points
from tfattn.kernel_regression.smoother import Smoother

Array = np.ndarray
Report = Callable[[float, int], None]  # of an error, and of how many points
Minimum = tuple[float, Array]  # an error and its vector


class _Search:
    """The error as a function of a vector, with all evaluations. A vector has log bandwidths, one
    per column, and a logit of each categorical column's λ.
    """

    def __init__(
        self, kernel: Kernel, points: Points, degree: int, empty: str, report: Report | None
    ):
        self.kernel, self.points, self.degree, self.empty = kernel, points, degree, empty
        self.report = report
        x, counts = points.places.x, points.counts
        self.columns = x.shape[1]
        self.max_widths = (counts - 1) / counts  # of λ
        # The greatest half range of a column.
        self.extent = max(1.0, 0.5 * float(np.ptp(x, axis=0).max(initial=0.0)))
        logs = (np.log(tuned.NARROWEST), np.log(tuned.WIDEST * self.extent))
        logits = (-tuned.MAX_LOGIT, tuned.MAX_LOGIT)
        bounds = [logs] * self.columns + [logits] * len(counts)
        self.bounds: Array = np.array(bounds).reshape(-1, 2)
        self.evaluated: list[Minimum] = []

    def vector(self, bandwidth: Array, widths: Array) -> Array:
        """The vector for the bandwidths of continuous and the λ of categorical columns."""
        share = np.clip(widths / np.maximum(self.max_widths, 1e-300), 1e-7, 1.0 - 1e-7)
        vector = np.concatenate([np.log(bandwidth), np.log(share / (1.0 - share))])
        return np.clip(vector, *self.bounds.T)

    def metric(self, vector: Array) -> Metric:
        """The metric of a vector."""
        widths = self.max_widths / (1.0 + np.exp(-vector[self.columns :]))
        return Metric(np.exp(-vector[: self.columns]), widths)

    def __call__(self, vector: Array, gradient: bool = True) -> tuple[float, Array]:
        """The error and its gradient, which takes half of the time."""
        metric = self.metric(vector)
        smoother = Smoother(self.kernel, metric, self.points, self.degree, self.empty)
        error, by_log, by_logit = smoother.left_out(gradient)
        self.evaluated.append((error, np.array(vector)))
        if self.report is not None:
            self.report(error, len(self.points))
        share = 1.0 / (1.0 + np.exp(-vector[self.columns :]))
        by_share = by_logit * (1.0 - share) / (1.0 - self.max_widths * share)
        return error, np.concatenate([by_log, by_share])

    def error(self, vector: Array) -> float:
        """The error alone."""
        return self(vector, gradient=False)[0]

    def best(self) -> Minimum:
        """The least error and its vector; the widest of those without an error."""
        exact = [pair for pair in self.evaluated if pair[0] <= tuned.NO_ERROR]
        if exact:
            return max(exact, key=lambda pair: pair[1][: self.columns].sum())
        return min(self.evaluated, key=_error)


def choose(
    kernel: Kernel,
    points: Points,
    degree: int,
    empty: str,
    start: Metric | None = None,
    sample: int | None = None,
    report: Report | None = None,
) -> tuple[Metric, list[float]]:
    """(The metric of the least leave-one-out error, the least error after each evaluation).
    `start` is the only start; `sample`, how many points to use.
    """
    own = len(points) if points.is_line or start is not None else tuned.SAMPLE
    size = own if sample is None else sample
    if size < len(points):
        part = _part(points, size)
        narrower = (size / len(points)) ** (1.0 / (points.places.x.shape[1] + 4))
        wider = None if start is None else Metric(start.scale * narrower, start.widths)
        chosen, errors = choose(kernel, part, degree, empty, wider, report=report)
        start = Metric(chosen.scale / narrower, chosen.widths)
        if sample is not None:
            return start, errors
    search = _Search(kernel, points, degree, empty, report)
    if start is None:
        _descend(search, _starts(search))
    else:
        _descend(search, [search.vector(1.0 / start.scale, start.widths)])
    if search.columns:  # the widest is the best without a trend, and of equals for a straight line
        widest = search.best()[1].copy()
        widest[: search.columns] = search.bounds[: search.columns, 1]
        search.error(widest)
    least = np.minimum.accumulate([error for error, _ in search.evaluated])
    return search.metric(search.best()[1]), least.tolist()


def _part(points: Points, size: int) -> Points:
    """So many of the points, at random with a fixed seed."""
    rows = np.sort(np.random.default_rng(0).choice(len(points), size, replace=False))
    weight = None if points.weight is None else points.weight[rows] / points.weight[rows].mean()
    return Points(points.places.take(rows), points.y[rows], weight, points.counts, rows)


def _starts(search: _Search) -> list[Array]:
    """The best of the rules of thumb and of the local minima on a grid, the best first."""
    is_line = search.points.is_line
    rules = _rules(search)[: 1 if is_line else None]
    pairs = [(search.error(vector), vector) for vector in rules]
    pairs = sorted([*pairs, *_grid_minima(search)], key=_error)
    if is_line:
        many = len(search.points) > tuned.MANY_POINTS
        starts = [vector for error, vector in pairs if error <= tuned.NEAR_LEAST * pairs[0][0]]
        return starts[: tuned.MINIMA if many else tuned.MINIMA_OF_FEW]
    chosen: list[Array] = []
    for _, vector in pairs:  # except any that is close to a better one
        if all(np.abs(vector - other).max(initial=0.0) > tuned.SAME_START for other in chosen):
            chosen.append(vector)
    return chosen[: tuned.RUNS]


def _error(minimum: Minimum) -> float:
    return minimum[0]


def _rules(search: _Search) -> list[Array]:
    """Scott's rule of thumb, Silverman's, and multiples of it, together and in single columns."""
    x, weight = search.points.places.x, search.points.weights
    columns = x.shape[1]
    deviation = np.sqrt(np.cov(x.T, aweights=weight, ddof=0).reshape(columns, columns).diagonal())
    robust = np.subtract(*np.percentile(x, [75, 25], axis=0)) / 1.349
    # Quartiles coincide if half of the points share a value; those of distinct values differ by 1.
    robust = np.minimum(np.where(robust > 0, robust, 1.0 / 1.349), deviation)
    width = tuned.COMPACT_WIDTH if np.isfinite(search.kernel.support) else 1.0
    shrink = len(x) ** (-1.0 / (columns + 4)) * width
    # The bandwidth of a constant column has no effect.
    scott, silverman = (np.where(h > 0, h, 1.0) * shrink for h in (1.06 * deviation, 0.9 * robust))
    narrow = 0.1 * search.max_widths
    # Silverman's is robust to a few distant points.
    rule = search.vector(silverman, narrow)
    continuous = np.arange(len(rule)) < columns
    endless = np.where(continuous, np.log(100.0), search.bounds[:, 1])
    shifts = np.log([0.1, 0.25, 0.5, 2.0, 5.0])
    starts = [rule, search.vector(silverman, 0.5 * search.max_widths)]
    starts += [rule + shift * continuous for shift in shifts]
    for chosen in np.eye(len(rule), dtype=bool) if len(rule) > 1 else []:
        starts += [rule + shift * chosen for shift in shifts[1:4]]
        starts += [np.where(chosen, endless, rule), np.where(chosen, rule + shifts[2], endless)]
    return [search.vector(scott, narrow), *(np.clip(v, *search.bounds.T) for v in starts)]


def _grid_minima(search: _Search) -> list[Minimum]:
    """Local minima on a grid over all parameters."""
    points = search.points
    gaps = [np.diff(np.unique(column)).min(initial=1.0) for column in points.places.x.T]
    # So narrow that the nearest point has nearly all of the weight.
    narrow, wide = np.log(gaps) - 1.0, np.log(10.0 * search.extent)
    if points.is_line:
        many = len(points) > tuned.MANY_POINTS
        fine = np.isfinite(search.kernel.support) or len(points) <= tuned.FEW_POINTS
        step = tuned.COARSE_STEP if many else tuned.FINE_STEP if fine else tuned.MIDDLE_STEP
        size = min(int((wide - narrow[0]) / step) + 2, tuned.MAX_GRID)
    else:
        count = min(tuned.MAX_SCAN, tuned.SCAN_PAIRS / len(points) ** 2)
        size = int(count ** (1.0 / len(search.bounds)))
        if count < tuned.MIN_SCAN or size < 3:
            return []
    axes = [np.linspace(low, wide, size) for low in narrow]
    shares = np.linspace(0.0, 1.0, size + 1)[1:]
    axes += [np.log(shares**2 / (1.0 + 1e-7 - shares**2)) for _ in points.counts]
    vectors = np.clip(np.stack(np.meshgrid(*axes, indexing="ij"), -1), *search.bounds.T)
    errors = np.apply_along_axis(search.error, -1, vectors)
    minima = errors <= ndimage.minimum_filter(errors, 3, mode="nearest")
    return list(zip(errors[minima], vectors[minima], strict=True))


def _descend(search: _Search, starts: list[Array]) -> None:
    """Evaluates down to the minima from the starts, the best first."""
    count, smooth = len(search.points), search.kernel.smooth
    cheap = search.points.is_line or tuned.MAX_SCAN * count**2 <= tuned.SCAN_PAIRS
    polished = len(starts) if cheap else tuned.POLISHED
    if smooth:
        minima = sorted((_quasi_newton(search, start) for start in starts), key=_error)
        starts = [vector for _, vector in minima]
    if np.isfinite(search.kernel.support):  # from further away where no gradient has led
        for vector in starts[:polished]:
            _coordinates(search, vector, reach=0.2 if smooth else 2.0)


def _quasi_newton(search: _Search, vector: Array) -> Minimum:
    """The minimum from a start, roughly if the error has kinks."""
    # Scaled outputs have a variance of order 1: the tolerance is absolute.
    tolerance = tuned.KINKED if np.isfinite(search.kernel.support) else 1e-14
    options = {"ftol": tolerance, "gtol": 1e-8, "maxiter": 500}
    found = optimize.minimize(
        search, vector, jac=True, method="L-BFGS-B", bounds=search.bounds, options=options
    )
    return found.fun, found.x


_STEPS = np.delete(np.linspace(-1.0, 1.0, 11), 5)  # without 0


def _coordinates(search: _Search, vector: Array, reach: float) -> None:
    """Descends an error with kinks or steps: along one coordinate after the other, on grids of
    decreasing reach.
    """
    best = search.error(vector)
    while reach > 1e-3:
        before = best
        for column in range(len(vector)):
            others = np.tile(vector, (len(_STEPS), 1))
            others[:, column] += reach * _STEPS
            for other in np.clip(others, *search.bounds.T):
                error = search.error(other)
                if error < best:
                    best, vector = error, other
        reach *= 1.0 if best < before * (1.0 - tuned.GAIN) else 0.4
