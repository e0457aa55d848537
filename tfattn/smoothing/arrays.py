"""What comes in: checked, as float64, with one message for a number that is none."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from tfattn import _checks

Array = np.ndarray


def table(who: str, argument: str, value: ArrayLike, names: Sequence[str] | None = None) -> Array:
    """`(N, D)` in float64; a vector becomes one column.

    Raises:
        ValueError: another rank, something that is no number, NaN or inf: with its row and column.
    """
    try:
        array = np.asarray(value)
        if array.dtype.kind in "cSU":  # NumPy would cast them: without a part, or as they are spelt
            raise TypeError
        array = array.astype("float64")
    except (TypeError, ValueError) as error:
        shown = type(value).__name__
        expected = "be an array of real numbers (read a tf.data pipeline or a generator first)"
        raise ValueError(
            f"{who}: `{argument}` must {expected}. Received: {argument}={shown}"
        ) from error
    _checks.rank(who, argument, array.shape, (1, 2), "(N,) or (N, D)")
    array = array[:, None] if array.ndim == 1 else array
    names = column_names(who, names, array.shape[1])
    finite = np.isfinite(array)
    if not finite.all():
        row, column = (int(i) for i in np.argwhere(~finite)[0])
        name = repr(names[column]) if names is not None else column
        shown = {np.inf: "inf", -np.inf: "-inf"}.get(array[row, column], "NaN")
        _checks.fail(who, argument, "be finite", _Words(f"{shown} at row {row}, column {name}"))
    return array


def reals(who: str, argument: str, value: ArrayLike, expected: str) -> Array:
    """Real numbers of any shape, in float64.

    Raises:
        ValueError: `value` is something else, and not what `expected` says.
    """
    try:
        array = np.asarray(value)
        if array.dtype.kind in "bcSU":
            raise TypeError
        return array.astype("float64")
    except (TypeError, ValueError):
        _checks.fail(who, argument, expected, value)


def column_names(who: str, value: Sequence[str] | None, count: int) -> list[str] | None:
    """A name a column, or None."""
    if value is None:
        return None
    expected = f"be a sequence of names, one a column of x, {count}"
    if isinstance(value, str | bytes) or not np.iterable(value) or len(value) != count:
        _checks.fail(who, "names", expected, value)
    return [str(name) for name in value]


class _Words(str):
    """Shown in a message without quotes."""

    def __repr__(self) -> str:
        return str(self)


def weights(who: str, value: ArrayLike | None, count: int) -> Array | None:
    """`(N,)` non-negative sample weights; None where all are alike."""
    if value is None:
        return None
    array = table(who, "sample_weight", value)
    if array.shape != (count, 1):
        _checks.fail(
            who, "sample_weight", f"have shape ({count},), one weight a point", array.shape
        )
    if array.min() < 0 or not array.max() > 0:
        worst = float(array.min() if array.min() < 0 else array.max())
        _checks.fail(who, "sample_weight", "be at least zero, and above zero somewhere", worst)
    return array[:, 0]
