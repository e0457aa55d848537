"""The leave-one-out error, and its gradient with respect to every bandwidth."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from tfattn.kernel_regression import line, tuned
from tfattn.kernel_regression.kernels import Kernel
from tfattn.kernel_regression.local import LocalFit, fit_tile
from tfattn.kernel_regression.points import Metric, Points
from tfattn.kernel_regression.tiles import Tile, shares, tiles, windows

Array = np.ndarray


class LeftOut(NamedTuple):
    """The leave-one-out error of a metric.

    Attributes:
        error: the weighted mean of squared errors, over points and outputs.
        by_log: `(D,)`, the derivatives with respect to the log bandwidths.
        by_logit: `(K,)`, the derivatives with respect to log λ / (1 − λ) of categorical columns.
    """

    error: float
    by_log: Array
    by_logit: Array


def predictions(
    kernel: Kernel, metric: Metric, points: Points, degree: int, nearest: bool
) -> Array:
    """`(N, V)`, the prediction of each point from all others."""
    value, rows = np.empty(points.y.shape), np.arange(len(points))
    if line.is_faster(kernel, metric, points, len(points)):
        fast = line.fit_line(metric, points, points.places.x[:, 0], degree, rows)
        value, rows = fast.value, np.flatnonzero(~fast.accurate)
    for tile, fit in _fits(kernel, metric, points, degree, rows, nearest, slopes=False):
        value[rows[tile.rows]] = fit.value
    return value


def leave_one_out(
    kernel: Kernel,
    metric: Metric,
    points: Points,
    degree: int,
    nearest: bool,
    gradient: bool = True,
) -> LeftOut:
    """The error of predicting each point from all others, and its gradient.

    Args:
        degree: 0 for local constants, 1 for local lines.
        nearest: whether the nearest other point predicts a point without neighbors; else the mean
            of the others does.
        gradient: whether to compute the gradient; else it is 0, in about half of the time.
    """
    gradient = gradient and kernel.smooth
    importance = points.weights / points.weights.sum() / points.y.shape[1]
    error, by_log, by_logit = 0.0, np.zeros(len(metric.scale)), np.zeros(len(points.counts))
    rows = np.arange(len(points))
    if line.is_faster(kernel, metric, points, len(points)):
        fast = line.fit_line(metric, points, points.places.x[:, 0], degree, rows, gradient)
        accurate, rows = np.flatnonzero(fast.accurate), np.flatnonzero(~fast.accurate)
        errors = fast.value[accurate] - points.y[accurate]
        error += float(importance[accurate] @ np.square(errors).sum(1))
        if fast.change is not None:
            by_log += 2.0 * importance[accurate] @ np.sum(errors * fast.change[accurate], axis=1)
    elif not gradient and degree == 0 and points.is_line and np.isinf(kernel.support):
        value = few_neighbors(kernel, metric, points)
        if value is not None:
            error += float(importance @ np.square(value - points.y).sum(1))
            rows = rows[:0]
    far = (np.ptp(points.places.x, axis=0) * metric.scale).max(initial=0.0) > tuned.FAR
    for tile, fit in _fits(kernel, metric, points, degree, rows, nearest, gradient):
        here = rows[tile.rows]
        errors = fit.value - points.y[here]
        error += float(importance[here] @ np.square(errors).sum(1))
        if gradient:
            by_value = 2.0 * importance[here, None] * errors
            by_weight = fit.residuals_times(by_value, points.y[tile.keys])
            by_weight *= fit.equivalent()
            by_weight[tile.empty] = 0.0
            if points.is_line:  # a tile contains only neighbors, sorted
                far = tile.key_u[-1, 0] - tile.key_u[0, 0] > tuned.FAR
            by_logit += _sum_over_differing(points, here, tile.keys, by_weight * tile.share)
            pair = by_weight * tile.slope
            by_log -= 2.0 * _squared_differences(pair, tile.query_u, tile.key_u, far)
    return LeftOut(error, by_log, by_logit)


def few_neighbors(kernel: Kernel, metric: Metric, points: Points) -> Array | None:
    """`(N, V)`, the prediction of each point on a line from few neighbors; None for many."""
    u, rows = points.places.x[:, 0] * metric.scale[0], np.arange(len(points))
    first, last = windows(kernel, u, u, points.log_ratio(tuned.NEGLIGIBLE), rows, nearest=False)
    most = int(max((rows - first).max(), (last - 1 - rows).max()))
    if most > tuned.FEW_KEYS:
        return None
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


def _fits(
    kernel: Kernel,
    metric: Metric,
    points: Points,
    degree: int,
    rows: Array,
    nearest: bool,
    slopes: bool,
) -> Iterator[tuple[Tile, LocalFit]]:
    """The fits at some of the points from all others, tile by tile."""
    queries = points.places.take(rows)
    for tile in tiles(kernel, metric, points, queries, rows, slopes, nearest):
        fit = fit_tile(tile, points, queries, degree)
        if not nearest and tile.empty.any():
            left = rows[tile.rows][tile.empty]
            fit.value[tile.empty] = points.mean(metric, points.places.take(left).one_hot, left)
        yield tile, fit


def _squared_differences(pair: Array, query: Array, key: Array, far: bool) -> Array:
    """`(D,)`: Σ_rk pair[r, k] · (query_r − key_k)²."""
    if far:  # differences of squares would lose the digits of small distances
        return np.tensordot(pair, np.square(query[:, None, :] - key), 2)
    middle = query.mean(axis=0)
    query, key = query - middle, key - middle
    squared = pair.sum(1) @ np.square(query) + pair.sum(0) @ np.square(key)
    return squared - 2.0 * np.sum(query * (pair @ key), axis=0)


def _sum_over_differing(points: Points, rows: Array, keys: slice, pair: Array) -> Array:
    """`(K,)`: the sum over pairs that differ in each category."""
    one_hot = points.places.one_hot
    if one_hot is None:
        return np.zeros(0)
    same = np.sum(one_hot[rows] * (pair @ one_hot[keys]), axis=0)  # (C,)
    first = np.concatenate([[0], np.cumsum(points.counts)[:-1]])
    return pair.sum() - np.add.reduceat(same, first)
