"""Loss curves."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from tfattn import _checks
from tfattn.plot import canvas

WHO = "loss_curve"
# The curves are distinct by dashes in gray, and by color for most readers with a color vision
# deficiency (Okabe and Ito, 2008).
_CURVES: dict[str, dict[str, Any]] = {
    "loss": {"label": "training", "color": "#0072b2", "linestyle": "-"},
    "val_loss": {"label": "validation", "color": "#d55e00", "linestyle": (0, (6, 2))},
}


def loss_curve(
    history: Any,
    x_label: str = "Epoch",
    y_label: str = "Loss",
    title: str | None = None,
    ax: canvas.Axes | None = None,
) -> canvas.Figure:
    """The training loss over the epochs, and the validation loss if there is one.

    Args:
        history: the result of `fit`; or a dict with "loss" and perhaps "val_loss"; or a sequence of
            numbers.
        x_label, y_label, title: strings on the axes and above them.
        ax: matplotlib axes to draw into. Defaults to those of a new figure.
    Returns:
        `matplotlib.figure.Figure`; `figure.savefig(path)` writes it to a file.
    Raises:
        ValueError: `history` has no loss, or no numbers.
    Example:
        >>> figure = tfattn.plot.loss_curve({"loss": [3.0, 2.0, 1.5], "val_loss": [3.1, 2.4, 2.2]})
        >>> [line.get_label() for line in figure.axes[0].get_lines()]
        ['training', 'validation']
    """
    curves = _curves(history)
    axes = canvas.axes_of(WHO, ax, 6.4, 4.0)
    for name, losses in curves.items():
        marker = "o" if len(losses) == 1 else None  # a line does not show a single point
        epochs = np.arange(1, len(losses) + 1)
        axes.plot(epochs, losses, linewidth=1.8, marker=marker, **_CURVES[name])
    axes.set_xlabel(x_label, fontsize=canvas.MEDIUM)
    axes.set_ylabel(y_label, fontsize=canvas.MEDIUM)
    axes.set_title(title or "", fontsize=canvas.MEDIUM)
    axes.tick_params(labelsize=canvas.SMALL + 1)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="0.92")
    axes.set_axisbelow(True)
    canvas.whole_numbers(axes.xaxis)
    if len(curves) > 1:
        axes.legend(frameon=False, fontsize=canvas.SMALL + 1, handlelength=3.2)
    return canvas.finished(axes)


def _curves(history: Any) -> dict[str, np.ndarray]:
    """The losses by their names in a history."""
    history = getattr(history, "history", history)
    if not isinstance(history, Mapping):
        history = {"loss": history}
    _checks.mapping(WHO, "history", history, ["loss"])
    return {
        name: canvas.numbers(WHO, "history", history[name], (1,), "(epochs,)")
        for name in _CURVES
        if name in history
    }
