"""Shared by all figures: creation, sizes, colors and checks of arrays."""

import math
import unicodedata
from collections.abc import Collection, Iterable, Sequence
from typing import Any, overload

import numpy as np
from keras import ops

from tfattn import _checks, _optional
from tfattn._types import ArrayLike
from tfattn.plot import fonts

# Classes of matplotlib, which is imported with the first figure.
Figure = Any
Axes = Any
Axis = Any

SMALL, MEDIUM = 8, 10  # points: words along an axis; axis names and titles
LETTER = 0.07  # inches per letter along an axis

# Distinct for most readers with a color vision deficiency (Okabe and Ito, 2008), and by dashes in
# gray.
LINES = (("#0072b2", "-"), ("#d55e00", (0, (6, 2))))


def new_figure(who: str, width: float, height: float) -> Figure:
    """An empty figure of this size in inches, outside of pyplot, so that it needs no closing."""
    figure = _optional.find("matplotlib.figure", "plot", who)
    return figure.Figure(figsize=(width, height), layout="constrained")


def axes_of(who: str, ax: Axes | None, width: float, height: float) -> Axes:
    """The caller's axes, or the axes of a new figure of this size in inches."""
    if ax is None:
        return new_figure(who, width, height).add_subplot()
    if not hasattr(ax, "imshow"):
        _checks.fail(who, "ax", "be a single matplotlib Axes", ax)
    return ax


def curve_axes(
    who: str, x_label: str, y_label: str, title: str | None, ax: Axes | None, width: float = 6.4
) -> Axes:
    """Axes for curves or bars, with labels and a faint grid."""
    for argument, words in (("x_label", x_label), ("y_label", y_label)):
        _checks.string(who, argument, words)
    check_title(who, title)
    axes = axes_of(who, ax, width, 4.0)
    axes.set_xlabel(x_label, fontsize=MEDIUM)
    axes.set_ylabel(y_label, fontsize=MEDIUM)
    axes.set_title(title or "", fontsize=MEDIUM)
    axes.tick_params(labelsize=SMALL + 1)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="0.92")
    axes.set_axisbelow(True)
    return axes


def draw_curve(axes: Axes, x: np.ndarray, y: np.ndarray, number: int, label: str) -> None:
    """Draws curve `number` of a figure; a single point, which a line does not show, as a dot."""
    axes.plot(
        x,
        y,
        color=LINES[number][0],
        linestyle=LINES[number][1],
        linewidth=1.8,
        marker="o" if len(y) == 1 else None,
        label=label,
    )


def finished(*drawn: Any) -> Figure:
    """The figure of these artists, with fonts for all characters and without math parsing."""
    for artist in drawn:
        fonts.fit(artist)
        axes = artist.findobj(lambda part: hasattr(part, "xaxis"))
        names = [name for one in axes for name in (one.title, one.xaxis.label, one.yaxis.label)]
        # Texts of figures and legends; texts within axes may be the caller's.
        others = [part for part in artist.findobj() if part not in axes]
        names += [name for part in others for name in getattr(part, "texts", ())]
        for name in names:
            name.set_parse_math(False)
    return drawn[0].figure.figure


def legend(axes: Axes, inside: int = 5) -> None:
    """A legend in the emptiest corner, or for more than `inside` names to the right."""
    options = {"frameon": False, "fontsize": SMALL + 1, "handlelength": 3.2}
    if len(axes.get_legend_handles_labels()[1]) > inside:
        axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), **options)
    else:
        axes.legend(**options)


def inches(axes: Axes) -> tuple[float, float]:
    """Approximate width and height of axes, before the layout of the figure."""
    box = axes.get_window_extent()
    return box.width / axes.figure.dpi, box.height / axes.figure.dpi


def written(number: float, number_format: str) -> str:
    """A formatted number with the minus sign of axes, and without a minus before zero."""
    words = format(number, number_format)
    if words.startswith("-") and not words.strip("-0."):
        words = words[1:]
    return words.replace("-", "\N{MINUS SIGN}")


def whole_numbers(axis: Axis) -> None:
    """Puts the ticks of an axis at whole numbers."""
    ticker = _optional.find("matplotlib.ticker", "plot", "tfattn.plot")
    # For a single cell or epoch; a minimum of two ticks would give halves.
    axis.set_major_locator(ticker.MaxNLocator(integer=True, steps=[1, 2, 5, 10], min_n_ticks=1))


def word_ticks(
    axis: Axis,
    labels: Sequence[str],
    places: Sequence[float] | np.ndarray | None = None,
    size: float = SMALL,
    room: float | None = None,
    rotated: bool | None = None,
) -> None:
    """Words along an axis.

    Args:
        axis: axis of matplotlib.
        labels: N words.
        places: N positions. Defaults to 0 … N − 1.
        size: font size in points.
        room: inches per word; for small values some words are left out.
        rotated: whether to rotate words along the x axis. Defaults to words of more than two
            letters.
    """
    step = 1 if room is None else max(1, math.ceil(size / 50 / room))
    places = range(len(labels)) if places is None else places
    if rotated is None:
        rotated = longest(labels) > 2
    rotation = {"rotation": 60, "ha": "right", "rotation_mode": "anchor"}
    rotation = rotation if rotated and axis.axis_name == "x" else {}
    # Words with dollar signs are not formulas.
    axis.set_ticks(places[::step], labels[::step], parse_math=False, **rotation)
    axis.set_tick_params(labelsize=size, length=2)


def letters(words: str) -> int:
    """The width of a text in letters: two for a Chinese character."""
    return sum(2 if unicodedata.east_asian_width(letter) in "WF" else 1 for letter in words)


def longest(words: Iterable[str] | None) -> int:
    """The maximum width of words in letters."""
    return max(map(letters, words or ()), default=0)


@overload
def labels(who: str, argument: str, value: Iterable[Any], count: int, item: str) -> list[str]: ...


@overload
def labels(who: str, argument: str, value: None, count: int, item: str) -> None: ...


def labels(
    who: str, argument: str, value: Iterable[Any] | None, count: int, item: str
) -> list[str] | None:
    """`value` as `count` strings."""
    if value is None:
        return None
    if isinstance(value, str | bytes) or not np.iterable(value):
        _checks.fail(who, argument, "be a sequence of labels, or None", value)
    found = [str(label) for label in value]
    if len(found) != count:
        _checks.fail(who, argument, f"hold one label per {item}, {count}", found)
    return found


def check_title(who: str, title: Any) -> None:
    """Raises unless a title is a string, or None."""
    if title is not None:
        _checks.string(who, "title", title)


def check_format(who: str, number_format: Any) -> None:
    """Raises unless `number_format` is a valid format, or None."""
    expected = 'be a format of numbers, such as ".2f", or None'
    try:
        written(0.5, number_format or "")
    except (TypeError, ValueError):
        _checks.fail(who, "number_format", expected, number_format)
    if number_format is not None and not isinstance(number_format, str):
        _checks.fail(who, "number_format", expected, number_format)


def numbers(
    who: str, argument: str, value: ArrayLike, ranks: Collection[int], letters: str
) -> np.ndarray:
    """`value` as a float array; raises unless it has real numbers, one of `ranks`, and entries."""
    try:
        # PyTorch's tensors may have a gradient.
        array = np.asarray(ops.convert_to_numpy(value) if hasattr(value, "detach") else value)
        # A cast would lose information of text, complex numbers or objects.
        if array.dtype.kind in "OSUc":
            raise TypeError
        array = array.astype("float64")
    except (TypeError, ValueError):
        _checks.fail(who, argument, f"hold numbers, in the shape {letters}", value)
    _checks.rank(who, argument, array.shape, ranks, letters)
    if not array.size:
        _checks.fail(who, argument, "hold at least one number", array.shape)
    return array
