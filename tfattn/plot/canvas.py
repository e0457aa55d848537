"""What every figure shares: where it comes from, its sizes, the arrays that it takes."""

import numpy as np

from tfattn import _checks, _optional

SMALL, MEDIUM = 8, 10  # points: words along an axis; axis names and titles

# Told apart by most readers with a colour vision deficiency, and in grey (Okabe and Ito, 2008).
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")


def new_figure(who, width, height):
    """An empty figure of that size in inches. It is not pyplot's: nobody has to close it."""
    figure = _optional.find("matplotlib.figure", "plot", who)
    return figure.Figure(figsize=(width, height), layout="constrained")


def new_curves(who, x_label, y_label, title, width=6.4):
    """An empty figure for curves, and its one pair of axes."""
    figure = new_figure(who, width, 4.0)
    axes = figure.add_subplot()
    axes.set_xlabel(x_label, fontsize=MEDIUM)
    axes.set_ylabel(y_label, fontsize=MEDIUM)
    axes.set_title(title or "", fontsize=MEDIUM)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="0.92")
    axes.set_axisbelow(True)
    return figure, axes


def whole_numbers(axis):
    """Ticks of that axis at whole numbers only."""
    ticker = _optional.find("matplotlib.ticker", "plot", "tfattn.plot")
    # With a single cell or epoch there is one whole number in sight; asked for more ticks, the
    # locator takes halves.
    axis.set_major_locator(ticker.MaxNLocator(integer=True, steps=[1, 2, 5, 10], min_n_ticks=1))


def numbers(who, argument, value, ranks, letters):
    """`value` as a float array of one of `ranks` that is not empty."""
    try:
        array = np.asarray(value, "float64")
    except (TypeError, ValueError):
        _checks.fail(who, argument, f"hold numbers, in the shape {letters}", value)
    _checks.rank(who, argument, array.shape, ranks, letters)
    if not array.size:
        _checks.fail(who, argument, "hold at least one number", array.shape)
    return array
