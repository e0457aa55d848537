"""Weights of pairs of queries and keys, tile by tile, so that memory grows with the points only."""

import collections
import concurrent.futures
import os
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, TypeVar

import numpy as np

from tfattn.kernel_regression import tuned
from tfattn.kernel_regression.kernels import Kernel
from tfattn.kernel_regression.near import Place
from tfattn.kernel_regression.points import Index, Metric, Points, Queries

Array = np.ndarray
Item = TypeVar("Item")
Result = TypeVar("Result")


class Tile(NamedTuple):
    """Weights that some queries give to the keys that they see."""

    rows: Index  # of the queries
    keys: Index  # of the points
    share: Array  # (r, k), weights whose rows sum to 1, or to 0 without neighbors
    slope: Array | None  # (r, k), ∂ weight / ∂ squared distance, over the sum of weights
    empty: Array  # (r,) bool, whether the query has no neighbor within the support
    query_u: Array  # (r, D), in bandwidths
    key_u: Array  # (k, D)


def tiles(
    kernel: Kernel,
    metric: Metric,
    points: Points,
    queries: Queries,
    places: Iterable[Place],
    left_out: Array | None = None,
    slopes: bool = False,
    nearest: bool = False,
) -> Iterator[Tile]:
    """The tile of each place, in which no query sees its own point, `left_out` `(M,)`. The nearest
    points predict a query without neighbors; without `nearest` its row is 0.
    """
    query_u, key_u = queries.x * metric.scale, points.places.x * metric.scale
    squares = Squares(query_u, key_u, kernel.pointed)

    def tile(place: Place) -> Tile:
        rows, keys = place
        squared = squares(rows, keys)
        if left_out is not None:
            own = left_out[rows]
            own = own - keys.start if isinstance(keys, slice) else np.searchsorted(keys, own)
            squared[np.arange(len(squared)), own] = np.inf
        one_hot = None if queries.one_hot is None else queries.one_hot[rows]
        same = points.in_category(metric, one_hot, keys)
        if same is not None:
            squared[~same] = np.inf
        logs = points.category_logs(metric, one_hot, keys)
        share, slope, empty = shares(kernel, squared, logs, points, keys, slopes, nearest)
        return Tile(rows, keys, share, slope, empty, query_u[rows], key_u[keys])

    pairs = 0 if points.is_line else len(queries) * len(points)
    yield from parallel_map(tile, places, pairs)


def means(
    kernel: Kernel, metric: Metric, points: Points, queries: Queries, places: Iterable[Place]
) -> tuple[Array, Array]:
    """(The local constant of each query, where it is accurate): weights that underflow are not,
    since they are not computed relative to the greatest.
    """
    scale = metric.scale
    squares = Squares(queries.x * scale, points.places.x * scale, kernel.pointed)
    weight = points.weights[:, None]
    channels = np.concatenate([weight, weight * points.y], axis=1)
    tails = np.isinf(kernel.support) or kernel.value is None

    def sums(place: Place) -> tuple[Index, Array]:
        rows, keys = place
        if callable(keys):
            return rows, keys() @ channels
        squared = squares(rows, keys)
        weights = kernel.log(squared) if tails else kernel.value(squared)  # type: ignore[misc]
        if tails:
            np.maximum(weights, tuned.LOWEST_LOG, out=weights)
            np.exp(weights, out=weights)
        return rows, weights @ channels[keys]

    total = np.empty((len(queries), channels.shape[1]))
    for rows, found in parallel_map(sums, places, len(queries) * len(points)):
        total[rows] = found
    least = tails * float(np.exp(tuned.LOWEST_LOG) * weight.sum()) * 2.0**53
    accurate = total[:, 0] > least
    total[~accurate, 0] = 1.0
    return total[:, 1:] / total[:, :1], accurate


def gathered(kernel: Kernel, metric: Metric, points: Points, most: int) -> Array:
    """`(N, V)`: each point on a line, predicted from at most so many neighbors on either side by a
    local constant.
    """
    u, rows = points.places.x[:, 0] * metric.scale[0], np.arange(len(points))
    away = np.delete(np.arange(-most, most + 1), most)
    value, step = np.empty(points.y.shape), tuned.LINE_TILE_PAIRS // len(away)
    for start in range(0, len(rows), step):
        here = rows[start : start + step]
        keys = here[:, None] + away  # (r, k)
        outside = (keys < 0) | (keys >= len(rows))
        keys[outside] = 0
        squared = np.square(u[keys] - u[here, None])
        squared[outside] = np.inf
        share, _, _ = shares(kernel, squared, None, points, keys)
        value[here] = np.einsum("rk,rkv->rv", share, points.y[keys])
    return value


def parallel_map(
    function: Callable[[Item], Result], items: Iterable[Item], pairs: int
) -> Iterator[Result]:
    """`map`, in threads for many pairs."""
    return map(function, items) if pairs < tuned.THREADED_PAIRS else _in_threads(function, items)


def _in_threads(function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
    """`map`, a few items ahead in threads: NumPy releases the GIL in long loops."""
    workers = min(_cores(), tuned.MAX_THREADS)
    if workers == 1:
        yield from map(function, items)
        return
    pool = concurrent.futures.ThreadPoolExecutor(workers)
    try:
        waiting: collections.deque[concurrent.futures.Future[Result]] = collections.deque()
        for item in items:
            waiting.append(pool.submit(function, item))
            if len(waiting) > workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        # After an error or an interrupt the rest is canceled, and no thread outlives the loop, so
        # that the process can fork later.
        pool.shutdown(wait=True, cancel_futures=True)


def _cores() -> int:
    """The number of cores for this process, which a container may limit."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class Squares:
    """Squared distances of any rows and keys, `(r, k)`; `exact` where they are small."""

    def __init__(self, query: Array, key: Array, exact: bool):
        middle = np.median(key, axis=0)  # robust to a few distant points
        query, key = query - middle, key - middle
        self.query, self.key, width = query, key, query.shape[1]
        query_norms, key_norms = (np.square(u).sum(axis=1)[:, None] for u in (query, key))
        # |q|² + |k|² − 2 q·k is one product, but loses digits many bandwidths from the middle.
        near = max(query_norms.max(initial=0.0), key_norms.max(initial=0.0)) < tuned.FAR_SQUARED
        self.by_product = near and (width > 4 or (width > 1 and not exact))
        if self.by_product:
            self.left = np.concatenate([query, query_norms, np.ones_like(query_norms)], axis=1)
            self.right = np.concatenate([-2.0 * key, np.ones_like(key_norms), key_norms], axis=1)

    def __call__(self, rows: Index, keys: Index) -> Array:
        if self.by_product:
            squared = self.left[rows] @ self.right[keys].T
            return np.maximum(squared, 0.0, out=squared)
        query, key = self.query[rows], self.key[keys]
        squared = np.zeros((len(query), len(key)))
        for column in range(query.shape[1]):
            difference = np.subtract.outer(query[:, column], key[:, column])
            squared += np.square(difference, out=difference)
        return squared


def shares(
    kernel: Kernel,
    squared: Array,
    logs: Array | None,
    points: Points,
    keys: Index,
    slopes: bool = False,
    nearest: bool = False,
) -> tuple[Array, Array | None, Array]:
    """(Weights whose rows sum to 1, their slopes, whether each row is empty)."""
    if np.isinf(kernel.support) or kernel.value is None:
        weight = kernel.log(squared)
        if logs is not None:
            weight += logs
        if points.weight is not None:  # before the maximum, since a weight may be tiny
            weight += np.log(points.weight[keys])
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
            slope = slope * factor if slopes else None
        if points.weight is not None:
            weight *= points.weight[keys]
            slope = slope * points.weight[keys] if slopes else None
    total = weight.sum(axis=1, keepdims=True)
    empty = total[:, 0] == 0.0
    if empty.any():
        if nearest:
            weight[empty] = _nearest(squared[empty], points.weights[keys])
        total = weight.sum(axis=1, keepdims=True)
        total[total == 0.0] = 1.0
    weight /= total
    if slopes:
        slope /= total
        slope[empty] = 0.0
    return weight, slope, empty


def _nearest(squared: Array, weight: Array) -> Array:
    """The weights of the nearest keys of each row; 0 for a row of inf."""
    least = squared.min(axis=1, keepdims=True)
    # With a tolerance: evenly spaced points are equally far despite rounding.
    return np.where((squared <= least * (1.0 + 1e-11)) & np.isfinite(least), weight, 0.0)
