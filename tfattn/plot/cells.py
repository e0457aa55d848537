"""Grids of colored cells."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from tfattn import _optional
from tfattn.plot import canvas

Cells = Any  # matplotlib's image

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
) -> Cells:
    """Draws a matrix as cells, row 0 on top. Non-finite cells are gray."""
    known = _optional.find("matplotlib", "plot", who).colormaps
    # With more cells than pixels, "nearest" would skip cells and show false stripes.
    return axes.imshow(
        np.ma.masked_invalid(panel),
        aspect="auto",
        interpolation="nearest" if max(panel.shape) <= FEW else "auto",
        cmap=known[color_map].with_extremes(bad="0.8"),
        vmin=limits[0],
        vmax=limits[1],
    )


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
