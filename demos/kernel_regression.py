"""
Attention as kernel regression
==============================

Fifty noisy points of a curve, and three ways to guess the curve from them: the plain mean, a mean
weighted by distance (Nadaraya and Watson, 1964), and the same with a learned bandwidth. The second
is attention already: the places where we ask are the queries, the x of the points are the keys,
their heights are the values.
"""

import argparse
import json
from pathlib import Path

import keras
import numpy as np

import tfattn

parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
)
parser.add_argument("--seed", type=int, default=0, help="of everything random (default: 0)")
parser.add_argument(
    "--out", type=Path, default="out/kernel_regression", metavar="DIR", help="folder for figures"
)
options = parser.parse_args()
options.out.mkdir(parents=True, exist_ok=True)
keras.utils.set_random_seed(options.seed)


# %%
# Data
# ----
# :math:`y = 2 \sin x + x^{0.8} + \varepsilon`, where the noise has a standard deviation of 0.5:
# fifty training points, sorted, and fifty test points at 0, 0.1, ... 4.9. Errors below are against
# the function without noise.
def points(count, random):
    x = np.sort(random.uniform(0.0, 5.0, count))
    return x, 2 * np.sin(x) + x**0.8 + random.normal(0.0, 0.5, count)


x_train, y_train = points(50, np.random.default_rng(options.seed))
x_test = np.arange(50) / 10
truth = 2 * np.sin(x_test) + x_test**0.8

# %%
# Average pooling
# ---------------
# Every value counts the same, whatever is asked.
average = np.full(50, y_train.mean())
mse_average = float(np.mean((average - truth) ** 2))
print(f"Average pooling: mean squared error {mse_average:.3f}")

# %%
# Attention pooling
# -----------------
# Values count by how close their key lies to the query:
#
# .. math:: f(x) = \sum_i \alpha_i y_i, \qquad
#           \alpha_i = \mathrm{softmax}_i \left( -\tfrac{1}{2} (x - x_i)^2 \right)
#
# Readers of other write-ups may stumble over two things. Some ask at the training points again,
# where the test points are meant; both are fifty, so no shape complains. And some drop the minus
# sign, without which far points would count most.
query, key, value = (x[None, :, None].astype("float32") for x in (x_test, x_train, y_train))
layer = tfattn.NadarayaWatson(kernel="gaussian", bandwidth=1.0)
output, weights = layer(query=query, key=key, value=value, return_attention_scores=True)
smooth = keras.ops.convert_to_numpy(output)[0, :, 0]  # (50,)
smooth_weights = keras.ops.convert_to_numpy(weights)[0]  # (50, 50), a row a query
mse_smooth = float(np.mean((smooth - truth) ** 2))
print(f"Attention pooling: mean squared error {mse_smooth:.3f}")

# %%
# A learned bandwidth
# -------------------
# Divide the distances by a bandwidth, and learn it: each training point is predicted from all
# others, and that leave-one-out error is made small. (With itself among them, a point would be
# predicted best by looking at nothing else.) The :math:`w` of the textbooks is 1 / bandwidth. Some
# write-ups keep it in a bare ``tf.Variable``, which Keras 3 does not track, so that it never moves.
model = tfattn.NadarayaWatsonRegressor(kernel="gaussian", bandwidth=1.0)
history = model.fit(x_train, y_train, epochs=200, verbose=0)
sharp, bandwidth = model.predict(x_test, verbose=0), float(model.current_bandwidth())
mse_sharp = float(np.mean((sharp - truth) ** 2))
print(f"Learned bandwidth {bandwidth:.3f}: mean squared error {mse_sharp:.3f}")
fits = {
    "average pooling": average,
    "Gaussian, bandwidth 1": smooth,
    f"Gaussian, learned bandwidth {bandwidth:.2f}": sharp,
}
figure = tfattn.plot.regression_fit(x_train, y_train, x_test, fits, truth)
figure.savefig(options.out / "fits.png", dpi=150)
figure

# %%
# The narrow kernel follows the points more closely, noise included: see its bumps. Where it looks
# is sharper too. Queries and keys are sorted, so the weights lie along the diagonal.
figure = tfattn.plot.heatmaps(
    [smooth_weights, model.attention_weights(x_test)],
    titles=["bandwidth 1", "learned bandwidth"],
    x_label="x of the training points (keys)",
    y_label="x that is asked (queries)",
    row_values=x_test,
    column_values=x_train,
)
figure.savefig(options.out / "weights.png", dpi=150)
figure

# %%
# Five kernels
# ------------
# Any function that falls with the distance makes weights. Four have names; the constant one, which
# does not fall at all, is passed in as a function, and gives average pooling back. The triangular
# kernel is the one that some books call Epanechnikov. A kernel that ends gives a query without
# neighbours nothing to look at, hence 0.
kernels = ["gaussian", "epanechnikov", "triangular", "boxcar", keras.ops.zeros_like]
names = [*kernels[:4], "constant"]
by_kernel = {}
for name, kernel in zip(names, kernels, strict=True):
    layer = tfattn.NadarayaWatson(kernel=kernel, bandwidth=0.4 if name == "gaussian" else 0.8)
    pooled = layer(query=query, key=key, value=value)
    by_kernel[name] = keras.ops.convert_to_numpy(pooled)[0, :, 0]
figure = tfattn.plot.regression_fit(x_train, y_train, x_test, by_kernel, truth)
figure.savefig(options.out / "kernels.png", dpi=150)
figure

# %%
# Choosing the bandwidth
# ----------------------
# The leave-one-out error over all bandwidths: too narrow follows the noise, too wide flattens the
# curve. The dot is the one that training has found.
bandwidths = np.geomspace(0.05, 2.0, 60)
others = ~np.eye(50, dtype=bool)
errors = []
for candidate in bandwidths:
    layer = tfattn.NadarayaWatson(kernel="gaussian", bandwidth=float(candidate))
    pooled = layer(query=key, key=key, value=value, attention_mask=others)
    errors.append(np.mean((keras.ops.convert_to_numpy(pooled)[0, :, 0] - y_train) ** 2))
best_bandwidth = float(bandwidths[np.argmin(errors)])
figure = tfattn.plot.curves(
    bandwidths,
    {"leave-one-out error": np.array(errors)},
    "Bandwidth",
    "Leave-one-out mean squared error",
    log_x=True,
    marked={f"learned: {bandwidth:.2f}": bandwidth},
)
figure.savefig(options.out / "bandwidths.png", dpi=150)
figure

# %%
# More data, less error
# ---------------------
# With more points and a bandwidth that shrinks as :math:`n^{-1/5}`, the estimate comes ever closer
# to the truth: it is *consistent*. The root of the mean squared error falls about as
# :math:`n^{-2/5}`, here measured away from the ends of the interval, where a point has neighbours
# on one side only.
counts = np.array([50, 100, 200, 400, 800, 1600, 3200])
inner = (x_test >= 1) & (x_test <= 4)
roots = []
for count in counts.tolist():
    squares = []
    for repeat in range(20):
        x, y = points(count, np.random.default_rng([options.seed, count, repeat]))
        layer = tfattn.NadarayaWatson(kernel="gaussian", bandwidth=0.7 * count**-0.2)
        arrays = (a[None, :, None].astype("float32") for a in (x_test, x, y))
        pooled = layer(**dict(zip(("query", "key", "value"), arrays, strict=True)))
        pooled = keras.ops.convert_to_numpy(pooled)[0, :, 0]
        squares.append(np.mean((pooled - truth)[inner] ** 2))
    roots.append(np.sqrt(np.mean(squares)))
slope = float(np.polyfit(np.log(counts), np.log(roots), 1)[0])
print(f"The error falls as n to the power of {slope:.2f}; the theory says -0.4")
figure = tfattn.plot.curves(
    counts,
    {"error": np.array(roots), "as n to the power of -2/5": roots[0] * (counts / 50) ** -0.4},
    "Training points n",
    "Root of the mean squared error",
    log_x=True,
    log_y=True,
)
figure.savefig(options.out / "consistency.png", dpi=150)
figure

# %%
# With this package
# -----------------
# ``NadarayaWatsonRegressor`` learns its bandwidth in ``fit`` and predicts like any Keras model:
model = tfattn.NadarayaWatsonRegressor(bandwidth=bandwidth)
model.fit(x_train, y_train, epochs=1, verbose=0)
print("At x = 2:", model.predict(np.array([2.0]), verbose=0))

result = {
    "mse_average": mse_average,
    "mse_nonparametric": mse_smooth,
    "mse_parametric": mse_sharp,
    "bandwidth": bandwidth,
    "best_bandwidth": best_bandwidth,
    "slope": slope,
}
print("result:", json.dumps(result))
