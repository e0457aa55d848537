"""Draws docs/one-idea.png: a weighted mean in kernel regression, and the same in a Transformer."""

from pathlib import Path

import numpy as np
from matplotlib import colormaps
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

import tfattn

SEED = 0
SENTENCE = "the young horse does not see the black house ."
ASKED = 2.0  # the x of the query that the first panel shows
COLORS, INK, MEAN = colormaps["magma_r"], "#1f2933", "#0072b2"
TITLE = {"size": 14, "color": INK, "weight": "bold"}


def regression(queries):
    """Fifty noisy points, sorted by x, and the weights of each query over them."""
    random = np.random.default_rng(SEED)
    x = np.sort(random.uniform(0.0, 5.0, 50))
    y = 2 * np.sin(x) + x**0.8 + random.normal(0.0, 0.5, 50)
    query, key, value = (a[None, :, None].astype("float32") for a in (queries, x, y))
    layer = tfattn.NadarayaWatson(kernel="gaussian", bandwidth=0.4)
    pooled, weights = layer(query, value, key, return_attention_scores=True)
    return x, y, np.array(pooled)[0, :, 0], np.array(weights)[0]


def translation():
    """The words of a translation, those that were read, and each head's weights between them."""
    model, english, french = tfattn.load_example("grammar")
    written = tfattn.translate(model, [SENTENCE], english, french)[0]
    source = [*english.encode(SENTENCE), english.end_id]
    target = [french.begin_id, *french.encode(written)]
    weights = tfattn.attention_weights(model, (np.array([source]), np.array([target])))
    cross = [w[0] for path, w in weights.items() if "cross" in path][-1]  # (H, T, S)
    return [*written.split(), "(end)"], [*SENTENCE.split(), "(end)"], np.array(cross)


def one_query(ax, x, y, weights, pooled, curve):
    """The points, each as large and as dark as its weight, and the mean that they give."""
    ax.plot(*curve, color=INK, lw=1.4, zorder=1)
    shade = weights / weights.max()
    ax.scatter(x, y, s=22 + 130 * shade, c=shade, cmap=COLORS, ec="#8a94a3", lw=0.6)
    ax.axvline(ASKED, color=MEAN, lw=1.2, ls=(0, (4, 3)), zorder=0)
    ax.plot(ASKED, pooled, "D", color=MEAN, ms=11, mec="white", mew=1.5, zorder=5)
    ax.text(ASKED + 0.08, ax.get_ylim()[0], "query", color=MEAN, va="bottom", fontsize=12)
    ax.annotate(
        "weighted mean\nof the values",
        (ASKED, pooled),
        (3.0, pooled + 0.75),
        color=MEAN,
        fontsize=12,
        va="center",
        arrowprops={"arrowstyle": "-", "color": MEAN, "lw": 1, "shrinkB": 8},
    )
    ax.set(xlabel="x: where the keys are", ylabel="y: the values")
    ax.set_title("One query: kernel regression", loc="left", **TITLE)


def all_queries(ax, weights):
    """A row a query: where in x it looks."""
    ax.imshow(weights, cmap=COLORS, extent=(0, 50, 4.95, -0.05), aspect="auto")
    ax.add_patch(Rectangle((0, ASKED - 0.05), 50, 0.1, fill=False, ec=MEAN, lw=2))
    ax.set(xlabel="50 points, sorted by x (keys)", ylabel="x that is asked for (query)")
    ax.set_title("All queries", loc="left", **TITLE)


def sentence(ax, written, read, weights):
    """A row a word that is written: which words it reads."""
    ax.imshow(weights, cmap=COLORS, vmin=0, aspect="auto")
    ax.set_xticks(range(len(read)), read, rotation=55, ha="right", rotation_mode="anchor")
    ax.set_yticks(range(len(written)), written)
    ax.set(xlabel="read (keys)", ylabel="written (queries)")
    ax.set_title("A Transformer that translates", loc="left", **TITLE)


def draw(written, read, heads):
    grid = np.arange(50) / 10
    x, y, curve, weights = regression(grid)
    _, _, (pooled,), (row,) = regression(np.array([ASKED]))
    figure = Figure(figsize=(13, 4.9), layout="constrained")
    axes = figure.subplots(1, 3, width_ratios=[1.15, 1, 1.15])
    figure.get_layout_engine().set(w_pad=0.12, h_pad=0.08)
    one_query(axes[0], x, y, row, pooled, (grid, curve))
    all_queries(axes[1], weights)
    sentence(axes[2], written, read, heads.mean(axis=0))
    for ax in axes:
        ax.spines[:].set_visible(False)
        ax.tick_params(length=0, labelsize=11, labelcolor=INK)
        ax.xaxis.label.set(size=12, color=INK)
        ax.yaxis.label.set(size=12, color=INK)
    figure.suptitle(
        "weights = softmax( score( query, keys ) )        output = weights · values",
        family="monospace",
        fontsize=14,
        color=INK,
    )
    return figure


if __name__ == "__main__":
    figure = draw(*translation())
    figure.savefig(Path(__file__).parents[1] / "one-idea.png", dpi=120)
