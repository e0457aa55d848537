"""Loss curves."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from tfattn import _checks
from tfattn.plot import canvas

_NAMES = {"loss": "training", "val_loss": "validation"}


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
    axes = canvas.curve_axes("loss_curve", x_label, y_label, title, ax)
    for number, (name, losses) in enumerate(curves.items()):
        canvas.draw_curve(axes, np.arange(1, len(losses) + 1), losses, number, name)
    canvas.whole_numbers(axes.xaxis)
    if len(curves) > 1:
        canvas.legend(axes)
    return canvas.finished(axes)


def _curves(history: Any) -> dict[str, np.ndarray]:
    history = getattr(history, "history", history)
    if not isinstance(history, Mapping):
        history = {"loss": history}
    _checks.mapping("loss_curve", "history", history, ["loss"])
    kept = {name: history[key] for key, name in _NAMES.items() if key in history}
    return {
        name: canvas.numbers("loss_curve", "history", losses, (1,), "(epochs,)")
        for name, losses in kept.items()
    }
