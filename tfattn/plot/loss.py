"""How a loss fell, as a picture."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from tfattn import _checks
from tfattn.plot import canvas

__all__ = ["loss_curve"]

_NAMES = {"loss": "training", "val_loss": "validation"}


def loss_curve(
    history: Any,
    x_label: str = "Epoch",
    y_label: str = "Loss",
    title: str | None = None,
) -> canvas.Figure:
    """The loss of each epoch, and the validation loss where there is one.

    Args:
        history: what `fit` returns, its dict with "loss" and perhaps "val_loss", or a sequence of
            numbers.
        x_label, y_label, title: words on the axes and above them.
    Returns:
        `matplotlib.figure.Figure`; `figure.savefig(path)` writes it to a file.
    Raises:
        ValueError: `history` holds no loss, or no numbers.
        ImportError: matplotlib is not installed.
    Example:
        >>> figure = tfattn.plot.loss_curve({"loss": [3.0, 2.0, 1.5], "val_loss": [3.1, 2.4, 2.2]})
        >>> [line.get_label() for line in figure.axes[0].get_lines()]
        ['training', 'validation']
    """
    curves = _curves(history)
    figure, axes = canvas.new_curves("loss_curve", x_label, y_label, title)
    for colour, (name, losses) in zip(canvas.COLOURS, curves.items(), strict=False):
        epochs = np.arange(1, len(losses) + 1)
        # A single epoch is a point, which a line does not show.
        marker = "o" if len(losses) == 1 else None
        axes.plot(epochs, losses, color=colour, linewidth=1.8, marker=marker, label=name)
    canvas.whole_numbers(axes.xaxis)
    if len(curves) > 1:
        axes.legend(frameon=False, fontsize=canvas.SMALL + 1)
    return figure


def _curves(history: Any) -> dict[str, np.ndarray]:
    """The losses by their names in the legend."""
    history = getattr(history, "history", history)
    if not isinstance(history, Mapping):
        history = {"loss": history}
    if "loss" not in history:
        _checks.fail("loss_curve", "history", 'hold "loss"', sorted(history))
    kept = {name: history[key] for key, name in _NAMES.items() if key in history}
    return {
        name: canvas.numbers("loss_curve", "history", losses, (1,), "(epochs,)")
        for name, losses in kept.items()
    }
