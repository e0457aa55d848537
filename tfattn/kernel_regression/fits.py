"""Local lines and quadratics: weighted least squares at each query, by moments."""

from typing import NamedTuple

import numpy as np

from tfattn.kernel_regression import tuned

Array = np.ndarray


class Line(NamedTuple):
    """The local line of each row of a tile, in scaled units."""

    mean: Array  # (r, V), the weighted mean of y
    slope: Array  # (r, D, V)
    center: Array  # (r, D), the weighted mean of the keys
    lean: Array  # (r, D): key x has the equivalent weight share · (1 + (x − center) · lean).
    x: Array  # (k, D), the keys


def local_line(share: Array, x: Array, y: Array, mean: Array, query: Array) -> tuple[Array, Line]:
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


def quadratic_weights(share: Array, away: Array) -> Array:
    """`(r, k)`: the weight of each y in the local quadratic fit of each row, of keys that lie
    `away` `(r, k, D)` from it.
    """
    first, second = np.triu_indices(away.shape[2])
    terms = np.concatenate([away, away[..., first] * away[..., second]], axis=2)  # 0 at the query
    center = np.einsum("rk,rkf->rf", share, terms)
    terms -= center[:, None, :]
    spread = np.swapaxes(share[:, :, None] * terms, 1, 2) @ terms
    inverse, _ = _inverse(spread, center)
    lean = -np.einsum("rfg,rg->rf", inverse, center)
    return share * (1.0 + np.einsum("rkf,rf->rk", terms, lean))


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
