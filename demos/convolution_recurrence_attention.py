"""
Convolution, recurrence, self-attention
=======================================

Three kinds of layer turn a sequence into another one of the same length. How many products do they
take, how many steps have to wait for one another, and how far apart are two tokens? A table
answers, and then a clock: we time such layers on longer and longer sequences, and compare the
slopes with those of the table.
"""

import argparse
import json
import time
from pathlib import Path

import keras
import numpy as np

import tfattn

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
parser.add_argument(
    "--longest", type=int, default=4096, help="most tokens that are timed (default: 4096)"
)
options = parser.parse_args()
options.out.mkdir(parents=True, exist_ok=True)
keras.utils.set_random_seed(options.seed)

# %%
# What a layer costs
# ------------------
# For :math:`n` tokens of width :math:`d`, a convolution whose kernel covers :math:`k` tokens, and
# attention in which a query sees :math:`r` keys:
#
# - *operations*: how many multiplications, as leading terms;
# - *sequential steps*: how many of them have to wait for one another. A recurrent layer reads token
#   by token; the others take all tokens at once;
# - *longest path*: how many layers or steps a signal passes between the two tokens that are
#   farthest apart. The shorter it is, the easier is it to learn what belongs together.
#
# Self-attention is the one with a short path *and* no waiting. Its price is :math:`n^2`.
table = tfattn.complexity(n=1000, d=64, kernel_size=3, window=100)
print(f"{'n = 1000, d = 64, k = 3, r = 100':32} {'operations':>12} {'steps':>6} {'path':>6}")
for name, cost in table.items():
    print(f"{name:32} {cost.operations:12,} {cost.sequential_steps:6} {cost.longest_path:6}")

# %%
# When is attention the cheaper one?
# ----------------------------------
# :math:`n^2 d` against :math:`n d^2`: where a sentence has fewer tokens than a token has numbers.
# The lines cross at :math:`n = d`. For translation, with some 30 tokens and a width of 512,
# self-attention is by far the cheaper; for a long document it is not, unless each query sees a
# window only.
lengths = 2 ** np.arange(5, 14)
operations = {
    name: [tfattn.complexity(n=int(n), d=512, window=64)[name].operations for n in lengths]
    for name in ("self-attention", "recurrence", "windowed self-attention")
}
figure = tfattn.plot.curves(
    lengths,
    operations,
    "Tokens n",
    "Operations",
    title="Width 512, window 64",
    log_x=True,
    log_y=True,
)
figure.savefig(options.out / "operations.png", dpi=150)
figure

# %%
# By the clock
# ------------
# Each layer reads one sequence of width 64; we take the median of five calls. In a picture whose
# axes are both logarithmic, :math:`n^p` is a line of slope :math:`p`: 2 for self-attention, 1 for
# the others. We fit the slope to the three longest sequences. A layer has a fixed price, too,
# which hides the slope where sequences are short; and the recurrent layer's many small steps cost
# more by the clock than on paper. The numbers are your machine's.
width, window = 64, 64
causal_window = tfattn.masks.causal() & tfattn.masks.window(window)
layers = {
    "self-attention": tfattn.DotProductAttention(),
    "recurrence": keras.layers.GRU(width, return_sequences=True),
    "convolution": keras.layers.Conv1D(width, 3, padding="same"),
    "windowed self-attention": tfattn.DotProductAttention(),
}
calls = {
    "self-attention": lambda x: layers["self-attention"](x, x),
    "recurrence": layers["recurrence"],
    "convolution": layers["convolution"],
    "windowed self-attention": lambda x: layers["windowed self-attention"](
        x, x, attention_mask=causal_window
    ),
}
factors = {"convolution": 8, "windowed self-attention": 8}  # so quick that they need more tokens
timed = {name: options.longest * factors.get(name, 1) // 2 ** np.arange(4)[::-1] for name in calls}
seconds = {name: [] for name in calls}
for name, call in calls.items():
    for n in timed[name].tolist():
        x = np.random.default_rng(options.seed).normal(size=(1, n, width)).astype("float32")
        inputs = keras.Input((n, width))
        model = keras.Model(inputs, call(inputs))
        model.predict(x, verbose=0)  # compiles
        taken = []
        for _ in range(5):
            began = time.perf_counter()
            model.predict_on_batch(x)
            taken.append(time.perf_counter() - began)
        seconds[name].append(float(np.median(taken)))
slopes = {
    name: float(np.polyfit(np.log(timed[name][1:]), np.log(each[1:]), 1)[0])
    for name, each in seconds.items()
}
predicted = {}
for name in calls:
    fewer, more = (tfattn.complexity(n=n, d=width, window=window)[name] for n in (2048, 4096))
    predicted[name] = float(np.log2(more.operations / fewer.operations))
    print(f"{name:24} slope {slopes[name]:.2f}, predicted {predicted[name]:.2f}")
milliseconds = {name: 1000 * np.array(each) for name, each in seconds.items()}
# Lines of the predicted slopes, through the longest sequence.
for name, label in (("self-attention", "slope 2"), ("windowed self-attention", "slope 1")):
    timed[label] = timed[name]
    fewer = timed[name] / timed[name][-1]
    milliseconds[label] = milliseconds[name][-1] * fewer ** predicted[name]
figure = tfattn.plot.curves(
    timed, milliseconds, "Tokens n", "Milliseconds a sequence", log_x=True, log_y=True
)
figure.savefig(options.out / "time.png", dpi=150)
figure

# %%
# With this package
# -----------------
# A window is a mask, and a layer under it takes time and memory that grow with n and not with its
# square.
tokens = np.ones((1, 512, 64), "float32")
layer = tfattn.MultiHeadAttention(num_heads=4, key_dim=16)
output = layer(query=tokens, value=tokens, attention_mask=tfattn.masks.window(64))
print("Output", tuple(output.shape))

result = {
    "complexity": {name: list(cost) for name, cost in table.items()},
    "predicted_slopes": predicted,
    "measured_slopes": slopes,
}
print("result:", json.dumps(result))
