"""Figures that several demos draw: curves over an axis, and bars by name.

Colors, dashes, markers and hatches differ, so that a figure printed in gray can be read too.
"""

import numpy as np
from matplotlib import ticker
from matplotlib.figure import Figure

COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")  # Okabe and Ito, 2008
DASHES = ("-", (0, (6, 2)), "-.", (0, (2, 1)), (0, (6, 1, 1, 1, 1, 1)), (0, (10, 2)))
MARKERS = ("o", "s", "^", "D", "v", "P")
HATCHES = ("", "////", "....", "xxxx", "\\\\\\\\", "----")


def plain_axes(x_label, y_label, width=6.4):
    """Axes of a new figure, with a faint grid."""
    axes = Figure(figsize=(width, 4.0), layout="constrained").add_subplot()
    axes.set(xlabel=x_label, ylabel=y_label)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="0.92")
    axes.set_axisbelow(True)
    return axes


def curves(x, series, x_label, y_label, log_x=False, log_y=False, marked=None):
    """Curves by name, `{name: (N,)}`, or one curve `(N,)`, over x `(N,)` or `{name: (N,)}`.

    `marked` has an x for some names, where a dot stands on the curve. Of equal curves the first is
    wider.
    """
    axes = plain_axes(x_label, y_label)
    named = series if isinstance(series, dict) else {y_label: series}
    xs = x if isinstance(x, dict) else dict.fromkeys(named, x)
    names = list(named)
    for number, name in enumerate(names):
        later = [named[other] for other in names[number + 1 :]]
        later = [other for other in later if len(other) == len(named[name])]
        is_below = any(np.allclose(other, named[name], rtol=0.01) for other in later)
        axes.plot(
            xs[name],
            named[name],
            label=name,
            color=COLORS[number],
            linestyle=DASHES[number],
            linewidth=4.5 if is_below else 1.8,
            marker=MARKERS[number],
            markersize=9 if is_below else 5,
            markevery=(number / len(names) / 8, 1 / 8) if len(named[name]) > 16 else None,
        )
    for is_log, axis, numbers in ((log_x, axes.xaxis, xs), (log_y, axes.yaxis, named)):
        if is_log:
            _log_scale(axis, np.unique(np.concatenate([*numbers.values()])))
    for text, at in (marked or {}).items():
        name = text if text in named else names[0]
        height, color = np.interp(at, xs[name], named[name]), COLORS[names.index(name)]
        axes.plot([at], [height], "o", color=color, markersize=9, markeredgecolor="black", zorder=5)
        text = f"{at:.3g}" if text in named else text
        box = {"boxstyle": "round,pad=0.15", "facecolor": "white", "edgecolor": "none"}
        options = {"textcoords": "offset points", "ha": "center", "fontsize": 9, "bbox": box}
        axes.annotate(text, (at, height), (0, 9), zorder=6, **options)
    if isinstance(series, dict):
        _legend(axes)
    return axes.figure


def bars(labels, series, x_label, y_label, number_format=None):
    """A bar for each label, or for each label and name of `series`, `{name: (N,)}`."""
    named = series if isinstance(series, dict) else {y_label: series}
    longest = max(map(len, labels))
    axes = plain_axes(x_label, y_label, width=np.clip(0.09 * longest * len(labels) + 1, 6.4, 9.0))
    axes.grid(visible=False, axis="x")
    width, places = 0.8 / len(named), np.arange(len(labels))
    for number, (name, heights) in enumerate(named.items()):
        at = places + (number - (len(named) - 1) / 2) * width
        style = {"color": COLORS[number], "hatch": HATCHES[number], "edgecolor": "white"}
        drawn = axes.bar(at, heights, width, label=name, **style)
        if number_format:
            axes.bar_label(drawn, [f"{x:{number_format}}" for x in heights], padding=2, fontsize=8)
    is_long = 0.09 * longest * len(labels) > 8.0
    rotated = {"rotation": 60, "ha": "right", "rotation_mode": "anchor"} if is_long else {}
    axes.set_xticks(places, labels, **rotated)
    if isinstance(series, dict):
        _legend(axes)
    return axes.figure


def _legend(axes):
    many = len(axes.get_legend_handles_labels()[1]) > 5
    place = {"loc": "center left", "bbox_to_anchor": (1.0, 0.5)} if many else {}
    axes.legend(frameon=False, fontsize=9, handlelength=3.2, **place)


def _log_scale(axis, numbers):
    """A logarithmic axis with plain numbers, unless it has many decades."""
    getattr(axis.axes, f"set_{axis.axis_name}scale")("log")
    decades = np.ptp(np.log10(numbers[numbers > 0]))
    if len(numbers) <= 10 and numbers[-1] < 1e5:
        axis.set_major_locator(ticker.FixedLocator(numbers))
    elif decades < 3:
        axis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
    else:
        return
    axis.set_minor_locator(ticker.NullLocator())
    axis.set_major_formatter(ticker.FuncFormatter(lambda number, _: f"{number:.6g}"))
