"""Weights and local fits of queries and keys, tile by tile: memory grows with the points only."""

import collections
import concurrent.futures
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, TypeVar

import numpy as np

from tfattn.kernel_regression import tuned
from tfattn.kernel_regression.kernels import Kernel
from tfattn.kernel_regression.near import Place, places
from tfattn.kernel_regression.points import Index, Metric, Places, Points

Array = np.ndarray
Item = TypeVar("Item")
Result = TypeVar("Result")


class Line(NamedTuple):
    """The local line of each row of a tile, in scaled units."""

    mean: Array  # (r, V), the weighted mean of y
    slope: Array  # (r, D, V)
    center: Array  # (r, D), the weighted mean of the keys
    lean: Array  # (r, D): key x has the equivalent weight share · (1 + (x − center) · lean).
    x: Array  # (k, D), the keys


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
            value, line = _line(share, points.places.x[keys], y, value, queries.x[rows])
        if not nearest:
            value[empty] = np.nan
        elif left_out is not None:
            alone = empty & ~share.any(axis=1)  # the only points of their categories
            value[alone] = points.mean_without(left_out[rows][alone])
        return Tile(rows, keys, share, slope, empty, query, key, value, line)

    settings = (points.log_ratio(losses), left_out, points.is_line)
    near = places(kernel, query_u, key_u, *settings)
    many = len(queries) * len(points) >= tuned.THREADED_PAIRS and not points.is_line
    return in_threads(tile, near) if many else map(tile, near)


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


def _line(share: Array, x: Array, y: Array, mean: Array, query: Array) -> tuple[Array, Line]:
    """(The value at each query, the local line)."""
    # Centered, since digits are lost far from the origin.
    middle = np.median(query, axis=0)
    x, query = x - middle, query - middle
    few = 0 < len(y) <= x.shape[1]  # so few keys span fewer dimensions: `_moments` loses digits
    moments = _moments_about_nearest if few else _moments
    center, spread, covariance = moments(share, x, y, mean)
    variance = np.einsum("rdd->rd", spread)
    inverse, least = _inverse(spread, query - center)
    lost = (variance <= tuned.LOST_VARIANCE * np.square(center)).any(1)
    lost |= least < tuned.ILL_CORRELATION
    if lost.any() and len(y) and not few:
        again = _moments_about_nearest(share[lost], x, y, mean[lost])
        center[lost], spread[lost], covariance[lost] = again
        inverse[lost], _ = _inverse(spread[lost], query[lost] - center[lost])
    away = query - center
    slope = inverse @ covariance
    lean = np.einsum("rde,re->rd", inverse, away)
    value = mean + np.einsum("rd,rdv->rv", away, slope)
    return value, Line(mean, slope, center, lean, x)


def quadratic_weights(tile: Tile) -> Array:
    """`(r, k)`: the weight of each y in the local quadratic fit of each row."""
    away = tile.key_u - tile.query_u[:, None, :]  # (r, k, D)
    first, second = np.triu_indices(away.shape[2])
    terms = np.concatenate([away, away[..., first] * away[..., second]], axis=2)  # 0 at the query
    center = np.einsum("rk,rkf->rf", tile.share, terms)
    terms -= center[:, None, :]
    spread = np.swapaxes(tile.share[:, :, None] * terms, 1, 2) @ terms
    inverse, _ = _inverse(spread, center)
    lean = -np.einsum("rfg,rg->rf", inverse, center)
    return tile.share * (1.0 + np.einsum("rkf,rf->rk", terms, lean))


def _moments(share: Array, x: Array, y: Array, mean: Array) -> tuple[Array, Array, Array]:
    """Row by row mean `(r, D)` and variance `(r, D, D)` of x, and covariance with y `(r, D, V)`."""
    width = x.shape[1]
    center = share @ x
    squares = (x[:, :, None] * x[:, None, :]).reshape(len(x), width * width)
    spread = (share @ squares).reshape(len(share), width, width)
    spread -= center[:, :, None] * center[:, None, :]
    products = (x[:, :, None] * y[:, None, :]).reshape(len(x), width * y.shape[1])
    covariance = (share @ products).reshape(len(share), width, y.shape[1])
    covariance -= center[:, :, None] * mean[:, None, :]
    return center, spread, covariance


def _moments_about_nearest(
    share: Array, x: Array, y: Array, mean: Array
) -> tuple[Array, Array, Array]:
    """`_moments`, centered at the nearest key of each row, then at the mean, to keep all digits."""
    greatest = share.max(axis=1, keepdims=True)
    share = np.where(share > tuned.NEGLIGIBLE * greatest, share, 0.0)
    nearest = x[np.argmax(share, axis=1)]
    x = x - nearest[:, None, :]  # (r, k, D)
    center = np.einsum("rk,rkd->rd", share, x)
    x -= center[:, None, :]
    weighted = np.swapaxes(share[:, :, None] * x, 1, 2)  # (r, D, k)
    spread = weighted @ x
    covariance = weighted @ y - weighted.sum(axis=2)[:, :, None] * mean[:, None, :]
    return center + nearest, spread, covariance


def _inverse(spread: Array, away: Array) -> tuple[Array, Array]:
    """The pseudo-inverse of each matrix, 0 in directions without spread; and the least eigenvalue
    of its correlations, `(r,)`.
    """
    variance = np.einsum("rdd->rd", spread)
    varies = variance > tuned.NO_SPREAD * np.square(away)
    deviation = np.sqrt(variance, where=varies, out=np.ones(varies.shape))
    scale = np.where(varies, 1.0 / deviation, 0.0)
    values, vectors = np.linalg.eigh(scale[:, :, None] * spread * scale[:, None, :])
    known = values > tuned.FLAT_CORRELATION
    inverse = np.divide(1.0, values, out=np.zeros_like(values), where=known)
    inverse = (vectors * inverse[:, None, :]) @ np.swapaxes(vectors, 1, 2)
    return scale[:, :, None] * inverse * scale[:, None, :], values.min(axis=1)
