"""
A set of measurements
=====================

Some things have no order: measurements of one quantity, points of a cloud, items in a basket. A
model of such a set must give the same answer however they are listed. Attention without positions
does. Here it learns how to average measurements of different precision, with a single weight, and
finds the weights of statistics. The same network with positions answers differently when the list
is shuffled.
"""

# %%
# What you will learn
# -------------------
# - how attention works on tokens that are numbers, without words or a table of embeddings;
# - how to test that a model treats its input as a set: shuffle it, pad it, enlarge it;
# - that one learned weight is enough to find the weights of statistics.
#
# Before you begin
# ----------------
# You know :doc:`masked_attention`, and what a standard error is. Ten minutes to read; about a
# minute to run on two cores. The script's options are in ``options``: ``options.seed``, and
# ``options.out``, the folder of the figures.

# sphinx_gallery_start_ignore
import argparse
import json
from pathlib import Path

# sphinx_gallery_end_ignore
import keras
import numpy as np

import tfattn

# sphinx_gallery_start_ignore
from _figures import bars

parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
)
parser.add_argument("--seed", type=int, default=0, help="of everything random (default: 0)")
parser.add_argument(
    "--out", type=Path, default="out/sets", metavar="DIR", help="folder for figures"
)
options = parser.parse_args()
options.out.mkdir(parents=True, exist_ok=True)
# sphinx_gallery_end_ignore
keras.utils.set_random_seed(options.seed)

# %%
# The task
# --------
# A quantity was measured between 2 and 12 times, by instruments of different precision. Each
# measurement is a number :math:`x_i` and its standard error :math:`\sigma_i`, from 0.1 to 3. What
# was the quantity? A token holds the two numbers :math:`(x_i, \log \sigma_i)`. Shorter sets are
# padded, and a mask says which tokens are real. The lists that we learn from are sorted, the best
# instrument first, as lists often are. That order is an accident, and must not count.
#
# .. figure:: /drawings/masks.svg
#    :alt: Four masks of six queries and six keys: causal, padding, window, causal and padding.
#
#    Four masks. The second, for padding, is the one that sets of several sizes need.
#
# A plain mean trusts all instruments alike. Statistics knows better: of all weighted means without
# bias, the one with weights proportional to :math:`1 / \sigma_i^2` has the least error. The
# measurement itself tells how much it should count, and that is a task for attention.
random = np.random.default_rng(options.seed)


# Sets (B, S, 2), which of their tokens are real (B, S), and the quantities (B, 1).
def measure(count, most=12):
    real = np.arange(most) < random.integers(2, most + 1, (count, 1))
    quantity = random.normal(size=(count, 1))
    error = np.exp(random.uniform(np.log(0.1), np.log(3.0), (count, most)))
    error = np.sort(np.where(real, error, np.inf), axis=1)  # padding stays last
    error[~real] = 1.0
    tokens = np.stack([random.normal(quantity, error), np.log(error)], axis=-1)
    return (tokens * real[..., None]).astype("float32"), real, quantity


sets, real, quantities = measure(6000)


# %%
# Four functions for later: the same sets in another order, with the padding still last; the weights
# of statistics, with 0 for padding; the answers of a model; and means by weights of any scale, to
# which a measurement of 0 may be added, by its weight.
def shuffled(sets, real):
    order = np.argsort(np.where(real, random.uniform(size=real.shape), 2.0), axis=1)
    return [np.take_along_axis(sets, order[..., None], axis=1), real]


def precision_of(sets, real):
    return real * np.exp(-2 * sets[..., 1])  # (B, S)


def answers_of(model, inputs):
    return keras.ops.convert_to_numpy(model(inputs))  # (B, 1)


def mean_by(weights, sets, at_zero=0.0):
    weighted = np.sum(weights * sets[..., 0], axis=1, keepdims=True)
    return weighted / (at_zero + weights.sum(axis=1, keepdims=True))  # (B, 1)


# %%
# One weight
# ----------
# The value is the measurement, the key the logarithm of its error, and the query is learned by
# :class:`tfattn.AttentionPooling`. Here all three are single numbers, so the whole model has one
# weight, :math:`q`:
#
# .. math:: \alpha_i = \operatorname{softmax}_i(q \log \sigma_i)
#           = \frac{\sigma_i^q}{\sum_j \sigma_j^q}
#
# With :math:`q = 0` it is the plain mean, and with :math:`q = -2` the weights are those of
# statistics. Nobody tells the model so: it sees sets, and what the quantity was.
tokens = keras.Input((None, 2))
mask = keras.Input((None,), dtype="bool")
pooling = tfattn.AttentionPooling()
estimate = pooling(value=tokens[..., :1], key=tokens[..., 1:], key_mask=mask)  # (B, 1)
models = {"one weight": keras.Model([tokens, mask], estimate)}

# %%
# Three networks beside it
# ------------------------
# They have to find everything by themselves, the weighted mean too. The first takes the mean of
# learned features, and puts a network behind it: that is known as Deep Sets. The second is a small
# Transformer, whose tokens look at each other before they are pooled. The third is the same with
# positions.
x = keras.layers.Dense(64, activation="relu")(tokens)
x = keras.layers.GlobalAveragePooling1D()(x, mask=mask)
x = keras.layers.Dense(64, activation="relu")(x)
models["mean, network"] = keras.Model([tokens, mask], keras.layers.Dense(1)(x))
for name in ("Transformer", "with positions"):
    x = keras.layers.Dense(32, activation="relu")(tokens)
    if name == "with positions":
        x = tfattn.SinusoidalPositionalEncoding()(x)
    x = tfattn.TransformerEncoderBlock(num_heads=2, hidden_dim=64)(x, mask=mask)
    x = tfattn.AttentionPooling()(x, value_mask=mask)
    models[name] = keras.Model([tokens, mask], keras.layers.Dense(1)(x))

# %%
# All four learn from the same sets, by the mean squared error.
for name, model in models.items():
    rate = 0.1 if name == "one weight" else 0.005
    falling = keras.optimizers.schedules.CosineDecay(rate, decay_steps=60 * 12)
    model.compile(keras.optimizers.Adam(falling), "mse")
    model.fit([sets, real], quantities, batch_size=100, epochs=12, verbose=0)
    print(f"{name}: {model.count_params()} weights")
query = float(keras.ops.convert_to_numpy(pooling.query)[0, 0])
print(f"The one weight: {query:.3f}")

# %%
# The weights that it found
# -------------------------
# For one set of seven, beside the weights of statistics.
new, new_real, truth = measure(2000)
precision = precision_of(new, new_real)
row = int(np.flatnonzero(new_real.sum(axis=1) == 7)[0])
(weights,) = tfattn.attention_weights(
    models["one weight"], [new[row : row + 1], new_real[row : row + 1]]
).values()
figure = bars(
    [f"{number:.2f} ± {np.exp(log_error):.2f}" for number, log_error in new[row, :7]],
    {"learned": weights[0, 0, :7], "1/σ²": precision[row, :7] / precision[row].sum()},
    "Measurement",
    "Weight",
    number_format=".2f",
)
figure.savefig(options.out / "weights.png", dpi=150)
figure

# %%
# Order, padding, size
# --------------------
# Each model is asked about new sets, about the same sets shuffled, and about sets of up to 48.
# Without positions an answer moves by rounding alone. With positions it depends on the list: the
# model has learned that the first is the best, and pays for it when it is not.
larger, larger_real, larger_truth = measure(2000, most=48)
parts = {
    "sorted, as learned": ([new, new_real], truth),
    "shuffled": (shuffled(new, new_real), truth),
    "larger, shuffled": (shuffled(larger, larger_real), larger_truth),
}
answers = {}
for part, (inputs, _) in parts.items():
    answers[part] = {
        "plain mean": mean_by(inputs[1], inputs[0]),
        **{name: answers_of(model, inputs) for name, model in models.items()},
        "1/σ²": mean_by(precision_of(*inputs), inputs[0]),
        "1/σ² and 0 ± 1": mean_by(precision_of(*inputs), inputs[0], at_zero=1.0),
    }
errors = {
    part: {name: float(np.sqrt(np.mean((each - parts[part][1]) ** 2))) for name, each in by.items()}
    for part, by in answers.items()
}
listed, mixed = answers["sorted, as learned"], answers["shuffled"]
moved = {name: float(np.abs(mixed[name] - listed[name]).max()) for name in models}
for name in errors["shuffled"]:
    print(f"{name:15}", *[f"{part}: {errors[part][name]:.3f}" for part in parts], sep="  ")
for name, by in moved.items():
    print(f"{name}: shuffling moves an answer by up to {by:.1e}")

# %%
# The one weight is as good as statistics, on larger sets too. The Transformer is better than that,
# and this is not an error: it has learned that the quantities are around 0, with standard
# deviation 1, and moves its answers a little towards 0. Who knows that beforehand adds one more
# measurement to each set, :math:`0 \pm 1`, and reaches the least possible error: the last bars.
# The mean with a network behind it does not reach that. It is worse than the one weight, most of
# all on larger sets.
figure = bars(
    list(errors["shuffled"]),
    {part: list(each.values()) for part, each in errors.items()},
    "Model",
    "Root mean squared error",
)
figure.savefig(options.out / "errors.png", dpi=150)
figure

# %%
# The contents of the padding do not matter either. Here they are NaN.
broken = np.where(new_real[..., None], new, np.nan)
padding = {}
for name in ("one weight", "Transformer"):
    difference = answers_of(models[name], [broken, new_real]) - listed[name]
    padding[name] = float(np.abs(difference).max())
    print(f"{name}: NaN in the padding moves an answer by up to {padding[name]:.1e}")

# %%
# With this package
# -----------------
# Leave positions out, and pass the mask. Attention, feed-forward networks and
# :class:`tfattn.AttentionPooling` then treat their tokens as a set.

# %%
# Summary
# -------
# - Attention without positions gives the same answer for any order, up to rounding.
# - With positions a model learns accidents of the order, and its error grows when the order
#   changes.
# - A learned query on :math:`\log \sigma` finds weights of :math:`1 / \sigma^2`, as statistics
#   does.
# - The mask makes padding harmless, whatever it contains.
#
# Questions
# ---------
# .. dropdown:: 1. Why are weights proportional to :math:`1 / \sigma_i^2` the best?
#
#    The weighted mean has the variance :math:`\sum_i w_i^2 \sigma_i^2`, where the weights sum to 1.
#    At the least of it :math:`2 w_i \sigma_i^2` is the same for all :math:`i`, so :math:`w_i
#    \propto 1 / \sigma_i^2`.
#
# .. dropdown:: 2. How can the Transformer be better than the best mean without bias?
#
#    Its answers are biased, towards 0, where the quantities of this task lie. On quantities around
#    100 that would be wrong; the one weight would do as well as before.
#
# .. dropdown:: 3. Would it help to shuffle the lists that the model with positions learns from?
#
#    It would no longer trust the first place. But it would have to learn from data what the others
#    have by construction, and only nearly: its answers would still move a little.
#
# .. dropdown:: 4. Why is a weight of 0 not enough to keep NaN in the padding out of a mean?
#
#    :math:`0 \cdot \mathrm{NaN}` is NaN. The layers set masked values to 0 before they multiply.
#
# To write yourself: ``padding_mask`` and ``attention_pooling``, two of the :doc:`exercises
# </exercises>`.
#
# Where to go next
# ----------------
# Tokens from an image, whose places do count: :doc:`image_patches`. The contracts of masks:
# :doc:`the guide </masks>`. Deep Sets: `Zaheer et al., 2017 <https://arxiv.org/abs/1703.06114>`__.

# sphinx_gallery_start_ignore
result = {"query": query, "errors": errors, "moved": moved, "padding": padding}
print("result:", json.dumps(result))
# sphinx_gallery_end_ignore
