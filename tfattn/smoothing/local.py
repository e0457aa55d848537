"""Local fits over a tile: a constant or a line about each query, by weighted least squares."""

from typing import NamedTuple

import numpy as np

from tfattn.smoothing.points import Points, Queries
from tfattn.smoothing.tiles import Tile

__all__ = ["LocalFit", "fit_tile"]

Array = np.ndarray
# Of squared scaled units. Where the points that count are spread less, in some direction, there is
# no line to see in it: the fit is constant there.
NO_SPREAD = 1e-14


class LocalFit(NamedTuple):
    """The fit of each row of a tile.

    Attributes:
        value: `(r, V)`, at the query.
        mean: `(r, V)`, of the heights that count: `value` itself where the fit is constant.
        slope: `(r, D, V)`, of the local line, in scaled units.
        centre: `(r, D)`, the weighted mean of the keys.
        lean: `(r, D)`: key x has the equivalent weight share · (1 + (x − centre) · lean).
        x: `(k, D)`, the keys.   All but the first two are None where the fit is constant.
    """

    value: Array
    mean: Array
    slope: Array | None = None
    centre: Array | None = None
    lean: Array | None = None
    x: Array | None = None

    def equivalent(self) -> Array | float:
        """`(r, k)`, by what a share is multiplied to be the weight of a height in the value."""
        if self.lean is None:
            return 1.0
        factor = self.lean @ self.x.T
        factor += 1.0 - np.sum(self.centre * self.lean, axis=1)[:, None]
        return factor

    def residuals_times(self, errors: Array, y: Array) -> Array:
        """`(r, k)`: Σ_v errors[r, v] · (y[k, v] − the local fit of row r at key k)."""
        product = errors @ y.T
        product -= np.sum(errors * self.mean, axis=1)[:, None]
        if self.slope is not None:
            along = np.einsum("rdv,rv->rd", self.slope, errors)
            product -= along @ self.x.T
            product += np.sum(along * self.centre, axis=1)[:, None]
        return product


def fit_tile(tile: Tile, points: Points, queries: Queries, degree: int) -> LocalFit:
    """The local constant (`degree` 0) or line (1) of each row."""
    y = points.y[tile.keys]
    mean = tile.share @ y
    if degree == 0 or not queries.x.shape[1]:
        return LocalFit(mean, mean)
    query = queries.x[tile.rows]
    # About the rows' own middle: on a line, digits would be lost far from the origin.
    middle = query.mean(axis=0)
    x, query = points.places.x[tile.keys] - middle, query - middle
    centre = tile.share @ x
    width = x.shape[1]
    squares = (x[:, :, None] * x[:, None, :]).reshape(len(x), width * width)
    spread = (tile.share @ squares).reshape(len(query), width, width)
    spread -= centre[:, :, None] * centre[:, None, :]
    products = (x[:, :, None] * y[:, None, :]).reshape(len(x), width * y.shape[1])
    covariance = (tile.share @ products).reshape(len(query), width, y.shape[1])
    covariance -= centre[:, :, None] * mean[:, None, :]
    inverse = _inverse(spread)
    slope = inverse @ covariance
    away = query - centre
    lean = np.einsum("rde,re->rd", inverse, away)
    value = mean + np.einsum("rd,rdv->rv", away, slope)
    return LocalFit(value, mean, slope, centre, lean, x)


def _inverse(spread: Array) -> Array:
    """The inverse of each matrix, 0 in the directions in which nothing is spread."""
    values, vectors = np.linalg.eigh(spread)
    seen = values > NO_SPREAD
    inverse = np.divide(1.0, values, out=np.zeros_like(values), where=seen)
    return (vectors * inverse[:, None, :]) @ np.swapaxes(vectors, 1, 2)
