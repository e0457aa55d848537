"""Kernel regression as an estimator of scikit-learn, for pipelines, searches, cross-validation.

Needs scikit-learn: `pip install "tfattn[sklearn]"`.
"""

import datetime
import numbers
from collections.abc import Sequence
from typing import Any

import numpy as np

from tfattn import _checks, _optional
from tfattn._types import ArrayLike
from tfattn.kernel_regression import arrays
from tfattn.kernel_regression.regression import Band, KernelRegression, LeaveOneOut

WHO = "KernelRegressor"
_optional.find("sklearn", "sklearn", WHO)

from sklearn.base import BaseEstimator, MultiOutputMixin, RegressorMixin  # noqa: E402
from sklearn.utils import check_array, check_X_y  # noqa: E402
from sklearn.utils.validation import check_is_fitted, validate_data  # noqa: E402

_TIMES = (datetime.date, datetime.timedelta, np.datetime64, np.timedelta64)
_NOT_NUMBERS = (str, bytes, complex, *_TIMES)


class _Regression(KernelRegression):
    """The regression with messages that name the estimator and its `X`."""

    _who, _x = WHO, "X"

    def deviation(self, x: ArrayLike) -> np.ndarray:
        """The root of the variance, computed without overflow of the variance."""
        return self._shaped(np.sqrt(self._scaled_variance(x)) * self.y_scale)


class KernelRegressor(MultiOutputMixin, RegressorMixin, BaseEstimator):
    """Nadaraya–Watson or local linear regression that chooses its own bandwidth.

    `fit` finds the bandwidth of the least leave-one-out error, to convergence, by
    `KernelRegression`. Aitchison and Aitken's kernel weighs columns of a categorical dtype.

    Args:
        kernel, bandwidth, metric, degree, empty: as in `KernelRegression`.
        categorical: "from_dtype", the columns of a data frame with a categorical dtype; or a
            sequence of indices or names of columns. Their categories are strings, numbers or
            booleans, in a data frame or an array of objects.
        leave_out: "place" (all points with the same x are left out together, so that a weight of 2
            equals a repeated row) or "point". Defaults to None: "place", but "point" with
            categories, which points share by design.
        sample, verbose: as in `KernelRegression`.
    Attributes:
        bandwidth_: the bandwidth in use, in the units of X.
        regression_: the `KernelRegression`.
        categories_: dict from the index of each categorical column to its values.
        n_features_in_, feature_names_in_: as everywhere in scikit-learn.
    Raises:
        ValueError: as in `KernelRegression` and in scikit-learn's checks; a missing category;
            strings in a column that is not categorical.
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
        metric: str = "each",
        degree: int = 0,
        categorical: str | Sequence[Any] = "from_dtype",
        empty: str = "nearest",
        leave_out: str | None = None,
        sample: int | None = None,
        verbose: bool = False,
    ):
        self.kernel = kernel
        self.bandwidth = bandwidth
        self.metric = metric
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
        categories: dict[int, Any] = dict.fromkeys(columns)
        X, y = self._checked(X, categories, y=y)
        leave_out = self.leave_out or ("point" if columns else "place")
        settings = {"categorical": columns, "leave_out": leave_out}
        regression = _Regression(**self.get_params() | settings)
        names = getattr(self, "feature_names_in_", None)
        regression.fit(X, y, sample_weight, names=names)
        self.regression_ = regression
        self.categories_ = categories
        self.bandwidth_ = self.regression_.current_bandwidth()
        return self

    def predict(
        self, X: ArrayLike, return_std: bool = False
    ) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
        """`(M,)`, or `(M, V)` if y had several columns; with `return_std` also the standard
        deviation of a new y about each prediction, √(variance · (1 + Σ weights²)).
        """
        _checks.boolean(WHO, "return_std", return_std)
        X = self._checked(X)
        value = self.regression_.predict(X)
        if not return_std:
            return value
        neighbors = self.regression_.effective_neighbors(X)
        # Without a neighbor `empty` decides the value, which has no weights.
        squares = np.divide(1.0, neighbors, out=np.zeros_like(neighbors), where=neighbors > 0)
        return value, (self.regression_.deviation(X).T * np.sqrt(1.0 + squares)).T

    def bands(self, X: ArrayLike, level: float = 0.95, **options: Any) -> Band:
        """A pointwise confidence band, see `KernelRegression.bands`."""
        return self.regression_.bands(self._checked(X), level, **options)

    def derivative(self, X: ArrayLike) -> np.ndarray:
        """The slope along each continuous column, see `KernelRegression.derivative`."""
        return self.regression_.derivative(self._checked(X))

    def variance(self, X: ArrayLike) -> np.ndarray:
        """The variance of y about the curve, see `KernelRegression.variance`."""
        return self.regression_.variance(self._checked(X))

    def effective_neighbors(self, X: ArrayLike) -> np.ndarray:
        """The effective number of points per query, see `KernelRegression.effective_neighbors`."""
        return self.regression_.effective_neighbors(self._checked(X))

    def weights(self, X: ArrayLike) -> np.ndarray:
        """`(M, N)`, the weights of the training points, see `KernelRegression.weights`."""
        return self.regression_.weights(self._checked(X))

    def leave_one_out(self) -> LeaveOneOut:
        """Each training point predicted from all others, see `KernelRegression.leave_one_out`."""
        check_is_fitted(self)
        return self.regression_.leave_one_out()

    def _checked(
        self, X: ArrayLike, categories: dict[int, np.ndarray] | None = None, **fitting: Any
    ) -> Any:
        """X, and y in `fit`, after scikit-learn's checks; categories as numbers.

        `KernelRegression` refuses numbers that are not finite, with row and column.

        Args:
            categories: in `fit`, a dict from the index of each categorical column to its values,
                which this method fills in.
            fitting: in `fit`, y.
        """
        if categories is None:
            check_is_fitted(self)
            categories = self.categories_
        of_y = {"multi_output": True, "y_numeric": True} if fitting else {}
        options = {"dtype": "float64", "ensure_all_finite": False, **of_y}
        names, table = _names(X), _without_pandas_dtypes(X)
        if table is X and not categories:
            _check_numbers(X, names)
            return validate_data(self, X, reset=bool(fitting), **fitting, **options)
        validate_data(self, X, reset=bool(fitting), skip_check_array=True)
        # A copy, since arrays from pandas may be read only.
        table = np.array(check_array(table, dtype=object, ensure_all_finite=False))
        for column, known in categories.items():
            _check_categories(table[:, column], column, names)
            if fitting:
                known = categories[column] = _distinct(table[:, column])
            codes = {value: code for code, value in enumerate(known)}
            # −1 for a category that is new since `fit`.
            table[:, column] = [codes.get(value, -1) for value in table[:, column]]
        _check_numbers(table, names)
        return (
            check_X_y(table, fitting["y"], **options) if fitting else check_array(table, **options)
        )

    def _categorical_columns(self, X: ArrayLike) -> list[int]:
        names = _names(X) or []
        expected = "be 'from_dtype' or a sequence of indices or names of columns"
        if isinstance(self.categorical, str) and self.categorical == "from_dtype":
            kinds = [str(kind) for kind in getattr(X, "dtypes", ())] if names else []
            return [column for column, kind in enumerate(kinds) if kind == "category"]
        if isinstance(self.categorical, str | bytes) or not np.iterable(self.categorical):
            _checks.fail(WHO, "categorical", expected, self.categorical)
        columns = list(self.categorical)
        for place, column in enumerate(columns):
            if isinstance(column, str):
                if column not in names:
                    _checks.fail(WHO, "categorical", f"hold column names from {names}", column)
                columns[place] = names.index(column)
        shape = np.shape(X)
        return arrays.columns(WHO, columns, "X", shape[1] if len(shape) > 1 else 0)


def _names(X: Any) -> list[str] | None:
    return [str(name) for name in X.columns] if hasattr(X, "columns") else None


def _without_pandas_dtypes(X: Any) -> Any:
    """A data frame with objects or dtypes of pandas as an array of objects, NaN where one is
    missing: scikit-learn cannot convert every mix of these dtypes.
    """
    kinds = X.dtypes if hasattr(X, "iloc") and hasattr(X, "columns") else ()
    extended = any(not isinstance(kind, np.dtype) or kind.kind == "O" for kind in kinds)
    return X.to_numpy(object, na_value=np.nan) if extended else X


def _check_numbers(X: Any, names: list[str] | None) -> None:
    """Refuses strings and dates, which NumPy would cast to numbers."""
    table = np.asarray(X, None if hasattr(X, "dtype") or hasattr(X, "iloc") else object)
    if table.dtype.kind in "biufc" or table.ndim != 2:
        return
    for place, value in np.ndenumerate(table):
        of_pandas = type(value).__module__.startswith("pandas")  # periods and intervals
        if of_pandas or isinstance(value, _NOT_NUMBERS):
            raise ValueError(
                f"{WHO}: `X` must hold numbers where a column is not categorical. "
                f"Received: X={value!r} {arrays.at(place[0], place[1], names)}"
            )


def _check_categories(values: np.ndarray, column: int, names: list[str] | None) -> None:
    for row, value in enumerate(values):
        is_number = isinstance(value, numbers.Real | np.bool_)
        if not isinstance(value, str) and not (is_number and np.isfinite(value)):
            raise ValueError(
                f"{WHO}: `X` must hold strings or numbers in categorical columns, none of them "
                f"missing. Received: X={value!r} {arrays.at(row, column, names)}"
            )


def _distinct(values: np.ndarray) -> np.ndarray:
    """The distinct values, sorted: numbers, then strings."""
    found = set(values.tolist())
    numeric = sorted(value for value in found if not isinstance(value, str))
    words = sorted(value for value in found if isinstance(value, str))
    return np.array(numeric + words, dtype=object if numeric and words else None)
