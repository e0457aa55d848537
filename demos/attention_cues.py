"""
Attention cues
==============

Five things lie on a table. With no goal in mind your eye goes to the red cup among gray things;
want to read, and it goes to the book. The picture shows both, and the few numbers behind it show
what a query, a key and a value are.
"""

# %%
# What you will learn
# -------------------
# - what queries, keys and values are, and which cue each of them stands for;
# - how scores become weights, and weights a weighted mean of the values: attention pooling;
# - what attention adds to fully connected layers and pooling, which have no query.
#
# Before you begin
# ----------------
# - Prerequisites: the dot product and NumPy arrays. This is the first tutorial.
# - Time: 6 minutes to read, 10 seconds to run.
# - The script takes two options, ``--seed`` and ``--out``. On these pages they are
#   ``options.seed``, 0, and ``options.out``, the folder for figures.

# sphinx_gallery_thumbnail_number = 2
# sphinx_gallery_start_ignore
import argparse
import json
from pathlib import Path

# sphinx_gallery_end_ignore
import keras
import numpy as np
from matplotlib import patches
from matplotlib.figure import Figure

import tfattn

# sphinx_gallery_start_ignore
parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
)
parser.add_argument("--seed", type=int, default=0, help="changes nothing: nothing is random")
parser.add_argument(
    "--out", type=Path, default="out/attention_cues", metavar="DIR", help="folder for figures"
)
options = parser.parse_args()
options.out.mkdir(parents=True, exist_ok=True)
# sphinx_gallery_end_ignore
keras.utils.set_random_seed(options.seed)

# %%
# Attention is scarce
# -------------------
# There is more to see, to read and to watch than anyone has attention for. So attention has a
# price, and feeds and advertisements compete for it: the *attention economy*. The eye alone
# delivers too much. Write-ups say that the optic nerve carries :math:`10^8` bits a second; a
# measurement on the retina of guinea pigs, scaled to the million ganglion cells of a human one,
# gives about :math:`10^7` (Koch et al. 2006, *Current Biology* 16, 1428). Either is far more than
# we are aware of, and something has to choose.
#
# William James distinguished two ways to choose (*The Principles of Psychology*, 1890, chapter 11):
# attention that is drawn, passive and without effort, and attention that we direct, active and
# voluntary. Attention is explained by this two-component framework to this day.

# %%
# Keys and values
# ---------------
# Attention selects from the sensory inputs, led by two kinds of cue. The *involuntary* (or
# nonvolitional) cue comes from the things: one of them stands out. The *volitional* cue comes from
# us: we want something. In the words of this field:
#
# - **value**: a sensory input, what we get by looking; here simply the thing's color, as red,
#   green and blue.
# - **key**: its involuntary cue, what a query is compared with; here how much the thing stands out,
#   and whether it is there to drink from, to write with, to read.
# - **query**: the volitional cue, what is wanted.
things = ["clock", "plant", "cup", "pencil", "book"]
features = ["stands out", "drink", "write", "read"]
keys = np.array(
    [[1, 0, 0, 1], [1, 0, 0, 0], [6, 4, 0, 0], [1, 0, 4, 0], [1, 0, 0, 4]], "float32"
)  # (5, 4)
colors = ["#8c8c8c", "#7f8a7f", "#d62728", "#99958c", "#6f7b91"]
values = np.array([[int(c[i : i + 2], 16) / 255 for i in (1, 3, 5)] for c in colors], "float32")

figure = tfattn.plot.heatmaps(
    keys,
    row_labels=things,
    column_labels=features,
    titles="Keys",
    x_label="Feature",
    y_label="Thing",
    bar_label="How much",
    number_format=".0f",
)
figure.savefig(options.out / "keys.png", dpi=150)
figure

# %%
# Without a query, and with one
# -----------------------------
# A query says what is wanted, in the same four features. How well it fits a key is their dot
# product (divided by the root of the width, 4; a later step tells why). A softmax turns that into
# weights :math:`\alpha_i` that sum to 1. The output is the weighted mean of the values:
#
# .. math:: \alpha_i = \operatorname{softmax}_i \frac{q \cdot k_i}{\sqrt 4}, \quad
#           \text{output} = \sum_i \alpha_i v_i
#
# Without a query, the selection depends on the inputs alone. Fully connected layers, average
# pooling and max pooling work this way. We write that as a constant query, which asks of everything
# only how much it stands out. The second query wants to read: this is **attention pooling**. The
# values are the same both times. The drawing has the second query, and the weights that it gets:
#
# .. figure:: /drawings/attention-pooling.svg
#    :alt: A query and five keys give weights by a score and a softmax; the values are averaged.
#
#    Attention pooling: the second query, its weights over five keys, and the mean of the values.
queries = np.array([[1, 0, 0, 0], [1, 0, 0, 2]], "float32")  # (2, 4)
outputs, weights = tfattn.attend(
    query=queries[None], key=keys[None], value=values[None], return_weights=True
)
outputs = keras.ops.convert_to_numpy(outputs)[0]  # (2, 3)
weights = keras.ops.convert_to_numpy(weights)[0]  # (2, 5)
wishes = ["Without a query", "With a query: to read"]
for wish, row in zip(wishes, weights, strict=True):
    named = ", ".join(f"{thing} {weight:.2f}" for thing, weight in zip(things, row, strict=True))
    print(f"{wish}: {named}. Most: the {things[row.argmax()]}")

# %%
# The table, lit by the weights
# -----------------------------
# Each lamp is as bright as the weight of the thing beneath it. The square on the right is the
# output, the weighted mean of the colors: the cup's red without a query; with it the book's
# gray-blue and a little of the red.
figure = Figure(figsize=(8, 4.3), layout="constrained")
for axes, wish, row, output in zip(figure.subplots(2), wishes, weights, outputs, strict=True):
    for place, (thing, weight) in enumerate(zip(things, row, strict=True)):
        axes.add_patch(patches.Circle((place, 0), 0.49, color="#fff7d6", alpha=float(weight)))
        axes.text(place, -0.7, f"{thing}  {weight:.2f}", color="white", ha="center")
    line, dark = {"edgecolor": "black", "linewidth": 0.8}, "#333333"
    for part in [
        patches.Circle((0, 0), 0.27, facecolor=colors[0], **line),  # clock
        patches.Polygon([(-0.12, 0.08), (0, 0), (0, 0.21)], closed=False, fill=False, **line),
        patches.Ellipse((0.9, 0.1), 0.15, 0.42, angle=35, facecolor=colors[1], **line),  # plant
        patches.Ellipse((1.1, 0.1), 0.15, 0.42, angle=-35, facecolor=colors[1], **line),
        patches.Polygon(
            [(0.83, -0.05), (1.17, -0.05), (1.1, -0.3), (0.9, -0.3)], facecolor=dark, **line
        ),
        patches.Annulus((2.2, 0), 0.13, 0.05, facecolor=colors[2], **line),  # cup
        patches.Polygon(
            [(1.78, 0.24), (2.22, 0.24), (2.16, -0.26), (1.84, -0.26)], facecolor=colors[2], **line
        ),
        patches.Polygon(  # pencil
            [(2.72, -0.21), (3.16, 0.23), (3.24, 0.15), (2.8, -0.29)], facecolor=colors[3], **line
        ),
        patches.Polygon([(2.72, -0.21), (2.8, -0.29), (2.66, -0.35)], facecolor=dark, **line),
        patches.Polygon(  # book, open
            [(4, 0.17), (3.68, 0.24), (3.68, -0.2), (4, -0.27)], facecolor=colors[4], **line
        ),
        patches.Polygon(
            [(4, 0.17), (4.32, 0.24), (4.32, -0.2), (4, -0.27)], facecolor=colors[4], **line
        ),
    ]:
        axes.add_patch(part)
    axes.add_patch(patches.Rectangle((5, -0.35), 0.7, 0.7, facecolor=output, edgecolor="white"))
    axes.text(5.35, -0.7, "output", color="white", ha="center")
    axes.set(xlim=(-0.6, 5.9), ylim=(-0.9, 0.6), aspect="equal", xticks=[], yticks=[])
    axes.set_facecolor("#26262b")
    axes.set_title(wish, fontsize=10)
figure.savefig(options.out / "table.png", dpi=150)
figure

# %%
# With this package
# -----------------
# ``tfattn.attend(query=..., key=..., value=...)`` is all there is to attention; every layer of the
# package ends in it. The layers add learning: of the features of queries and keys, and of the
# content of the values.

# %%
# Summary
# -------
# - Attention selects among inputs. The involuntary cue (key) belongs to the input, the volitional
#   cue (query) to the one who looks; the value is what looking returns.
# - A score compares the query with each key, a softmax makes weights of the scores, and the output
#   is the mean of the values under these weights.
# - Without a query the weights depend on the inputs alone. A new query gives new weights with the
#   same keys and values.
#
# Questions
# ---------
# **1.** You search a library's catalog by title and take a book home. What is the query, what are
# the keys and the values?
#
# .. dropdown:: Answer
#
#    The query is the title that you type, the keys are the titles in the catalog, the values the
#    books. The catalog picks one value; attention takes a weighted mean of all.
#
# **2.** Which query looks for something to write with? Which thing gets the most weight, and how
# much?
#
# .. dropdown:: Answer
#
#    :math:`(1, 0, 2, 0)`. The pencil now has the score that the book had, 4.5, and the cup keeps 3,
#    so the pencil gets 0.78 and the cup 0.17. The book got 0.76, since the clock can be read too,
#    with a score of 1.5.
#
# **3.** What are the weights for a query of zeros, and for the second query times ten?
#
# .. dropdown:: Answer
#
#    A query of zeros scores 0 everywhere: all weights are 1/5, and attention is average pooling.
#    Times ten, the scores of book and cup are 45 and 30; the book gets all but :math:`3 \cdot
#    10^{-7}` of the weight. Large scores make attention pick one input.
#
# **4.** Can the output have a color that none of the five things has? Any color?
#
# .. dropdown:: Answer
#
#    A new color, yes: it is a mean. Not any color: with weights that are not negative and sum to 1,
#    no channel of the output is above its largest value or below its smallest.
#
# **5.** Write attention pooling yourself: ``python -m exercises open attention_pooling``.
#
# .. dropdown:: Answer
#
#    ``python -m exercises check attention_pooling`` checks your function; ``hint`` helps on
#    the way. All :doc:`exercises </exercises>` work like this.
#
# Where to go next
# ----------------
# - :doc:`Attention as kernel regression <kernel_regression>`: weights from distances, and the first
#   parameter that is learned.
# - :doc:`Hard attention <hard_attention>`: picks one input instead of a mean.

# sphinx_gallery_start_ignore
result = {"without_query": weights[0].tolist(), "with_query": weights[1].tolist()}
print("result:", json.dumps(result))
# sphinx_gallery_end_ignore
