"""Named curves over one axis."""

import itertools
from collections.abc import Mapping

import numpy as np

from tfattn import _checks
from tfattn._types import ArrayLike
from tfattn.plot import canvas

WHO = "curves"
DOTS = 8  # markers on a long curve


def curves(
    x: ArrayLike | Mapping[str, ArrayLike],
    series: ArrayLike | Mapping[str, ArrayLike],
    x_label: str,
    y_label: str,
    title: str | None = None,
    log_x: bool = False,
    log_y: bool = False,
    marked: Mapping[str, float] | None = None,
    ax: canvas.Axes | None = None,
) -> canvas.Figure:
    """Curves with a legend. They differ in color, dashes and markers, also when printed in gray.

    If two curves coincide, the first curve is wider.

    Args:
        x: `(N,)`, the x of the points; or a dict from the names of `series` to `(N,)`.
        series: a dict from name to `(N,)`, one curve per name; or `(N,)` for one curve.
        x_label, y_label, title: strings on the axes and above them.
        log_x, log_y: whether the axis is logarithmic.
        marked: a dict from the name of a curve to an x, marked by a large dot with the number. For
            a single curve, the keys may be any strings, written next to the dots.
        ax: matplotlib axes to draw into. Defaults to those of a new figure.
    Returns:
        `matplotlib.figure.Figure`; `figure.savefig(path)` writes it to a file.
    Raises:
        ValueError: lengths or names differ; an array is not a vector of numbers.
    Example:
        >>> n = np.array([16, 64, 256])
        >>> operations = {"self-attention": n**2, "recurrence": 64 * n}
        >>> figure = tfattn.plot.curves(n, operations, "Tokens", "Operations", log_x=True)
        >>> [line.get_label() for line in figure.axes[0].get_lines()]
        ['self-attention', 'recurrence']
    """
    _checks.boolean(WHO, "log_x", log_x)
    _checks.boolean(WHO, "log_y", log_y)
    marked = {} if marked is None else marked
    if not isinstance(marked, Mapping):
        _checks.fail(WHO, "marked", "be a dict from the name of a curve, or words, to x", marked)
    _checks.string(WHO, "y_label", y_label)
    named = canvas.named_vectors(WHO, "series", series, y_label)
    xs = _xs_by_name(x, named)
    axes = canvas.curve_axes(WHO, x_label, y_label, title, ax)
    if log_x:
        axes.set_xscale("log")
    if log_y:
        axes.set_yscale("log")
    covered = _covered(xs, named)
    for number, (name, curve) in enumerate(named.items()):
        axes.plot(
            xs[name],
            curve,
            color=canvas.pick(canvas.COLORS, number),
            linestyle=canvas.pick(canvas.DASHES, number),
            linewidth=4.5 if name in covered else 1.8,
            marker=canvas.pick(canvas.MARKERS, number),
            markersize=9 if name in covered else 5,
            # Fractions of the diagonal: first position, by curve, and distance of the markers.
            markevery=None if len(curve) <= 2 * DOTS else (number / len(named) / DOTS, 1 / DOTS),
            label=name,
        )
    if log_x:
        canvas.log_ticks(axes.xaxis, np.concatenate([*xs.values()]), at_each=True)
    if log_y:
        canvas.log_ticks(axes.yaxis, np.concatenate([*named.values()]))
    for text, at in marked.items():
        _draw_dot(axes, xs, named, text, at)
    if isinstance(series, Mapping):
        canvas.legend(axes)
    return canvas.finished(axes)


def _xs_by_name(
    x: ArrayLike | Mapping[str, ArrayLike], named: dict[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """The x of each curve, by its name."""
    if not isinstance(x, Mapping):
        x = dict.fromkeys(named, x)
    missing = [name for name in named if name not in x]
    if missing:
        expected = f"have the names of `series`, including {missing}"
        _checks.fail(WHO, "x", expected, sorted(map(str, x)))
    xs = {name: canvas.numbers(WHO, "x", x[name], (1,), "(N,)") for name in named}
    for name, curve in named.items():
        if len(curve) != len(xs[name]):
            expected = f"be as long as `x`, {len(xs[name])}"
            _checks.fail(WHO, "series", expected, {name: curve.shape})
    return xs


def _covered(xs: dict[str, np.ndarray], named: dict[str, np.ndarray]) -> set[str]:
    """Curves that coincide with a later curve; they are drawn wider to stay visible."""

    def alike(name: str, other: str) -> bool:
        pairs = (xs[name], xs[other]), (named[name], named[other])
        return all(len(a) == len(b) and np.allclose(a, b, rtol=0.01, atol=0) for a, b in pairs)

    return {name for name, other in itertools.combinations(named, 2) if alike(name, other)}


def _draw_dot(
    axes: canvas.Axes,
    xs: dict[str, np.ndarray],
    named: dict[str, np.ndarray],
    text: str,
    x: float,
) -> None:
    """Draws a large dot on a curve, with its x or another text."""
    name = text if text in named else next(iter(named))
    if text not in named and len(named) > 1:
        _checks.fail(WHO, "marked", f"have names of curves, {list(named)}", text)
    order = np.argsort(xs[name], kind="stable")
    height = np.interp(x, xs[name][order], named[name][order])
    color = canvas.pick(canvas.COLORS, list(named).index(name))
    axes.plot([x], [height], "o", color=color, markersize=9, markeredgecolor="black", zorder=5)
    axes.annotate(
        f"{x:.3g}" if text in named else text,
        (x, height),
        xytext=(0, 9),
        textcoords="offset points",
        ha="center",
        fontsize=canvas.SMALL + 1,
        zorder=6,
        bbox={"boxstyle": "round,pad=0.15", "facecolor": "white", "edgecolor": "none"},
    )
