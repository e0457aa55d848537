"""A figure of a regression: the points, the true function, the predictions."""

from collections.abc import Mapping, Sequence

import numpy as np

from tfattn import _checks
from tfattn._types import ArrayLike
from tfattn.plot import canvas


def regression_fit(
    x: ArrayLike,
    y: ArrayLike,
    queries: ArrayLike,
    predictions: ArrayLike | Mapping[str, ArrayLike],
    truth: ArrayLike | None = None,
    x_label: str = "x",
    y_label: str = "y",
    title: str | None = None,
    bands: Mapping[str, Sequence[ArrayLike]] | None = None,
    ax: canvas.Axes | None = None,
) -> canvas.Figure:
    """A regression: training points as dots, predictions as curves, the truth as a dotted curve.

    Args:
        x, y: `(N,)`, the training points.
        queries: `(M,)`, the x of the predictions, in any order.
        predictions: `(M,)`, or a dict from name to `(M,)` for several curves.
        truth: `(M,)`, the true function (without noise) at the queries.
        x_label, y_label, title: strings on the axes and above them.
        bands: a dict from name to a pair of `(M,)`, the lower and the upper end of a shaded band,
            in the colors of the curves.
        ax: matplotlib axes to draw into. Defaults to those of a new figure.
    Returns:
        `matplotlib.figure.Figure`; `figure.savefig(path)` writes it to a file.
    Raises:
        ValueError: lengths differ, or an array is not a vector of numbers.
    Example:
        >>> x = np.linspace(0.0, 5.0, 50)
        >>> figure = tfattn.plot.regression_fit(x, np.sin(x), x, {"flat": 0 * x, "line": 1 - x / 3})
        >>> [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
        ['training points', 'flat', 'line']
    """
    x, queries = _vector("x", x), _vector("queries", queries)
    y = _vector("y", y, "x", len(x))
    if not isinstance(predictions, Mapping):
        predictions = {"prediction": predictions}
    curves = {
        name: _vector("predictions", curve, "queries", len(queries))
        for name, curve in predictions.items()
    }
    shaded = _bands(bands, len(queries))
    order = np.argsort(queries, kind="stable")
    axes = canvas.curve_axes("regression_fit", x_label, y_label, title, ax)
    axes.scatter(x, y, s=18, color="0.6", linewidths=0, label="training points")
    for number, (name, (low, high)) in enumerate(shaded.items()):
        number = [*curves].index(name) if name in curves else number  # in its curve's color
        axes.fill_between(
            queries[order],
            low[order],
            high[order],
            facecolor=canvas.pick(canvas.COLORS, number),
            hatch=canvas.pick(canvas.HATCHES, number),
            edgecolor="white",
            linewidth=0,
            alpha=0.25,
            label=None if name in curves else name,
        )
    if truth is not None:
        truth = _vector("truth", truth, "queries", len(queries))
        axes.plot(queries[order], truth[order], ":", color="0.1", linewidth=1.8, label="truth")
    for number, (name, curve) in enumerate(curves.items()):
        canvas.draw_curve(axes, queries[order], curve[order], number, name)
    canvas.legend(axes, inside=0)  # points may lie anywhere within
    return canvas.finished(axes)


def _bands(
    bands: Mapping[str, Sequence[ArrayLike]] | None, length: int
) -> dict[str, list[np.ndarray]]:
    """From a name to both ends of a band."""
    if bands is None:
        return {}
    expected = "be a dict from name to a pair, both ends of a band"
    if not isinstance(bands, Mapping):
        _checks.fail("regression_fit", "bands", expected, bands)
    result = {}
    for name, pair in bands.items():
        try:
            low, high = pair
        except (TypeError, ValueError):
            _checks.fail("regression_fit", "bands", expected, bands)
        if not isinstance(name, str):
            _checks.fail("regression_fit", "bands", expected, bands)
        result[name] = [_vector("bands", end, "queries", length) for end in (low, high)]
    return result


def _vector(
    argument: str, value: ArrayLike, other_name: str | None = None, length: int | None = None
) -> np.ndarray:
    """`value` as a float vector, with the `length` of the argument `other_name` if given."""
    who, letters = "regression_fit", "(N,)" if argument in ("x", "y") else "(M,)"
    vector = canvas.numbers(who, argument, value, (1,), letters)
    if length is not None and len(vector) != length:
        _checks.fail(who, argument, f"be as long as `{other_name}`, {length}", vector.shape)
    return vector
