"""The points of a regression in scaled units, and their metric in bandwidths."""

import functools
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
class Places:
    """Places of queries or of points."""

    x: Array  # (N, D), the continuous columns
    codes: Array  # (N, K) int, the categories; −1 for an unknown one

    def __len__(self) -> int:
        return len(self.x)

    def take(self, rows: Array) -> "Places":
        """Some of the places."""
        return Places(self.x[rows], self.codes[rows])


@dataclass(frozen=True)
class Points:
    """Training points. In one continuous dimension they are sorted."""

    places: Places
    y: Array  # (N, V)
    weight: Array | None  # (N,), with mean 1
    counts: Array  # (K,) int, number of categories of each categorical column
    order: Array  # (N,) int, the index of each point before sorting

    def __len__(self) -> int:
        return len(self.y)

    @functools.cached_property
    def is_line(self) -> bool:
        """Whether the places are one continuous column, and so sorted."""
        return self.places.x.shape[1] == 1 and not len(self.counts)

    @functools.cached_property
    def weights(self) -> Array:
        return np.ones(len(self)) if self.weight is None else self.weight

    @functools.cached_property
    def importance(self) -> Array:
        """`(N,)`, of a squared error in the mean of those of all points and outputs."""
        return self.weights / self.weights.sum() / self.y.shape[1]

    def mean_without(self, left_out: Array) -> Array:
        """`(r, V)`: for each of some points, the mean of y over all others."""
        weight = self.weights[:, None]
        others = weight.sum() - weight[left_out]
        sums = (weight * self.y).sum(axis=0) - weight[left_out] * self.y[left_out]
        return sums / np.maximum(others, np.finfo("float64").tiny)

    def category_losses(self, metric: Metric) -> Array:
        """`(K,)`: by how much log weight of another category is less than that of the same: 1 − λ
        against λ / (c − 1) (Aitchison, Aitken 1976); inf where λ is 0.
        """
        with np.errstate(divide="ignore"):
            others = np.log(metric.widths / np.maximum(self.counts - 1, 1))
        return np.log1p(-metric.widths) - others

    def log_ratio(self, losses: Array) -> float:
        """The difference of log K that makes a weight negligible beside another, for any two sample
        weights and categories of these losses.
        """
        ratio = 0.0 if self.weight is None else np.ptp(np.log(self.weight))
        ratio += np.abs(losses).sum()
        return float(ratio - np.log(tuned.NEGLIGIBLE))

    def log_weights(self, losses: Array, codes: Array, keys: Index) -> Array | None:
        """`(r, k)` or `(1, k)`: the log weights by category and sample weight; None if all are 0.
        For a query of an unknown category all are of the same.
        """
        logs = None if self.weight is None else np.log(self.weight[keys])[None, :]
        for column, loss in enumerate(losses):
            of_column = np.where(self.differ(codes, keys, column), -loss, 0.0)
            logs = of_column if logs is None else logs + of_column
        return logs

    def differ(self, codes: Array, keys: Index, column: int) -> Array:
        """`(r, k)` bool, whether queries are of another category than points."""
        own = codes[:, None, column]
        return (own != self.places.codes[keys, column]) & (own >= 0)


def arranged(
    places: Places, y: Array, weight: Array | None, counts: Array, merged: bool = False
) -> Points:
    """`Points`, sorted if they lie on a line; `merged`, those at the same place into one, of the
    sum of their weights and the mean of their y.
    """
    order = np.arange(len(places))
    if merged:
        both = np.concatenate([places.x, places.codes], axis=1)
        _, order, inverse = np.unique(both, axis=0, return_index=True, return_inverse=True)
        sums = np.zeros((len(order), y.shape[1] + 1))
        given = np.ones((len(y), 1)) if weight is None else weight[:, None]
        np.add.at(sums, inverse.reshape(-1), np.concatenate([given, given * y], axis=1))
        places, y, weight = places.take(order), sums[:, 1:] / sums[:, :1], sums[:, 0]
    elif places.x.shape[1] == 1 and not len(counts):
        order = np.argsort(places.x[:, 0], kind="stable")
        places, y = places.take(order), y[order]
        weight = None if weight is None else weight[order]
    if weight is not None:
        # Above 0, for its logarithm.
        weight = np.maximum(weight / weight.mean(), np.finfo("float64").tiny)
        weight = None if np.all(weight == 1.0) else weight
    return Points(places, y, weight, counts, order)
