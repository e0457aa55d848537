"""Attention between two sentences, as lines."""

from collections.abc import Sequence

import numpy as np

from tfattn import _checks, _optional
from tfattn._types import ArrayLike
from tfattn.plot import canvas, cells

WHO = "flow"


def flow(
    weights: ArrayLike,
    row_labels: Sequence[str],
    column_labels: Sequence[str],
    title: str | None = None,
    threshold: float = 0.05,
    ax: canvas.Axes | None = None,
) -> canvas.Figure:
    """Lines from each query word to the key words that it attends to.

    The larger a weight, the wider and darker its line.

    Args:
        weights: `(T, S)`, attention weights, a row per query and a column per key.
        row_labels: T words, on the left: the queries.
        column_labels: S words, on the right: the keys.
        title: a string above the words.
        threshold: number of at least 0; smaller weights get no line.
        ax: matplotlib axes to draw into. Defaults to those of a new figure.
    Returns:
        `matplotlib.figure.Figure`; `figure.savefig(path)` writes it to a file.
    Raises:
        ValueError: `weights` is not a matrix of numbers; the number of labels is wrong.
    Example:
        >>> weights = [[0.9, 0.1, 0.0], [0.0, 0.3, 0.7]]
        >>> figure = tfattn.plot.flow(weights, ["un", "chat"], ["a", "small", "cat"])
        >>> len(figure.axes[0].collections[0].get_segments())  # two of the six weights are 0
        4
    """
    weights = canvas.numbers(WHO, "weights", weights, (2,), "(T, S)")
    rows, columns = weights.shape
    row_labels = canvas.labels(WHO, "row_labels", row_labels, rows, "row")
    column_labels = canvas.labels(WHO, "column_labels", column_labels, columns, "column")
    _checks.non_negative_number(WHO, "threshold", threshold)
    words = canvas.LETTER * 1.25 * (canvas.longest(row_labels) + canvas.longest(column_labels))
    height = 0.22 * max(rows, columns) + (0.8 if title else 0.5)
    width = max(2.6 + words, canvas.LETTER * 1.25 * canvas.letters(title or ""))
    axes = canvas.axes_of(WHO, ax, width, max(height, 1.6))
    left, right = _places(rows, columns), _places(columns, rows)
    _draw_lines(axes, weights, left, right, threshold)
    for x, places, labels, side in (
        (0, left, row_labels, "right"),
        (1, right, column_labels, "left"),
    ):
        for place, label in zip(places, labels, strict=True):
            axes.annotate(
                label,
                (x, place),
                xytext=(-4 if side == "right" else 4, 0),
                textcoords="offset points",
                ha=side,
                va="center",
                fontsize=canvas.SMALL + 1,
                parse_math=False,
            )
    bottom = max(rows, columns) - 0.5
    axes.set(xlim=(0, 1), ylim=(bottom, -0.5), xticks=(0, 1), yticks=())
    axes.set_xticklabels(("Queries", "Keys"), fontsize=canvas.MEDIUM)
    axes.tick_params(top=False, bottom=False, labeltop=True, labelbottom=False, length=0)
    axes.spines[:].set_visible(False)
    axes.set_title(title or "", fontsize=canvas.MEDIUM)
    return canvas.finished(axes)


def _places(count: int, other: int) -> np.ndarray:
    """Heights of the words of a sentence; a shorter sentence is spread over the larger height."""
    if count >= other:
        return np.arange(count, dtype="float64")
    return (np.arange(count) + 0.5) * other / count - 0.5


def _draw_lines(
    axes: canvas.Axes, weights: np.ndarray, left: np.ndarray, right: np.ndarray, threshold: float
) -> None:
    """Draws the lines, the darkest line last, on top."""
    collections = _optional.find("matplotlib.collections", "plot", WHO)
    shades = _optional.find("matplotlib", "plot", WHO).colormaps[cells.SEQUENTIAL]
    strong = np.isfinite(weights) & (weights >= threshold) & (weights > 0)
    pairs = np.argwhere(strong)
    shares = weights[strong] / max(weights[strong].max(initial=0.0), 1.0)
    order = np.argsort(shares, kind="stable")
    lines = [[(0.0, left[row]), (1.0, right[column])] for row, column in pairs[order]]
    drawn = collections.LineCollection(
        lines,
        linewidths=0.5 + 3.0 * shares[order],
        colors=shades(0.3 + 0.7 * shares[order]),
        capstyle="round",
    )
    axes.add_collection(drawn, autolim=False)
