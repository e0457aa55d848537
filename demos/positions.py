"""
Positional encoding
===================

Attention takes a set: shuffle the words, and the outputs are shuffled with them. So each position
gets a vector that is added to its token. We count in binary, find the same pattern in the sines and
cosines of the Transformer, turn one position into another by a rotation, and let a small model
learn positions of its own.
"""

# %%
# What you will learn
# -------------------
# - how sines and cosines count, as the bits of a number do;
# - why they carry both kinds of information, *absolute* and *relative* position;
# - what learned positions find by themselves, and where they end;
# - how to write both as layers that Keras trains, saves and masks.
#
# Before you begin
# ----------------
# - Prerequisites: :doc:`Self-attention by hand <self_attention_by_hand>`; sine, cosine, and a
#   rotation as a 2 × 2 matrix.
# - Time: 20 minutes to read, half a minute to run.
# - ``options.seed`` is 0 and ``options.out`` the folder for figures: the script's two options.

# sphinx_gallery_thumbnail_number = 2
# sphinx_gallery_start_ignore
import argparse
import json
from pathlib import Path

# sphinx_gallery_end_ignore
import keras
import numpy as np
import tensorflow as tf
from matplotlib.figure import Figure

import tfattn

# sphinx_gallery_start_ignore
parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
)
parser.add_argument("--seed", type=int, default=0, help="of everything random (default: 0)")
parser.add_argument(
    "--out", type=Path, default="out/positions", metavar="DIR", help="folder for figures"
)
options = parser.parse_args()
options.out.mkdir(parents=True, exist_ok=True)
# sphinx_gallery_end_ignore
keras.utils.set_random_seed(options.seed)

# %%
# A counter
# ---------
# Write the positions in binary. The last bit changes at every step, the one before it at every
# second step, the first one hardly ever. A few bits that change at different speeds are enough to
# tell every position from every other. But each bit takes a feature and has only two values. A
# float varies continuously, so waves need less space: a single pair of them already has another
# value at each position.
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
positions, width = 60, 32
encoding = tfattn.SinusoidalPositionalEncoding()
blank = np.zeros((1, positions, width), "float32")
table = keras.ops.convert_to_numpy(encoding(blank))[0]  # (60, 32): added to zeros, so itself

# %%
# Above, dimensions 4 to 7: a sine and its cosine, then the next pair, which is slower. Below, all
# dimensions, a row each: quick waves in the first rows, slow ones further down, as with the bits.
figure = Figure(figsize=(6.8, 5.6), layout="constrained")
upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(2, 3))
for dimension in (4, 5, 6, 7):
    upper.plot(table[:, dimension], "-" if dimension % 2 else "--", label=str(dimension))
upper.legend(title="Dimension", loc="lower center", bbox_to_anchor=(0.5, 1), ncols=4, frameon=False)
drawn = lower.imshow(table.T, aspect="auto", cmap="cividis", vmin=-1, vmax=1)
upper.set_ylabel("Value")
lower.set(xlabel="Position", ylabel="Dimension")
figure.colorbar(drawn, ax=lower, label="Value")
figure.savefig(options.out / "waves.png", dpi=150)
figure

# %%
# From scratch
# ------------
# First as the formula reads, number by number. Then the table at once, and added to a batch of
# embeddings, which the Transformer multiplies by :math:`\sqrt d` before. The last line asserts that
# the layer has the same output.
loops = np.zeros((positions, width))  # (60, 32), float64
for i in range(positions):
    for j in range(width // 2):
        angle = i * 10_000.0 ** (-2 * j / width)  # in radians
        loops[i, 2 * j] = np.sin(angle)
        loops[i, 2 * j + 1] = np.cos(angle)
print(f"The layer against the loops: greatest difference {np.abs(loops - table).max():.1e}")

exponents = -2 * np.arange(width // 2) / width  # (16,)
speeds = (10_000.0**exponents).astype("float32")  # (16,), radians per step
steps = np.arange(positions, dtype="float32")  # (60,)
angles = steps[:, None] * speeds  # (60, 1) times (16,) -> (60, 16)
waves = np.stack([np.sin(angles), np.cos(angles)], axis=-1)  # (60, 16, 2)
waves = waves.reshape(positions, width)  # (60, 32): sine, cosine, sine, cosine, ...

embedded = np.random.default_rng(options.seed).normal(size=(2, positions, width))
embedded = (embedded / width**0.5).astype("float32")  # (2, 60, 32)
by_hand = embedded * width**0.5 + waves  # (2, 60, 32) + (60, 32) -> (2, 60, 32)
scaled = tfattn.SinusoidalPositionalEncoding(input_scale=width**0.5)
by_layer = keras.ops.convert_to_numpy(scaled(embedded))  # (2, 60, 32)
np.testing.assert_allclose(by_hand, by_layer, rtol=0, atol=1e-6)

# %%
# In float32 both agree to the last digits. The loops are in float64; angles of dozens of radians
# lose their last digits in float32, so the table is off by up to 2e-6, which no model notices. The
# layer computes angles in float32 under every dtype policy: in bfloat16, position 600 would be off
# by more than 1. It also takes positions that do not begin at 0, for decoding with a cache, and odd
# widths, and it passes on the mask of the padding.

# %%
# A step is a rotation
# --------------------
# Draw a pair of dimensions as a point, the sine upwards and the cosine to the right. Each point
# lies on the unit circle, and each step turns it by the same angle :math:`w_j`. A pair is like the
# hand of a clock, and the table like a row of clocks, each slower than the one before it.
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
# The rows are the two addition theorems, with :math:`\sin(w_j i) = p_{i, 2j}` and
# :math:`\cos(w_j i) = p_{i, 2j+1}`:
#
# .. math:: \sin((i + \delta) w_j) = \cos(\delta w_j) \sin(w_j i) + \sin(\delta w_j) \cos(w_j i)
#
# .. math:: \cos((i + \delta) w_j) = -\sin(\delta w_j) \sin(w_j i) + \cos(\delta w_j) \cos(w_j i)
#
# The matrix has :math:`\delta` in it and no :math:`i`. So the table holds two kinds of
# information: the *absolute* position, by the vector of each place, and the *relative* position,
# since "seven words further on" is the same linear map everywhere in the sentence, which a layer
# can learn.
offset = 7
frequencies = 10_000.0 ** (-2 * np.arange(width // 2) / width)  # (16,)
sine, cosine = np.sin(offset * frequencies), np.cos(offset * frequencies)
rotations = np.stack([cosine, sine, -sine, cosine], axis=1).reshape(-1, 2, 2)  # (16, 2, 2)
pairs = table.reshape(positions, -1, 2)  # (60, 16, 2)
turned = np.einsum("jab,ijb->ija", rotations, pairs[:-offset])
rotation_error = float(np.abs(turned - pairs[offset:]).max())
print(f"Every position turned by {offset}: the greatest error is {rotation_error:.1e}")

# %%
# The first six positions on four of the clocks:
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
# A table of weights, one row per position, can learn to do the same. Here is a task that depends on
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
# distance alone, so every diagonal has one color: that is the rotation again. The learned positions
# had no such rule, and have found that neighbors should be alike. How alike distant positions are
# was of no use for the task, and is left to chance.
#
# Both are about as good in practice: the paper has 25.8 BLEU with sines and cosines, 25.7 with a
# learned table (Vaswani et al. 2017, table 3, rows base and E). The learned table ends with its
# last row, here position 39, and the layer refuses a longer text. Sines and cosines go on past the
# longest text of the training, which is why the paper chose them (section 3.5). Whether a model can
# use positions that it never saw is another question, the last of :doc:`laws`.
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
# Write the layer yourself
# ------------------------
# As Keras layers, both kinds of positions make a table in ``build`` and add its first rows to the
# embeddings, from position 0 on. An embedding also makes a mask, which says where the padding is.
# With ``supports_masking`` a layer hands it on: the positions do not need it, and the attention
# behind them does. ``get_config`` has the arguments to make the layer anew when a model is loaded.
@keras.saving.register_keras_serializable("tutorials")
class SinusoidalPositions(keras.layers.Layer):
    def __init__(self, max_length, input_scale=1.0, **kwargs):
        super().__init__(**kwargs)
        self.max_length, self.input_scale = max_length, input_scale
        self.supports_masking = True

    def build(self, inputs_shape):
        width = inputs_shape[-1]
        speeds = 10_000.0 ** (-2 * np.arange((width + 1) // 2) / width)  # radians per step
        # In float32, as the package computes its angles.
        angles = np.arange(self.max_length, dtype="float32")[:, None] * speeds.astype("float32")
        waves = np.stack([np.sin(angles), np.cos(angles)], axis=-1)  # (max_length, D / 2, 2)
        self.table = waves.reshape(self.max_length, -1)[:, :width]  # an odd D ends with a sine

    def call(self, inputs):
        table = keras.ops.convert_to_tensor(self.table)  # (max_length, D)
        rows = table[: keras.ops.shape(inputs)[1]]  # (T, D)
        return inputs * self.input_scale + keras.ops.cast(rows, inputs.dtype)

    def get_config(self):
        own = {"max_length": self.max_length, "input_scale": self.input_scale}
        return {**super().get_config(), **own}


# %%
# Learned positions differ from it in ``build`` alone. ``add_weight`` makes a table that Keras
# trains and saves, which begins as noise.
@keras.saving.register_keras_serializable("tutorials")
class LearnedPositions(SinusoidalPositions):
    def build(self, inputs_shape):
        shape = (self.max_length, inputs_shape[-1])
        noise = keras.initializers.RandomNormal(stddev=0.02)
        self.table = self.add_weight(name="table", shape=shape, initializer=noise)


# %%
# In the task above they too find the weights that made the data, from another random start.
ours = {
    "sines and cosines": SinusoidalPositions(max_length=40),
    "learned": LearnedPositions(max_length=40),
}
own_errors = {}
for name, layer in ours.items():
    signal = keras.Input((40, 1))
    place = layer(keras.ops.repeat(0.0 * signal, 16, axis=-1))  # (B, 40, 16)
    model = keras.Model(signal, tfattn.BilinearAttention()(query=place, key=place, value=signal))
    model.compile(keras.optimizers.Adam(0.02), "mse")
    model.fit(signals, wanted @ signals, batch_size=128, epochs=40, verbose=0)
    (weights,) = tfattn.attention_weights(model, signals[:1]).values()
    own_errors[name] = float(np.abs(weights[0] - wanted).max())
    print(f"{name}: greatest error of a weight {own_errors[name]:.4f}")

# %%
# With the same table our layers give the same as the package's, and the same gradients: of the sum
# of squares of the output by the embeddings and, where it is learned, by the table. All layers
# multiply the embeddings by 4 first, the root of the width, and are in float64, but for the sines
# and cosines; the config makes ours anew.
packages = {
    "sines and cosines": tfattn.SinusoidalPositionalEncoding(input_scale=4.0, dtype="float64"),
    "learned": tfattn.LearnedPositionalEncoding(40, input_scale=4.0, dtype="float64"),
}
inputs, own_differences = tf.constant(embedded[:, :40, :16], "float64"), {}
for name, package in packages.items():
    config = {**ours[name].get_config(), "input_scale": 4.0, "dtype": "float64"}
    mine = type(ours[name]).from_config(config)
    both = []
    for layer in (mine, package):
        layer(inputs)  # builds it
        layer.set_weights(ours[name].get_weights())
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            outputs = layer(inputs)  # (2, 40, 16)
            squares = tf.reduce_sum(outputs**2)
        both.append([outputs, *tape.gradient(squares, [*layer.trainable_variables, inputs])])
    difference = [float(np.abs(a - b).max()) for a, b in zip(*both, strict=True)]
    own_differences[name] = difference
    print(f"{name}, largest difference of outputs: {difference[0]:.0e},", end=" ")
    print("of gradients:", ", ".join(f"{number:.0e}" for number in difference[1:]))
    assert max(difference) < 1e-5

# %%
# And the mask arrives: the fourth token is padding, and no query attends to it.
padded = keras.layers.Embedding(1000, 16, mask_zero=True)(np.array([[5, 6, 7, 0]]))  # (1, 4, 16)
x = ours["sines and cosines"](padded)
_, weights = tfattn.DotProductAttention()(query=x, value=x, return_attention_scores=True)
padding_weight = float(np.max(weights[:, :, 3]))
print("Greatest weight of the padding:", padding_weight)
assert padding_weight == 0

# %%
# What the package's layers do beyond it:
#
# - sines and cosines go on without a greatest length: angles are computed in the call;
# - ``start_index`` for decoding token by token, where the first one is not at position 0, and
#   ``positions`` for several texts in one row;
# - a text longer than a learned table is refused with a message that says so.
#
# Now write one: ``python -m exercises open PositionalEncoding`` writes the task of such a layer,
# and ``check PositionalEncoding`` trains, saves and loads yours (:doc:`exercises </exercises>`).

# %%
# With this package
# -----------------
# One line between the embedding and the first block. The scale stands inside, since a
# multiplication outside would lose the mask of the padding.
tokens = keras.layers.Embedding(1000, 64, mask_zero=True)(np.array([[5, 6, 7, 0]]))
x = tfattn.SinusoidalPositionalEncoding(input_scale=64**0.5)(tokens)
print("Output", tuple(x.shape))

# %%
# Summary
# -------
# - Attention alone does not know the order; a vector for each position, added to the token, does.
# - Sines and cosines of falling frequency tell every position from every other. An offset is a
#   rotation, the same everywhere.
# - Learned positions do about as well within their table, and end with it.
#
# Questions
# ---------
# **1.** Why a sine and a cosine of each frequency, and not the sine alone?
#
# .. dropdown:: Answer
#
#    The sine alone has the same value at two angles of each turn, and the next sine cannot be
#    computed from it. With the cosine, a step is a linear map of the pair.
#
# **2.** What is the dot product of the encodings of positions :math:`i` and :math:`i + \delta`?
#
# .. dropdown:: Answer
#
#    :math:`\sum_j \cos(\delta w_j)`, since :math:`\sin a \sin b + \cos a \cos b = \cos(a - b)`. It
#    depends on the distance alone, and is the same for :math:`-\delta`: direction needs the
#    matrices of queries and keys.
#
# **3.** Positions are added. Why not concatenated?
#
# .. dropdown:: Answer
#
#    That works too, and costs width in every layer. A linear map of the concatenation is the sum of
#    two linear maps, so adding loses only the freedom to keep the two apart; in a wide embedding
#    they can be kept apart anyway.
#
# **4.** The base 10000 becomes 100. How long is the slowest wave at width 32, and what follows?
#
# .. dropdown:: Answer
#
#    :math:`2 \pi \cdot 100^{30/32}`, about 470 tokens, not some 35,000. In longer texts every hand
#    has gone round, and none alone tells near from far. Short texts use more of the table.
#
# **5.** Write ``sinusoidal_positions`` yourself, and ``rotate_pairs``, which turns queries and keys
# instead of adding anything.
#
# .. dropdown:: Answer
#
#    ``python -m exercises open sinusoidal_positions`` writes the task,
#    ``python -m exercises check sinusoidal_positions`` checks your function:
#    :doc:`all exercises </exercises>`.
#
# Where to go next
# ----------------
# - :doc:`Residuals and layer normalization <residuals_and_norms>`: the two parts around each
#   sublayer.
# - :doc:`Positions and biases </positions-and-biases>`: rotary and relative positions, ALiBi.

# sphinx_gallery_start_ignore
result = {
    "rotation_error": rotation_error,
    "still": still,
    "weight_errors": errors,
    "own_errors": own_errors,
    "own_differences": own_differences,
    "padding_weight": padding_weight,
}
print("result:", json.dumps(result))
# sphinx_gallery_end_ignore
