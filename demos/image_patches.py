"""
Patches of an image
===================

An image becomes tokens when it is cut into patches, and a learned query pools them into one vector.
On scikit-learn's small digits we compare that with logistic regression on the pixels, take its
parts away one by one, and ask how far its weights are to be believed.
"""

# %%
# What you will learn
# -------------------
# - how to make tokens of an image, and one vector of its tokens;
# - how to find which parts of a model count: take them away one by one;
# - how to test whether attention weights explain a decision.
#
# Before you begin
# ----------------
# You know the block of a Transformer from :doc:`residuals_and_norms`, and positions from
# :doc:`positions`. Ten minutes to read; about a minute to run on two cores. The script's options
# are in ``options``: ``options.seed``, and ``options.out``, the folder of the figures.

# sphinx_gallery_thumbnail_number = 3
# sphinx_gallery_start_ignore
import argparse
import json
from pathlib import Path

# sphinx_gallery_end_ignore
import keras
import numpy as np
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split

import tfattn

# sphinx_gallery_start_ignore
from _figures import bars, curves

parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
)
parser.add_argument("--seed", type=int, default=0, help="of everything random (default: 0)")
parser.add_argument(
    "--out", type=Path, default="out/image_patches", metavar="DIR", help="folder for figures"
)
options = parser.parse_args()
options.out.mkdir(parents=True, exist_ok=True)
# sphinx_gallery_end_ignore
keras.utils.set_random_seed(options.seed)

# %%
# Sixteen tokens
# --------------
# The digits are 1797 images of 8 × 8 pixels. Each is cut into 16 patches of 2 × 2 pixels, row by
# row. A patch is a token of four numbers, and needs no embedding table: a linear layer maps it to
# the width of the model. 500 images are kept for the test.
pixels, digits = load_digits(return_X_y=True)
pixels = (pixels / 16).astype("float32")  # (N, 64), from 0 to 1


def patches_of(pixels):
    # `(N, 64)` pixels as `(N, 16, 4)` tokens.
    grid = pixels.reshape(-1, 4, 2, 4, 2)  # rows of patches and in a patch, columns likewise
    return grid.transpose(0, 1, 3, 2, 4).reshape(-1, 16, 4)


train, test, train_digits, test_digits = train_test_split(
    pixels, digits, test_size=500, random_state=options.seed, stratify=digits
)
figure = Figure(figsize=(7, 3.2), layout="constrained")
whole, cut = figure.subfigures(1, 2)
axes = whole.subplots()
axes.imshow(test[0].reshape(8, 8), cmap="gray_r")
axes.set(title="An image of 8 × 8 pixels", xticks=[], yticks=[])
for number, axes in enumerate(cut.subplots(4, 4).flat):
    axes.imshow(patches_of(test[:1])[0, number].reshape(2, 2), cmap="gray_r", vmin=0, vmax=1)
    axes.set(xticks=[], yticks=[])
cut.suptitle("16 tokens")
figure.savefig(options.out / "patches.png", dpi=150)
figure

# %%
# The models
# ----------
# A learned vector is added to each patch for its place. In one Transformer block the patches look
# at each other. Then :class:`tfattn.AttentionPooling` asks them with one learned query, and takes
# their weighted mean; a linear layer names the digit. Beside the whole model stand three that lack
# a part: the positions, the block, or the query, with a plain mean in its place. And beside them
# all a logistic regression on the 64 pixels.
#
# No model is better than the logistic regression: these images are small, and each digit stands in
# the middle. What the comparison does show is which parts count. Without positions the model knows
# which patches there are, and not where. Without the block no patch sees another. The query
# is no better than a mean here, since the block has already mixed the contents of the patches.
ALL = {"positions", "block", "query"}


def model_with(parts):
    patches = keras.Input((16, 4))
    x = keras.layers.Dense(32)(patches)
    if "positions" in parts:
        x = tfattn.LearnedPositionalEncoding(max_length=16)(x)
    if "block" in parts:
        x = tfattn.TransformerEncoderBlock(num_heads=4, hidden_dim=64, dropout=0.1)(x)
    pool = tfattn.AttentionPooling() if "query" in parts else keras.layers.GlobalAveragePooling1D()
    return keras.Model(patches, keras.layers.Dense(10)(pool(x)))


def accuracy_of(model, patches):
    said = keras.ops.convert_to_numpy(model(patches)).argmax(axis=1)
    return float(np.mean(said == test_digits))


kinds = {"attention": ALL, **{f"without {part}": ALL - {part} for part in sorted(ALL)}}
models, accuracy = {}, {}
for name, parts in kinds.items():
    keras.utils.set_random_seed(options.seed)
    models[name] = model_with(parts)
    falling = keras.optimizers.schedules.CosineDecay(0.005, decay_steps=40 * 21)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    models[name].compile(keras.optimizers.Adam(falling), loss)
    models[name].fit(patches_of(train), train_digits, batch_size=64, epochs=40, verbose=0)
    accuracy[name] = accuracy_of(models[name], patches_of(test))
linear = LogisticRegression(max_iter=1000).fit(train, train_digits)
accuracy["logistic regression"] = float(linear.score(test, test_digits))
for name, share in accuracy.items():
    print(f"{name:19} {share:.3f} ± {(share * (1 - share) / len(test)) ** 0.5:.3f}")
figure = bars(
    list(accuracy), list(accuracy.values()), "Model", "Accuracy on 500 images", number_format=".3f"
)
figure.savefig(options.out / "accuracy.png", dpi=150)
figure

# %%
# Where the query looks
# ---------------------
# Two images of each of five digits, and the weight of each patch, in red, through which the ink
# stays visible. The block's weights come first in what :func:`tfattn.attention_weights` returns,
# those of the pooling last.
*_, weights = tfattn.attention_weights(models["attention"], patches_of(test)).values()
weights = weights[:, 0]  # (N, 16), for one query
shown = [row for digit in (0, 2, 3, 4, 7) for row in np.flatnonzero(test_digits == digit)[:2]]
greatest = float(weights[shown].max())
red = LinearSegmentedColormap.from_list("red", [(0.9, 0.2, 0, 0), (0.9, 0.2, 0, 0.85)])
figure = Figure(figsize=(9.5, 4.2), layout="constrained")
grid = figure.subplots(2, 5)
for axes, row in zip(grid.T.flat, shown, strict=True):
    box = {"extent": (0, 8, 8, 0)}
    axes.imshow(test[row].reshape(8, 8), cmap="gray_r", **box)
    lit = axes.imshow(weights[row].reshape(4, 4), cmap=red, vmin=0, vmax=greatest, **box)
    axes.set(title=f"a {test_digits[row]}", xticks=[], yticks=[])
figure.colorbar(lit, ax=grid, label="Attention weight")
figure.savefig(options.out / "weights.png", dpi=150)
figure

# %%
# How far to believe the weights
# ------------------------------
# If the patches of great weight are those that the model needs, covering them must hurt more than
# covering others. We make patches white, those of the greatest weight first, and ask again; beside
# that as many at random (the mean of five draws), and as many with the most ink, which need no
# model to be found.
#
# The weights fail the test. Covering what they name costs no more than covering patches at random,
# and far less than covering ink. They say how the model takes its mean, and that is all they say:
# after the block a token holds more than its patch, and some of the patches that they name are
# white anyway. A picture of weights is no explanation before it has passed such a test.
ink = patches_of(test).sum(axis=2)  # (N, 16)
random = np.random.default_rng(options.seed)
counts = [0, 1, 2, 3, 4, 6, 8]


def covered(order, count):
    # Accuracy when the patches of the greatest `order` are white.
    hidden = np.argsort(np.argsort(-order, axis=1), axis=1) < count  # (N, 16)
    return accuracy_of(models["attention"], np.where(hidden[..., None], 0, patches_of(test)))


orders = {
    "at random": [random.uniform(size=ink.shape) for _ in range(5)],
    "greatest weight": [weights],
    "most ink": [ink],
}
left = {
    name: [float(np.mean([covered(order, count) for order in tried])) for count in counts]
    for name, tried in orders.items()
}
for name, curve in left.items():
    print(f"{name:15}", *[f"{share:.2f}" for share in curve], f"for {counts} patches")
figure = curves(counts, left, "Patches covered", "Accuracy")
figure.savefig(options.out / "covered.png", dpi=150)
figure

# %%
# With this package
# -----------------
# Any numbers are tokens: map them to one width by a `Dense` layer, add positions if their places
# count, and pool.
patches = keras.Input((16, 4))
x = tfattn.LearnedPositionalEncoding(max_length=16)(keras.layers.Dense(32)(patches))
vectors = keras.Model(patches, tfattn.AttentionPooling()(x))
print("Patches", tuple(patches_of(test).shape), "to", tuple(vectors(patches_of(test)).shape))

# %%
# Summary
# -------
# - Any array can be cut into tokens; a linear layer brings them to the width of the model.
# - Positions and the block count here, the learned query does not: a mean is as good.
# - A logistic regression on the pixels is as good as all of it. Fit it first.
# - Weights say how a mean is taken. Whether they explain anything is another question, and it can
#   be tested.
#
# Questions
# ---------
# .. dropdown:: 1. Is the logistic regression, 0.968, better than attention, 0.966?
#
#    The difference is one image of 500. The standard error of each is :math:`\sqrt{0.97 \cdot 0.03
#    / 500} \approx 0.008`, so nothing can be said.
#
# .. dropdown:: 2. The patches of the test images are shuffled. Which model keeps its accuracy?
#
#    The one without positions, exactly: for it an image is a set of patches. The others have
#    learned what belongs where.
#
# .. dropdown:: 3. Why is ink compared with the weights?
#
#    A rule that needs no model must do worse than the weights, if these are to tell anything about
#    the model. Here it does far better.
#
# .. dropdown:: 4. The model has never seen covered images. What does that mean for the test?
#
#    Part of each drop comes from that, whatever was covered. So as many are covered at random:
#    those images are as strange. `Hooker et al., 2019 <https://arxiv.org/abs/1806.10758>`__ train
#    anew on covered images instead.
#
# To write yourself: ``attention_pooling``, one of the :doc:`exercises </exercises>`.
#
# Where to go next
# ----------------
# Numbers in time: :doc:`time_series`. More ways to ask a model what it looks at, and how far to
# believe them: :doc:`the guide </interpret>`. Patches as tokens: `Dosovitskiy et al., 2020
# <https://arxiv.org/abs/2010.11929>`__.

# sphinx_gallery_start_ignore
result = {"accuracy": accuracy, "counts": counts, "covered": left}
print("result:", json.dumps(result))
# sphinx_gallery_end_ignore
