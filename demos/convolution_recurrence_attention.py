"""
Convolution, recurrence, self-attention
=======================================

All three turn n vectors into n vectors. They differ in how much they compute, in how many steps
have to wait for one another, and in how far a signal travels between two tokens. We tabulate all
of it, measure layers on sequences that grow, and lay the predicted slopes beside the times.
"""

# %%
# What you will learn
# -------------------
# - how many operations, waiting steps and layers between two tokens each kind of layer needs;
# - when self-attention is the cheapest of them, and when the most expensive;
# - why the count of operations does not tell the time.
#
# Before you begin
# ----------------
# - Prerequisites: :doc:`Self-attention by hand <self_attention_by_hand>`; what a convolution and a
#   recurrent network are.
# - Time: 15 minutes to read, a minute to run on two cores.
# - ``options.seed`` is 0 and ``options.out`` the folder for figures: the script's two options.

# sphinx_gallery_start_ignore
import argparse
import json

# sphinx_gallery_end_ignore
import time

# sphinx_gallery_start_ignore
from pathlib import Path

# sphinx_gallery_end_ignore
import keras
import numpy as np

import tfattn

# sphinx_gallery_start_ignore
from _figures import curves

parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
)
parser.add_argument("--seed", type=int, default=0, help="of everything random (default: 0)")
parser.add_argument(
    "--out",
    type=Path,
    default="out/convolution_recurrence_attention",
    metavar="DIR",
    help="folder for figures",
)
options = parser.parse_args()
options.out.mkdir(parents=True, exist_ok=True)
# sphinx_gallery_end_ignore
keras.utils.set_random_seed(options.seed)

# %%
# Three questions
# ---------------
# For n tokens of width d, a kernel over k tokens, and a window in which a query sees r keys.
# :math:`O(n^2 d)` says that the number grows as :math:`n^2 d` does, whatever the constant factor.
#
# - **Operations.** Self-attention scores every pair, :math:`O(n^2 d)`. A recurrence multiplies each
#   state by a matrix, :math:`O(n d^2)`; a convolution does so for each token under its kernel,
#   :math:`O(k n d^2)`. A separable one first weighs the k tokens feature by feature, then mixes the
#   features by one matrix, :math:`O(k n d + n d^2)`. With a window, attention scores :math:`r n`
#   pairs, :math:`O(r n d)`.
# - **Sequential steps.** A recurrence needs the state before it, :math:`O(n)`. All others compute
#   every token at once, :math:`O(1)`.
# - **Longest path.** To learn what the first token has to do with the last, a gradient must get
#   from one to the other. Self-attention joins them in one step, :math:`O(1)`, a recurrence in
#   :math:`O(n)`. Convolutions are stacked until their kernels reach, :math:`O(n / k)` layers; if
#   each is dilated k times as far as the one below, :math:`O(\log_k n)` do. Windows are stacked
#   likewise, :math:`O(n / r)`.
#
# .. figure:: /drawings/three-layers.svg
#    :alt: The way of a signal from token 1 to others through each of three layers, and the costs.
#
#    The way of a signal through a convolution, a recurrence and self-attention, and their costs.
#
# In the drawing the convolution has k = 3. One layer joins a token with its two neighbors; after
# two, the output at token 3 depends on tokens 1 to 5. L layers see :math:`L (k - 1) + 1` tokens,
# their receptive field.
#
# Most of this is table 1 of "Attention is all you need" (Vaswani et al. 2017), which has the path
# of dilated convolutions alone in its row of convolutions.
#
# =======================  ============================  ================  ===================
# layer                    operations                    sequential steps  longest path
# =======================  ============================  ================  ===================
# self-attention           :math:`O(n^2 d)`              :math:`O(1)`      :math:`O(1)`
# recurrence               :math:`O(n d^2)`              :math:`O(n)`      :math:`O(n)`
# convolution              :math:`O(k n d^2)`            :math:`O(1)`      :math:`O(n / k)`
# dilated convolution      :math:`O(k n d^2)`            :math:`O(1)`      :math:`O(\log_k n)`
# separable convolution    :math:`O(k n d + n d^2)`      :math:`O(1)`      :math:`O(n / k)`
# windowed self-attention  :math:`O(r n d)`              :math:`O(1)`      :math:`O(n / r)`
# =======================  ============================  ================  ===================
#
# Two things do not show in it. Self-attention is counted without the matrices that make queries,
# keys and values, :math:`O(n d^2)` more; for n < d they take more than the attention itself. And a
# kernel or a window around a token reaches only half its width to each side, so a stack of them
# needs about twice as many layers. The function has the terms for any sizes, with constants of 1.
d, k, r = 128, 3, 127


# Operations, sequential steps and the longest path of each kind of layer, rounded up.
def complexity(n, d):
    layers = int(np.ceil(n / k))
    dilated = next(depth for depth in range(1, n) if k**depth >= n)  # log_k n
    return {
        "self-attention": (n * n * d, 1, 1),
        "recurrence": (n * d * d, n, n),
        "convolution": (k * n * d * d, 1, layers),
        "dilated convolution": (k * n * d * d, 1, dilated),
        "separable convolution": (k * n * d + n * d * d, 1, layers),
        "windowed self-attention": (min(r, n) * n * d, 1, int(np.ceil(n / r))),
    }


table = complexity(1024, d)
print(f"1024 tokens of width {d}     operations  sequential steps  longest path")
for name, (operations, steps, path) in table.items():
    print(f"{name:24}{operations:14,d}{steps:18,d}{path:14,d}")

# %%
# Before the Transformer
# ----------------------
# Recurrent networks had been made cheaper. Factorization tricks (Kuchaiev, Ginsburg 2017,
# arXiv:1703.10722) write the large matrix of an LSTM as a product of two smaller ones, or split it
# into groups that do not mix. Conditional computation (Shazeer et al. 2017, arXiv:1701.06538) has
# thousands of feed-forward networks between its LSTM layers, the experts, and computes only the few
# that a gate chooses for each token. The former have fewer weights and operations; the latter many
# more weights for few more operations a token. The n steps still wait for one another, as the
# introduction of "Attention is all you need" says.
#
# Other models had reduced the waiting. The Extended Neural GPU (Kaiser, Bengio 2016,
# arXiv:1610.08613), ByteNet (Kalchbrenner et al. 2016, arXiv:1610.10099) and ConvS2S (Gehring et
# al. 2017, arXiv:1705.03122) translate by convolutions, which compute all places at once. The
# farther apart two words are, the more layers it takes to connect them: in proportion to the
# distance in ConvS2S, to its logarithm in ByteNet, whose convolutions are dilated. End-to-end
# memory networks (Sukhbaatar et al. 2015, arXiv:1503.08895) are recurrent too, but over a few
# rounds of attention to a memory, not along the words. The Transformer uses attention alone.

# %%
# Which one computes most?
# ------------------------
# That depends on which is longer, the text or the vector. At width 512 self-attention and
# recurrence meet at the dot, where :math:`n = d`. For a sentence of 30 tokens attention is by far
# the cheapest, for a book by far the dearest. A window takes the square away. Plain and dilated
# convolution take the same number of operations, so their lines lie on one another; a separable one
# takes hardly more than a recurrence.
lengths = 2 ** np.arange(5, 14)
tables = [complexity(int(n), d=512) for n in lengths]
operations = {name: [one[name][0] for one in tables] for name in table}
figure = curves(
    lengths,
    operations,
    "Tokens n",
    "Operations",
    log_x=True,
    log_y=True,
    marked={"recurrence": 512},
)
figure.savefig(options.out / "operations.png", dpi=150)
figure

# %%
# How far apart are two tokens?
# -----------------------------
# Here attention is at its best: one step, however long the text. The square is the price of that.
# Dilated convolutions come close.
paths = {name: [one[name][2] for one in tables] for name in table}
figure = curves(lengths, paths, "Tokens n", "Longest path (steps)", log_x=True, log_y=True)
figure.savefig(options.out / "paths.png", dpi=150)
figure

# %%
# And on this machine?
# --------------------
# Each layer reads one sequence, and the next is twice as long. On two logarithmic axes a power of n
# is a straight line, and its slope is the power. The thin lines have the predicted slopes, 2 for
# self-attention and 1 for all others. A layer comes near its slope once it is busy enough: below,
# the time goes into calling it. The windowed layer computes short sequences whole and long ones
# block by block, without the blocks that the window hides.
#
# Some printed slopes lie below the predicted 1: 0.57, 0.73 and 0.82 in one run. They do not mean
# that such a layer takes less than linear time. It is still below its slope: at 16,384 tokens of
# width 128 a part of its time still does not grow with n.
#
# What the slope does not show is the height. A recurrence takes fewer operations than a convolution
# and much more time, since its n steps wait for one another and each is too small for the
# processor.
sizes = 512 * 2 ** np.arange(6)  # 512 to 16384
layers = {
    "self-attention": tfattn.DotProductAttention(),
    "recurrence": keras.layers.GRU(d, return_sequences=True),
    "convolution": keras.layers.Conv1D(d, k, padding="same"),
    "dilated convolution": keras.layers.Conv1D(d, k, padding="same", dilation_rate=k),
    "separable convolution": keras.layers.SeparableConv1D(d, k, padding="same"),
    "windowed self-attention": tfattn.DotProductAttention(),
}
masks = {"self-attention": None, "windowed self-attention": tfattn.masks.window(r // 2 + 1)}
tokens = keras.Input((None, d), batch_size=1)
seconds, measured, predicted = {}, {}, {}
for name, layer in layers.items():
    if name in masks:
        output = layer(query=tokens, value=tokens, attention_mask=masks[name])
    else:
        output = layer(tokens)
    model = keras.Model(tokens, output)
    model.compile(jit_compile=False)  # XLA would compile each length anew
    seconds[name] = []
    for n in sizes:
        batch = np.random.default_rng(options.seed).normal(size=(1, n, d)).astype("float32")
        times = []
        for _ in range(5):
            start = time.perf_counter()
            model.predict_on_batch(batch)
            times.append(time.perf_counter() - start)
        seconds[name].append(np.median(times[1:]))  # the first call prepares the others
    costs = [complexity(int(n), d)[name][0] for n in sizes]
    # slopes over the longest sequences, where the layer has enough to do
    power = np.polyfit(np.log(sizes[-3:]), np.log([seconds[name][-3:], costs[-3:]]).T, 1)[0]
    measured[name], predicted[name] = power.tolist()
    print(f"{name:24} {seconds[name][-1] * 1e3:7.1f} ms for {sizes[-1]} tokens,", end=" ")
    print(f"slope {measured[name]:.2f}, predicted {predicted[name]:.0f}")

# %%
# A window does not always pay. Up to 2,048 tokens the windowed layer takes longer than the full
# one: a head is computed whole until :math:`n^2` reaches :math:`2^{23}`, at 2,896 tokens, and there
# the mask is only more work. From 4,096 tokens on, where hidden blocks are left out, it is faster,
# by more with each length.
full, windowed = (np.array(seconds[name]) for name in masks)
for n, ratio in zip(sizes, windowed / full, strict=True):
    print(f"{n:6} tokens: the windowed layer takes {ratio:.2f} times as long as the full one")

# %%
# The times of all layers, with thin lines of the predicted slopes:
figure = curves(sizes, seconds, "Tokens n", "Seconds per call", log_x=True, log_y=True)
for name, times in seconds.items():
    straight = times[-1] * (np.array(sizes) / sizes[-1]) ** predicted[name]
    figure.axes[0].plot(sizes, straight, color="0.5", linewidth=0.8, zorder=0)
figure.savefig(options.out / "times.png", dpi=150)
figure

# %%
# With this package
# -----------------
# A window for any attention layer, whose hidden blocks are skipped.
local = tfattn.MultiHeadAttention(num_heads=8, key_dim=64)
x = np.ones((1, 300, 512), "float32")
print("Output", tuple(local(query=x, value=x, attention_mask=tfattn.masks.window(128)).shape))

# %%
# Summary
# -------
# - Self-attention joins any two tokens in one step and computes them all at once; it pays with
#   :math:`n^2`. A window makes that linear, for longer paths.
# - A recurrence takes few operations and n steps that wait; a convolution waits for nothing and
#   needs many layers to reach far.
# - Self-attention takes fewer operations than a recurrence for n < d.
#
# Questions
# ---------
# **1.** For which n does self-attention take fewer operations than a convolution with k = 3?
#
# .. dropdown:: Answer
#
#    :math:`n^2 d < 3 n d^2`, so :math:`n < 3 d`: fewer than 1536 tokens at width 512.
#
# **2.** How many layers of kernel 3 until the output depends on all of 1024 tokens? How many if the
# dilation triples with each layer?
#
# .. dropdown:: Answer
#
#    :math:`2 L + 1 \ge 1024`, so 512; the table's 342 leaves constants out. With dilations 1, 3, 9,
#    ... the field is :math:`3^L`, and 7 layers see 2187 tokens.
#
# **3.** A recurrence takes a third of the operations of a convolution. Why does it take more time?
#
# .. dropdown:: Answer
#
#    Its n products of one vector with a matrix come one after another, and each leaves most of the
#    processor idle. The convolution is one large product.
#
# **4.** Why is the slope taken over the longest three sequences?
#
# .. dropdown:: Answer
#
#    In short ones the call itself takes most of the time, and it does not grow with n: the slope
#    would be near 0 and say nothing about the layer.
#
# **5.** Write ``layers_to_connect`` yourself.
#
# .. dropdown:: Answer
#
#    ``python -m exercises open layers_to_connect`` writes the task,
#    ``python -m exercises check layers_to_connect`` checks your function:
#    :doc:`all exercises </exercises>`.
#
# Where to go next
# ----------------
# - :doc:`Positional encoding <positions>`: attention alone does not know the order of its tokens.
# - :doc:`Long sequences </long-sequences>`: what is streamed, and from which size on.

# sphinx_gallery_start_ignore
result = {
    "complexity": {name: list(cost) for name, cost in table.items()},
    "predicted_slopes": predicted,
    "measured_slopes": measured,
}
print("result:", json.dumps(result))
# sphinx_gallery_end_ignore
