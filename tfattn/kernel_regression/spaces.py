"""Bandwidths as a vector of free parameters for an optimizer."""

from dataclasses import dataclass

import numpy as np

from tfattn.kernel_regression import tuned
from tfattn.kernel_regression.left_out import LeftOut
from tfattn.kernel_regression.points import Metric

Array = np.ndarray


@dataclass(frozen=True)
class Space:
    """The free parameters: bandwidths (one per column, one for all, or a linear map), and each
    categorical column's λ.

    Args:
        kind: "each", "one" or "full".
        columns: number of continuous columns.
        counts: `(K,)`, number of categories of each categorical column.
        extent: the greatest half range of a column, in scaled units.
    """

    kind: str
    columns: int
    counts: Array
    extent: float = 1.0

    @property
    def widest(self) -> float:
        """The greatest bandwidth, in scaled units."""
        return tuned.WIDEST * self.extent

    @property
    def free(self) -> int:
        """The number of parameters of the continuous columns."""
        if not self.columns:
            return 0
        return {"one": 1, "each": self.columns, "full": self.columns * (self.columns + 1) // 2}[
            self.kind
        ]

    @property
    def max_widths(self) -> Array:
        """`(K,)`, the greatest λ: (c − 1) / c."""
        return (self.counts - 1) / self.counts

    @property
    def bounds(self) -> list[tuple[float, float]]:
        logs = (np.log(tuned.NARROWEST), np.log(self.widest))
        diagonal = [logs] * min(self.free, self.columns)
        rest = [(-1.0 / tuned.NARROWEST, 1.0 / tuned.NARROWEST)] * (self.free - len(diagonal))
        return diagonal + rest + [(-tuned.MAX_LOGIT, tuned.MAX_LOGIT)] * len(self.counts)

    def vector(self, bandwidth: Array, widths: Array) -> Array:
        """The vector for the bandwidths of continuous and the λ of categorical columns."""
        logs = np.log(bandwidth)
        if self.kind == "one" and self.columns:
            logs = logs.mean(keepdims=True)
        rest = np.zeros(self.free - len(logs))
        share = np.clip(widths / np.maximum(self.max_widths, 1e-300), 1e-7, 1.0 - 1e-7)
        return np.concatenate([logs, rest, np.log(share / (1.0 - share))])

    def metric(self, vector: Array) -> Metric:
        """The metric of a vector."""
        logs = vector[: self.free]
        if self.kind != "full":
            return Metric(
                np.diag(np.exp(-np.broadcast_to(logs, self.columns))), self._widths(vector)
            )
        matrix = np.diag(np.exp(-logs[: self.columns]))
        matrix[np.tril_indices(self.columns, -1)] = logs[self.columns :]
        return Metric(matrix, self._widths(vector))

    def gradient(self, vector: Array, left_out: LeftOut) -> Array:
        """The gradient of the error with respect to a vector."""
        widths, most = self._widths(vector), self.max_widths
        shares = np.divide(widths, most, out=np.zeros_like(widths), where=most > 0)
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
        return self.max_widths / (1.0 + np.exp(-vector[self.free :]))
