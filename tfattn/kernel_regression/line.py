"""Gaussian sums on a line in time linear in the points, to the last digits of float64.

The line is divided into boxes of half a bandwidth. For a pair of boxes the kernel is a polynomial
in both positions, with 14 terms: 14 moments summarize a box. The sums take three steps: moments
of the keys, moments from box to box, values at the queries.

A query whose weights sum to less than the weight of a key 3 bandwidths away loses digits in these
sums, and is left to `tiles`, which work in log space.

Source: after Greengard, Strain 1991, "The fast Gauss transform"; differs from it in that the
polynomials are Chebyshev's rather than Hermite's, and only between neighboring boxes.
"""

import functools
from typing import NamedTuple

import numpy as np

from tfattn.kernel_regression import tuned
from tfattn.kernel_regression.kernels import Kernel
from tfattn.kernel_regression.points import Metric, Points

Array = np.ndarray


def is_faster(kernel: Kernel, metric: Metric, points: Points, queries: int) -> bool:
    """Whether sums over boxes are possible, and faster than over pairs."""
    if not kernel.box_sums or not points.is_line or len(points) < 200:
        return False
    u = points.places.x[:, 0] * metric.scale[0]
    spread = float(u[-1] - u[0])
    window = min(1.0, 2.0 * tuned.REACH / max(spread, 1e-300)) * len(points)
    boxes = spread / tuned.BOX
    return queries * window > tuned.POINT_COST * (len(points) + queries) + tuned.BOX_COST * boxes


@functools.cache
def _between_boxes(power: int) -> Array:
    """`(D, P, P)`: for each distance of two boxes, the map from moments to terms."""
    nodes = np.cos(np.pi * (np.arange(tuned.TERMS) + 0.5) / tuned.TERMS)
    terms = np.cos(np.outer(np.arange(tuned.TERMS), np.arccos(nodes)))  # T_a(nodes)
    to_terms = 2.0 / tuned.TERMS * terms
    to_terms[0] /= 2.0
    most = int(np.ceil(tuned.REACH / tuned.BOX))
    result = []
    for distance in range(-most, most + 1):
        difference = tuned.BOX * distance + 0.5 * tuned.BOX * (nodes[None, :] - nodes[:, None])
        kernel = difference**power * np.exp(-0.5 * difference**2)
        result.append(to_terms @ kernel @ to_terms.T)
    return np.stack(result)


def _terms(u: Array, origin: float) -> tuple[Array, Array]:
    """(The box of each position, `(N, P)` Chebyshev polynomials of the position in it)."""
    box = np.clip(np.floor((u - origin) / tuned.BOX), -1e9, 1e9)
    place = ((u - origin) / tuned.BOX - box) * 2.0 - 1.0
    terms = np.empty((len(u), tuned.TERMS))
    terms[:, 0], terms[:, 1] = 1.0, place
    for a in range(2, tuned.TERMS):
        terms[:, a] = 2.0 * place * terms[:, a - 1] - terms[:, a - 2]
    return box.astype(int), terms


def sums(key: Array, channels: Array, query: Array, powers: int) -> Array:
    """`(powers, M, V)`: Σ_keys (key − query)^p exp(−(key − query)² / 2) · channels.

    Args:
        key: `(N,)` sorted, in bandwidths.   channels: `(N, V)`.   query: `(M,)`.
        powers: the number of powers p, from 0.
    """
    origin, width = float(key[0]), channels.shape[1]
    box, terms = _terms(key, origin)
    starts = np.flatnonzero(np.diff(box, prepend=-1))
    # Queries may lie slightly outside the range of the keys.
    most = int(np.ceil(tuned.REACH / tuned.BOX))
    margin = int(np.ceil(tuned.TRUSTED / tuned.BOX)) + 1
    count = int(box[-1]) + 1 + 2 * margin
    moments = np.zeros((count + 2 * most, tuned.TERMS, width))
    weighted = (terms[:, :, None] * channels[:, None, :]).reshape(len(key), -1)
    moments[box[starts] + most + margin] = np.add.reduceat(weighted, starts).reshape(
        -1, tuned.TERMS, width
    )
    moments = moments.transpose(1, 0, 2)  # (P, boxes, V)
    local: Array = np.zeros((powers * tuned.TERMS, count, width))
    between = np.concatenate([_between_boxes(power) for power in range(powers)], axis=1)
    for distance, matrix in enumerate(between):
        near = np.ascontiguousarray(moments[:, distance : distance + count])
        local += (matrix @ near.reshape(tuned.TERMS, -1)).reshape(local.shape)
    local = local.reshape(powers, tuned.TERMS, count, width).transpose(2, 1, 0, 3)
    local = np.ascontiguousarray(local).reshape(count, tuned.TERMS, powers * width)
    result = np.empty((len(query), powers * width))
    for start in range(0, len(query), tuned.BOX_ROWS):
        rows = slice(start, start + tuned.BOX_ROWS)
        box, terms = _terms(query[rows], origin)
        box += margin
        outside = (box < 0) | (box >= count)  # far from every key, so not accurate
        terms[outside], box[outside] = 0.0, 0
        result[rows] = np.einsum("rp,rpv->rv", terms, local[box])
    return result.reshape(len(query), powers, width).transpose(1, 0, 2)


class LineFit(NamedTuple):
    """The local fit at every query, from sums."""

    value: Array  # (M, V)
    change: Array | None  # (M, V), the derivative of the value by the log bandwidth
    accurate: Array  # (M,) bool, whether the row is accurate; `tiles` compute the others


def fit_line(
    metric: Metric,
    points: Points,
    query: Array,
    degree: int,
    left_out: Array | None = None,
    change: bool = False,
) -> LineFit:
    """Local constants or lines at sorted queries `(M,)`, in scaled units."""
    scale = float(metric.scale[0])
    weight = points.weights[:, None]
    channels = np.concatenate([weight, weight * points.y], axis=1)
    key = points.places.x[:, 0] * scale
    total = sums(key, channels, query * scale, (1, 3)[degree] + 2 * change)
    if left_out is not None:
        total[0] -= channels[left_out]  # at distance 0, where the kernel is 1
    # At least the kernel of the heaviest key at this distance: smaller sums have lost digits.
    accurate = total[0, :, 0] >= 0.999 * np.exp(-0.5 * tuned.TRUSTED**2) * weight.max()
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        value, changed, flat = (_constant, _line)[degree](total, change)
    accurate &= ~flat & np.isfinite(value).all(1)
    return LineFit(value, changed, accurate)


def _constant(total: Array, change: bool) -> tuple[Array, Array | None, Array]:
    weight, heights = total[..., :1], total[..., 1:]
    value = heights[0] / weight[0]
    changed = (heights[2] - value * weight[2]) / weight[0] if change else None
    return value, changed, np.zeros(len(value), bool)


def _line(total: Array, change: bool) -> tuple[Array, Array | None, Array]:
    weight, heights = total[..., :1], total[..., 1:]
    determinant = weight[0] * weight[2] - weight[1] ** 2
    value = (weight[2] * heights[0] - weight[1] * heights[1]) / determinant
    changed = None
    if change:
        slope = (weight[0] * heights[1] - weight[1] * heights[0]) / determinant
        second = heights[2] - value * weight[2] - slope * weight[3]
        third = heights[3] - value * weight[3] - slope * weight[4]
        changed = (weight[2] * second - weight[1] * third) / determinant
    return value, changed, (determinant <= tuned.FLAT_DETERMINANT * weight[0] ** 2)[:, 0]
