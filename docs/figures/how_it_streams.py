"""Draws docs/how-it-streams.png: the blocks of a causal mask, and the chunks of a window."""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.patches import Patch, Polygon, Rectangle

BLOCKS = 8
FULL, HIDDEN, SKIPPED, NOW = "#0072b2", "#9ccbe8", "#efefef", "#b34700"


def square(ax, title):
    ax.set(xlim=(-0.05, BLOCKS + 0.05), ylim=(BLOCKS + 0.05, -0.05), aspect="equal", title=title)
    ax.set_xlabel("Keys", fontsize=12)
    ax.set_ylabel("Queries", fontsize=12)
    ax.set_xticks([])
    ax.set_yticks([])
    for side in ax.spines.values():
        side.set_visible(False)


def block(ax, i, j, color, **options):
    ax.add_patch(Rectangle((j, i), 1, 1, facecolor=color, edgecolor="white", lw=1.5, **options))


def causal(ax):
    square(ax, "causal mask: block by block")
    for i in range(BLOCKS):
        for j in range(BLOCKS):
            block(ax, i, j, FULL if j < i else HIDDEN if j == i else SKIPPED)
        ax.add_patch(Polygon([(i, i), (i, i + 1), (i + 1, i + 1)], color=FULL, lw=0))
    row = 5
    ax.add_patch(Rectangle((0, row), row + 1, 1, fill=False, edgecolor=NOW, lw=2.5, zorder=3))
    ax.annotate(
        "",
        (row + 0.75, row + 0.5),
        (0.25, row + 0.5),
        arrowprops={"arrowstyle": "->", "color": NOW, "lw": 2.5},
        zorder=4,
    )
    ax.text(
        row + 1.12,
        row + 0.5,
        "row_max\nrow_sum\npooled",
        color=NOW,
        va="center",
        fontsize=12,
        family="monospace",
    )


def window(ax):
    square(ax, "window: each block beside its neighbors")
    for i in range(BLOCKS):
        for j in range(BLOCKS):
            block(ax, i, j, SKIPPED)
        for j in (i - 1, i, i + 1):
            if 0 <= j < BLOCKS:
                block(ax, i, j, HIDDEN)
    reach = 0.9  # of the window, in blocks
    corners = [(0, 0), (reach, 0), (BLOCKS, BLOCKS - reach), (BLOCKS, BLOCKS)]
    corners += [(BLOCKS - reach, BLOCKS), (0, reach)]
    ax.add_patch(Polygon(corners, color=FULL, lw=0))
    for i in (3, 4, 5):
        ax.add_patch(Rectangle((i - 1, i), 3, 1, fill=False, edgecolor=NOW, lw=2.5, zorder=3))
    ax.text(5.2, 1.8, "one batched\nproduct", color=NOW, fontsize=12, ha="left", va="center")
    ax.annotate(
        "", (4.6, 2.9), (5.3, 2.2), arrowprops={"arrowstyle": "->", "color": NOW, "lw": 2}, zorder=4
    )


def main():
    figure, axes = plt.subplots(1, 2, figsize=(10, 5.4))
    causal(axes[0])
    window(axes[1])
    figure.legend(
        handles=[
            Patch(color=FULL, label="visible"),
            Patch(color=HIDDEN, label="computed, then hidden by the mask"),
            Patch(facecolor=SKIPPED, edgecolor="#cccccc", label="skipped, never computed"),
        ],
        loc="lower center",
        ncols=3,
        frameon=False,
    )
    figure.tight_layout(rect=(0, 0.06, 1, 1))
    figure.savefig(Path(__file__).parents[1] / "how-it-streams.png", dpi=130)


if __name__ == "__main__":
    main()
