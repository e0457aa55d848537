"""Surfaces over two inputs, as colors with contour lines."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from tfattn import _checks, _optional
from tfattn._types import ArrayLike
from tfattn.plot import canvas, cells

WHO = "surface"
LINES = 7  # approximate number of contours
SIDE = 3.6  # inches


def surface(
    x: ArrayLike,
    y: ArrayLike,
    heights: ArrayLike,
    points: ArrayLike | None = None,
    titles: Sequence[str] | None = None,
    x_label: str = "x",
    y_label: str = "y",
    bar_label: str = "Height",
    ax: canvas.Axes | None = None,
) -> canvas.Figure:
    """A function of two inputs: colors, contour lines with their heights, and training points.

    Several surfaces are drawn side by side with one color scale, which is readable in gray.

    Args:
        x, y: `(S,)` and `(T,)`, increasing, the grid.
        heights: `(T, S)`, at y[t] and x[s]; or `(H, T, S)` for H surfaces. Heights that are not
            finite are gray.
        points: `(N, 2)`, positions of dots; or `(N, 3)` with a height, shown as the dot's color.
        titles: a sequence of strings, one per surface.
        x_label, y_label, bar_label: labels of both axes and of the color scale.
        ax: matplotlib axes to draw one surface into. Defaults to those of a new figure.
    Returns:
        `matplotlib.figure.Figure`; `figure.savefig(path)` writes it to a file.
    Raises:
        ValueError: shapes differ, or x or y do not increase; `ax` is given with more than one
            surface.
    Example:
        >>> x, y = np.linspace(0.0, 3.0, 31), np.linspace(0.0, 2.0, 21)
        >>> figure = tfattn.plot.surface(x, y, np.sin(x) + y[:, None], bar_label="z")
        >>> [axes.get_ylabel() for axes in figure.axes]
        ['y', 'z']
    """
    for argument, words in (("x_label", x_label), ("y_label", y_label), ("bar_label", bar_label)):
        _checks.string(WHO, argument, words)
    heights = canvas.numbers(WHO, "heights", heights, (2, 3), "(T, S) or (H, T, S)")
    panels = heights.reshape(-1, *heights.shape[-2:])  # (H, T, S)
    count, rows, columns = panels.shape
    x = cells.increasing(WHO, "x", [] if x is None else x, columns, "column of `heights`")
    y = cells.increasing(WHO, "y", [] if y is None else y, rows, "row of `heights`")
    titles = canvas.labels(WHO, "titles", titles, count, "surface")
    points = None if points is None else _points(points)
    if ax is not None and count > 1:
        _checks.fail(WHO, "ax", "be None for more than one surface", ax)
    if ax is None:
        figure = canvas.new_figure(WHO, count * SIDE + 1.4, SIDE)
        grid = [figure.add_subplot(1, count, n + 1) for n in range(count)]
    else:
        figure, grid = canvas.axes_of(WHO, ax, 0, 0).figure, [ax]
    limits = _limits(panels)
    for number, (axes, panel) in enumerate(zip(grid, panels, strict=True)):
        drawn = cells.draw(WHO, axes, panel, limits, cells.SEQUENTIAL, y, x)
        _contours(axes, x, y, panel, limits)
        if points is not None:
            _dots(axes, points, drawn)
        axes.set_title(titles[number] if titles else "", fontsize=canvas.MEDIUM)
        axes.set_xlabel(x_label, fontsize=canvas.MEDIUM)
        axes.set_ylabel(y_label if number == 0 else "", fontsize=canvas.MEDIUM)
        axes.tick_params(labelsize=canvas.SMALL + 1, labelleft=number == 0)
    bar = cells.bar(figure, drawn, grid, bar_label)
    return canvas.finished(*([figure] if ax is None else [ax, bar]))


def _points(value: ArrayLike) -> np.ndarray:
    letters = "(N, 2) or (N, 3)"
    points = canvas.numbers(WHO, "points", value, (2,), letters)
    if points.shape[1] not in (2, 3):
        _checks.fail(WHO, "points", f"have shape {letters}", points.shape)
    return points


def _limits(panels: np.ndarray) -> tuple[float, float]:
    finite = panels[np.isfinite(panels)]
    if not finite.size:
        return 0.0, 1.0
    lowest, highest = float(finite.min()), float(finite.max())
    return lowest, highest if highest > lowest else lowest + 1.0


def _contours(
    axes: canvas.Axes, x: np.ndarray, y: np.ndarray, panel: np.ndarray, limits: tuple[float, float]
) -> None:
    ticker = _optional.find("matplotlib.ticker", "plot", WHO)
    levels = ticker.MaxNLocator(LINES).tick_values(*limits)
    finite = panel[np.isfinite(panel)]
    levels = [level for level in levels if finite.size and finite.min() < level < finite.max()]
    if min(panel.shape) < 2 or not levels:
        return
    middle = 0.5 * (limits[0] + limits[1])
    # Dark lines on light colors, light lines on dark colors.
    colors = ["0.15" if level < middle else "0.95" for level in levels]
    options = {"levels": levels, "colors": colors, "linewidths": 0.9, "linestyles": "solid"}
    lines = axes.contour(x, y, np.ma.masked_invalid(panel), **options)
    axes.clabel(lines, fontsize=canvas.SMALL, fmt=lambda level: canvas.written(level, ".6g"))


def _dots(axes: canvas.Axes, points: np.ndarray, drawn: cells.Cells) -> None:
    bounds = axes.get_xlim(), axes.get_ylim()
    colors: dict[str, Any] = {"color": "white"}
    if points.shape[1] == 3:
        colors = {"c": points[:, 2], "cmap": drawn.cmap, "norm": drawn.norm}
    x, y = points[:, :2].T
    axes.scatter(x, y, s=16, edgecolors="0.4", linewidths=0.6, **colors)
    axes.set_xlim(bounds[0])
    axes.set_ylim(bounds[1])
