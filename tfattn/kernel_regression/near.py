"""Weighted means from near keys only; the others are negligible in float64.

In several columns queries and keys are sorted along the column with the widest range in bandwidths.
A tile has the keys that are near along this column. Their distance bounds the weights of the other
keys; if these are not negligible, or no key has weight, the query is left to `tiles`, which have
every key and work in log space. On a line, points with few near keys gather those on either side.
"""

import numpy as np

from tfattn.kernel_regression import tuned
from tfattn.kernel_regression.kernels import Kernel
from tfattn.kernel_regression.line import LineFit
from tfattn.kernel_regression.points import Metric, Points, Queries
from tfattn.kernel_regression.tiles import Squares, parallel_map, shares, slices_of_windows, windows

Array = np.ndarray
_DIGITS = 2.0**53


def is_faster(points: Points, queries: Queries) -> bool:
    """Whether there are enough pairs for sorting to be faster."""
    plane = points.places.x.shape[1] > 1 and points.places.one_hot is None
    return plane and len(points) * len(queries) >= tuned.SORTED_PAIRS


def fit_near(kernel: Kernel, metric: Metric, points: Points, queries: Queries) -> LineFit:
    """The local constant at each query."""
    query, key = queries.x * metric.scale, points.places.x * metric.scale
    column = int(np.argmax(np.ptp(key, axis=0)))
    rows, order = np.argsort(query[:, column]), np.argsort(key[:, column])
    query, key = query[rows], key[order]
    weight = points.weights[order, None]
    channels = np.concatenate([weight, weight * points.y[order]], axis=1)
    reach, rest = _reach(kernel, float(weight.sum()))
    first = np.searchsorted(key[:, column], query[:, column] - reach, side="left")
    last = np.searchsorted(key[:, column], query[:, column] + reach, side="right")
    squares = Squares(query, key, kernel.pointed)

    def sums(place: tuple[slice, slice]) -> tuple[slice, Array]:
        squared = squares(*place)
        if np.isinf(kernel.support) or kernel.value is None:
            weights = kernel.log(squared)
            np.maximum(weights, tuned.LOWEST_LOG, out=weights)
            np.exp(weights, out=weights)
        else:
            weights = kernel.value(squared)
        return place[0], weights @ channels[place[1]]

    total = np.empty((len(query), channels.shape[1]))
    pairs = max(tuned.TILE_PAIRS, tuned.BLAS_PRODUCT // max(query.shape[1] + 2, channels.shape[1]))
    places = slices_of_windows(first, last, pairs)
    for here, found in parallel_map(sums, places, len(query) * len(key)):
        total[here] = found
    accurate = total[:, 0] > rest
    total[~accurate, 0] = 1.0
    back = np.argsort(rows)
    return LineFit((total[:, 1:] / total[:, :1])[back], None, accurate[back])


def few_neighbors(kernel: Kernel, metric: Metric, points: Points) -> LineFit | None:
    """Each point on a line predicted from few neighbors by a local constant; None for many."""
    if not points.is_line or np.isfinite(kernel.support):
        return None
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
    return LineFit(value, None, np.ones(len(rows), bool))


def _reach(kernel: Kernel, weight: float) -> tuple[float, float]:
    """(The distance of near keys, the least sum of weights to which the others add no digit)."""
    if np.isfinite(kernel.support):
        return kernel.support * (1.0 + 1e-9), 0.0
    reach = float(kernel.seen(np.zeros(()), -np.log(tuned.NEGLIGIBLE_NEAR)))
    # The log weights of near keys are at least LOWEST_LOG.
    log = tuned.LOWEST_LOG if np.isinf(reach) else kernel.log(np.square(reach))
    return reach, weight * float(np.exp(log)) * _DIGITS
