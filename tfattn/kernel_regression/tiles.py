"""Weights of pairs of queries and keys, tile by tile: memory grows with the points, not with pairs.

On a line keys and queries are sorted, and a tile has only keys within the windows of its queries.
"""

import collections
import concurrent.futures
import os
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, TypeVar

import numpy as np

from tfattn.kernel_regression import tuned
from tfattn.kernel_regression.kernels import Kernel
from tfattn.kernel_regression.points import Metric, Points, Queries

Array = np.ndarray
Item = TypeVar("Item")
Result = TypeVar("Result")


class Tile(NamedTuple):
    """Rows of weights.

    Attributes:
        rows, keys: slices of the queries and of the points.
        share: `(r, k)`, weights whose rows sum to 1, or to 0 without neighbors.
        slope: `(r, k)`, the derivative of the unnormalized weight with respect to the squared
            distance, over the sum of weights; None without `slopes`.
        empty: `(r,)` bool, whether the query has no neighbor within the support.
        query_u, key_u: `(r, D)` and `(k, D)`, queries and keys in bandwidths.
    """

    rows: slice
    keys: slice
    share: Array
    slope: Array | None
    empty: Array
    query_u: Array
    key_u: Array


def tiles(
    kernel: Kernel,
    metric: Metric,
    points: Points,
    queries: Queries,
    left_out: Array | None = None,
    slopes: bool = False,
    nearest: bool = False,
) -> Iterator[Tile]:
    """All pairs, tile by tile.

    Args:
        queries: on a line, sorted.
        left_out: `(N,)` int, index of each query's own point, unweighted.
        slopes: whether to compute the slopes.
        nearest: whether the nearest points predict a query without neighbors; else its row is 0.
    """
    query_u, key_u = queries.x * metric.scale, points.places.x * metric.scale
    squares = Squares(query_u, key_u, kernel.pointed)

    def tile(place: tuple[slice, slice]) -> Tile:
        rows, keys = place
        squared = squares(rows, keys)
        if left_out is not None:
            squared[np.arange(len(squared)), left_out[rows] - keys.start] = np.inf
        one_hot = None if queries.one_hot is None else queries.one_hot[rows]
        same = points.in_category(metric, one_hot, keys)
        if same is not None:
            squared[~same] = np.inf
        logs = points.category_logs(metric, one_hot, keys)
        share, slope, empty = shares(kernel, squared, logs, points, keys, slopes, nearest)
        return Tile(rows, keys, share, slope, empty, query_u[rows], key_u[keys])

    places = _slices(kernel, points, query_u, key_u, left_out, nearest)
    pairs = 0 if points.is_line else len(queries) * len(points)
    yield from parallel_map(tile, places, pairs)


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
    """Squared distances of any rows and keys, `(r, k)`."""

    def __init__(self, query: Array, key: Array, exact: bool):
        middle = np.median(key, axis=0)  # robust to a few distant points
        query, key = query - middle, key - middle
        self.query, self.key = query, key
        query_norms, key_norms = (np.square(u).sum(axis=1)[:, None] for u in (query, key))
        width = query.shape[1]
        # |q|² + |k|² − 2 q·k is one product, but loses digits many bandwidths from the middle.
        near = max(query_norms.max(initial=0.0), key_norms.max(initial=0.0)) < tuned.FAR_SQUARED
        self.by_product = near and (width > 4 or (width > 1 and not exact))
        if self.by_product:
            self.left = np.concatenate([query, query_norms, np.ones_like(query_norms)], axis=1)
            self.right = np.concatenate([-2.0 * key, np.ones_like(key_norms), key_norms], axis=1).T

    def __call__(self, rows: slice, keys: slice) -> Array:
        if self.by_product:
            squared = self.left[rows] @ self.right[:, keys]
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
    keys: slice | Array,
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


def _slices(
    kernel: Kernel,
    points: Points,
    query_u: Array,
    key_u: Array,
    left_out: Array | None,
    nearest: bool,
) -> Iterator[tuple[slice, slice]]:
    """Pairs of slices: some rows, and every key within their windows."""
    count, keys, width = len(query_u), len(points), query_u.shape[1]
    if not points.is_line:
        pairs = max(tuned.TILE_PAIRS, tuned.BLAS_PRODUCT // max(width + 2, width**2))
        step = max(1, pairs // max(keys, 1))
        for start in range(0, count, step):
            yield slice(start, min(start + step, count)), slice(0, keys)
        return
    log_ratio = points.log_ratio(tuned.NEGLIGIBLE)
    first, last = windows(kernel, query_u[:, 0], key_u[:, 0], log_ratio, left_out, nearest)
    yield from slices_of_windows(first, last, tuned.LINE_TILE_PAIRS)


def slices_of_windows(first: Array, last: Array, pairs: int) -> Iterator[tuple[slice, slice]]:
    """Slices of queries that share most of their windows, with all keys in these."""
    start = 0
    while start < len(first):
        width = max(int(last[start] - first[start]), 1)
        farthest = first[start] + max(width // 4, tuned.EXTRA_KEYS)
        stop = int(np.searchsorted(first, farthest, side="right"))
        stop = min(max(stop, start + 1), start + max(1, pairs // width), len(first))
        yield slice(start, stop), slice(int(first[start]), int(last[stop - 1]))
        start = stop


def windows(
    kernel: Kernel,
    query: Array,
    key: Array,
    log_ratio: float,
    left_out: Array | None,
    nearest: bool,
) -> tuple[Array, Array]:
    """The window of each query: index of its first key and after its last. Neither decreases."""
    distance = nearest_distances(query, key, left_out)
    distance = np.where(np.isfinite(distance), distance, 0.0)
    reach = kernel.seen(distance, log_ratio)
    if nearest:
        reach = np.maximum(reach, distance)
    # A tolerance, so that rounding excludes no key at the edge.
    reach = reach * (1.0 + 1e-9) + 1e-12 * np.abs(query)
    first = np.searchsorted(key, query - reach, side="left")
    last = np.searchsorted(key, query + reach, side="right")
    if left_out is not None:  # the window includes the point itself, which is then excluded
        first, last = np.minimum(first, left_out), np.maximum(last, left_out + 1)
    return np.minimum.accumulate(first[::-1])[::-1], np.maximum.accumulate(last)


def nearest_distances(query: Array, key: Array, left_out: Array | None = None) -> Array:
    """Distances to the nearest key, on a line and without points left out; both are sorted."""
    padded = np.concatenate([[-np.inf], key, [np.inf]])
    if left_out is not None:
        return np.minimum(query - padded[left_out], padded[left_out + 2] - query)
    after = np.searchsorted(key, query)
    return np.minimum(query - padded[after], padded[after + 1] - query)
