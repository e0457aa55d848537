"""What every figure shares: how it is made, its sizes and colors, the arrays that it takes."""

import math
import unicodedata
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from tfattn import _checks, _optional
from tfattn.plot import fonts

# matplotlib's own classes, which have no names here: it is imported with the first figure.
Figure = Any
Axes = Any
Axis = Any

SMALL, MEDIUM = 8, 10  # points: words along an axis; axis names and titles
LETTER = 0.07  # inches that a letter takes along an axis

# Told apart by most readers with a color vision deficiency (Okabe and Ito, 2008). In gray some are
# alike, so that each comes with a dash, a marker and a hatch of its own.
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
DASHES = ("-", (0, (6, 2)), "-.", (0, (2, 1)), (0, (6, 1, 1, 1, 1, 1)), (0, (10, 2)), (0, (4, 4)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
HATCHES = ("", "////", "....", "xxxx", "\\\\\\\\", "----", "++++")


def pick(choices: Sequence, number: int) -> Any:
    """The choice of that number, round and round."""
    return choices[number % len(choices)]


def new_figure(who: str, width: float, height: float) -> Figure:
    """An empty figure of that size in inches. It is not pyplot's, so nobody has to close it."""
    figure = _optional.find("matplotlib.figure", "plot", who)
    return figure.Figure(figsize=(width, height), layout="constrained")


def axes_of(who: str, ax: Axes | None, width: float, height: float) -> Axes:
    """The caller's axes, or those of a new figure of that size in inches."""
    if ax is None:
        return new_figure(who, width, height).add_subplot()
    if not hasattr(ax, "imshow"):
        _checks.fail(who, "ax", "be matplotlib axes, one of them", ax)
    return ax


def curve_axes(
    who: str, x_label: str, y_label: str, title: str | None, ax: Axes | None, width: float = 6.4
) -> Axes:
    """Axes for curves or bars, with their names and faint lines behind."""
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


def finished(*drawn: Any) -> Figure:
    """The figure of what was drawn, every word in it in a font that has its characters, and no name
    read as a formula, whatever dollars are in it.
    """
    for artist in drawn:
        fonts.fit(artist)
        axes = artist.findobj(lambda part: hasattr(part, "xaxis"))
        names = [name for one in axes for name in (one.title, one.xaxis.label, one.yaxis.label)]
        # Of figures and legends; those within axes may be a caller's.
        others = [part for part in artist.findobj() if part not in axes]
        names += [name for part in others for name in getattr(part, "texts", ())]
        for name in names:
            name.set_parse_math(False)
    return drawn[0].figure.figure


def legend(axes: Axes) -> None:
    """A legend in the emptiest corner; one of many names, which fits in none, on the right."""
    options = {"frameon": False, "fontsize": SMALL + 1, "handlelength": 3.2}
    if len(axes.get_legend_handles_labels()[1]) > 5:
        axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), **options)
    else:
        axes.legend(**options)


def inches(axes: Axes) -> tuple[float, float]:
    """Width and height of axes, as far as they are known before a figure is laid out."""
    box = axes.get_window_extent()
    return box.width / axes.figure.dpi, box.height / axes.figure.dpi


def written(number: float, number_format: str) -> str:
    """A number in words: no minus before a zero, and elsewhere the sign that axes have."""
    words = format(number, number_format)
    if words.startswith("-") and not words.strip("-0."):
        words = words[1:]
    return words.replace("-", "\N{MINUS SIGN}")


def log_ticks(axis: Axis, numbers: ArrayLike, at_each: bool = False) -> None:
    """Ticks of a logarithmic axis as plain numbers, where powers of ten would be too few to read.

    Args:
        axis: of matplotlib, logarithmic.
        numbers: what is drawn along it.
        at_each: whether a few numbers that lie apart get a tick each.
    """
    ticker = _optional.find("matplotlib.ticker", "plot", "tfattn.plot")
    known = np.unique(np.asarray(numbers, "float64"))
    known = known[np.isfinite(known) & (known > 0)]
    if known.size < 2:
        return
    decades = np.log10(known)
    apart = np.diff(decades).min() >= np.ptp(decades) / 12
    if at_each and known.size <= 10 and apart and known[-1] < 1e5:
        locator = ticker.FixedLocator(known)
    elif np.ptp(decades) < 3 and 1e-4 <= known[0] and known[-1] < 1e5:
        locator = ticker.LogLocator(subs=range(1, 10) if np.ptp(decades) < 1 else (1, 2, 5))
    else:
        return
    axis.set_major_locator(locator)
    axis.set_minor_locator(ticker.NullLocator())
    axis.set_major_formatter(ticker.FuncFormatter(lambda number, _: f"{number:.6g}"))


def whole_numbers(axis: Axis) -> None:
    """Puts the ticks of an axis at whole numbers."""
    ticker = _optional.find("matplotlib.ticker", "plot", "tfattn.plot")
    # A single cell or epoch shows one whole number; asked for two ticks, the locator takes halves.
    axis.set_major_locator(ticker.MaxNLocator(integer=True, steps=[1, 2, 5, 10], min_n_ticks=1))


def word_ticks(
    axis: Axis,
    labels: Sequence[str],
    places: Sequence[float] | None = None,
    size: float = SMALL,
    room: float | None = None,
    turned: bool | None = None,
) -> None:
    """Words along an axis.

    Args:
        axis: of matplotlib.
        labels: N words.
        places: N numbers, where they stand. Defaults to 0 … N − 1.
        size: of the letters, in points.
        room: inches for each word. In too little of it, every second word is left out, or more.
        turned: whether words along the x axis are. Defaults to those of more than two letters.
    """
    step = 1 if room is None else max(1, math.ceil(size / 50 / room))
    places = range(len(labels)) if places is None else places
    if turned is None:
        turned = longest(labels) > 2
    turning = {"rotation": 60, "ha": "right", "rotation_mode": "anchor"}
    turning = turning if turned and axis.axis_name == "x" else {}
    # Words are no formulas, whatever dollars are in them.
    axis.set_ticks(places[::step], labels[::step], parse_math=False, **turning)
    axis.set_tick_params(labelsize=size, length=2)


def letters(words: str) -> int:
    """How many letters wide some words are: a Chinese character takes two."""
    return sum(2 if unicodedata.east_asian_width(letter) in "WF" else 1 for letter in words)


def longest(words: Iterable[str] | None) -> int:
    """The letters of the longest of some words."""
    return max(map(letters, words or ()), default=0)


def labels(
    who: str, argument: str, value: Iterable | None, count: int, of_what: str
) -> list[str] | None:
    """`value` as strings, a label for each of `count`."""
    if value is None:
        return None
    if isinstance(value, str | bytes) or not np.iterable(value):
        _checks.fail(who, argument, "be a sequence of labels, or None", value)
    found = [str(label) for label in value]
    if len(found) != count:
        _checks.fail(who, argument, f"hold a label a {of_what}, {count} of them", found)
    return found


def check_title(who: str, title: Any) -> None:
    """Raises unless a title is a string, or None."""
    if title is not None:
        _checks.string(who, "title", title)


def check_format(who: str, number_format: Any) -> None:
    """Raises unless numbers can be written in that format, if there is one."""
    expected = 'be a format of numbers, such as ".2f", or None'
    try:
        written(0.5, number_format or "")
    except (TypeError, ValueError):
        _checks.fail(who, "number_format", expected, number_format)
    if number_format is not None and not isinstance(number_format, str):
        _checks.fail(who, "number_format", expected, number_format)


def as_floats(who: str, argument: str, value: ArrayLike, letters: str) -> np.ndarray:
    """`value` as a float array, if it holds real numbers."""
    try:
        array = np.asarray(value)
        # What is text, complex or some object would be cast, with something lost.
        if array.dtype.kind in "OSUc":
            raise TypeError
        return array.astype("float64")
    except (TypeError, ValueError):
        return _checks.fail(who, argument, f"hold numbers, in the shape {letters}", value)


def numbers(
    who: str, argument: str, value: ArrayLike, ranks: Collection[int], letters: str
) -> np.ndarray:
    """`value` as a float array that has one of `ranks` and is not empty."""
    array = as_floats(who, argument, value, letters)
    _checks.rank(who, argument, array.shape, ranks, letters)
    if not array.size:
        _checks.fail(who, argument, "hold at least one number", array.shape)
    return array


def named_vectors(
    who: str, argument: str, value: ArrayLike | Mapping[str, ArrayLike], name: str
) -> dict[str, np.ndarray]:
    """A dict from name to vector; a vector alone gets `name`."""
    if not isinstance(value, Mapping):
        value = {name: value}
    if not value:
        _checks.fail(who, argument, "hold at least one name", value)
    for key in value:
        _checks.string(who, argument, key)
    return {str(key): numbers(who, argument, one, (1,), "(N,)") for key, one in value.items()}
