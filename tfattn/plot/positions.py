"""Figures of positional encodings."""

from collections.abc import Sequence

import numpy as np

from tfattn import _checks
from tfattn._types import ArrayLike
from tfattn.plot import canvas, cells

WHO = "positions"


def positions(
    table: ArrayLike, dimensions: Sequence[int] = (4, 5, 6, 7), title: str | None = None
) -> canvas.Figure:
    """A table of positional encodings: some dimensions as curves, and all of them as a heatmap.

    Positions run from left to right in both.

    Args:
        table: `(P, D)`, a vector for each of P positions.
        dimensions: ints from 0 to D − 1: the dimensions drawn as curves.
        title: a string above the curves.
    Returns:
        `matplotlib.figure.Figure`; `figure.savefig(path)` writes it to a file.
    Raises:
        ValueError: `table` is not a matrix of numbers; a dimension is not in it.
    Example:
        >>> layer = tfattn.SinusoidalPositionalEncoding()
        >>> table = layer(np.zeros((1, 60, 32), "float32"))[0]  # added to zeros: the table
        >>> figure = tfattn.plot.positions(table)
        >>> [line.get_label() for line in figure.axes[0].get_lines()]
        ['4', '5', '6', '7']
    """
    table = canvas.numbers(WHO, "table", table, (2,), "(P, D)")
    length, width = table.shape
    canvas.check_title(WHO, title)
    if isinstance(dimensions, str) or not np.iterable(dimensions):
        _checks.fail(WHO, "dimensions", "be a sequence of integers", dimensions)
    dimensions = [_checks.non_negative_int(WHO, "dimensions", number) for number in dimensions]
    if not dimensions or max(dimensions) >= width:
        _checks.fail(WHO, "dimensions", f"hold numbers below the width, {width}", dimensions)
    figure = canvas.new_figure(WHO, 6.8, 5.6)
    grid = figure.subplots(2, 2, sharex="col", height_ratios=(2, 3), width_ratios=(40, 1))
    (upper, unused), (lower, bar_axes) = grid
    unused.remove()
    canvas.curve_axes(WHO, "", "Value", None, upper)
    figure.suptitle(title or "", fontsize=canvas.MEDIUM)
    for number, dimension in enumerate(dimensions):
        places, label = np.arange(length), str(dimension)
        canvas.draw_curve(upper, places, table[:, dimension], number, label)
    upper.legend(
        title="Dimension",
        loc="lower center",
        bbox_to_anchor=(0.5, 1.0),
        ncols=6,
        frameon=False,
        fontsize=canvas.SMALL + 1,
        title_fontsize=canvas.SMALL + 1,
        handlelength=3.2,
    )
    # A color scale from dark to light shows the sign in gray too.
    reach = np.abs(table[np.isfinite(table)]).max(initial=0.0) or 1.0
    drawn = cells.draw(WHO, lower, table.T, (-reach, reach), "cividis")
    for axis in (lower.xaxis, lower.yaxis):
        canvas.whole_numbers(axis)
    lower.set_xlabel("Position", fontsize=canvas.MEDIUM)
    lower.set_ylabel("Dimension", fontsize=canvas.MEDIUM)
    lower.tick_params(labelsize=canvas.SMALL + 1)
    figure.colorbar(drawn, cax=bar_axes).set_label("Value", fontsize=canvas.MEDIUM)
    bar_axes.tick_params(labelsize=canvas.SMALL)
    figure.align_ylabels([upper, lower])
    return canvas.finished(figure)
