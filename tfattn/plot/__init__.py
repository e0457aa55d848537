"""Figures from plain arrays.

    from tfattn import plot

    figure = plot.heatmaps(weights, row_labels=target_words, column_labels=source_words)
    figure.savefig("weights.png")

Each function that draws returns a `matplotlib.figure.Figure`. It does not use pyplot, so pyplot's
backend and open figures do not change. matplotlib is imported with the first figure; an ImportError
names the package to install. `viewer` needs no matplotlib: it makes an interactive page for a
browser.
"""

from tfattn.plot.flow import flow
from tfattn.plot.heads import head_grid
from tfattn.plot.heatmap import heatmaps
from tfattn.plot.loss import loss_curve
from tfattn.plot.masks import mask_pictures
from tfattn.plot.viewer import Viewer, viewer

__all__ = [
    "Viewer",
    "flow",
    "head_grid",
    "heatmaps",
    "loss_curve",
    "mask_pictures",
    "viewer",
]
