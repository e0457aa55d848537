"""The regression with a chosen bandwidth, its residuals and its bands, in scaled units."""

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any

import numpy as np

from tfattn.kernel_regression import line, near, tuned
from tfattn.kernel_regression.kernels import Kernel
from tfattn.kernel_regression.line import LineFit
from tfattn.kernel_regression.local import LocalFit, fit_tile, quadratic_weights
from tfattn.kernel_regression.near import Place
from tfattn.kernel_regression.points import Metric, Points, Queries
from tfattn.kernel_regression.tiles import Tile, gathered, means, tiles

Array = np.ndarray
Bounds = tuple[Array, Array]  # (M, V) each


@dataclasses.dataclass(frozen=True, eq=False)
class Smoother:
    """A regression in scaled units; `degree` and `empty` as in `KernelRegression`."""

    kernel: Kernel
    metric: Metric
    points: Points  # N, with V outputs each
    degree: int
    empty: str

    def at(self, queries: Queries, left: Array | None = None) -> Array:
        """`(M, V)`, the regression at sorted queries; without each query's own point, `left`."""
        value, _, accurate = self.fast(queries, left)
        rows = np.flatnonzero(~accurate)
        own = None if left is None else left[rows]
        for tile, fit in self.fits(queries.take(rows), left=own):
            value[rows[tile.rows]] = fit.value
        # Rounding must not make a mean of squares negative.
        low, high = self.points.y.min(axis=0), self.points.y.max(axis=0)
        return value if self.degree else np.clip(value, low, high)

    def engine(self, queries: Queries, left: Array | None, change: bool = False) -> str:
        """How to fit these queries, the fastest way; `left` and `change` as in `fast`.

        "boxes": `line.fit_line`, where a bandwidth on a line is wide beside the gaps of the points.
        "gathered": `tiles.gathered`, points on a line, left out, that have few neighbors.
        "means": `tiles.means`, local constants in several columns.
        "tiles": `tiles.tiles`, everything else. `near.places` tells which keys a tile has.
        """
        points, constant = self.points, self.degree == 0
        if not points.is_line:
            plain = constant and left is None and queries.one_hot is None
            return "means" if plain else "tiles"
        if line.is_faster(self.kernel, self.metric, points, len(queries)):
            return "boxes"
        plain = constant and left is not None and not change and np.isinf(self.kernel.support)
        return "gathered" if plain and self.most_neighbors <= tuned.FEW_KEYS else "tiles"

    @functools.cached_property
    def log_ratio(self) -> float:
        """By how much log K of a negligible weight is less."""
        return self.points.log_ratio(self.metric)

    @functools.cached_property
    def most_neighbors(self) -> int:
        """How many neighbors a point on a line sees on one side, at most."""
        u, rows = self.points.places.x[:, 0] * self.metric.scale[0], np.arange(len(self.points))
        first, last = near.windows(self.kernel, u, u, self.log_ratio, rows)
        return int(max((rows - first).max(), (last - 1 - rows).max()))

    def fast(self, queries: Queries, left: Array | None = None, change: bool = False) -> LineFit:
        """The fit by an engine that is faster than `fits`; with no accurate row if none is."""
        points, engine = self.points, self.engine(queries, left, change)
        if engine == "boxes":
            return line.fit_line(self.metric, points, queries.x[:, 0], self.degree, left, change)
        value = np.empty((len(queries), points.y.shape[1]))
        accurate = np.full(len(queries), engine == "gathered")
        if engine == "gathered":
            value = gathered(self.kernel, self.metric, points, self.most_neighbors)
        elif engine == "means":
            places = self._places(queries, None, means=True)
            value, accurate = means(self.kernel, self.metric, points, queries, places)
        return LineFit(value, None, accurate)

    def fits(
        self, queries: Queries, slopes: bool = False, left: Array | None = None
    ) -> Iterator[tuple[Tile, LocalFit]]:
        """The fits of `tiles`; `empty` decides those of queries without neighbors, but a point that
        is left out gets a number.
        """
        for tile in self.tiles(queries, left, slopes):
            fit = fit_tile(tile, self.points, queries, self.degree)
            if self.empty == "nan" and left is None:
                fit.value[tile.empty] = np.nan
            elif self.empty != "nearest" and tile.empty.any():
                fit.value[tile.empty] = self._mean(queries, tile, tile.empty, left)
            yield tile, fit

    def tiles(
        self, queries: Queries, left: Array | None = None, slopes: bool = False
    ) -> Iterator[Tile]:
        """The weights, tile by tile; `left` as `left_out` of `tiles`."""
        settings, places = (self.kernel, self.metric, self.points), self._places(queries, left)
        return tiles(*settings, queries, places, left, slopes, nearest=self.empty == "nearest")

    def _places(self, queries: Queries, left: Array | None, means: bool = False) -> Iterator[Place]:
        query, key = queries.x * self.metric.scale, self.points.places.x * self.metric.scale
        settings = (self.log_ratio, left, self.points.is_line, means)
        return near.places(self.kernel, query, key, *settings)

    def slopes(self, queries: Queries) -> Array:
        """`(M, D, V)`: the derivative along each continuous column."""
        columns = len(self.metric.scale)
        slope = np.empty((len(queries), columns, self.points.y.shape[1]))
        is_line = self.degree > 0 and columns > 0
        for tile, fit in self.fits(queries, slopes=not is_line):
            if is_line:
                slope[tile.rows] = fit.slope
            else:
                change = _slope_of_constant(tile, self.points, fit)
                slope[tile.rows] = self.metric.scale[:, None] * change
            if self.empty == "nan":
                slope[np.arange(len(queries))[tile.rows][tile.empty]] = np.nan
        return slope

    def squared_weights(self, queries: Queries, left: Array | None = None) -> Array:
        """`(M,)`, Σ weights² of each query."""
        total = np.zeros(len(queries))
        for tile, fit in self.fits(queries, left=left):
            total[tile.rows] = np.square(tile.share * fit.equivalent()).sum(axis=1)
        return total

    def noise(self) -> Array:
        """`(N, V)`: residuals with the variance of the noise."""
        points, rows = self.points, np.arange(len(self.points))
        if len(points) < 2:
            return np.zeros(points.y.shape)
        added = self.squared_weights(points.places, rows)
        return (points.y - self.at(points.places, rows)) / np.sqrt(1.0 + added)[:, None]

    def variance(self, queries: Queries, noise: Array) -> Array:
        """`(M, V)`: a local constant of the squared noise."""
        return self._with_y(noise**2, degree=0).at(queries)

    def _with_y(self, y: Array, **changes: Any) -> "Smoother":
        return dataclasses.replace(self, points=dataclasses.replace(self.points, y=y), **changes)

    def asymptotic(self, queries: Queries, level: float) -> Bounds:
        """The bounds of the asymptotic band, relative to the prediction; NaN without neighbors."""
        from scipy import special

        squares = self.squared_weights(queries)[:, None]
        step = np.sqrt(self.variance(queries, self.noise()) * squares)
        step[~(squares[:, 0] > 0)] = np.nan
        return tuple(special.ndtri(0.5 + side * level / 2) * step for side in (-1, 1))

    def bootstrap(self, queries: Queries, level: float, replicas: int, seed: int | None) -> Bounds:
        """The bounds of the bootstrap band, relative to the prediction; NaN without neighbors."""
        generator, noise = np.random.default_rng(seed), self.noise()
        drawn = []
        for start in range(0, replicas, tuned.REPLICAS):
            count = min(tuned.REPLICAS, replicas - start)
            signs = generator.choice([-1.0, 1.0], (len(noise), count, 1))
            many = (signs * noise[:, None, :]).reshape(len(noise), -1)
            smooth = self._with_y(many).at(queries)
            drawn.append(smooth.reshape(len(queries), count, -1))
        ends = [0.5 - level / 2, 0.5 + level / 2]
        bounds = np.quantile(np.concatenate(drawn, axis=1), ends, axis=1)
        bounds[:, ~(self.squared_weights(queries) > 0)] = np.nan
        return tuple(bounds)

    def robust(self, queries: Queries, level: float) -> Bounds:
        """The bounds of the band of the local quadratic fit; NaN without neighbors."""
        from scipy import special

        points = self.points
        value, squares, neighbors = self._quadratic(queries)
        noise = np.zeros(points.y.shape)
        if len(points) > 1:
            others, added, _ = self._quadratic(points.places, np.arange(len(points)))
            noise = (points.y - others) / np.sqrt(1.0 + added)
        # Student's t, since the variance is itself a mean over the neighbors; of categories alone
        # it is the variance around a mean.
        freedom = neighbors - (len(self.metric.scale) == 0)
        variance = self.variance(queries, noise)
        step = special.stdtrit(freedom, 0.5 + level / 2) * np.sqrt(variance * squares)
        step[squares[:, 0] == 0] = np.nan
        return value - step, value + step

    def _quadratic(self, queries: Queries, left: Array | None = None) -> tuple[Array, Array, Array]:
        """At each query the local quadratic fit `(M, V)`, its Σ weights² `(M, 1)`, and 1 / Σ
        weights² of the local constant `(M, 1)`.
        """
        points, count = self.points, len(queries)
        value, squares, neighbors = np.empty((count, points.y.shape[1])), *np.ones((2, count, 1))
        for tile in self.tiles(queries, left):
            weights = quadratic_weights(tile) if tile.key_u.shape[1] else tile.share
            fit, square = weights @ points.y[tile.keys], np.square(weights).sum(axis=1)
            shares = np.square(tile.share).sum(axis=1)
            neighbors[tile.rows, 0] = 1.0 / np.where(shares > 0, shares, 1.0)
            if (square == 0).any():
                fit[square == 0] = self._mean(queries, tile, square == 0, left)
            value[tile.rows], squares[tile.rows, 0] = fit, square
        return value, squares, neighbors

    def _mean(self, queries: Queries, tile: Tile, chosen: Array, left: Array | None) -> Array:
        """The mean of y for the chosen queries of a tile."""
        rows = np.arange(len(queries))[tile.rows][chosen]
        own = None if left is None else left[rows]
        return self.points.mean(self.metric, queries.take(rows).one_hot, own)


def _slope_of_constant(tile: Tile, points: Points, fit: LocalFit) -> Array:
    """`(r, D, V)`: the gradient of a local constant at the query, in bandwidths."""
    y = points.y[tile.keys]
    middle = tile.query_u.mean(axis=0)
    query, key = tile.query_u - middle, tile.key_u - middle
    products = (key[:, :, None] * y[:, None, :]).reshape(len(key), key.shape[1] * y.shape[1])
    mixed = (tile.slope @ products).reshape(len(query), key.shape[1], y.shape[1])
    slopes = tile.slope.sum(axis=1, keepdims=True)  # type: ignore[union-attr]
    moment = tile.slope @ y - fit.value * slopes  # (r, V)
    away = mixed - (tile.slope @ key)[:, :, None] * fit.value[:, None, :]
    return 2.0 * (query[:, :, None] * moment[:, None, :] - away)
