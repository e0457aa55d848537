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

# Points: words along the axes of small panels, and of others; axis names and titles.
TINY, SMALL, MEDIUM = 7, 8, 10
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


def ticks(axis: Axis, labels: Sequence[str], inches: float, shown: bool, size: float) -> None:
    """Words along an axis, or whole numbers; for many words in few inches, some are left out."""
    if labels:
        step = max(1, math.ceil(size / 50 * len(labels) / inches))
        rotation = {"rotation": 60, "ha": "right", "rotation_mode": "anchor"}
        rotation = rotation if axis.axis_name == "x" and overlap(labels, inches) else {}
        places = range(0, len(labels), step)
        # Words with dollar signs are not formulas.
        axis.set_ticks(places, labels[::step], parse_math=False, **rotation)
    else:
        whole_numbers(axis)
    axis.set_tick_params(labelsize=size, length=2, labelleft=shown, labelbottom=shown)


def overlap(labels: Sequence[str], inches: float) -> bool:
    """Whether words side by side along these inches would overlap."""
    return LETTER * longest(labels) * len(labels) > inches


def label_edges(
    panels: Sequence[Axes],
    columns: int,
    inches: tuple[float, float],
    titles: Sequence[str],
    labels: tuple[list[str], list[str]] = ([], []),
    names: tuple[str, str] = ("Keys", "Queries"),
    row_names: Sequence[str] = (),
    size: float = SMALL,
) -> None:
    """Titles, words at the left and lower edges, and names of panels of this width and height."""
    for place, axes in enumerate(panels):
        axes.set_title(titles[place] if place < len(titles) else "", fontsize=size + 2)
        ticks(axes.yaxis, labels[0], inches[1], place % columns == 0, size)
        # Rows may be incomplete: the lowest panel of each column has the words.
        lowest = not any(below.axison for below in panels[place + columns :: columns])
        ticks(axes.xaxis, labels[1], inches[0], lowest, size)
    for axes, name in zip(panels[::columns], row_names, strict=False):
        axes.set_ylabel(name, fontsize=size + 2)
    name_x, name_y = panels[0].figure.supxlabel, panels[0].figure.supylabel
    if len(panels) == 1 and not row_names:
        name_x, name_y = panels[0].set_xlabel, panels[0].set_ylabel
    name_x(names[0], fontsize=MEDIUM)
    name_y(names[1], fontsize=MEDIUM)


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
