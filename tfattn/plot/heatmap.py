"""Heatmaps of attention weights."""

from collections.abc import Sequence

import numpy as np

from tfattn import _checks
from tfattn._types import ArrayLike
from tfattn.plot import canvas, cells

WHO = "heatmaps"
WIDEST = 20.0  # maximum inches of heatmaps side by side


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
    color_map: str | None = None,
    center: float | None = None,
    ax: canvas.Axes | None = None,
) -> canvas.Figure:
    """Heatmaps of matrices, with one color scale for all of them.

    The scale begins at 0, or at the smallest number if that is negative. With `center` it is
    symmetric around that number.

    Args:
        matrices: `(T, S)` for one heatmap; `(H, T, S)` for one per head; `(R, C, T, S)` for R rows
            of C heatmaps. Cells that are not finite are drawn in gray.
        row_labels: T words for the rows, such as the queries. Defaults to numbers.
        column_labels: S words for the columns, such as the keys. Defaults to numbers.
        titles: a sequence of strings, one per heatmap, row by row.
        x_label, y_label, bar_label: labels of the columns, the rows and the color scale.
        columns: positive int, the maximum number of heatmaps side by side for `(H, T, S)`.
        number_format: format such as ".2f" of a number in each cell. Defaults to None: no numbers.
        color_map: name of a matplotlib color map. Defaults to "magma_r", which is readable in gray,
            or "RdBu_r" with a `center`, which is not.
        center: number in the middle of the color scale, such as 0.0 for numbers of both signs.
        ax: matplotlib axes to draw one heatmap into. Defaults to those of a new figure.
    Returns:
        `matplotlib.figure.Figure`; `figure.savefig(path)` writes it to a file.
    Raises:
        ValueError: `matrices` has another rank or no cells; the number of labels or titles is
            wrong; `ax` is given with more than one heatmap.
    Example:
        >>> figure = tfattn.plot.heatmaps(np.eye(3), column_labels=["a", "small", "cat"])
        >>> [label.get_text() for label in figure.axes[0].get_xticklabels()]
        ['a', 'small', 'cat']
        >>> len(tfattn.plot.heatmaps(np.ones((2, 3, 4, 5))).axes)  # six heatmaps, one scale
        7
    """
    _checks.positive_int(WHO, "columns", columns)
    matrices = canvas.numbers(
        WHO, "matrices", matrices, (2, 3, 4), "(T, S), (H, T, S) or (R, C, T, S)"
    )
    panels = matrices.reshape(-1, *matrices.shape[-2:])  # (N, T, S)
    count, num_rows, num_columns = panels.shape
    columns = matrices.shape[1] if matrices.ndim == 4 else min(columns, count)
    row_labels = canvas.labels(WHO, "row_labels", row_labels, num_rows, "row")
    column_labels = canvas.labels(WHO, "column_labels", column_labels, num_columns, "column")
    titles = None if titles is None else np.ravel(titles).tolist()  # also of lists by rows
    titles = canvas.labels(WHO, "titles", titles, count, "heatmap")
    if ax is not None and count > 1:
        _checks.fail(WHO, "ax", "be None for more than one heatmap", ax)
    written = [_written(n, number_format) for n in panels.flat] if number_format else []
    if ax is None:
        labeled = bool(row_labels or column_labels)
        width, height = _panel_size(panels.shape, columns, titles, labeled, written)
    else:
        box = canvas.axes_of(WHO, ax, 0, 0).get_window_extent()  # before the layout of the figure
        width, height = box.width / ax.figure.dpi, box.height / ax.figure.dpi
    if ax is None:
        across, rows = width * columns, -(-count // columns)
        rotated = canvas.overlap(column_labels, width)
        down = (height + 0.4) * rows + _room(column_labels if rotated else []) + 0.25
        size = max(across + _room(row_labels) + 1.2, 2.5), max(down, 1.8)
        figure = canvas.new_figure(WHO, *size)
        grid = [figure.add_subplot(rows, columns, n + 1) for n in range(count)]
    else:
        figure, grid = ax.figure, [ax]

    color_map = color_map or (cells.SEQUENTIAL if center is None else cells.DIVERGING)
    limits = cells.scale(panels, center)
    for axes, panel in zip(grid, panels, strict=True):
        drawn = cells.draw(WHO, axes, panel, limits, color_map)
        if number_format:
            _write_numbers(drawn, panel, number_format)
    labels, names = (row_labels, column_labels), (x_label, y_label)
    canvas.label_edges(grid, columns, (width, height), titles, labels, names)
    bar = cells.bar(figure, drawn, grid, bar_label)
    return canvas.finished(*([figure] if ax is None else [ax, bar]))


def _panel_size(
    shape: tuple[int, int, int],
    columns: int,
    titles: list[str],
    labeled: bool,
    written: list[str],
) -> tuple[float, float]:
    """Width and height of a heatmap in inches, with room for its numbers and title."""
    *_, tall, wide = shape
    largest = max(tall, wide)
    # A minimum for words along an axis; with many heatmaps side by side, some are left out instead.
    cell = max(min(3.0 / largest, 0.6), 0.19 if labeled else 0.0)
    cell = min(cell, WIDEST / columns / largest)
    if written:
        cell = max(cell, canvas.LETTER * canvas.longest(written) + 0.08)
    height, width = (max(cell * cells, 0.5) for cells in (tall, wide))  # square
    return max(width + 0.15, 0.08 * canvas.longest(titles)), height


def _room(labels: list[str]) -> float:
    """Inches next to a heatmap for its labels."""
    return 0.35 + canvas.LETTER * canvas.longest(labels or ["00"])


def _written(number: float, number_format: str) -> str:
    """A formatted number with the minus sign of axes, and without a minus before zero."""
    words = format(number, number_format)
    if words.startswith("-") and not words.strip("-0."):
        words = words[1:]
    return words.replace("-", "\N{MINUS SIGN}")


def _write_numbers(drawn: cells.Cells, panel: np.ndarray, number_format: str) -> None:
    for (row, column), number in np.ndenumerate(panel):
        # Perceived brightness, for readable text on any color map.
        brightness = np.dot(drawn.cmap(drawn.norm(number))[:3], (0.299, 0.587, 0.114))
        drawn.axes.text(
            column,
            row,
            _written(number, number_format),
            ha="center",
            va="center",
            color="black" if brightness > 0.5 else "white",
            fontsize=canvas.SMALL,
        )
