"""Bar charts."""

from collections.abc import Mapping, Sequence

import numpy as np

from tfattn import _checks
from tfattn._types import ArrayLike
from tfattn.plot import canvas

WHO = "bars"


def bars(
    labels: Sequence[str],
    series: ArrayLike | Mapping[str, ArrayLike],
    x_label: str,
    y_label: str,
    title: str | None = None,
    number_format: str | None = None,
    ax: canvas.Axes | None = None,
) -> canvas.Figure:
    """A bar chart: one bar per label, or a group of bars per label.

    In a group, the bars of different names differ in color and hatch.

    Args:
        labels: N strings below the bars.
        series: `(N,)`, the heights of the bars; or a dict from name to `(N,)`.
        x_label, y_label, title: strings on the axes and above them.
        number_format: format such as ".2f" of a number at each bar. Defaults to None: no numbers.
        ax: matplotlib axes to draw into. Defaults to those of a new figure.
    Returns:
        `matplotlib.figure.Figure`; `figure.savefig(path)` writes it to a file.
    Raises:
        ValueError: `series` does not have one number per label.
    Example:
        >>> weights = {"without a query": [0.2, 0.8], "with a query": [0.9, 0.1]}
        >>> figure = tfattn.plot.bars(["book", "cup"], weights, "Things", "Weight")
        >>> len(figure.axes[0].patches)
        4
    """
    _checks.string(WHO, "y_label", y_label)
    canvas.check_format(WHO, number_format)
    named = canvas.named_vectors(WHO, "series", series, y_label)
    count = len(next(iter(named.values())))
    if labels is None:
        _checks.fail(WHO, "labels", f"hold one label per bar, {count}", labels)
    labels = canvas.labels(WHO, "labels", labels, count, "bar")
    for name, numbers in named.items():
        if len(numbers) != count:
            _checks.fail(
                WHO, "series", f"hold one number per label, {count}", {name: numbers.shape}
            )
    width = 0.8 / len(named)
    room = max(0.19, 0.8 * canvas.LETTER * canvas.longest(_written(named, number_format)))
    inches = max(6.4 if len(labels) > 3 else 4.8, 1.0 + room * len(named) * count / 0.8)
    upright = 1.1 * canvas.LETTER * canvas.longest(labels) * count / 0.77  # the axes' share
    if upright <= 6.4:  # wide enough for horizontal labels
        inches = max(inches, upright)
    axes = canvas.curve_axes(WHO, x_label, y_label, title, ax, inches)
    axes.grid(visible=False, axis="x")
    for number, (name, heights) in enumerate(named.items()):
        drawn = axes.bar(
            np.arange(count) + (number - (len(named) - 1) / 2) * width,
            heights,
            width,
            color=canvas.pick(canvas.COLORS, number),
            hatch=canvas.pick(canvas.HATCHES, number),
            edgecolor="white",
            linewidth=0.8,
            label=name,
        )
        if number_format:
            written = [canvas.written(height, number_format) for height in heights]
            axes.bar_label(drawn, written, padding=2, fontsize=canvas.SMALL)
    if min(map(np.nanmin, named.values())) < 0:
        axes.axhline(0.0, color="0.2", linewidth=0.8)
    axes.margins(x=0.02)
    space = canvas.inches(axes)[0] / count
    rotated = canvas.longest(labels) * canvas.LETTER * 1.1 > space
    canvas.word_ticks(axes.xaxis, labels, size=canvas.SMALL + 1, room=space, rotated=rotated)
    if isinstance(series, Mapping):
        canvas.legend(axes)
    return canvas.finished(axes)


def _written(named: dict[str, np.ndarray], number_format: str | None) -> list[str]:
    if number_format is None:
        return []
    numbers = np.concatenate([*named.values()])
    return [canvas.written(number, number_format) for number in numbers]
