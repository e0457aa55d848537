"""
Residuals and layer normalization
=================================

Around each sublayer F of a Transformer stand two small things: its input is added to its output,
H(x) = F(x) + x (the residual), and the sum is normalized. First we see why the norm is taken over
the features of a token and not over the batch. Then a gradient walks down through 24 layers, with
and without both.
"""

# sphinx_gallery_thumbnail_number = 3
import argparse
import json
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import tfattn

parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
)
parser.add_argument("--seed", type=int, default=0, help="of everything random (default: 0)")
parser.add_argument(
    "--out", type=Path, default="out/residuals_and_norms", metavar="DIR", help="folder for figures"
)
options = parser.parse_args()
options.out.mkdir(parents=True, exist_ok=True)
keras.utils.set_random_seed(options.seed)
random = np.random.default_rng(options.seed)

# %%
# Two norms
# ---------
# Both keep numbers from drifting as they pass from layer to layer. They take a mean away, divide by
# a standard deviation, and then scale and shift by what they learn,
# :math:`\gamma (x - \mu) / \sigma + \beta` (fresh layers have :math:`\gamma = 1` and
# :math:`\beta = 0`). Layer normalization takes :math:`\mu` and :math:`\sigma` over the features of
# one token: a row of the picture. Batch normalization takes them over all tokens of the batch, one
# feature at a time: a column. Sentence a has two words and two places of padding, which are 0;
# sentence b has four words. See the padding in the right picture: it is 0 in the batch, and yet it
# takes part.
batch = random.normal([1.0, -1.0, 0.0, 2.0], [1.0, 2.0, 0.5, 1.0], (2, 4, 4)).astype("float32")
batch[0, 2:] = 0.0
real = np.array([[True, True, False, False], [True, True, True, True]])
norms = {
    "layer norm": lambda x, real: keras.layers.LayerNormalization(epsilon=1e-5)(x),
    "batch norm": lambda x, real: keras.layers.BatchNormalization(epsilon=1e-5)(x, training=True),
    "batch norm, masked": lambda x, real: keras.layers.BatchNormalization(epsilon=1e-5)(
        x, training=True, mask=real
    ),
}
normalized = {name: np.asarray(norm(batch, real)) for name, norm in norms.items()}  # (2, 4, 4) each
pictures = {"the batch": batch, **normalized}
figure = tfattn.plot.heatmaps(
    [picture.reshape(8, 4) for name, picture in pictures.items() if "masked" not in name],
    row_labels=["a: word 1", "a: word 2", "a: pad", "a: pad", *(f"b: word {n}" for n in "1234")],
    titles=[name for name in pictures if "masked" not in name],
    x_label="Feature",
    y_label="Token",
    bar_label="Value",
    number_format=".1f",
    color_map="RdBu_r",
    center=0.0,
)
figure.savefig(options.out / "norms.png", dpi=150)
figure

# %%
# What a neighbor does
# ---------------------
# The two words of sentence a stay the same. Once the batch gets four more places of padding; once
# sentence b goes on for four more words. How far do the normalized words of sentence a move? With
# layer normalization not at all: a sentence gives the same outputs in every batch, alone too, in
# training and in use. With batch normalization the padding counts as words. Masked, it no longer
# does, but a longer neighbor still moves everybody.
nothing, more_words = np.zeros((2, 4, 4), "float32"), random.normal(size=(4, 4))
padded = np.concatenate([batch, nothing], axis=1)  # (2, 8, 4)
longer = padded.copy()
longer[1, 4:] = more_words
still_real = np.concatenate([real, np.zeros((2, 4), bool)], axis=1)
longer_real = still_real.copy()
longer_real[1, 4:] = True
moved = {
    name: [
        float(np.abs(np.asarray(norm(x, mask))[0, :2] - normalized[name][0, :2]).max())
        for x, mask in ((padded, still_real), (longer, longer_real))
    ]
    for name, norm in norms.items()
}
for name, (by_padding, by_words) in moved.items():
    print(f"{name:18} moved by padding {by_padding:.3f}, by the neighbor's words {by_words:.3f}")
figure = tfattn.plot.bars(
    list(moved),
    {
        "more padding": [by_padding for by_padding, _ in moved.values()],
        "a longer neighbor": [by_words for _, by_words in moved.values()],
    },
    "Normalization",
    "How far sentence a moves",
    number_format=".2f",
)
figure.savefig(options.out / "moved.png", dpi=150)
figure

# %%
# Down through 24 layers
# ----------------------
# Deep networks suffer from gradients that vanish or explode on their way down, and from
# degradation: with more layers even the training error may rise. With a residual F has only to
# learn what to change, and the derivative of :math:`H(x) = F(x) + x` has a 1 in it, which takes the
# gradient past F. The norm keeps lengths in bounds.
#
# Each layer :math:`F` is a position-wise network with fresh weights. There are five ways to put 24
# of them on each other; the last two are those of the Transformer: post-norm as in the paper, and
# pre-norm as most models since. We send 32 random tokens up and one gradient down, and measure the
# gradient's length at each height.
DEPTH, WIDTH = 24, 128
ways = {
    "plain": lambda x, layer, norm: layer(x),
    "norm": lambda x, layer, norm: norm(layer(x)),
    "residual": lambda x, layer, norm: x + layer(x),
    "residual, norm (post-norm)": lambda x, layer, norm: norm(x + layer(x)),
    "norm, residual (pre-norm)": lambda x, layer, norm: x + layer(norm(x)),
}
tokens = random.normal(size=(1, 32, WIDTH)).astype("float32")
direction = random.normal(size=(1, 32, WIDTH)).astype("float32")  # the gradient at the top
layers = [tfattn.PositionwiseFeedForward(hidden_dim=4 * WIDTH) for _ in range(DEPTH)]
norm = keras.layers.LayerNormalization(epsilon=1e-5)
gradients, alike = {}, {}
for name, way in ways.items():
    states = [tf.constant(tokens)]
    with tf.GradientTape() as tape:
        tape.watch(states[0])
        for layer in layers:
            states.append(way(states[-1], layer, norm))
        top = tf.reduce_sum(states[-1] * direction)
    lengths = np.array([np.linalg.norm(g) for g in tape.gradient(top, states)])  # (25,)
    gradients[name] = lengths / lengths[-1]
    units = [x[0] / np.linalg.norm(x[0], axis=1, keepdims=True) for x in states]
    alike[name] = np.array([np.mean((u @ tf.transpose(u))[~np.eye(32, dtype=bool)]) for u in units])
    print(f"{name:27} gradient at the bottom {gradients[name][0]:9.2e} of that at the top")

# %%
# Read the curves from right to left, as the gradient goes. A plain layer keeps about 0.57 of its
# length (with Glorot's weights and ReLU, the square root of 8/25), so that one part in a million
# arrives at the bottom: the lower layers do not learn. The residual alone makes each layer multiply
# it by 1.15, so it arrives 30 times as long. With a norm it stays between 1 and about 3.
figure = tfattn.plot.curves(
    np.arange(DEPTH + 1),
    gradients,
    "Height (layers from the bottom)",
    "Length of the gradient, 1 at the top",
    log_y=True,
)
figure.savefig(options.out / "gradients.png", dpi=150)
figure

# %%
# A norm without residuals, then? It mends the gradient's length and not what is in it. Here is how
# alike two tokens are on average, as the cosine between them. Without residuals all 32 tokens turn
# into nearly the same vector on their way up, whatever they were. Residuals carry a token past the
# layers, and it stays itself for longer, longest with pre-norm. So deep stacks have both.
figure = tfattn.plot.curves(
    np.arange(DEPTH + 1), alike, "Height (layers from the bottom)", "Cosine between two tokens"
)
figure.savefig(options.out / "alike.png", dpi=150)
figure

# %%
# With this package
# -----------------
# :class:`tfattn.AddNorm` is residual, dropout and norm in one, in two steps for both orders. Every
# Transformer block here uses it; ``norm_first=True`` makes pre-norm.
add_norm = tfattn.AddNorm(norm_first=False)
output = add_norm(tokens, layers[0](add_norm.pre_norm(tokens)))
post_norm = ways["residual, norm (post-norm)"](tokens, layers[0], norm)
difference = float(np.abs(output - post_norm).max())
print(f"Difference between AddNorm and post-norm by hand: {difference:.1e}")

result = {
    "moved": moved,
    "gradients": {name: float(lengths[0]) for name, lengths in gradients.items()},
    "alike": {name: float(cosines[-1]) for name, cosines in alike.items()},
    "add_norm_difference": difference,
}
print("result:", json.dumps(result))
