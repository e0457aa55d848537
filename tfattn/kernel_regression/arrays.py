"""Checked inputs as float64 arrays."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from tfattn import _checks
from tfattn._types import ArrayLike

Array = np.ndarray


def table(who: str, argument: str, value: ArrayLike, names: Sequence[str] | None = None) -> Array:
    """`(N, D)` in float64; a vector becomes one column.

    Raises:
        ValueError: another rank, no real numbers, NaN or inf (with its row and column).
    """
    try:
        array = _floats(value)
    except (TypeError, ValueError) as error:
        shown = type(value).__name__
        shown += f" of {value.dtype}" if hasattr(value, "dtype") else ""
        expected = "be an array of real numbers"
        if hasattr(value, "columns"):
            expected += " (`tfattn.kernel_regression.KernelRegressor` takes data frames)"
        elif not isinstance(value, np.ndarray | list | tuple):
            expected += " (read a tf.data pipeline or a generator first)"
        raise ValueError(
            f"{who}: `{argument}` must {expected}. Received: {argument}={shown}"
        ) from error
    _checks.rank(who, argument, array.shape, (1, 2), "(N,) or (N, D)")
    array = array[:, None] if array.ndim == 1 else array
    names = column_names(who, names, array.shape[1])
    finite = np.isfinite(array)
    if not finite.all():
        row, column = (int(i) for i in np.argwhere(~finite)[0])
        shown = {np.inf: "inf", -np.inf: "-inf"}.get(array[row, column], "NaN")
        place = at(row, column, names)
        raise ValueError(
            f"{who}: `{argument}` must be finite. Received: {argument}={shown} {place}"
        )
    return array


def at(row: int, column: int, names: Sequence[str] | None) -> str:
    """Row and column of a number, for messages."""
    return f"at row {row}, column {column if names is None else repr(names[column])}"


def reals(who: str, argument: str, value: ArrayLike, expected: str) -> Array:
    """Real numbers of any shape, in float64.

    Raises:
        ValueError: `value` does not contain real numbers; the message says what is `expected`.
    """
    try:
        return _floats(value, refused="cSUMmb")
    except (TypeError, ValueError):
        _checks.fail(who, argument, expected, value)


def _floats(value: ArrayLike, refused: str = "cSUMm") -> Array:
    """As float64, refusing dtypes that NumPy would cast to it: complex numbers lose a part, text
    is parsed, dates become counts of an unnamed unit.
    """
    array = np.asarray(value)
    kinds = {array.dtype.kind}
    if array.dtype.kind == "O":
        samples = {type(item): item for item in array.flat}
        kinds = {np.asarray(item).dtype.kind for item in samples.values()}
    if kinds & set(refused):
        raise TypeError(f"{array.dtype} is no real number")
    return array.astype("float64")


def column_names(who: str, value: Sequence[str] | None, count: int) -> list[str] | None:
    """A name per column, or None."""
    if value is None:
        return None
    expected = f"be a sequence of names, one per column of x, {count}"
    if isinstance(value, str | bytes) or not np.iterable(value) or len(value) != count:
        _checks.fail(who, "names", expected, value)
    return [str(name) for name in value]


def columns(who: str, value: Sequence[Any], x: str, count: int) -> list[int]:
    """Indices of some of the columns of `x`, each once."""
    for column in value:
        whole = isinstance(column, int | np.integer) and not isinstance(column, bool)
        if not whole or not 0 <= column < count:
            _checks.fail(who, "categorical", f"hold indices of the {count} columns of {x}", value)
    if len(set(value)) < len(value):
        _checks.fail(who, "categorical", "hold each column once", value)
    return [int(column) for column in value]


def weights(who: str, value: ArrayLike | None, count: int) -> Array | None:
    """`(N,)` non-negative sample weights, or None."""
    if value is None:
        return None
    array = table(who, "sample_weight", value)
    if array.shape != (count, 1):
        _checks.fail(
            who, "sample_weight", f"have shape ({count},), one weight per point", array.shape
        )
    if array.min() < 0 or not array.max() > 0:
        worst = float(array.min() if array.min() < 0 else array.max())
        _checks.fail(who, "sample_weight", "be at least zero, and above zero somewhere", worst)
    return array[:, 0]
