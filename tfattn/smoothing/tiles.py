"""Pairs of queries and keys, a few rows at a time: memory grows with the points, never with pairs.

On a line keys and queries are sorted, and a tile has only the keys that its queries can see.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from tfattn.smoothing.kernels import Kernel
from tfattn.smoothing.points import Metric, Points, Queries

__all__ = ["Tile", "nearest_distances", "tiles"]

Array = np.ndarray
LEAST = 64  # keys that a tile on a line may have more than one of its queries sees
PAIRS = 2**17  # of a tile: 1 MiB an array, so that a few of them stay in the cache


class Tile(NamedTuple):
    """Rows of weights.

    Attributes:
        rows, keys: slices of the queries and of the points.
        share: `(r, k)`, weights whose rows sum to 1, or to 0 where no key is seen.
        slope: `(r, k)`, what `share` · total changes with the squared distance, over that total;
            None where it was not asked for.
        empty: `(r,)` bool, the rows whose queries have no neighbour within the support.
        query_u, key_u: `(r, D)` and `(k, D)`, both sides in bandwidths.
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
        left_out: `(N,)` int, a point that each query does not see, and whose place it has.
        slopes: whether tiles have them.
        nearest: whether a query without neighbours sees the nearest point (points, where several
            are as near). Otherwise its row is 0.
    """
    query_u, key_u = queries.x @ metric.map, points.places.x @ metric.map
    for rows, keys in _slices(kernel, points, query_u, key_u, left_out, nearest):
        squared = _squared_distances(query_u[rows], key_u[keys])
        if left_out is not None:
            squared[np.arange(len(squared)), left_out[rows] - keys.start] = np.inf
        logs = _category_logs(metric, points, queries, rows, keys)
        share, slope, empty = _shares(kernel, squared, logs, points, keys, slopes, nearest)
        yield Tile(rows, keys, share, slope, empty, query_u[rows], key_u[keys])


def _squared_distances(query: Array, key: Array) -> Array:
    if query.shape[1] > 4:
        # A product is faster, and in so many columns bandwidths are wide: no digits are missed.
        squared = query @ (-2.0 * key.T)
        squared += np.square(query).sum(1)[:, None]
        squared += np.square(key).sum(1)
        return np.maximum(squared, 0.0, out=squared)
    squared = np.zeros((len(query), len(key)))
    for column in range(query.shape[1]):
        difference = np.subtract.outer(query[:, column], key[:, column])
        squared += np.square(difference, out=difference)
    return squared


def _category_logs(
    metric: Metric, points: Points, queries: Queries, rows: slice, keys: slice
) -> Array | None:
    if queries.hot is None:
        return None
    gain, base = metric.category_logs(points.counts)
    return (queries.hot[rows] * gain) @ points.places.hot[keys].T + base


def _shares(
    kernel: Kernel,
    squared: Array,
    logs: Array | None,
    points: Points,
    keys: slice,
    slopes: bool,
    nearest: bool,
) -> tuple[Array, Array | None, Array]:
    """Weights whose rows sum to 1, their slopes, and which rows are empty."""
    if np.isinf(kernel.support):
        weight = kernel.log(squared)
        if logs is not None:
            weight += logs
        # Relative to the greatest of its row no weight underflows that would count.
        greatest = weight.max(axis=1, keepdims=True)
        weight -= np.where(np.isfinite(greatest), greatest, 0.0)
        np.exp(weight, out=weight)
        slope = kernel.slope(squared, weight) if slopes else None
    else:
        weight = kernel.value(squared)
        slope = kernel.slope(squared, weight) if slopes else None
        if logs is not None:
            factor = np.exp(logs - logs.max(axis=1, keepdims=True))
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
    """The weights of the keys that are the nearest of their row; a row of inf has none."""
    least = squared.min(axis=1, keepdims=True)
    return np.where((squared == least) & np.isfinite(least), weight, 0.0)


def _slices(
    kernel: Kernel,
    points: Points,
    query_u: Array,
    key_u: Array,
    left_out: Array | None,
    nearest: bool,
) -> Iterator[tuple[slice, slice]]:
    """Pairs of slices: some rows, and every key that they see."""
    count, keys = len(query_u), len(points)
    if not points.is_line:
        step = max(1, PAIRS // max(keys, 1))
        for start in range(0, count, step):
            yield slice(start, min(start + step, count)), slice(0, keys)
        return
    first, last = _windows(kernel, query_u[:, 0], key_u[:, 0], left_out, nearest)
    start = 0
    while start < count:
        # So many rows that what they see together is little more than what one of them sees.
        width = max(int(last[start] - first[start]), 1)
        stop = int(np.searchsorted(first, first[start] + max(width // 4, LEAST), side="right"))
        stop = min(max(stop, start + 1), start + max(1, PAIRS // width), count)
        low, high = int(first[start:stop].min()), int(last[start:stop].max())
        yield slice(start, stop), slice(low, high)
        start = stop


def _windows(
    kernel: Kernel, query: Array, key: Array, left_out: Array | None, nearest: bool
) -> tuple[Array, Array]:
    """The first key that each query sees, and the one after the last: both never fall."""
    distance = nearest_distances(query, key, left_out)
    distance = np.where(np.isfinite(distance), distance, 0.0)
    reach = kernel.reach(distance)
    if nearest:
        reach = np.maximum(reach, distance)
    # Wider by a hair: a key at the very edge must not be lost to rounding.
    reach = reach * (1.0 + 1e-9) + 1e-12 * np.abs(query)
    first = np.searchsorted(key, query - reach, side="left")
    last = np.searchsorted(key, query + reach, side="right")
    if left_out is not None:  # it is always there, to be left out
        first, last = np.minimum(first, left_out), np.maximum(last, left_out + 1)
    return np.minimum.accumulate(first[::-1])[::-1], np.maximum.accumulate(last)


def nearest_distances(query: Array, key: Array, left_out: Array | None = None) -> Array:
    """How far the nearest key is, on a line and without those left out; both are sorted."""
    padded = np.concatenate([[-np.inf], key, [np.inf]])
    if left_out is not None:
        return np.minimum(query - padded[left_out], padded[left_out + 2] - query)
    after = np.searchsorted(key, query)
    return np.minimum(query - padded[after], padded[after + 1] - query)
