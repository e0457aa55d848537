"""Kernel regression as an estimator of scikit-learn: `tfattn.sklearn.NadarayaWatsonRegressor`.

In pipelines, searches and cross-validation. Needs scikit-learn: `pip install "tfattn[sklearn]"`.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from tfattn import _checks, _optional
from tfattn.smoothing import Band, KernelRegression, LeaveOneOut

_optional.find("sklearn", "sklearn", "tfattn.sklearn")

from sklearn.base import BaseEstimator, MultiOutputMixin, RegressorMixin  # noqa: E402
from sklearn.utils.validation import (  # noqa: E402
    _check_sample_weight,
    check_is_fitted,
    validate_data,
)

__all__ = ["NadarayaWatsonRegressor"]

WHO = "NadarayaWatsonRegressor"


class NadarayaWatsonRegressor(MultiOutputMixin, RegressorMixin, BaseEstimator):
    """Nadaraya–Watson or local linear regression that chooses its own bandwidth.

    `fit` finds the bandwidth of the least leave-one-out error, to convergence; see
    `tfattn.smoothing.KernelRegression`, which it stands on. Columns of a data frame that are of a
    categorical dtype are weighed by Aitchison and Aitken's kernel.

    Args:
        kernel, bandwidth, metric, degree, empty: as in `KernelRegression`.
        categorical: "from_dtype", the columns of a data frame with a categorical dtype; or a
            sequence of indices or names of columns. Only a data frame may hold words in them.
        leave_out: "place" (every point with the same x is left out together, so that a weight of 2
            says what a repeated row says) or "point". Defaults to None: "place", but "point" where
            there are categories, which are there to be shared.
    Attributes:
        bandwidth_: in use, in the units of X.
        regression_: the `KernelRegression`.
        categories_: from the index of each categorical column to its values.
        n_features_in_, feature_names_in_: as everywhere in scikit-learn.
    Raises:
        ValueError: as `KernelRegression`, and as scikit-learn's own checks.
    Example:
        >>> from tfattn.sklearn import NadarayaWatsonRegressor
        >>> X = np.linspace(0.0, 5.0, 50)[:, None]
        >>> estimator = NadarayaWatsonRegressor(degree=1).fit(X, np.sin(X[:, 0]))
        >>> print(estimator.predict([[1.0], [2.0]]).round(2))
        [0.84 0.91]
    """

    def __init__(
        self,
        kernel: str = "gaussian",
        bandwidth: float | Sequence | np.ndarray | None = None,
        metric: str = "each",
        degree: int = 0,
        categorical: str | Sequence = "from_dtype",
        empty: str = "nearest",
        leave_out: str | None = None,
    ):
        self.kernel = kernel
        self.bandwidth = bandwidth
        self.metric = metric
        self.degree = degree
        self.categorical = categorical
        self.empty = empty
        self.leave_out = leave_out

    def fit(
        self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None
    ) -> "NadarayaWatsonRegressor":
        """Keeps the points and, if none was given, chooses the bandwidth."""
        columns = self._categorical_columns(X)
        self.categories_ = {column: np.unique(_column(X, column)) for column in columns}
        X, y = self._checked(X, y=y, reset=True, multi_output=True, y_numeric=True)
        if sample_weight is not None:
            sample_weight = _check_sample_weight(sample_weight, X)
        leave_out = self.leave_out or ("point" if columns else "place")
        self.regression_ = KernelRegression(
            self.kernel,
            self.bandwidth,
            self.metric,
            self.degree,
            columns,
            self.empty,
            leave_out,
        )
        names = getattr(self, "feature_names_in_", None)
        self.regression_.fit(X, y, sample_weight, names=names)
        self.bandwidth_ = self.regression_.current_bandwidth()
        return self

    def predict(self, X: ArrayLike) -> np.ndarray:
        """`(M,)`, or `(M, V)` where y had several columns."""
        check_is_fitted(self)
        return self.regression_.predict(self._checked(X, reset=False))

    def bands(self, X: ArrayLike, level: float = 0.95, **options: Any) -> Band:
        """A pointwise confidence band, see `KernelRegression.bands`."""
        check_is_fitted(self)
        return self.regression_.bands(self._checked(X, reset=False), level, **options)

    def derivative(self, X: ArrayLike) -> np.ndarray:
        """The slope along each continuous column, see `KernelRegression.derivative`."""
        check_is_fitted(self)
        return self.regression_.derivative(self._checked(X, reset=False))

    def leave_one_out(self) -> LeaveOneOut:
        """Each training point predicted from all others, see `KernelRegression.leave_one_out`."""
        check_is_fitted(self)
        return self.regression_.leave_one_out()

    def _checked(self, X: ArrayLike, reset: bool, **options: Any) -> Any:
        """X, and y where it is among the options, as scikit-learn wants them checked; categories as
        numbers.
        """
        if not self.categories_:
            # What is not finite is refused later, with its row and column.
            return validate_data(
                self, X, reset=reset, dtype="float64", ensure_all_finite=False, **options
            )
        coded = _coded(X, self.categories_)
        validate_data(self, X, reset=reset, skip_check_array=True)
        if "y" not in options:
            return coded
        y = np.asarray(options["y"])
        if len(y) != len(coded):
            _checks.fail(WHO, "y", f"be as long as `X`, {len(coded)}", len(y))
        return coded, y

    def _categorical_columns(self, X: ArrayLike) -> list[int]:
        names = [str(name) for name in getattr(X, "columns", ())]
        expected = "be 'from_dtype' or a sequence of indices or names of columns"
        if isinstance(self.categorical, str) and self.categorical == "from_dtype":
            kinds = [str(kind) for kind in getattr(X, "dtypes", ())] if names else []
            return [column for column, kind in enumerate(kinds) if kind == "category"]
        if isinstance(self.categorical, str | bytes) or not np.iterable(self.categorical):
            _checks.fail(WHO, "categorical", expected, self.categorical)
        shape, columns = np.shape(X), []
        width = shape[1] if len(shape) > 1 else 0
        for column in self.categorical:
            if isinstance(column, str):
                if column not in names:
                    _checks.fail(WHO, "categorical", f"name columns of X, of {names}", column)
                column = names.index(column)
            whole = isinstance(column, int | np.integer) and not isinstance(column, bool)
            if not whole or not 0 <= column < width:
                expected = f"hold indices of the {width} columns of X"
                _checks.fail(WHO, "categorical", expected, self.categorical)
            columns.append(int(column))
        return columns


def _column(X: ArrayLike, column: int) -> np.ndarray:
    return np.asarray(X.iloc[:, column] if hasattr(X, "iloc") else np.asarray(X)[:, column])


def _coded(X: ArrayLike, categories: dict[int, np.ndarray]) -> np.ndarray:
    """float64, with the number of each category; −1 for one that was not there in `fit`."""
    width = X.shape[1] if hasattr(X, "shape") else np.shape(X)[1]
    coded = np.empty((len(X), width))
    for column in range(width):
        values = _column(X, column)
        if column in categories:
            known = {value: number for number, value in enumerate(categories[column])}
            coded[:, column] = [known.get(value, -1) for value in values]
        else:
            coded[:, column] = values.astype("float64")
    return coded
