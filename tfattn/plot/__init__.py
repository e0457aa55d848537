"""Side floor: figures from plain arrays.

    from tfattn import plot

    figure = plot.heatmaps(weights, row_labels=target_words, column_labels=source_words)
    figure.savefig("weights.png")

Each function returns a `matplotlib.figure.Figure` that belongs to the caller alone: pyplot, its
backend and its open figures stay as they are. matplotlib is imported with the first figure.
"""

from tfattn.plot.heatmap import heatmaps
from tfattn.plot.loss import loss_curve
from tfattn.plot.regression import regression_fit

__all__ = ["heatmaps", "loss_curve", "regression_fit"]
