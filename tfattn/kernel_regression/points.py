"""The points of a regression in scaled units, and their metric in bandwidths."""

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from tfattn.kernel_regression import tuned

Array = np.ndarray
Index: TypeAlias = "slice | Array"


@dataclass(frozen=True)
class Metric:
    """Bandwidths in scaled units."""

    scale: Array  # (D,), 1 / h of each continuous column: u = x · scale is in bandwidths
    widths: Array  # (K,), λ of Aitchison and Aitken of each categorical column


@dataclass(frozen=True)
class Queries:
    """Places."""

    x: Array  # (N, D), the continuous columns
    one_hot: Array | None  # (N, C), the categories

    def __len__(self) -> int:
        return len(self.x)

    def take(self, rows: Array) -> "Queries":
        """Some of the places."""
        return Queries(self.x[rows], None if self.one_hot is None else self.one_hot[rows])


@dataclass(frozen=True)
class Points:
    """Training points. In one continuous dimension they are sorted."""

    places: Queries
    y: Array  # (N, V)
    weight: Array | None  # (N,), with mean 1
    counts: Array  # (K,) int, number of categories of each categorical column
    order: Array  # (N,) int, the index of each point before sorting

    def __len__(self) -> int:
        return len(self.y)

    @property
    def is_line(self) -> bool:
        """Whether the places are one continuous column, and so sorted."""
        return self.places.x.shape[1] == 1 and self.places.one_hot is None

    @property
    def weights(self) -> Array:
        return np.ones(len(self)) if self.weight is None else self.weight

    def log_ratio(self, metric: Metric) -> float:
        """The difference of log K that makes a weight negligible beside another, for any two sample
        weights and categories; inf where λ is 0.
        """
        ratio = 0.0 if self.weight is None else np.ptp(np.log(self.weight))
        if len(self.counts):
            with np.errstate(divide="ignore"):
                ratio += np.abs(_gains(metric.widths, self.counts)[1]).sum()
        return float(ratio - np.log(tuned.NEGLIGIBLE))

    def category_logs(self, metric: Metric, one_hot: Array | None, keys: Index) -> Array | None:
        """`(r, k)`, the log weights of the categories of queries `one_hot` and of points."""
        if one_hot is None or self.places.one_hot is None:
            return None
        widths = np.maximum(metric.widths, np.finfo("float64").tiny)  # tiles part those of λ = 0
        others, gains = _gains(widths, self.counts)
        gain = np.repeat(gains, self.counts)
        return (one_hot * gain) @ self.places.one_hot[keys].T + others.sum()

    def in_category(
        self, metric: Metric, one_hot: Array | None, keys: Index = slice(None)
    ) -> Array | None:
        """`(r, k)` bool, whether points are of the categories of queries `one_hot` in the columns
        where λ is 0; None without such a column. For a query of an unknown category all are.
        """
        parting = np.repeat(metric.widths == 0.0, self.counts)
        if one_hot is None or self.places.one_hot is None or not parting.any():
            return None
        one_hot = one_hot * parting
        return one_hot @ self.places.one_hot[keys].T >= one_hot.sum(axis=1, keepdims=True)

    def mean(self, metric: Metric, one_hot: Array | None, left: Array | None = None) -> Array:
        """`(r, V)` or `(1, V)`, the weighted mean of y: for each query `one_hot` that of
        `in_category`, or of all if these are none; without each query's own point, `left` `(r,)`.
        """
        weight = self.weights[:, None]
        weighted, same = weight * self.y, self.in_category(metric, one_hot)
        total, sums = weight.sum(axis=0, keepdims=True), weighted.sum(axis=0, keepdims=True)
        if left is not None:
            total, sums = total - weight[left], sums - weighted[left]
        if same is None:
            return sums / total
        if left is not None:
            same[np.arange(len(left)), left] = False
        within = same @ weight
        return np.where(within > 0, same @ weighted, sums) / np.where(within > 0, within, total)


def _gains(widths: Array, counts: Array) -> tuple[Array, Array]:
    """`(K,)` each: log λ / (c − 1) of another category, and how much more log 1 − λ of the same is
    (Aitchison, Aitken 1976).
    """
    others = np.log(widths / np.maximum(counts - 1, 1))
    return others, np.log1p(-widths) - others


def encoded(codes: Array, counts: Array) -> Array | None:
    """`(N, K)` int codes as one-hot `(N, sum of counts)`; all zeros for an unknown category, −1."""
    if not len(counts):
        return None
    columns = [codes[:, [k]] == np.arange(count) for k, count in enumerate(counts)]
    return np.concatenate(columns, axis=1).astype("float64")


def sorted_points(x: Array, codes: Array, y: Array, weight: Array | None, counts: Array) -> Points:
    """`Points`, sorted if they lie on a line."""
    order = np.arange(len(x))
    if x.shape[1] == 1 and not len(counts):
        order = np.argsort(x[:, 0], kind="stable")
        x, y = x[order], y[order]
        weight = None if weight is None else weight[order]
    if weight is not None:
        # Above 0, for its logarithm.
        weight = np.maximum(weight / weight.mean(), np.finfo("float64").tiny)
        weight = None if np.all(weight == 1.0) else weight
    return Points(Queries(x, encoded(codes, counts)), y, weight, counts, order)


def merged(
    x: Array, codes: Array, y: Array, weight: Array | None
) -> tuple[Array, Array, Array, Array]:
    """Merges points at the same place: the sum of their weights and the mean of their y."""
    weight = np.ones(len(x)) if weight is None else weight
    both = np.concatenate([x, codes], axis=1)
    places, inverse = np.unique(both, axis=0, return_inverse=True)
    inverse = inverse.reshape(-1)
    total = np.bincount(inverse, weight)
    heights = np.stack([np.bincount(inverse, weight * column) for column in y.T], axis=1)
    width = x.shape[1]
    return places[:, :width], places[:, width:].astype(int), heights / total[:, None], total
