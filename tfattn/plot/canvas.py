"""Shared by all figures: creation, sizes, colors and checks of arrays."""

import math
import unicodedata
from collections.abc import Collection, Iterable, Sequence
from typing import Any

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


def whole_numbers(axis: Axis) -> None:
    """Puts the ticks of an axis at whole numbers."""
    ticker = _optional.find("matplotlib.ticker", "plot", "tfattn.plot")
    # For a single cell or epoch; a minimum of two ticks would give halves.
    axis.set_major_locator(ticker.MaxNLocator(integer=True, steps=[1, 2, 5, 10], min_n_ticks=1))


def ticks(
    axis: Axis,
    labels: Sequence[str],
    inches: float,
    shown: bool,
    size: float = SMALL,
    rotated: bool | None = None,
) -> None:
    """Words along an axis, or whole numbers if there are none.

    Some words are left out if they are too many for these inches. `shown` is False where a neighbor
    has the labels. Words of more than two letters along the x axis are rotated by default.
    """
    if labels:
        step = max(1, math.ceil(size / 50 * len(labels) / inches))
        if rotated is None:
            rotated = longest(labels) > 2
        rotation = {"rotation": 60, "ha": "right", "rotation_mode": "anchor"}
        rotation = rotation if rotated and axis.axis_name == "x" else {}
        places = range(0, len(labels), step)
        # Words with dollar signs are not formulas.
        axis.set_ticks(places, labels[::step], parse_math=False, **rotation)
    else:
        whole_numbers(axis)
    axis.set_tick_params(labelsize=size, length=2, labelleft=shown, labelbottom=shown)


def letters(words: str) -> int:
    """The width of a text in letters: two for a Chinese character."""
    return sum(2 if unicodedata.east_asian_width(letter) in "WF" else 1 for letter in words)


def longest(words: Iterable[str]) -> int:
    """The maximum width of words in letters."""
    return max(map(letters, words), default=0)


def labels(
    who: str, argument: str, value: Iterable[Any] | None, count: int, item: str
) -> list[str]:
    """`value` as `count` strings, or as none if it is None."""
    if value is None:
        return []
    if isinstance(value, str | bytes) or not np.iterable(value):
        _checks.fail(who, argument, "be a sequence of labels, or None", value)
    found = [str(label) for label in value]
    if len(found) != count:
        _checks.fail(who, argument, f"hold one label per {item}, {count}", found)
    return found


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
