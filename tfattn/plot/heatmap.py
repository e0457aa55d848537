"""Attention weights as pictures."""

import numpy as np

from tfattn import _checks, _optional
from tfattn.plot import canvas

__all__ = ["heatmaps"]


def heatmaps(
    matrices,
    row_labels=None,
    column_labels=None,
    titles=None,
    x_label="Keys",
    y_label="Queries",
    bar_label="Attention weight",
    columns=4,
    number_format=None,
    colour_map="magma_r",
):
    """Matrices as grids of coloured cells, all on one colour scale with one bar; it begins at 0, or
    at the least number.

    Args:
        matrices: `(T, S)` for one heatmap; `(H, T, S)` for one a head; `(R, C, T, S)` for R rows of
            C heatmaps. Cells that are not finite are drawn in grey.
        row_labels: T words for the rows, such as those that were written; numbers where they are
            not given.
        column_labels: S words for the columns, such as those that were read.
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
    panels, columns = _panels(matrices, columns)  # (N, T, S)
    row_labels = _labels("row_labels", row_labels, panels.shape[1], "row")
    column_labels = _labels("column_labels", column_labels, panels.shape[2], "column")
    titles = _labels("titles", None if titles is None else np.ravel(titles), len(panels), "heatmap")
    sides = _sides(panels.shape[1:], row_labels or column_labels or number_format)
    size = _figure_size(sides, len(panels), columns, row_labels, column_labels, titles)
    figure = canvas.new_figure("heatmaps", *size)
    images = _draw(figure, panels, columns, colour_map)
    for number, image in enumerate(images):
        axes = image.axes
        axes.set_title(titles[number] if titles else "", fontsize=canvas.MEDIUM)
        _tick(axes.yaxis, row_labels, shown=number % columns == 0)
        # The last row may be short: what hangs over its gap is the lowest of its column too.
        _tick(axes.xaxis, column_labels, shown=number + columns >= len(images))
        if number_format:
            _write_numbers(image, number_format)
    _name(figure, images, x_label, y_label)
    bar = figure.colorbar(images[0], ax=[image.axes for image in images], label=bar_label)
    bar.ax.tick_params(labelsize=canvas.SMALL)
    return figure


def _panels(matrices, columns):
    """The heatmaps one after the other `(N, T, S)`, and how many stand side by side."""
    _checks.positive_int("heatmaps", "columns", columns)
    array = canvas.numbers(
        "heatmaps", "matrices", matrices, (2, 3, 4), "(T, S), (H, T, S) or (R, C, T, S)"
    )
    panels = array.reshape(-1, *array.shape[-2:])
    side_by_side = array.shape[1] if array.ndim == 4 else min(columns, len(panels))
    return panels, side_by_side


def _labels(argument, labels, count, what):
    if labels is None:
        return None
    labels = [str(label) for label in labels]
    if len(labels) != count:
        _checks.fail("heatmaps", argument, f"hold a label a {what}, {count} of them", labels)
    return labels


def _sides(shape, with_text):
    """Height and width of one heatmap in inches: square cells, unless that makes a sliver."""
    longest = max(shape)
    cell = min(3.0 / longest, 0.6)
    if with_text:
        # Below this, words along an axis run into each other.
        cell = max(cell, 0.19)
    return [max(cell * count, 0.5) for count in shape]


def _figure_size(sides, count, columns, row_labels, column_labels, titles):
    """Width and height in inches, with room for the words: about 0.07 a letter along an axis, 0.08
    in a title.
    """

    def room(labels):
        return 0.35 + 0.07 * max(map(len, labels or ["00"]))

    rows = -(-count // columns)
    panel_width = max(sides[1] + 0.15, 0.08 * max(map(len, titles or [""])))
    width = columns * panel_width + room(row_labels) + 1.2
    height = rows * (sides[0] + 0.4) + room(column_labels) + 0.25
    return max(width, 2.5), max(height, 1.8)


def _draw(figure, panels, columns, colour_map):
    hidden = np.ma.masked_invalid(panels)
    lowest, highest = (0.0, 1.0) if hidden.count() == 0 else (min(hidden.min(), 0.0), hidden.max())
    colours = _colours(colour_map)
    rows = -(-len(panels) // columns)
    images = []
    for number, panel in enumerate(hidden):
        image = figure.add_subplot(rows, columns, number + 1).imshow(
            panel,
            cmap=colours,
            vmin=lowest,
            vmax=highest if highest > lowest else lowest + 1.0,
            aspect="auto",
            interpolation="nearest",
        )
        images.append(image)
    return images


def _colours(name):
    known = _optional.find("matplotlib", "plot", "heatmaps").colormaps
    if name not in known:
        _checks.fail("heatmaps", "colour_map", "be the name of a matplotlib colour map", name)
    return known[name].with_extremes(bad="0.8")


def _tick(axis, labels, shown):
    if labels:
        long = axis.axis_name == "x" and max(map(len, labels)) > 2
        turned = {"rotation": 60, "ha": "right", "rotation_mode": "anchor"} if long else {}
        # Words and not formulas, whatever dollars are in them.
        axis.set_ticks(range(len(labels)), labels, parse_math=False, **turned)
    else:
        canvas.whole_numbers(axis)
    axis.set_tick_params(labelsize=canvas.SMALL, length=2, labelleft=shown, labelbottom=shown)


def _name(figure, images, x_label, y_label):
    """Axis names: on the axes of a single heatmap, once for all of several."""
    if len(images) == 1:
        images[0].axes.set_xlabel(x_label, fontsize=canvas.MEDIUM)
        images[0].axes.set_ylabel(y_label, fontsize=canvas.MEDIUM)
    else:
        figure.supxlabel(x_label, fontsize=canvas.MEDIUM)
        figure.supylabel(y_label, fontsize=canvas.MEDIUM)


def _write_numbers(image, number_format):
    for (row, column), number in np.ndenumerate(image.get_array().data):
        # Brightness as the eye weighs it, so that the text is read on any colour map.
        brightness = np.dot(image.cmap(image.norm(number))[:3], (0.299, 0.587, 0.114))
        colour = "black" if brightness > 0.5 else "white"
        text = format(number, number_format)
        image.axes.text(
            column, row, text, ha="center", va="center", color=colour, fontsize=canvas.SMALL
        )
