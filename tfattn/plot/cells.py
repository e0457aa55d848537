"""Grids of colored cells."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from tfattn import _checks, _optional
from tfattn.plot import canvas

Cells = Any  # matplotlib's image, or its mesh for cells with values

SEQUENTIAL, DIVERGING = "magma_r", "RdBu_r"
FEW = 200  # maximum number of cells along a side that are drawn with sharp edges


def scale(numbers: np.ndarray, center: float | None = None) -> tuple[float, float]:
    """Limits of a color scale: 0 or the negative minimum, and the maximum; or around `center`."""
    finite = numbers[np.isfinite(numbers)]
    if center is not None:
        reach = np.abs(finite - center).max(initial=0.0) or 1.0
        return center - reach, center + reach
    if not finite.size:
        return 0.0, 1.0
    lowest, highest = min(finite.min(), 0.0), finite.max()
    return lowest, highest if highest > lowest else lowest + 1.0


def draw(
    who: str,
    axes: canvas.Axes,
    panel: np.ndarray,
    limits: tuple[float, float],
    color_map: str,
    row_values: np.ndarray | None = None,
    column_values: np.ndarray | None = None,
) -> Cells:
    """Draws a matrix as cells: row 0 on top, or by `row_values`. Non-finite cells are gray.

    Cells with values reach half way to their neighbors.
    """
    known = _optional.find("matplotlib", "plot", who).colormaps
    if color_map not in known:
        _checks.fail(who, "color_map", "be the name of a matplotlib color map", color_map)
    lowest, highest = limits
    options = {"cmap": known[color_map].with_extremes(bad="0.8"), "vmin": lowest, "vmax": highest}
    panel = np.ma.masked_invalid(panel)
    if row_values is None and column_values is None:
        # With more cells than pixels, "nearest" would skip cells and show false stripes.
        smooth = "nearest" if max(panel.shape) <= FEW else "auto"
        return axes.imshow(panel, aspect="auto", interpolation=smooth, **options)
    rows, columns = (
        np.arange(size, dtype="float64") if values is None else values
        for size, values in zip(panel.shape, (row_values, column_values), strict=True)
    )
    axes.set_facecolor("0.8")  # a mesh does not draw masked cells
    mesh = axes.pcolormesh(_edges(columns), _edges(rows), panel, rasterized=True, **options)
    if row_values is None:
        axes.invert_yaxis()
    return mesh


def _edges(centers: np.ndarray) -> np.ndarray:
    """The N + 1 edges of N cells, half way between their centers."""
    if len(centers) == 1:
        return centers[0] + np.array([-0.5, 0.5])
    middles = (centers[1:] + centers[:-1]) / 2
    return np.concatenate([[2 * centers[0] - middles[0]], middles, [2 * centers[-1] - middles[-1]]])


def bar(
    figure: canvas.Figure, cells: Cells, axes: Sequence[canvas.Axes], label: str
) -> canvas.Axes:
    """Adds a color scale next to axes."""
    sizes = {}
    if set(figure.axes) == set(axes) and hasattr(figure, "get_size_inches"):
        width, height = figure.get_size_inches()
        if width > 6.0:  # as wide and as close as for a small figure
            sizes = {"fraction": 0.9 / width, "pad": 0.12 / width, "aspect": max(20.0, 5 * height)}
    found = figure.colorbar(cells, ax=axes, **sizes)
    found.set_label(label, fontsize=canvas.MEDIUM)
    found.ax.tick_params(labelsize=canvas.SMALL)
    return found.ax
