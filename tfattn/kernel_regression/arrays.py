"""Checked inputs as float64 arrays."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from tfattn import _checks
from tfattn._types import ArrayLike

Array = np.ndarray


def reals(who: str, argument: str, value: ArrayLike, expected: str) -> Array:
    """Real numbers in float64. NumPy would cast others: complex numbers lose a part, text is
    parsed, dates become counts of an unnamed unit.
    """
    try:
        array = np.asarray(value)
        if array.dtype.kind == "O":
            array = np.asarray(array.tolist())  # by what the objects are
    except ValueError:  # rows of other lengths
        _checks.fail(who, argument, expected, value)
    if array.dtype.kind not in "biuf":
        shown = type(value).__name__
        raise ValueError(f"{who}: `{argument}` must {expected}. Received: {argument}={shown}")
    return array.astype("float64")


def table(who: str, argument: str, value: ArrayLike) -> Array:
    """`(N, D)` finite numbers in float64; a vector becomes one column."""
    array = reals(who, argument, value, "be an array of real numbers")
    _checks.rank(who, argument, array.shape, (1, 2), "(N,) or (N, D)")
    array = array[:, None] if array.ndim == 1 else array
    finite = np.isfinite(array)
    if not finite.all():
        row, column = (int(i) for i in np.argwhere(~finite)[0])
        shown = {np.inf: "inf", -np.inf: "-inf"}.get(array[row, column], "NaN")
        raise ValueError(
            f"{who}: `{argument}` must be finite. "
            f"Received: {argument}={shown} at row {row}, column {column}"
        )
    return array


def columns(who: str, value: Sequence[Any], x: str, count: int) -> list[int]:
    """Indices of some of the columns of `x`, each once."""
    for column in value:
        whole = isinstance(column, int | np.integer) and not isinstance(column, bool)
        if not whole or not 0 <= column < count or list(value).count(column) > 1:
            expected = f"hold indices of the {count} columns of {x}, each once"
            _checks.fail(who, "categorical", expected, value)
    return [int(column) for column in value]


def weights(who: str, value: ArrayLike | None, count: int) -> Array | None:
    """`(N,)` non-negative sample weights, or None."""
    if value is None:
        return None
    array = table(who, "sample_weight", value)
    if array.shape != (count, 1):
        expected = f"have shape ({count},), one weight per point"
        _checks.fail(who, "sample_weight", expected, array.shape)
    if array.min() < 0 or not array.max() > 0:
        worst = float(array.min() if array.min() < 0 else array.max())
        _checks.fail(who, "sample_weight", "be at least zero, and above zero somewhere", worst)
    return array[:, 0]
