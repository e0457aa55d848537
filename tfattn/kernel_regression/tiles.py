"""Weights and local fits of queries and keys, tile by tile: memory grows with the points only."""

import collections
import concurrent.futures
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, TypeVar

import numpy as np

from tfattn.kernel_regression import tuned
from tfattn.kernel_regression.fits import Line, local_line
from tfattn.kernel_regression.kernels import Kernel
from tfattn.kernel_regression.points import Index, Metric, Places, Points

Array = np.ndarray
Place = tuple[Index, Index]  # some queries, and every key that one of them sees
Item = TypeVar("Item")
Result = TypeVar("Result")


class Tile(NamedTuple):
    """Some queries, weights that they give to the keys that they see, and their local fits."""

    rows: Index  # of the queries
    keys: Index  # of the points
    share: Array  # (r, k), weights whose rows sum to 1, or to 0 without neighbors
    slope: Array | None  # (r, k), ∂ weight / ∂ squared distance, over the sum of weights
    empty: Array  # (r,) bool, whether the query has no neighbor within the support
    query_u: Array  # (r, D), in bandwidths
    key_u: Array  # (k, D)
    value: Array  # (r, V), the local fit at the query
    line: Line | None  # None for a local constant

    def equivalent(self) -> Array | float:
        """`(r, k)`, the factor from shares to the equivalent weights."""
        if self.line is None:
            return 1.0
        lean, center = self.line.lean, self.line.center
        return lean @ self.line.x.T + (1.0 - np.sum(center * lean, axis=1))[:, None]

    def by_weight(self, by_value: Array, y: Array) -> Array:
        """`(r, k)`: the derivatives of a loss by log weights, over the shares, from those by the
        values `(r, V)`; y `(N, V)` is that of all points.
        """
        result = by_value @ y[self.keys].T
        if self.line is None:
            result -= np.sum(by_value * self.value, axis=1)[:, None]
        else:  # Σ_v by_value[r, v] · (y[k, v] − the local line of row r at key k)
            along = np.einsum("rdv,rv->rd", self.line.slope, by_value)
            result -= along @ self.line.x.T
            constant = by_value * self.line.mean
            result -= (constant.sum(axis=1) - np.sum(along * self.line.center, axis=1))[:, None]
            result *= self.equivalent()
        result[self.empty] = 0.0
        return result

    def sum_of_squared_differences(self, pair: Array) -> Array:
        """`(D,)`: Σ_rk pair[r, k] · (query_r − key_k)²."""
        middle = self.query_u.mean(axis=0)
        query, key = self.query_u - middle, self.key_u - middle
        key_squares = np.square(key)
        if key_squares.max(initial=0.0) > tuned.FAR**2:
            # Differences of squares would lose the digits of small distances.
            return np.tensordot(pair, np.square(query[:, None, :] - key), 2)
        squared = pair.sum(1) @ np.square(query) + pair.sum(0) @ key_squares
        return squared - 2.0 * np.sum(query * (pair @ key), axis=0)

    def slope_of_constant(self, y: Array) -> Array:
        """`(r, D, V)`: the gradient of a local constant at the query, in bandwidths."""
        middle = self.query_u.mean(axis=0)
        query, key = self.query_u - middle, self.key_u - middle
        slope: Any = self.slope  # which these tiles have
        mixed = np.einsum("rk,kd,kv->rdv", slope, key, y, optimize=True)
        moment = slope @ y - self.value * slope.sum(axis=1, keepdims=True)  # (r, V)
        away = mixed - (slope @ key)[:, :, None] * self.value[:, None, :]
        return 2.0 * (query[:, :, None] * moment[:, None, :] - away)


def tiles(
    kernel: Kernel,
    metric: Metric,
    points: Points,
    queries: Places,
    degree: int,
    left_out: Array | None = None,
    slopes: bool = False,
    nearest: bool = True,
) -> Iterator[Tile]:
    """All tiles; no query sees its own point, `left_out` `(M,)`. The nearest points predict a query
    without neighbors; without `nearest` its weights are 0 and its value NaN.
    """
    query_u, key_u = queries.x * metric.scale, points.places.x * metric.scale
    losses = points.category_losses(metric)

    def tile(place: Place) -> Tile:
        rows, keys = place
        query, key = query_u[rows], key_u[keys]
        squared = _squared_distances(query, key)
        if left_out is not None:
            own = left_out[rows]
            own = own - keys.start if isinstance(keys, slice) else np.searchsorted(keys, own)
            squared[np.arange(len(squared)), own] = np.inf
        logs = points.log_weights(losses, queries.codes[rows], keys)
        share, slope, empty = _shares(kernel, squared, logs, slopes, nearest)
        line, y = None, points.y[keys]
        value = share @ y
        if degree and key.shape[1]:
            value, line = local_line(share, points.places.x[keys], y, value, queries.x[rows])
        if not nearest:
            value[empty] = np.nan
        elif left_out is not None:
            alone = empty & ~share.any(axis=1)  # the only points of their categories
            if alone.any():
                value[alone] = points.mean_without(left_out[rows][alone])
        return Tile(rows, keys, share, slope, empty, query, key, value, line)

    settings = (points.log_ratio(losses), left_out, points.is_line)
    near = places(kernel, query_u, key_u, *settings)
    many = len(queries) * len(points) >= tuned.THREADED_PAIRS and not points.is_line
    return in_threads(tile, near) if many else map(tile, near)


def places(
    kernel: Kernel,
    query: Array,
    key: Array,
    log_ratio: float,
    left_out: Array | None,
    is_line: bool,
) -> Iterator[Place]:
    """All pairs that count, of queries and keys in bandwidths, sorted on a line. `log_ratio` is the
    difference of log K that makes a weight negligible; `left_out` `(M,)`, each query's own point.
    """
    if is_line:
        ends = _windows(kernel, query[:, 0], key[:, 0], log_ratio, left_out)
        return _slices_of_windows(*ends)
    share = _share_in_balls(kernel, query, key, log_ratio)
    if share * len(key) + tuned.TREE_KEYS >= len(key):
        return _all_pairs(query, key)
    from scipy.spatial import cKDTree  # lazily, since one column needs none

    tree = cKDTree(key)
    # With the point itself, which is left out, the nearest other is the second.
    nearest = tree.query(query, k=[1 if left_out is None else 2])[0][:, 0]
    return _balls(query, tree, _reach(kernel, nearest, log_ratio))


def _all_pairs(query: Array, key: Array) -> Iterator[Place]:
    step = max(1, tuned.TILE_PAIRS // len(key))
    for start in range(0, len(query), step):
        yield slice(start, min(start + step, len(query))), slice(0, len(key))


def _windows(
    kernel: Kernel, query: Array, key: Array, log_ratio: float, left_out: Array | None
) -> tuple[Array, Array]:
    """The window of each query on a line, both sorted: index of its first key and after its last.
    Neither decreases.
    """
    distance = _nearest_distances(query, key, left_out)
    reach = _reach(kernel, np.where(np.isfinite(distance), distance, 0.0), log_ratio)
    reach += 1e-12 * np.abs(query)
    first = np.searchsorted(key, query - reach, side="left")
    last = np.searchsorted(key, query + reach, side="right")
    if left_out is not None:  # the window includes the point itself, which is then excluded
        first, last = np.minimum(first, left_out), np.maximum(last, left_out + 1)
    return np.minimum.accumulate(first[::-1])[::-1], np.maximum.accumulate(last)


def _nearest_distances(query: Array, key: Array, left_out: Array | None) -> Array:
    """Distances to the nearest key on a line, which is not the point that is left out."""
    padded = np.concatenate([[-np.inf], key, [np.inf]])
    before = np.searchsorted(key, query) if left_out is None else left_out
    after = before + (1 if left_out is None else 2)
    return np.minimum(query - padded[before], padded[after] - query)


def _reach(kernel: Kernel, nearest: Array, log_ratio: float) -> Array:
    """How far each query sees: at least to its nearest key; rounding excludes none at the edge."""
    if np.isinf(kernel.support):
        seen = np.inf if kernel.reach is None else kernel.reach(nearest, log_ratio)
    else:
        seen = kernel.support
    return np.maximum(seen, nearest) * (1.0 + 1e-9)


def _slices_of_windows(first: Array, last: Array) -> Iterator[Place]:
    """Slices of queries that share most of their windows, with all keys in these."""
    start = 0
    while start < len(first):
        width = max(int(last[start] - first[start]), 1)
        farthest = first[start] + max(width // 4, tuned.EXTRA_KEYS)
        stop = int(np.searchsorted(first, farthest, side="right"))
        most = start + max(1, tuned.TILE_PAIRS // width)
        stop = min(max(stop, start + 1), most, len(first))
        yield slice(start, stop), slice(int(first[start]), int(last[stop - 1]))
        start = stop


def _share_in_balls(kernel: Kernel, query: Array, key: Array, log_ratio: float) -> float:
    """About which share of all pairs `_balls` has; 1 where categories part (`log_ratio` is inf)."""
    if np.isinf(log_ratio) or not key.shape[1] or not np.isfinite(query).all():
        return 1.0  # a query that overflows is in no ball
    reach = _reach(kernel, np.zeros(()), log_ratio)
    extent = np.maximum(np.ptp(key, axis=0), np.finfo("float64").tiny)
    block = (tuned.BLOCK / max(len(query), 1)) ** (1.0 / key.shape[1])
    return float(np.prod(np.minimum(1.0, np.minimum(2.0 * reach, extent) / extent + block)))


def _balls(query: Array, tree: Any, reach: Array) -> Iterator[Place]:
    """Blocks of queries that lie together, with the keys in a ball around what these see."""
    order = type(tree)(query, balanced_tree=False, compact_nodes=False).indices  # leaf by leaf
    for start in range(0, len(order), tuned.BLOCK):
        rows = order[start : start + tuned.BLOCK]
        block = query[rows]
        center = 0.5 * (block.min(axis=0) + block.max(axis=0))
        radius = np.max(np.sqrt(np.square(block - center).sum(axis=1)) + reach[rows])
        rounding = 1e-12 * np.abs(center).max()
        keys = np.sort(tree.query_ball_point(center, radius + rounding))
        step = max(tuned.TILE_PAIRS // max(len(keys), 1), 16)
        for first in range(0, len(rows), step):
            yield rows[first : first + step], keys


def gathered(kernel: Kernel, metric: Metric, points: Points) -> Array | None:
    """`(N, V)`: the local constant of each point on a line from all others, faster than by tiles;
    None where one has many neighbors.
    """
    u, rows = points.places.x[:, 0] * metric.scale[0], np.arange(len(points))
    first, last = _windows(kernel, u, u, points.log_ratio(points.category_losses(metric)), rows)
    most = int(max((rows - first).max(), (last - 1 - rows).max()))
    if most > tuned.FEW_KEYS:
        return None
    away = np.delete(np.arange(-most, most + 1), most)
    value, step = np.empty(points.y.shape), tuned.TILE_PAIRS // len(away)
    for start in range(0, len(rows), step):
        here = rows[start : start + step]
        keys = here[:, None] + away  # (r, k)
        outside = (keys < 0) | (keys >= len(rows))
        keys[outside] = 0
        squared = np.square(u[keys] - u[here, None])
        squared[outside] = np.inf
        logs = None if points.weight is None else np.log(points.weight[keys])
        share, _, _ = _shares(kernel, squared, logs, False, True)
        value[here] = np.einsum("rk,rkv->rv", share, points.y[keys])
    return value


def in_threads(function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
    """`map`, a few items ahead in threads: NumPy releases the GIL in long loops."""
    # A container may limit the cores of this process.
    of_process = getattr(os, "sched_getaffinity", None)
    cores = len(of_process(0)) if of_process else os.cpu_count() or 1
    workers = min(cores, tuned.MAX_THREADS)
    # No thread outlives the loop, so that the process can fork later.
    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        waiting: collections.deque[concurrent.futures.Future[Result]] = collections.deque()
        for item in items:
            waiting.append(pool.submit(function, item))
            if len(waiting) > workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def _squared_distances(query: Array, key: Array) -> Array:
    """`(r, k)`, from differences, to keep all digits."""
    if query.shape[1] > 1:
        from scipy.spatial.distance import cdist  # lazily, since one column needs none

        return cdist(query, key, "sqeuclidean")
    if not query.shape[1]:
        return np.zeros((len(query), len(key)))
    difference = np.subtract.outer(query[:, 0], key[:, 0])
    return np.square(difference, out=difference)


def _shares(
    kernel: Kernel, squared: Array, logs: Array | None, slopes: bool, nearest: bool
) -> tuple[Array, Array | None, Array]:
    """(Weights whose rows sum to 1, their slopes, whether each row is empty)."""
    slope: Array | None = None
    if np.isinf(kernel.support) or kernel.value is None:
        weight = kernel.log(squared)
        if logs is not None:  # before the maximum, since a weight may be tiny
            weight += logs
        greatest = weight.max(axis=1)
        far = (greatest < tuned.UNDERFLOW) & np.isfinite(greatest)
        if far.any():  # relative to the maximum of the row, no significant weight underflows
            weight[far] -= greatest[far, None]
        np.maximum(weight, tuned.LOWEST_LOG, out=weight)
        np.exp(weight, out=weight)
        weight[np.isneginf(greatest)] = 0.0  # rows without neighbors
        slope = kernel.slope(squared, weight) if slopes else None
    else:
        weight = kernel.value(squared)
        slope = kernel.slope(squared, weight) if slopes else None
        if logs is not None:
            # Relative to the keys within the support, whose weights do not underflow then.
            greatest = np.where(weight > 0.0, logs, -np.inf).max(axis=1, keepdims=True)
            factor = np.exp(np.minimum(logs - np.where(np.isinf(greatest), 0.0, greatest), 0.0))
            weight *= factor
            slope = None if slope is None else slope * factor
    total = weight.sum(axis=1, keepdims=True)
    empty = total[:, 0] == 0.0
    if empty.any():
        if nearest:
            logs = np.broadcast_to(0.0 if logs is None else logs, squared.shape)
            weight[empty] = _nearest(squared[empty], logs[empty])
        total = weight.sum(axis=1, keepdims=True)
        total[total == 0.0] = 1.0
    weight /= total
    if slope is not None:
        slope /= total
        slope[empty] = 0.0
    return weight, slope, empty


def _nearest(squared: Array, logs: Array) -> Array:
    """The weights of the nearest keys of each row that are possible; 0 if none is."""
    squared = np.where(np.isneginf(logs), np.inf, squared)
    least = squared.min(axis=1, keepdims=True)
    # With a tolerance: evenly spaced points are equally far despite rounding.
    nearest = (squared <= least * (1.0 + 1e-11)) & np.isfinite(least)
    logs = np.where(nearest, logs, -np.inf)
    return np.exp(logs - np.maximum(logs.max(axis=1, keepdims=True), tuned.LOWEST_LOG))
