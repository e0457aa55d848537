"""Kernel regression as an estimator of scikit-learn, for pipelines, searches, cross-validation.

Needs scikit-learn: `pip install "tfattn[sklearn]"`.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from tfattn import _checks, _optional
from tfattn._types import ArrayLike
from tfattn.kernel_regression import arrays
from tfattn.kernel_regression.points import Places
from tfattn.kernel_regression.regression import KernelRegression

WHO = "KernelRegressor"
_optional.find("sklearn", "sklearn", WHO)

from sklearn.base import BaseEstimator, MultiOutputMixin, RegressorMixin  # noqa: E402
from sklearn.preprocessing import OrdinalEncoder  # noqa: E402
from sklearn.utils import check_array, check_X_y  # noqa: E402
from sklearn.utils.validation import check_is_fitted, validate_data  # noqa: E402


class _Regression(KernelRegression):
    """The regression of an X as the estimator takes it, with its name in messages."""

    _who, _x = WHO, "X"
    encoder: OrdinalEncoder

    def encoded(self, X: Any) -> Any:
        """X as numbers, with the codes of categories: −1 for one that is new since `fit`."""
        # As objects, since scikit-learn cannot convert every mix of dtypes of pandas.
        table = X.to_numpy(object, na_value=np.nan) if hasattr(X, "iloc") else X
        if self.categorical:
            table = check_array(table, dtype=object, ensure_all_finite=False, copy=True)
            categories = table[:, self.categorical]
            categories[categories == None] = np.nan  # noqa: E711, element by element
            if not hasattr(self, "encoder"):
                unknown: Any = {"handle_unknown": "use_encoded_value", "unknown_value": -1}
                self.encoder = OrdinalEncoder(**unknown).fit(categories)
            table[:, self.categorical] = self.encoder.transform(categories)
        return table

    def _queries(self, x: ArrayLike) -> tuple[Places, np.ndarray]:
        return super()._queries(check_array(self.encoded(x), ensure_all_finite=False))


class KernelRegressor(MultiOutputMixin, RegressorMixin, BaseEstimator):
    """Nadaraya–Watson or local linear regression that chooses its own bandwidth.

    `fit` finds the bandwidth of the least leave-one-out error, to convergence, by
    `KernelRegression`. Aitchison and Aitken's kernel weighs columns of a categorical dtype.

    Args:
        kernel, bandwidth, degree, empty, sample, verbose: as in `KernelRegression`.
        categorical: "from_dtype", the columns of a data frame with a categorical dtype; or a
            sequence of indices or names of columns. The categories of a column are strings, or
            numbers and booleans, in a data frame or an array of objects.
        leave_out: "place" (all points with the same x are left out together, so that a weight of 2
            equals a repeated row) or "point". Defaults to None: "place", but "point" with
            categories, which points share by design.
    Attributes:
        bandwidth_: the bandwidth in use, in the units of X.
        regression_: the `KernelRegression`, for bands, derivatives, weights and the leave-one-out
            error. Its methods take X as this estimator does.
        categories_: dict from the index of each categorical column to its values.
        n_features_in_, feature_names_in_: as everywhere in scikit-learn.
    Raises:
        ValueError: as in `KernelRegression` and in scikit-learn's checks; a missing category.
    Example:
        >>> from tfattn.kernel_regression import KernelRegressor
        >>> X = np.linspace(0.0, 5.0, 50)[:, None]
        >>> estimator = KernelRegressor(degree=1).fit(X, np.sin(X[:, 0]))
        >>> print(estimator.predict([[1.0], [2.0]]).round(2))
        [0.84 0.91]
    """

    def __init__(
        self,
        kernel: str = "gaussian",
        bandwidth: float | Sequence[Any] | np.ndarray | None = None,
        degree: int = 0,
        categorical: str | Sequence[Any] = "from_dtype",
        empty: str = "nearest",
        leave_out: str | None = None,
        sample: int | None = None,
        verbose: bool = False,
    ):
        self.kernel = kernel
        self.bandwidth = bandwidth
        self.degree = degree
        self.categorical = categorical
        self.empty = empty
        self.leave_out = leave_out
        self.sample = sample
        self.verbose = verbose

    def fit(
        self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None
    ) -> "KernelRegressor":
        """Keeps the points and chooses the bandwidth, unless it is given."""
        columns = self._categorical_columns(X)
        leave_out = self.leave_out or ("point" if columns else "place")
        settings = {"categorical": columns, "leave_out": leave_out}
        regression = _Regression(**self.get_params() | settings)
        validate_data(self, X, skip_check_array=True)
        options = {"ensure_all_finite": False, "multi_output": True, "estimator": self}
        x, y = check_X_y(regression.encoded(X), y, y_numeric=True, **options)
        self.regression_ = regression.fit(x, y, sample_weight)
        values = regression.encoder.categories_ if columns else ()
        self.categories_ = dict(zip(columns, values, strict=True))
        self.bandwidth_ = regression.current_bandwidth()
        return self

    def predict(
        self, X: ArrayLike, return_std: bool = False
    ) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
        """`(M,)`, or `(M, V)` if y had several columns; with `return_std` also the standard
        deviation of a new y about each prediction, √(variance · (1 + Σ weights²)).
        """
        check_is_fitted(self)
        skipped = hasattr(X, "iloc") or bool(self.categories_)  # checked when they are numbers
        validate_data(self, X, reset=False, ensure_all_finite=False, skip_check_array=skipped)
        value = self.regression_.predict(X)
        if not return_std:
            return value
        neighbors = self.regression_.effective_neighbors(X)
        # Without a neighbor `empty` decides the value, which has no weights.
        squares = np.divide(1.0, neighbors, out=np.zeros_like(neighbors), where=neighbors > 0)
        return value, np.sqrt(self.regression_.variance(X).T * (1.0 + squares)).T

    def _categorical_columns(self, X: Any) -> list[int]:
        if isinstance(self.categorical, str) and self.categorical == "from_dtype":
            kinds = enumerate(getattr(X, "dtypes", ()))
            return [column for column, kind in kinds if str(kind) == "category"]
        if isinstance(self.categorical, str) or not isinstance(self.categorical, Iterable):
            expected = "be 'from_dtype' or a sequence of indices or names of columns"
            _checks.fail(WHO, "categorical", expected, self.categorical)
        names, width = list(getattr(X, "columns", ())), (np.shape(X) or (0,))[-1]
        found = [
            names.index(c) if c in names and isinstance(c, str) else c for c in self.categorical
        ]
        return arrays.columns(WHO, found, "X", width)
