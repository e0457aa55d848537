"""What every figure shares: how it is made, its sizes, the arrays that it takes."""

from collections.abc import Collection
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from tfattn import _checks, _optional

# matplotlib's own classes, which have no names here: it is imported with the first figure.
Figure = Any
Axes = Any
Axis = Any
Image = Any

SMALL, MEDIUM = 8, 10  # points: words along an axis; axis names and titles

# Told apart by most readers with a colour vision deficiency, and in grey (Okabe and Ito, 2008).
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")


def new_figure(who: str, width: float, height: float) -> Figure:
    """An empty figure of that size in inches. It is not pyplot's, so nobody has to close it."""
    figure = _optional.find("matplotlib.figure", "plot", who)
    return figure.Figure(figsize=(width, height), layout="constrained")


def new_curves(who: str, x_label: str, y_label: str, title: str | None) -> tuple[Figure, Axes]:
    """An empty figure for curves, and its one pair of axes."""
    figure = new_figure(who, 6.4, 4.0)
    axes = figure.add_subplot()
    axes.set_xlabel(x_label, fontsize=MEDIUM)
    axes.set_ylabel(y_label, fontsize=MEDIUM)
    axes.set_title(title or "", fontsize=MEDIUM)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="0.92")
    axes.set_axisbelow(True)
    return figure, axes


def whole_numbers(axis: Axis) -> None:
    """Puts the ticks of an axis at whole numbers."""
    ticker = _optional.find("matplotlib.ticker", "plot", "tfattn.plot")
    # A single cell or epoch shows one whole number; asked for two ticks, the locator takes halves.
    axis.set_major_locator(ticker.MaxNLocator(integer=True, steps=[1, 2, 5, 10], min_n_ticks=1))


def numbers(
    who: str, argument: str, value: ArrayLike, ranks: Collection[int], letters: str
) -> np.ndarray:
    """`value` as a float array that has one of `ranks` and is not empty."""
    try:
        array = np.asarray(value, "float64")
    except (TypeError, ValueError):
        _checks.fail(who, argument, f"hold numbers, in the shape {letters}", value)
    _checks.rank(who, argument, array.shape, ranks, letters)
    if not array.size:
        _checks.fail(who, argument, "hold at least one number", array.shape)
    return array
