"""The leave-one-out error, and its gradient with respect to every bandwidth."""

from typing import NamedTuple

import numpy as np

from tfattn.kernel_regression import tuned
from tfattn.kernel_regression.points import Index, Points
from tfattn.kernel_regression.smoother import Smoother

Array = np.ndarray


class LeftOut(NamedTuple):
    """The leave-one-out error of a metric."""

    error: float  # the weighted mean of squared errors, over points and outputs
    by_log: Array  # (D,), the derivatives with respect to the log bandwidths
    by_logit: Array  # (K,), those with respect to log λ / (1 − λ) of categorical columns


def leave_one_out(smoother: Smoother, gradient: bool = True) -> LeftOut:
    """The error of predicting each point from all others, and its gradient: 0 without `gradient`,
    in about half of the time.
    """
    points, metric = smoother.points, smoother.metric
    gradient = gradient and smoother.kernel.smooth
    importance = points.weights / points.weights.sum() / points.y.shape[1]
    by_log, by_logit = np.zeros(len(metric.scale)), np.zeros(len(points.counts))
    fast = smoother.fast(points.places, np.arange(len(points)), gradient)
    accurate, rows = np.flatnonzero(fast.accurate), np.flatnonzero(~fast.accurate)
    errors = fast.value[accurate] - points.y[accurate]
    error = float(importance[accurate] @ np.square(errors).sum(1))
    if fast.change is not None:
        by_log += 2.0 * importance[accurate] @ np.sum(errors * fast.change[accurate], axis=1)
    for tile, fit in smoother.fits(points.places.take(rows), gradient, rows):
        here = rows[tile.rows]
        errors = fit.value - points.y[here]
        error += float(importance[here] @ np.square(errors).sum(1))
        if gradient:
            by_value = 2.0 * importance[here, None] * errors
            by_weight = fit.residuals_times(by_value, points.y[tile.keys])
            by_weight *= fit.equivalent()
            by_weight[tile.empty] = 0.0
            by_logit += _sum_over_differing(points, here, tile.keys, by_weight * tile.share)
            pair = by_weight * tile.slope
            by_log -= 2.0 * _squared_differences(pair, tile.query_u, tile.key_u)
    return LeftOut(error, by_log, by_logit)


def _squared_differences(pair: Array, query: Array, key: Array) -> Array:
    """`(D,)`: Σ_rk pair[r, k] · (query_r − key_k)²."""
    middle = query.mean(axis=0)
    near_query, near_key = query - middle, key - middle
    key_squares = np.square(near_key)
    if key_squares.max(initial=0.0) > tuned.FAR**2:
        # Differences of squares would lose the digits of small distances.
        return np.tensordot(pair, np.square(query[:, None, :] - key), 2)
    squared = pair.sum(1) @ np.square(near_query) + pair.sum(0) @ key_squares
    return squared - 2.0 * np.sum(near_query * (pair @ near_key), axis=0)


def _sum_over_differing(points: Points, rows: Array, keys: Index, pair: Array) -> Array:
    """`(K,)`: the sum over pairs that differ in each category."""
    one_hot = points.places.one_hot
    if one_hot is None:
        return np.zeros(0)
    same = np.sum(one_hot[rows] * (pair @ one_hot[keys]), axis=0)  # (C,)
    first = np.concatenate([[0], np.cumsum(points.counts)[:-1]])
    return pair.sum() - np.add.reduceat(same, first)
