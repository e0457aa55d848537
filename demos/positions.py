"""
Positional encoding
===================

Attention takes a set: shuffle the words, and the outputs are shuffled with them. So each position
gets a vector that is added to its token. We count in binary, find the same pattern in the sines and
cosines of the Transformer, turn one position into another by a rotation, and let a small model
learn positions of its own.
"""

# sphinx_gallery_thumbnail_number = 2
import argparse
import json
from pathlib import Path

import keras
import numpy as np
from matplotlib.figure import Figure

import tfattn

parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
)
parser.add_argument("--seed", type=int, default=0, help="of everything random (default: 0)")
parser.add_argument(
    "--out", type=Path, default="out/positions", metavar="DIR", help="folder for figures"
)
options = parser.parse_args()
options.out.mkdir(parents=True, exist_ok=True)
keras.utils.set_random_seed(options.seed)

# %%
# A counter
# ---------
# Write the positions in binary. The last bit changes at every step, the one before it at every
# second step, the first one hardly ever. A few bits that change at different speeds are enough to
# tell every position from every other.
numbers = np.arange(16)
bits = numbers >> np.arange(4)[:, None] & 1  # (4, 16)
print("In binary:", *[f"{number:03b}" for number in range(8)])
figure = tfattn.plot.heatmaps(
    bits,
    row_labels=["ones", "twos", "fours", "eights"],
    column_labels=[str(number) for number in numbers],
    x_label="Position",
    y_label="Bit",
    bar_label="Value",
    number_format=".0f",
)
figure.savefig(options.out / "counter.png", dpi=150)
figure

# %%
# Sines and cosines
# -----------------
# The Transformer counts with waves in the place of bits. Position i has a vector of d dimensions,
# which is added to the embedding of the token there. Dimensions come in pairs, a sine and a cosine,
# and the frequency :math:`w_j` falls from pair to pair:
#
# .. math:: p_{i, 2j} = \sin(w_j i), \quad p_{i, 2j+1} = \cos(w_j i), \quad w_j = 10000^{-2j/d}
#
# Above, dimensions 4 to 7: a sine and its cosine, then the next pair, which is slower. Below, all
# dimensions, a row each: quick waves in the first rows, slow ones further down, as with the bits.
positions, width = 60, 32
encoding = tfattn.SinusoidalPositionalEncoding()
blank = np.zeros((1, positions, width), "float32")
table = keras.ops.convert_to_numpy(encoding(blank))[0]  # (60, 32): added to zeros, so itself
figure = tfattn.plot.positions(table, dimensions=(4, 5, 6, 7))
figure.savefig(options.out / "waves.png", dpi=150)
figure

# %%
# A step is a rotation
# --------------------
# Draw a pair of dimensions as a point, the sine upwards and the cosine to the right. Each point
# lies on the unit circle, and each step turns it by the same angle :math:`w_j`. A pair is like the
# hand of a clock, and the table like a row of clocks, each slower than the one before it. The
# picture has the first six positions in four of them.
#
# So for a fixed offset :math:`\delta` one matrix leads from each position to the one that lies
# :math:`\delta` further on, wherever it starts:
#
# .. math::
#
#    \begin{pmatrix} p_{i+\delta, 2j} \\ p_{i+\delta, 2j+1} \end{pmatrix} =
#    \begin{pmatrix} \cos \delta w_j & \sin \delta w_j \\
#    -\sin \delta w_j & \cos \delta w_j \end{pmatrix}
#    \begin{pmatrix} p_{i, 2j} \\ p_{i, 2j+1} \end{pmatrix}
#
# "Seven words further on" is the same linear map everywhere in the sentence, which a layer can
# learn.
offset = 7
frequencies = 10_000.0 ** (-2 * np.arange(width // 2) / width)  # (16,)
sine, cosine = np.sin(offset * frequencies), np.cos(offset * frequencies)
rotations = np.stack([cosine, sine, -sine, cosine], axis=1).reshape(-1, 2, 2)  # (16, 2, 2)
pairs = table.reshape(positions, -1, 2)  # (60, 16, 2)
turned = np.einsum("jab,ijb->ija", rotations, pairs[:-offset])
rotation_error = float(np.abs(turned - pairs[offset:]).max())
print(f"Every position turned by {offset}: the greatest error is {rotation_error:.1e}")

figure = Figure(figsize=(9.5, 3.3), layout="constrained")
around = np.linspace(0, 2 * np.pi, 200)
for axes, pair in zip(figure.subplots(1, 4, sharey=True), (0, 2, 4, 6), strict=True):
    axes.plot(np.cos(around), np.sin(around), color="0.8", zorder=0)
    for place in range(6):
        up, right = table[place, 2 * pair], table[place, 2 * pair + 1]
        axes.plot([0, right], [0, up], color=str(0.75 - 0.15 * place), linewidth=1.5)
        if place in (0, 5) or frequencies[pair] > 0.2:  # where there is room for it
            axes.text(1.2 * right, 1.2 * up, str(place), ha="center", va="center", fontsize=8)
    axes.set_title(f"dimensions {2 * pair} and {2 * pair + 1}", fontsize=10)
    axes.set(xlim=(-1.4, 1.4), ylim=(-1.4, 1.4), aspect="equal", xlabel="cosine")
    axes.spines[["top", "right"]].set_visible(False)
figure.axes[0].set_ylabel("sine")
figure.suptitle("Positions 0 to 5", fontsize=10)
figure.savefig(options.out / "clocks.png", dpi=150)
figure

# %%
# Why the last dimensions hardly change
# -------------------------------------
# At width 32 the slowest wave is some 35,000 tokens long. Over 60 tokens the last hand turns by a
# hundredth of a radian: its sine stays near 0, its cosine near 1. A wider table does not help. It
# has more hands, and about the same share of them stands still. They are not broken: they tell
# apart what is thousands of tokens away, and in short texts they leave room for the word.
still = {}
for wide in (32, 128, 512):
    turns = (positions - 1) * 10_000.0 ** (-2 * np.arange(wide // 2) / wide)  # radians in all
    still[str(wide)] = float(np.mean(turns < 0.1))
    print(f"Width {wide:3}: the last hand turns by {turns[-1]:.4f} radians,", end=" ")
    print(f"and {still[str(wide)]:.0%} of the hands by less than 0.1")

# %%
# Learned positions
# -----------------
# A table of weights, one row a position, can learn to do the same. Here is a task that depends on
# positions alone: each output is a mean of the signal around it, and a neighbor counts the less
# the farther away it is. Queries and keys are nothing but positions, and the score is
# :math:`p_i^\top W p_j`. One model has the sines and cosines and learns :math:`W`. The other
# learns :math:`W` and its positions, which begin as noise. Both find the weights that made the
# data.
places = np.arange(40)
wanted = np.exp(-(((places[:, None] - places) / 2) ** 2) / 2)  # (40, 40): a Gaussian, 2 tokens wide
wanted /= wanted.sum(axis=1, keepdims=True)
signals = np.random.default_rng(options.seed).normal(size=(1024, 40, 1)).astype("float32")
encodings = {
    "sines and cosines": tfattn.SinusoidalPositionalEncoding(),
    "learned": tfattn.LearnedPositionalEncoding(max_length=40),
}
tables, found, errors = {}, {"wanted": wanted}, {}
for name, layer in encodings.items():
    signal = keras.Input((40, 1))
    place = layer(keras.ops.repeat(0.0 * signal, 16, axis=-1))  # (B, 40, 16), the position alone
    model = keras.Model(signal, tfattn.BilinearAttention()(query=place, key=place, value=signal))
    model.compile(keras.optimizers.Adam(0.02), "mse")
    model.fit(signals, wanted @ signals, batch_size=128, epochs=40, verbose=0)
    tables[name] = keras.ops.convert_to_numpy(layer(np.zeros((1, 40, 16))))[0]
    (weights,) = tfattn.attention_weights(model, signals[:1]).values()
    found[name] = weights[0]  # (40, 40)
    errors[name] = float(np.abs(found[name] - wanted).max())
    print(f"{name}: greatest error of a weight {errors[name]:.4f}")
figure = tfattn.plot.heatmaps(np.array(list(found.values())), titles=list(found))
figure.savefig(options.out / "weights.png", dpi=150)
figure

# %%
# How alike two positions are
# ---------------------------
# The cosine of the angle between each two positions. For sines and cosines it depends on the
# distance alone, so every diagonal has one color: that is the rotation again. Nobody told the
# learned positions so. They have found that neighbors should be alike. How alike distant positions
# are was of no use for the task, and is left to chance.
#
# Both are about as good in practice. The learned table ends with its last row, here position 39,
# and the layer refuses a longer text. Sines and cosines go on.
units = [each / np.linalg.norm(each, axis=1, keepdims=True) for each in tables.values()]
alike = np.array([unit @ unit.T for unit in units])  # (2, 40, 40)
figure = tfattn.plot.heatmaps(
    alike,
    titles=list(tables),
    x_label="Position",
    y_label="Position",
    bar_label="Cosine",
    color_map="cividis",
    center=0.0,
)
figure.savefig(options.out / "alike.png", dpi=150)
figure

# %%
# With this package
# -----------------
# One line between the embedding and the first block. The scale stands inside, since a
# multiplication outside would lose the mask of the padding.
tokens = keras.layers.Embedding(1000, 64, mask_zero=True)(np.array([[5, 6, 7, 0]]))
x = tfattn.SinusoidalPositionalEncoding(input_scale=64**0.5)(tokens)
print("Output", tuple(x.shape))

result = {"rotation_error": rotation_error, "still": still, "weight_errors": errors}
print("result:", json.dumps(result))
