"""Attention weights as pictures."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from tfattn import _checks, _optional
from tfattn.plot import canvas

__all__ = ["heatmaps"]


def heatmaps(
    matrices: ArrayLike,
    row_labels: Sequence[str] | None = None,
    column_labels: Sequence[str] | None = None,
    titles: ArrayLike | None = None,
    x_label: str = "Keys",
    y_label: str = "Queries",
    bar_label: str = "Attention weight",
    columns: int = 4,
    number_format: str | None = None,
    colour_map: str = "magma_r",
) -> canvas.Figure:
    """Matrices as grids of coloured cells, all on one colour scale with one bar.

    The scale begins at 0, or at the least number if that is negative.

    Args:
        matrices: `(T, S)` for one heatmap; `(H, T, S)` for one a head; `(R, C, T, S)` for R rows of
            C heatmaps. Cells that are not finite are drawn in grey.
        row_labels: T words for the rows, such as those that were written. Defaults to numbers.
        column_labels: S words for the columns, such as those that were read. Defaults to numbers.
        titles: a string a heatmap, in reading order.
        x_label, y_label, bar_label: names of the columns, the rows and the colour scale.
        columns: positive int, most heatmaps side by side for `(H, T, S)`.
        number_format: such as ".2f", to write each number into its cell; None writes none.
        colour_map: name of a matplotlib colour map.
    Returns:
        `matplotlib.figure.Figure`; `figure.savefig(path)` writes it to a file.
    Raises:
        ValueError: `matrices` has another rank or no cells; there is not a label a row, a column or
            a heatmap.
        ImportError: matplotlib is not installed.
    Example:
        >>> figure = tfattn.plot.heatmaps(np.eye(3), column_labels=["a", "small", "cat"])
        >>> [label.get_text() for label in figure.axes[0].get_xticklabels()]
        ['a', 'small', 'cat']
        >>> len(tfattn.plot.heatmaps(np.ones((2, 3, 4, 5))).axes)  # six heatmaps and the bar
        7
    """
    who, letters = "heatmaps", "(T, S), (H, T, S) or (R, C, T, S)"
    _checks.positive_int(who, "columns", columns)
    matrices = canvas.numbers(who, "matrices", matrices, (2, 3, 4), letters)
    panels = matrices.reshape(-1, *matrices.shape[-2:])  # (N, T, S)
    columns = matrices.shape[1] if matrices.ndim == 4 else min(columns, len(panels))
    row_labels = _labels("row_labels", row_labels, panels.shape[1], "row")
    column_labels = _labels("column_labels", column_labels, panels.shape[2], "column")
    titles = _labels("titles", None if titles is None else np.ravel(titles), len(panels), "heatmap")
    with_text = bool(row_labels or column_labels or number_format)
    size = _figure_size(panels.shape, columns, row_labels, column_labels, titles, with_text)
    figure = canvas.new_figure(who, *size)
    images = _draw(figure, panels, columns, colour_map)
    for number, image in enumerate(images):
        axes = image.axes
        axes.set_title(titles[number] if titles else "", fontsize=canvas.MEDIUM)
        _tick(axes.yaxis, row_labels, shown=number % columns == 0)
        # The last row may be short: above its gap, the lowest heatmap of a column has the labels.
        _tick(axes.xaxis, column_labels, shown=number + columns >= len(images))
        if number_format:
            _write_numbers(image, number_format)
    if len(images) == 1:
        axes.set_xlabel(x_label, fontsize=canvas.MEDIUM)
        axes.set_ylabel(y_label, fontsize=canvas.MEDIUM)
    else:
        figure.supxlabel(x_label, fontsize=canvas.MEDIUM)
        figure.supylabel(y_label, fontsize=canvas.MEDIUM)
    bar = figure.colorbar(images[0], ax=[image.axes for image in images], label=bar_label)
    bar.ax.tick_params(labelsize=canvas.SMALL)
    return figure


def _labels(
    argument: str, labels: Sequence[str] | None, count: int, of_what: str
) -> list[str] | None:
    if labels is None:
        return None
    labels = [str(label) for label in labels]
    if len(labels) != count:
        _checks.fail("heatmaps", argument, f"hold a label a {of_what}, {count} of them", labels)
    return labels


def _figure_size(
    shape: tuple[int, int, int],
    columns: int,
    row_labels: list[str] | None,
    column_labels: list[str] | None,
    titles: list[str] | None,
    with_text: bool,
) -> tuple[float, float]:
    """Width and height in inches, with room for the words.

    A letter takes about 0.07 along an axis, 0.08 in a title.
    """

    def room(labels):
        return 0.35 + 0.07 * max(map(len, labels or ["00"]))

    count, *matrix = shape
    cell = min(3.0 / max(matrix), 0.6)
    if with_text:
        cell = max(cell, 0.19)  # in less, words along an axis run into each other
    height, width = (max(cell * cells, 0.5) for cells in matrix)  # square cells, but no sliver
    width = max(width + 0.15, 0.08 * max(map(len, titles or [""])))
    rows = -(-count // columns)
    width = columns * width + room(row_labels) + 1.2
    height = rows * (height + 0.4) + room(column_labels) + 0.25
    return max(width, 2.5), max(height, 1.8)


def _draw(
    figure: canvas.Figure, panels: np.ndarray, columns: int, colour_map: str
) -> list[canvas.Image]:
    """One image for each of `(N, T, S)`, on one scale."""
    finite = np.ma.masked_invalid(panels)
    lowest, highest = (0.0, 1.0) if finite.count() == 0 else (min(finite.min(), 0.0), finite.max())
    known = _optional.find("matplotlib", "plot", "heatmaps").colormaps
    if colour_map not in known:
        _checks.fail("heatmaps", "colour_map", "be the name of a matplotlib colour map", colour_map)
    rows = -(-len(panels) // columns)
    images = []
    for number, panel in enumerate(finite):
        image = figure.add_subplot(rows, columns, number + 1).imshow(
            panel,
            cmap=known[colour_map].with_extremes(bad="0.8"),
            vmin=lowest,
            vmax=highest if highest > lowest else lowest + 1.0,
            aspect="auto",
            interpolation="nearest",
        )
        images.append(image)
    return images


def _tick(axis: canvas.Axis, labels: list[str] | None, shown: bool) -> None:
    if labels:
        long = axis.axis_name == "x" and max(map(len, labels)) > 2
        turned = {"rotation": 60, "ha": "right", "rotation_mode": "anchor"} if long else {}
        # Words are no formulas, whatever dollars are in them.
        axis.set_ticks(range(len(labels)), labels, parse_math=False, **turned)
    else:
        canvas.whole_numbers(axis)
    axis.set_tick_params(labelsize=canvas.SMALL, length=2, labelleft=shown, labelbottom=shown)


def _write_numbers(image: canvas.Image, number_format: str) -> None:
    for (row, column), number in np.ndenumerate(image.get_array().data):
        # Brightness as the eye weighs it, so that the text shows on any colour map.
        brightness = np.dot(image.cmap(image.norm(number))[:3], (0.299, 0.587, 0.114))
        colour = "black" if brightness > 0.5 else "white"
        text = format(number, number_format)
        image.axes.text(
            column, row, text, ha="center", va="center", color=colour, fontsize=canvas.SMALL
        )
