"""
Attention learns its bandwidth
==============================

A regression task is a few noisy points of a function and a place to predict. We train one attention
layer on thousands of such tasks, each with a function of its own. Its only weight is a bandwidth,
and what it learns is the bandwidth that a statistician would choose: the leave-one-out bandwidth of
the same tasks. It widens with noise, narrows with more points and with steeper functions, in one
dimension to five. Attention without its softmax has no bandwidth, and cannot do it.
"""

# %%
# What you will learn
# -------------------
# - why softmax attention over the points of a task is kernel regression, whatever it was trained
#   for;
# - that training over tasks minimizes the leave-one-out error, and finds its bandwidth;
# - by which laws the bandwidth follows the number of points, noise and smoothness;
# - what linear attention can and cannot predict.
#
# Before you begin
# ----------------
# - Prerequisites: :doc:`kernel_regression` and :doc:`kernel_regression_tool`; logarithmic axes.
# - Time: 12 minutes to read, about three minutes to run on two cores.
# - ``options.seed`` is 0 and ``options.out`` the folder for figures: the script's two options.

# sphinx_gallery_start_ignore
import argparse
import json
from pathlib import Path

# sphinx_gallery_end_ignore
import keras
import numpy as np
from keras import ops
from matplotlib.figure import Figure

import tfattn
from tfattn.kernel_regression import KernelRegression

# sphinx_gallery_start_ignore
from _figures import COLORS, MARKERS, curves

parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
)
parser.add_argument("--seed", type=int, default=0, help="of everything random (default: 0)")
parser.add_argument(
    "--out", type=Path, default="out/learned_bandwidth", metavar="DIR", help="folder for figures"
)
options = parser.parse_args()
options.out.mkdir(parents=True, exist_ok=True)
# sphinx_gallery_end_ignore
keras.utils.set_random_seed(options.seed)

# %%
# Tasks
# -----
# The points lie on a sphere, as in `Collins et al., 2024 <https://arxiv.org/abs/2402.11639>`__: a
# circle in one dimension, the surface of a ball in two. A sphere has no edge, so every place has
# neighbors on all sides. Each task has its own wave across it, in a random direction :math:`a` and
# with a random phase :math:`\varphi`:
#
# .. math:: y_i = \sin(L\, a \cdot x_i + \varphi) + \varepsilon_i
#
# L is the largest slope of the wave, its Lipschitz constant, and :math:`\sigma` the standard
# deviation of the noise :math:`\varepsilon`. To predict are 32 more places of each task, without
# noise. No task comes twice.
random = np.random.default_rng(options.seed)


def unit(*shape):
    # Random vectors of length 1.
    vectors = random.normal(size=shape)
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def tasks(count, n=256, dimensions=2, noise=0.5, steepness=2.0):
    # Inputs (query, key, value) and targets: `(count, 32 or n, width)` each.
    x = unit(count, n + 32, dimensions + 1)
    wave = x @ unit(count, dimensions + 1, 1)  # (count, n + 32, 1)
    wave = np.sin(steepness * wave + random.uniform(0, 2 * np.pi, (count, 1, 1)))
    y = wave[:, :n] + random.normal(0.0, noise, (count, n, 1))
    query, key, value, target = (
        each.astype("float32") for each in (x[:, n:], x[:, :n], y, wave[:, n:])
    )
    return (query, key, value), target


# %%
# Softmax attention is kernel regression
# --------------------------------------
# Keys are the places of a task, values its heights, queries the places to predict. For vectors of
# length 1, :math:`\lVert q - k \rVert^2 = 2 - 2\, q \cdot k`: the dot product and the squared
# distance differ by a constant, which the softmax cancels. Scaled dot-product attention is kernel
# regression with a Gaussian kernel, and its scale is :math:`1 / h^2`.
(query, key, value), _ = tasks(8)
by_distance = tfattn.NadarayaWatson(bandwidth=0.25)(query=query, key=key, value=value)
by_product = tfattn.DotProductAttention(scale=1 / 0.25**2)(query=query, key=key, value=value)
difference = float(ops.max(ops.abs(by_distance - by_product)))
print(f"Gaussian kernel of bandwidth 0.25 and dot product times 16 differ by {difference:.0e}")

# %%
# Training over tasks
# -------------------
# Each step has fresh tasks. The loss is the squared error at the queries. A task of n points with
# one more to predict is n + 1 points of which one is left out: so the mean loss is the
# leave-one-out error, over all tasks.


def trained(attention, steps=60, rate=0.05, **kind):
    # A model of an attention layer alone, trained on tasks of one kind.
    count = int(np.clip(8192 // kind.get("n", 256), 16, 64))
    inputs = [keras.Input(each.shape[1:]) for each in tasks(1, **kind)[0]]
    output = attention(**dict(zip(("query", "key", "value"), inputs, strict=True)))
    model = keras.Model(inputs, output)
    slower = keras.optimizers.schedules.CosineDecay(rate, steps)
    model.compile(keras.optimizers.Adam(slower, beta_2=0.95), "mean_squared_error")
    for _ in range(steps):
        model.train_on_batch(*tasks(count, **kind))
    return model


# %%
# First, the dot product with a whole matrix between query and key, :math:`q^\top W k`, which starts
# at random. It knows nothing of spheres or distances. What it learns is close to a multiple of the
# identity, which is one number, a bandwidth.
free = tfattn.BilinearAttention()
trained(free, steps=200, rate=0.5)
matrix = ops.convert_to_numpy(free.score.trainable_variables[0])  # (3, 3)
from_matrix = float(np.trace(matrix) / 3) ** -0.5
print(f"learned matrix:\n{matrix.round(1)}\nbandwidth {from_matrix:.3f}")


# %%
# From here on the layer has this one number. Beside it, the leave-one-out bandwidth of other tasks
# of the same kind: each point is predicted from all others of its task, for fourteen bandwidths.
# The best is the minimum of a parabola through the three lowest errors.
bandwidths = np.geomspace(0.06, 1.35, 14)


def learned_bandwidth(**kind):
    # (bandwidth, error on new tasks) of attention that has been trained on such tasks.
    layer = tfattn.NadarayaWatson(bandwidth=0.3, trainable_bandwidth=True)
    model = trained(layer, **kind)
    return float(layer.current_bandwidth()), model.evaluate(*tasks(64, **kind), verbose=0)


def left_out(x, y):
    # The leave-one-out error of a task by each bandwidth, `(14,)`.
    models = (KernelRegression(bandwidth=h).fit(x, y) for h in bandwidths)
    return np.array([model.leave_one_out().error for model in models])


def errors_of(**kind):
    # Leave-one-out errors of about 8,192 points, `(tasks, 14)`.
    (_, keys, values), _ = tasks(min(8192 // kind.get("n", 256), 128), **kind)
    return np.array([left_out(x, y) for x, y in zip(keys, values, strict=True)])


def lowest(errors):
    # The bandwidth at the minimum of a curve of errors, between those that were tried.
    middle = int(np.clip(errors.argmin(), 1, len(errors) - 2))
    before, least, after = errors[middle - 1 : middle + 2]
    step = np.clip((before - after) / (before - 2 * least + after) / 2, -1, 1)
    return float(bandwidths[middle] * (bandwidths[1] / bandwidths[0]) ** step)


learned, _ = learned_bandwidth()
errors = errors_of()
together, of_tasks = lowest(errors.mean(axis=0)), [lowest(each) for each in errors]
print(f"learned {learned:.3f}; leave-one-out over {len(errors)} tasks {together:.3f}")
print("of single tasks, quartiles:", np.quantile(of_tasks, [0.25, 0.5, 0.75]).round(3))

# %%
# Number of points, noise, smoothness
# -----------------------------------
# The bandwidth balances two errors. A mean of few neighbors keeps their noise: variance
# :math:`\sigma^2 / (n h^d)`, as :math:`n h^d` points lie within h. A mean of many flattens the
# function. Of a function of which one knows the slope L alone, the flattening is at most L h; the
# sum of its square and the variance is smallest where
#
# .. math:: h \propto \left( \frac{\sigma^2}{n L^2} \right)^{1/(d+2)}
#
# Of a smooth one, slopes on both sides cancel, and the curvature remains, here :math:`L^2 h^2`:
#
# .. math:: h \propto \left( \frac{\sigma^2}{n L^4} \right)^{1/(d+4)}
#
# Collins et al. prove bounds for attention: its window narrows with :math:`n L^2 / \sigma^2`, for
# functions as rough as L allows. Our waves are smooth. Both laws hold for many points. Here every
# bandwidth is learned, in one dimension to five.
sweeps = {
    "n": [32, 64, 128, 256, 512],
    "noise": [0.25, 0.5, 1.0],
    "steepness": [1.0, 2.0, 3.0],
}
laws = {  # the power of each, for d dimensions: of slope L alone, and smooth
    "n": (lambda d: -1 / (d + 2), lambda d: -1 / (d + 4)),
    "noise": (lambda d: 2 / (d + 2), lambda d: 2 / (d + 4)),
    "steepness": (lambda d: -2 / (d + 2), lambda d: -4 / (d + 4)),
}
dimensions = [1, 2, 3, 4, 5]
measured = {name: np.empty((5, 3, len(values))) for name, values in sweeps.items()}
known = {}  # the sweeps meet in one kind of task
for name, values in sweeps.items():
    for line, d in enumerate(dimensions):
        for place, number in enumerate(values):
            kind = {"n": 256, "noise": 0.5, "steepness": 2.0, "dimensions": d, name: number}
            asked = tuple(kind.values())
            if asked not in known:
                best = lowest(errors_of(**kind).mean(axis=0))
                known[asked] = (*learned_bandwidth(**kind), best)
            measured[name][line, :, place] = known[asked]
    print(f"by {name}, {values}:")
    for d, (learned_h, _, best_h) in zip(dimensions, measured[name], strict=True):
        print(f"  d = {d}: learned {learned_h.round(3)}, leave-one-out {best_h.round(3)}")

# %%
# Filled markers are learned, open ones are leave-one-out. They lie on one another: attention that
# has seen thousands of tasks uses the bandwidth that each set of tasks asks for.
figure = Figure(figsize=(12, 4.4), layout="constrained")
labels = {"n": "points n", "noise": "noise σ", "steepness": "steepness L"}
for axes, (name, values) in zip(figure.subplots(1, 3, sharey=True), sweeps.items(), strict=True):
    for d, (learned_h, _, best_h) in zip(dimensions, measured[name], strict=True):
        style = {"color": COLORS[d - 1], "marker": MARKERS[d - 1]}
        axes.plot(values, learned_h, **style, markersize=5, label=f"d = {d}")
        ring = {"markersize": 11, "markerfacecolor": "none", "linestyle": "none"}
        axes.plot(values, best_h, **style, **ring)
    axes.set(xlabel=labels[name], xscale="log", yscale="log")
    axes.set_xticks(values, [f"{number:g}" for number in values])
    axes.set_yticks([0.1, 0.2, 0.3, 0.5, 0.8], ["0.1", "0.2", "0.3", "0.5", "0.8"])
    axes.minorticks_off()
    axes.grid(color="0.92")
    axes.spines[["top", "right"]].set_visible(False)
figure.axes[0].set_ylabel("bandwidth h")
figure.axes[0].legend(frameon=False, title="learned (open: leave-one-out)", ncols=2, fontsize=9)
figure.savefig(options.out / "bandwidths.png", dpi=150)
figure

# %%
# On logarithmic axes a power is a slope. Both kinds of bandwidth have nearly the same slopes, with
# the signs of the laws. In one and two dimensions the slope in n lies between the two laws. From
# three on it is steeper than both: in five dimensions few of some hundred points are near, the
# function differs even between those, and that adds to the noise. With more points the slope
# becomes flatter; the laws hold for many. In L it is the reverse: 256 points cannot follow a steep
# wave in five dimensions, and the best bandwidth no longer narrows.


def slopes(which, values, heights):
    # A straight line's slope through the logarithms, for each dimension.
    return [float(np.polyfit(np.log(values), np.log(row[which]), 1)[0]) for row in heights]


powers = {}
for name, values in sweeps.items():
    rough, smooth = ([law(d) for d in dimensions] for law in laws[name])
    powers[name] = {
        "learned": slopes(0, values, measured[name]),
        "leave-one-out": slopes(2, values, measured[name]),
        "law, smooth": smooth,
        "law, slope L alone": rough,
    }
    for which, each in powers[name].items():
        print(f"{name:>9}, {which + ':':<20}", *(f"{power:6.2f}" for power in each))
local = np.diff(np.log(measured["n"][4, 0])) / np.log(2)
print("five dimensions, slope from each n to its double:", local.round(2))

figure = Figure(figsize=(12, 4.0), layout="constrained")
for axes, (name, each) in zip(figure.subplots(1, 3), powers.items(), strict=True):
    for which, style in zip(each, ("o", "s", "--", ":"), strict=True):
        is_ring = which == "leave-one-out"
        shown = {"color": "#0072b2" if style in "os" else "0.35", "label": which}
        size = {"markersize": 11, "markerfacecolor": "none"} if is_ring else {"markersize": 6}
        axes.plot(dimensions, each[which], style, **shown, **size)
    axes.set(xlabel="dimensions d", xticks=dimensions, title=f"power of {labels[name]}")
    axes.grid(color="0.92")
    axes.spines[["top", "right"]].set_visible(False)
figure.axes[0].set_ylabel("slope of the bandwidth")
figure.legend(
    *figure.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False
)
figure.savefig(options.out / "slopes.png", dpi=150)
figure

# %%
# Linear attention
# ----------------
# Without its softmax, attention is a sum of values times scores, :math:`\frac{1}{n} \sum_i (q^\top
# W k_i)\, y_i`. That is linear in q: whatever W is, the prediction is a plane through the task. A 1
# is appended to queries and keys, so that the plane need not pass through 0.


class Linear(tfattn.Normalizer):
    # Weights that are the scores themselves, over the number of keys.

    def function(self, scores, visible=None):
        return scores / scores.shape[-1]


class LinearAttention(tfattn.Attention):
    # Attention without softmax, over places with a 1 appended.

    def call(self, query, value, key):
        query, key = (ops.pad(x, [[0, 0], [0, 0], [0, 1]], constant_values=1) for x in (query, key))
        return super().call(query, value, key)

    def build(self, query_shape, value_shape, key_shape):
        width = query_shape[-1] + 1
        super().build((*query_shape[:2], width), value_shape, (*key_shape[:2], width))


def linear_attention(**kind):
    # A model of linear attention, trained on tasks of one kind.
    layer = LinearAttention(tfattn.BilinearScore(), normalizer=Linear())
    return trained(layer, steps=100, rate=0.1, **kind)


# %%
# One task on the circle. Softmax attention with its learned bandwidth follows the wave. Linear
# attention weights far points too, and below 0 on the other side: its prediction is a plane over
# the circle, one period of a sine.
circle = {"n": 64, "dimensions": 1, "steepness": 3.0}
narrow = tfattn.NadarayaWatson(bandwidth=0.3, trainable_bandwidth=True)
by_softmax, by_plane = trained(narrow, **circle), linear_attention(**circle)
(_, key, value), _ = tasks(1, **circle)
angles = np.linspace(-np.pi, np.pi, 241)
around = np.stack([np.cos(angles), np.sin(angles)], axis=-1)[None].astype("float32")  # (1, 241, 2)
predictions, weights = {}, {}
for name, layer in (("softmax attention", narrow), ("linear attention", by_plane.layers[-1])):
    output = layer(query=around, value=value, key=key)
    predictions[name] = ops.convert_to_numpy(output)[0, :, 0]  # (241,)
    unit_values = np.eye(circle["n"], dtype="float32")[None]  # (1, n, n): each value by itself
    output = layer(query=around[:, 150:151], value=unit_values, key=key)
    weights[name] = ops.convert_to_numpy(output)[0, 0]  # (n,): the weights of one query
places = np.arctan2(key[0, :, 1], key[0, :, 0])

figure = Figure(figsize=(11, 4.2), layout="constrained")
left, right = figure.subplots(1, 2, width_ratios=(1.3, 1))
left.plot(places, value[0, :, 0], ".", color="0.6", label="points of the task")
for number, (name, color) in enumerate(zip(predictions, COLORS, strict=False)):
    left.plot(angles, predictions[name], color=color, ls=("-", "--")[number], label=name)
    right.plot(places, weights[name], MARKERS[number], color=color, label=name, markersize=5)
for axes, words in ((left, "y"), (right, "weight in the prediction at the dotted line")):
    axes.axvline(angles[150], color="0.7", lw=1, ls=":")
    axes.set(xlabel="place on the circle (radians)", ylabel=words)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=9)
figure.savefig(options.out / "task.png", dpi=150)
figure

# %%
# More points help softmax attention without end. They do not help linear attention, whose error is
# what a plane leaves of a wave.
counts, in_plane = sweeps["n"], {}
for n in counts:
    in_plane[n] = linear_attention(n=n).evaluate(*tasks(64, n=n), verbose=0)
of_softmax = measured["n"][1, 1]  # the error on new tasks, in two dimensions
shown = {"softmax attention": of_softmax, "linear attention": np.array([*in_plane.values()])}
figure = curves(counts, shown, "points n of a task", "squared error", log_x=True, log_y=True)
figure.axes[0].set_yticks([0.03, 0.1, 0.3], ["0.03", "0.1", "0.3"])
figure.savefig(options.out / "errors.png", dpi=150)
figure

# %%
# What it has learned, and what not
# ---------------------------------
# Attention chose its bandwidth in training and keeps it. On tasks like those of its training it is
# as good as a bandwidth that is chosen for each task by leaving its points out. On flatter and on
# steeper tasks it is still the old one, and the choice by task is better.
table = {}
for steepness in (1.0, 2.0, 4.0):
    (query, key, value), target = tasks(32, steepness=steepness)
    squares = []
    for asked, x, y, wanted in zip(query, key, value, target, strict=True):
        both = (KernelRegression(bandwidth=h).fit(x, y) for h in (learned, lowest(left_out(x, y))))
        squares.append([np.mean((model.predict(asked) - wanted) ** 2) for model in both])
    table[steepness] = np.mean(squares, axis=0)
    fixed, chosen = table[steepness]
    print(f"steepness {steepness}: learned {fixed:.4f}, chosen by task {chosen:.4f}")

# %%
# With this package
# -----------------
# ``tfattn.NadarayaWatson(trainable_bandwidth=True)`` learns one bandwidth with the rest of a model;
# ``tfattn.kernel_regression.KernelRegression().fit(x, y)`` chooses for one task by its points.

# %%
# Summary
# -------
# - Softmax attention from places to heights is kernel regression, and its scale is
#   :math:`1 / h^2`.
# - Trained on tasks with one point to predict, it minimizes the leave-one-out error and finds its
#   bandwidth, even out of a whole matrix that starts at random.
# - The bandwidth widens with noise and narrows with points and steepness. With few points in many
#   dimensions its slopes are not yet those of the laws.
# - Without the softmax, the prediction is a plane, and more points do not help.
#
# Questions
# ---------
# .. dropdown:: 1. Why is the loss of training a leave-one-out error?
#
#    A query is a point of the task whose height is hidden, and is predicted from the others. The
#    noise of the hidden height adds a constant, which moves no minimum.
#
# .. dropdown:: 2. Trained with n points, used with ten times as many: too wide or too narrow?
#
#    Too wide: the best bandwidth narrows with n. The layer keeps what it has learned.
#
# .. dropdown:: 3. Why does a wave in five dimensions need so many points?
#
#    The share of points within h falls as :math:`h^d`. For as many neighbors, h must be wider, and
#    a wide mean flattens.
#
# .. dropdown:: 4. What would linear attention learn, were the functions planes?
#
#    To predict them: each prediction is a plane fitted to the points. There it can be better than
#    softmax attention, which flattens.
#
# To write yourself: ``leave_one_out_error``, one of the :doc:`exercises </exercises>`.
#
# Where to go next
# ----------------
# Many weighted means at once: :doc:`batched_matmul`. Scores that are not distances:
# :doc:`scoring_functions`. The paper: `Collins et al., 2024 <https://arxiv.org/abs/2402.11639>`__.

# sphinx_gallery_start_ignore
result = {
    "difference": difference,
    "matrix": np.round(matrix.astype(float), 3).tolist(),
    "learned": learned,
    "leave_one_out": together,
    "slopes": powers,
    "linear_errors": [*in_plane.values()],
    "softmax_errors": of_softmax.tolist(),
    "elsewhere": {str(steepness): each.tolist() for steepness, each in table.items()},
}
print("result:", json.dumps(result))
# sphinx_gallery_end_ignore
