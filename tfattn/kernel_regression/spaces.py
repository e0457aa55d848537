"""Bandwidths as a vector of free numbers, for an optimizer, and back."""

from dataclasses import dataclass

import numpy as np

from tfattn.kernel_regression import tuned
from tfattn.kernel_regression.left_out import LeftOut
from tfattn.kernel_regression.points import Metric

__all__ = ["Space"]

Array = np.ndarray


@dataclass(frozen=True)
class Space:
    """What is free: one bandwidth a column, one for all, or a whole linear map; and each λ.

    Args:
        kind: "each", "one" or "full".
        columns: how many continuous columns there are.
        counts: `(K,)`, categories of the others.
        extent: the greatest half range of a column, in scaled units.
    """

    kind: str
    columns: int
    counts: Array
    extent: float = 1.0

    @property
    def widest(self) -> float:
        """Of the bandwidths, in scaled units."""
        return tuned.WIDEST * self.extent

    @property
    def free(self) -> int:
        """How many numbers tell the continuous part."""
        if not self.columns:
            return 0
        return {"one": 1, "each": self.columns, "full": self.columns * (self.columns + 1) // 2}[
            self.kind
        ]

    @property
    def most(self) -> Array:
        """`(K,)`, the greatest λ: (c − 1) / c."""
        return (self.counts - 1) / self.counts

    @property
    def bounds(self) -> list[tuple[float, float]]:
        logs = (np.log(tuned.NARROWEST), np.log(self.widest))
        diagonal = [logs] * min(self.free, self.columns)
        rest = [(-1.0 / tuned.NARROWEST, 1.0 / tuned.NARROWEST)] * (self.free - len(diagonal))
        return diagonal + rest + [(-tuned.MAX_LOGIT, tuned.MAX_LOGIT)] * len(self.counts)

    def vector(self, bandwidth: Array, widths: Array) -> Array:
        """From a bandwidth a column, and each λ."""
        logs = np.log(bandwidth)
        if self.kind == "one" and self.columns:
            logs = logs.mean(keepdims=True)
        rest = np.zeros(self.free - len(logs))
        share = np.clip(widths / np.maximum(self.most, 1e-300), 1e-7, 1.0 - 1e-7)
        return np.concatenate([logs, rest, np.log(share / (1.0 - share))])

    def metric(self, vector: Array) -> Metric:
        """To a metric."""
        logs = vector[: self.free]
        if self.kind != "full":
            return Metric(
                np.diag(np.exp(-np.broadcast_to(logs, self.columns))), self._widths(vector)
            )
        matrix = np.diag(np.exp(-logs[: self.columns]))
        matrix[np.tril_indices(self.columns, -1)] = logs[self.columns :]
        return Metric(matrix, self._widths(vector))

    def gradient(self, vector: Array, left_out: LeftOut) -> Array:
        """The derivatives of the error by the numbers of a vector."""
        widths = self._widths(vector)
        shares = np.divide(widths, self.most, out=np.zeros_like(widths), where=self.most > 0)
        by_logit = left_out.by_width * widths * (1.0 - shares)
        by_log = -2.0 * np.diag(left_out.by_map)
        if self.kind == "one":
            by_log = by_log.sum(keepdims=True)[: self.free]
        if self.kind != "full" or not self.columns:
            return np.concatenate([by_log, by_logit])
        matrix = self.metric(vector).map
        by_entry = 2.0 * np.linalg.solve(matrix.T, left_out.by_map)
        below = by_entry[np.tril_indices(self.columns, -1)]
        return np.concatenate([-np.diag(by_entry) * np.diag(matrix), below, by_logit])

    def _widths(self, vector: Array) -> Array:
        return self.most / (1.0 + np.exp(-vector[self.free :]))
