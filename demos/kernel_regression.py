"""
Attention as kernel regression
==============================

Fifty noisy points of a curve are keys (x) and values (y); the places where we want to know the
curve are queries. We pool the values with equal weights, with weights by distance, and with a
learned bandwidth, each a step nearer to attention as it is used today. Then we compare five
kernels.
"""

# %%
# What you will learn
# -------------------
# - how average, non-parametric and parametric attention pooling differ, on one set of data;
# - why kernel regression is attention, and what its bandwidth does;
# - how to predict each point from all others, by a mask, written from scratch;
# - how to write the layer yourself, as a class that Keras trains and saves.
#
# Before you begin
# ----------------
# - Prerequisites: :doc:`attention_cues`; the exponential function, mean and variance.
# - Time: 15 minutes to read, 30 seconds to run.
# - ``options.seed`` is 0 and ``options.out`` the folder for figures: the script's two options.

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
from _figures import curves

parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
)
parser.add_argument("--seed", type=int, default=0, help="of everything random (default: 0)")
parser.add_argument(
    "--out", type=Path, default="out/kernel_regression", metavar="DIR", help="folder for figures"
)
options = parser.parse_args()
options.out.mkdir(parents=True, exist_ok=True)
# sphinx_gallery_end_ignore
keras.utils.set_random_seed(options.seed)

# %%
# Data
# ----
# :math:`y = 2 \sin x + x^{0.8} + \varepsilon`, with normal noise of standard deviation 0.5. Fifty
# training points are drawn uniformly from [0, 5) and sorted; fifty test points go from 0 to 4.9 in
# steps of 0.1. An error below is the mean squared error against the curve without noise, unless
# another is named.
random = np.random.default_rng(options.seed)
x_train = np.sort(random.uniform(0.0, 5.0, 50))
y_train = 2 * np.sin(x_train) + x_train**0.8 + random.normal(0.0, 0.5, 50)
x_test = np.arange(50) / 10
truth = 2 * np.sin(x_test) + x_test**0.8

# %%
# Average pooling
# ---------------
# Wherever the query lies, every value counts the same, :math:`\hat y = \frac{1}{n} \sum_i y_i`: a
# flat line.
average = np.full(50, y_train.mean())
mse_average = float(np.mean((average - truth) ** 2))
print(f"Average pooling answers {average[0]:.2f} whatever it is asked. Error {mse_average:.3f}")

# %%
# Non-parametric attention pooling
# --------------------------------
# Nadaraya and Watson (1964): a value counts by how close its key lies to the query. A kernel K says
# what close means:
#
# .. math:: \hat y(x) = \sum_i \alpha_i y_i, \quad
#           \alpha_i = \frac{K(x - x_i)}{\sum_j K(x - x_j)}
#
# The Gaussian kernel is :math:`K(u) = \exp(-u^2 / 2)`, but for a factor that cancels. Exponentials
# divided by their sum are a softmax over the keys:
#
# .. math:: \alpha_i = \mathrm{softmax}_i \left( -\frac{(x - x_i)^2}{2} \right)
#
# The curve is smooth, and nearer to the truth than the flat line.
#
# Slips in write-ups of this example, each easily made:
#
# - The minus sign is lost: far points would then count most.
# - The sum in the denominator runs over j, but its terms have :math:`x_i`: each weight would be
#   1/n, which is average pooling.
# - The queries are the training points, where the test points are meant: both are fifty, so no
#   shape complains.
query, key, value = (x[None, :, None].astype("float32") for x in (x_test, x_train, y_train))
layer = tfattn.NadarayaWatson(kernel="gaussian", bandwidth=1.0)
smooth, smooth_weights = layer(query=query, key=key, value=value, return_attention_scores=True)
smooth = keras.ops.convert_to_numpy(smooth)[0, :, 0]  # (1, 50, 1) -> (50,)
mse_smooth = float(np.mean((smooth - truth) ** 2))
print(f"Attention pooling: error {mse_smooth:.3f}")

# %%
# For all queries at once, weights times values is one batched matrix product. Two rows of ten
# weights of 0.1 over the values 0 … 9 and 10 … 19 show it.
means = np.matmul(np.full((2, 1, 10), 0.1), np.arange(20.0).reshape(2, 10, 1))  # (2, 1, 1)
print(f"Two rows of weights give {means[0, 0, 0]:.1f} and {means[1, 0, 0]:.1f}")

# %%
# Parametric attention pooling
# ----------------------------
# How close is close? The bandwidth h decides, :math:`K((x - x_i) / h)`; it is 1 above. Now it is
# learned, or :math:`w = 1 / h` in other write-ups:
#
# .. math:: \alpha_i = \mathrm{softmax}_i \left( -\frac{((x - x_i) w)^2}{2} \right)
#
# Each training point is predicted from all others, and the squared error is minimized. (With
# itself among them, a point would be predicted best by looking at nothing else.) The layer is the
# whole of a Keras model, and its bandwidth the only weight.
x_in, y_in = keras.Input((50, 1)), keras.Input((50, 1))
pooling = tfattn.NadarayaWatson(bandwidth=1.0, trainable_bandwidth=True, leave_one_out=True)
model = keras.Model([x_in, y_in], pooling(query=x_in, key=x_in, value=y_in))
model.compile(keras.optimizers.Adam(0.05), "mean_squared_error")
losses = model.fit([key, value], value, epochs=200, verbose=0).history["loss"]
bandwidth = float(pooling.current_bandwidth())
layer = tfattn.NadarayaWatson(bandwidth=bandwidth)
sharp, sharp_weights = layer(query=query, key=key, value=value, return_attention_scores=True)
sharp = keras.ops.convert_to_numpy(sharp)[0, :, 0]  # (1, 50, 1) -> (50,)
mse_sharp = float(np.mean((sharp - truth) ** 2))
print(f"Leave-one-out error {losses[0]:.3f} -> {losses[-1]:.3f};")
print(f"bandwidth 1 -> {bandwidth:.3f} (w = {1 / bandwidth:.2f}). Error {mse_sharp:.3f}")

# %%
# Leave-one-out from scratch
# --------------------------
# Leaving a point out is a mask: the diagonal of the scores is hidden. Write-ups select the other
# keys of each query, ``X_tile[(1 - eye)]``, which gives rows of 49; a mask keeps all 50 columns and
# gives the diagonal a weight of 0. In NumPy and float64, both ways:
layer = tfattn.NadarayaWatson(bandwidth=bandwidth, leave_one_out=True, dtype="float64")
points, heights = x_train[None, :, None], y_train[None, :, None]  # (1, 50, 1)
by_layer = layer(query=points, key=points, value=heights)[0, :, 0]  # (50,)
h = float(layer.current_bandwidth())  # with all digits that the layer has

difference = x_train[:, None] - x_train  # (50, 1) minus (50,): (50, 50)
scores = -((difference / h) ** 2) / 2  # (50, 50), a row per query
others = ~np.eye(50, dtype=bool)  # (50, 50), False on the diagonal

selected = scores[others].reshape(50, 49)  # (2450,), then (50, 49)
selected_y = np.tile(y_train, (50, 1))[others].reshape(50, 49)  # (50, 49)
powers = np.exp(selected - selected.max(axis=1, keepdims=True))  # (50, 49)
weights = powers / powers.sum(axis=1, keepdims=True)  # (50, 49), rows sum to 1
by_selection = (weights * selected_y).sum(axis=1)  # (50,)

masked = np.where(others, scores, -np.inf)  # (50, 50)
powers = np.exp(masked - masked.max(axis=1, keepdims=True))  # (50, 50)
weights = powers / powers.sum(axis=1, keepdims=True)  # (50, 50), diagonal 0
by_mask = weights @ y_train  # (50, 50) by (50,): (50,)
np.testing.assert_allclose(by_mask, by_selection, rtol=0, atol=1e-12)
np.testing.assert_allclose(by_mask, by_layer, rtol=0, atol=1e-12)

# %%
# The layer hides the diagonal with ``~tfattn.masks.window(1)``, a rule rather than a matrix, so
# that many points need no square of bools; it joins other masks, such as padding. Its bandwidth is
# a weight that stays positive, and its weights are computed from the logarithm of the kernel, so a
# query far from every key still gets weights that sum to 1.

# %%
# Five large steps
# ----------------
# Write-ups take five steps of gradient descent at a rate of 0.5, on the mean squared error times
# the number of points. Here they are, written out. The first step leaps far beyond the best w, into
# where the error is nearly flat, and the others hardly come back: a bandwidth so narrow that the
# curve follows the noise.
#
# Three more traps in such code. In a Keras 3 model a bare ``tf.Variable`` does not move at all,
# since Keras does not track it; ``NadarayaWatson`` has a weight of the layer instead. A ``squeeze``
# without an axis turns a batch of one into a scalar. And ``plt.Animator`` is not in matplotlib, nor
# does ``plt.plot`` take the arguments that ``plot_kernel_reg`` passes: ``Animator`` and that
# ``plot`` belong to the package of the book *Dive into Deep Learning*. The figures here are of
# matplotlib and of ``tfattn.plot.heatmaps``.
w, itself = tf.Variable(1.0), np.eye(50, dtype=bool)
for _ in range(5):
    with tf.GradientTape() as tape:
        scores = -(((key - np.swapaxes(key, 1, 2)) * w) ** 2) / 2  # (1, 50, 50)
        predicted = tfattn.masked_softmax(scores, mask=~itself) @ value  # (1, 50, 1)
        squared_error = tf.reduce_sum((predicted - value) ** 2)
    w.assign_sub(0.5 * tape.gradient(squared_error, w))
noisy = tfattn.NadarayaWatson(bandwidth=1 / float(w))(query=query, key=key, value=value)[0, :, 0]
mse_noisy = float(np.mean((noisy - truth) ** 2))
print(f"Five steps: w 1 -> {float(w):.1f}, bandwidth {1 / float(w):.3f}. Error {mse_noisy:.3f}")

# %%
# Three curves
# ------------
# The learned curve follows the points more closely than that of bandwidth 1, noise included: see
# its bumps. It pays all the same, since a bandwidth of 1 pulls the curve toward the mean.
fits = {"average": average, "bandwidth 1": smooth, f"learned, {bandwidth:.2f}": sharp}
figure = curves(x_test, fits, "x", "y")
figure.axes[0].plot(x_train, y_train, ".", color="0.6", zorder=0, label="training points")
figure.axes[0].plot(x_test, truth, ":", color="0.1", label="truth")
figure.axes[0].legend(frameon=False)
figure.savefig(options.out / "fits.png", dpi=150)
figure

# %%
# Queries and keys are sorted, so the heaviest weights lie along the diagonal, where the key is near
# the query. With the learned bandwidth they are sharper, and largest where few points share them.
figure = tfattn.plot.heatmaps(
    [keras.ops.convert_to_numpy(each)[0] for each in (smooth_weights, sharp_weights)],
    titles=["bandwidth 1", f"learned, {bandwidth:.2f}"],
    x_label="Training points (keys), by x",
    y_label="Test points (queries), by x",
)
figure.savefig(options.out / "weights.png", dpi=150)
figure

# %%
# Five kernels
# ------------
# A kernel is any function of the distance. All but the Gaussian and the constant one are 0 beyond
# some distance; some write-ups call the triangular one Epanechnikov. The constant one is average
# pooling again. At one bandwidth, here 1, the Gaussian is wider than the three after it and
# flattens the curve more: width matters more than shape.
kernels = ["gaussian", "boxcar", "triangular", "epanechnikov", keras.ops.zeros_like]  # log 1 = 0
names = ["Gaussian", "boxcar", "triangular", "Epanechnikov", "constant"]
distance = np.linspace(-2.5, 2.5, 201)
figure = Figure(figsize=(10, 5.0), layout="constrained")
grid = figure.subplots(2, 5, sharex="row", sharey="row")
mse_kernels = {}
for name, kernel, upper, lower in zip(names, kernels, *grid, strict=True):
    pooled = tfattn.NadarayaWatson(kernel)(query=query, key=key, value=value)[0, :, 0]
    mse_kernels[name] = float(np.mean((pooled - truth) ** 2))
    upper.plot(distance, np.exp(tfattn.kernels.get(kernel)(distance**2)), color="#0072b2")
    upper.set(title=name, xlabel="u, in bandwidths")
    lower.plot(x_train, y_train, ".", color="0.7", label="training points")
    lower.plot(x_test, truth, ":", color="black", label="truth")
    lower.plot(x_test, pooled, color="#0072b2", label="pooled")
    lower.set(title=f"error {mse_kernels[name]:.2f}", xlabel="x")
    print(f"{name}: error {mse_kernels[name]:.3f}")
grid[0, 0].set_ylabel("K(u)")
grid[1, 0].set_ylabel("y")
for axes in grid.flat:
    axes.spines[["top", "right"]].set_visible(False)
    axes.title.set_fontsize(10)
figure.legend(
    *grid[1, 0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False
)
figure.savefig(options.out / "kernels.png", dpi=150)
figure


# %%
# Write the layer yourself
# ------------------------
# Write-ups have the learned bandwidth in a class, ``NWKernelRegression``. As a Keras layer it makes
# its weight in ``build``, with ``add_weight``, so that Keras trains and saves it; computes in
# ``call``; and ``get_config`` has the arguments to make it anew when a model is loaded.
# ``valid_lens`` is for sets of points of several sizes in one batch: only the first so many keys of
# each set count.
@keras.saving.register_keras_serializable("tutorials")
class NWKernelRegression(keras.layers.Layer):
    def __init__(self, bandwidth=1.0, leave_one_out=False, **kwargs):
        super().__init__(**kwargs)
        self.bandwidth, self.leave_one_out = bandwidth, leave_one_out

    def build(self, query_shape, value_shape, key_shape):
        # The bandwidth is the softplus of the weight, log(1 + exp(weight)), so it stays positive.
        start = keras.initializers.Constant(np.log(np.expm1(self.bandwidth)))
        self.raw_bandwidth = self.add_weight(name="raw_bandwidth", shape=(), initializer=start)

    def call(self, query, value, key, valid_lens=None):
        difference = query[:, :, None] - key[:, None]  # (B, T, 1, D) - (B, 1, S, D): (B, T, S, D)
        difference = difference / keras.ops.softplus(self.raw_bandwidth)
        scores = -keras.ops.sum(difference**2, axis=-1) / 2  # (B, T, S)
        place = keras.ops.arange(keras.ops.shape(key)[1])  # (S,)
        if self.leave_one_out:
            scores = keras.ops.where(place[:, None] == place, -np.inf, scores)
        if valid_lens is not None:
            lengths = keras.ops.cast(valid_lens, "int32")[:, None, None]  # (B, 1, 1)
            scores = keras.ops.where(place < lengths, scores, -np.inf)
        return keras.ops.matmul(keras.ops.softmax(scores), value)  # (B, T, S) by (B, S, D)

    def get_config(self):
        own = {"bandwidth": self.bandwidth, "leave_one_out": self.leave_one_out}
        return {**super().get_config(), **own}


# %%
# It trains as the package's layer has trained above, from the same start, and comes to the same
# bandwidth.
own = NWKernelRegression(leave_one_out=True)
own_model = keras.Model([x_in, y_in], own(query=x_in, value=y_in, key=x_in))
own_model.compile(keras.optimizers.Adam(0.05), "mean_squared_error")
own_losses = own_model.fit([key, value], value, epochs=200, verbose=0).history["loss"]
own_bandwidth = float(keras.ops.softplus(own.raw_bandwidth))
print(f"Leave-one-out error {own_losses[0]:.3f} -> {own_losses[-1]:.3f};")
print(f"bandwidth 1 -> {own_bandwidth:.3f}, of the package's layer {bandwidth:.3f}")

# %%
# With the same weights both layers give the same, and the same gradients: of the mean squared error
# by the weight and by the keys. The last twenty of the fifty points are hidden here by
# ``valid_lens``, on top of each point itself. Both are in float64, where rounding hides nothing;
# the config makes our layer anew.
config = {**own.get_config(), "dtype": "float64"}
mine = NWKernelRegression.from_config(config)
package = tfattn.NadarayaWatson(trainable_bandwidth=True, leave_one_out=True, dtype="float64")
points, both = tf.constant(key, "float64"), []
for each in (mine, package):
    each(query=points, value=value, key=points)  # builds it
    each.set_weights(own.get_weights())
    with tf.GradientTape() as tape:
        tape.watch(points)
        pooled = each(query=points, value=value, key=points, valid_lens=np.array([30]))
        error = tf.reduce_mean((pooled - value) ** 2)
    both.append([pooled, *tape.gradient(error, [*each.trainable_variables, points])])
difference = [float(np.abs(a - b).max()) for a, b in zip(*both, strict=True)]
print("Largest difference of outputs, of the weight's gradient, and of those of the keys:")
print(", ".join(f"{number:.0e}" for number in difference))
assert max(difference) < 1e-5

# %%
# What the package's layer does beyond it:
#
# - nine kernels or one of yours, and a bandwidth for each dimension;
# - every mask of this package, those that Keras hands on from layer to layer included, and lengths
#   for each query;
# - a query with no key to see gets 0, here NaN; and a NaN under a mask reaches nothing, where 0
#   times NaN is NaN here;
# - more points than a square of scores has room for; half precision; the weights on request.
#
# To take the mask that Keras hands on, give ``call`` an argument ``key_mask=None``, which Keras
# fills, hide scores by ``keras.ops.where(key_mask[:, None], scores, -np.inf)``, and set
# ``self.supports_masking = True`` in ``__init__``. Now write one: ``python -m exercises open
# NadarayaWatson`` writes the task of such a layer, and ``check NadarayaWatson`` trains, saves and
# loads yours (:doc:`exercises </exercises>`).

# %%
# With this package
# -----------------
# ``tfattn.kernel_regression.KernelRegression().fit(x, y)`` finds the best bandwidth exactly, one
# per dimension; ``tfattn.NadarayaWatson`` is the layer. From here to a Transformer only the score
# changes.

# %%
# Summary
# -------
# - Average pooling gives every value the same weight. Attention pooling gives a value more weight,
#   the nearer its key lies to the query.
# - With a Gaussian kernel the weights are a softmax of :math:`-(x - x_i)^2 / 2`: kernel regression
#   is attention with this score.
# - The bandwidth decides how many points share the weight. It can be learned, if each point is
#   predicted from the others, which is a mask on the diagonal.
#
# Questions
# ---------
# **1.** More training points: does the curve of bandwidth 1 become arbitrarily good?
#
# .. dropdown:: Answer
#
#    No. The noise averages out, but the curve stays too flat, since points a whole unit away count.
#    The bandwidth must shrink as points are added: :doc:`consistency <kernel_regression_tool>`.
#
# **2.** Why is the heatmap of the learned bandwidth sharper?
#
# .. dropdown:: Answer
#
#    Distances are multiplied by w = 1/h, about 5, and scores by :math:`w^2`, about 25. Larger
#    differences between scores make a softmax more unequal.
#
# **3.** Which bandwidth would training find, were the point itself not left out?
#
# .. dropdown:: Answer
#
#    It would go toward 0. Each point is then predicted by itself alone, with an error of 0 on the
#    training points, and noise everywhere else.
#
# **4.** What does the Gaussian layer answer at x = 100, far from all keys?
#
# .. dropdown:: Answer
#
#    Nearly the y of the largest training x, the nearest key: only differences of scores count.
#    Computed as K divided by the sum of K, all powers would round to 0, and 0/0 is NaN.
#
# **5.** Write ``gaussian_weights`` and ``leave_one_out_weights`` yourself: :doc:`exercises
# </exercises>`.
#
# .. dropdown:: Answer
#
#    ``python -m exercises open leave_one_out_weights`` writes the task, ``check
#    leave_one_out_weights`` checks it.
#
# Where to go next
# ----------------
# - :doc:`Kernel regression as a tool <kernel_regression_tool>`: choosing the bandwidth, confidence
#   bands, measured data, consistency.
# - :doc:`Batched matrix multiplication <batched_matmul>`: weights times values for many queries at
#   once.
# - :doc:`Attention scoring functions <scoring_functions>`: other scores in place of the distance.

# sphinx_gallery_start_ignore
result = {
    "mse_average": mse_average,
    "mse_nonparametric": mse_smooth,
    "mse_parametric": mse_sharp,
    "bandwidth": bandwidth,
    "own_bandwidth": own_bandwidth,
    "own_difference": difference,
}
print("result:", json.dumps(result))
# sphinx_gallery_end_ignore
