"""Side floor: figures from plain arrays.

    from tfattn import plot

    figure = plot.heatmaps(weights, row_labels=target_words, column_labels=source_words)
    figure.savefig("weights.png")

Each function of a figure returns a `matplotlib.figure.Figure` that belongs to the caller alone:
pyplot, its backend and its open figures stay as they are. matplotlib is imported with the first
figure. `viewer` and `save_viewer` need no matplotlib: they make a page to explore in a browser.
"""

from tfattn.plot.bars import bars
from tfattn.plot.curves import curves
from tfattn.plot.flow import flow
from tfattn.plot.heads import head_grid
from tfattn.plot.heatmap import heatmaps
from tfattn.plot.loss import loss_curve
from tfattn.plot.masks import mask_pictures
from tfattn.plot.positions import positions
from tfattn.plot.regression import regression_fit
from tfattn.plot.viewer import Viewer, save_viewer, viewer

__all__ = [
    "Viewer",
    "bars",
    "curves",
    "flow",
    "head_grid",
    "heatmaps",
    "loss_curve",
    "mask_pictures",
    "positions",
    "regression_fit",
    "save_viewer",
    "viewer",
]
