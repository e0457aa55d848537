"""Attention as kernel regression: from the mean of everything to a learned bandwidth.

Fifty noisy points of y = 2 sin x + x^0.8 are the keys (x) and values (y); the places where we want
to know y are the queries. Three ways to pool the values, each a step nearer to attention as it is
used today:

- average pooling: every value counts the same;
- non-parametric: values count by how close their key lies to the query (Nadaraya, Watson 1964);
- parametric: the same, with a bandwidth learned by predicting each point from all others.

Readers of other write-ups of this example may stumble over three things. Some ask at the training
points again, where the test points are meant: both are fifty, so no shape complains. Here the
queries are the test points. Some drop the minus sign before (x - x_i)^2 / 2, without which far
points would count most. And some keep the learned parameter w in a bare tf.Variable, which Keras 3
does not track, so that it never moves; here it is a weight of the model, the bandwidth 1 / w, in
the unit of x.
"""

import argparse
import json
from pathlib import Path

import keras
import numpy as np

import tfattn
from tfattn import plot

NOISE = 0.5  # standard deviation


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=0, help="of everything random (default: 0)")
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("out/kernel_regression"),
        metavar="DIR",
        help="folder for figures (default: %(default)s)",
    )
    options = parser.parse_args()
    keras.utils.set_random_seed(options.seed)
    options.out.mkdir(parents=True, exist_ok=True)

    x_train, y_train, x_test = points(options.seed)
    truth = function(x_test)
    print(f"1. Data: {len(x_train)} training points, y = 2 sin x + x^0.8 + noise of {NOISE};")
    print(f"   {len(x_test)} test points from {x_test[0]:.1f} to {x_test[-1]:.1f}.")
    print("   The errors below are against the function without noise.\n")

    average = average_pooling(x_test, y_train)
    mse_average = error(average, truth)
    print(f"2. Average pooling answers {average[0]:.2f} whatever it is asked.")
    print(f"   Mean squared error {mse_average:.3f}\n")

    smooth, smooth_weights = non_parametric(x_train, y_train, x_test)
    mse_smooth = error(smooth, truth)
    print("3. Attention pooling: weights = softmax over i of -(x - x_i)^2 / 2, nothing learned.")
    nearest = x_train[np.argmax(smooth_weights[20])]
    ratio = mse_average / mse_smooth
    print(f"   Asked at x = 2.0, it looks most at x_i = {nearest:.2f}.")
    print(f"   Mean squared error {mse_smooth:.3f}, {ratio:.1f} times less than average pooling\n")

    # (2, 1, 1) -> (2,)
    means = np.matmul(np.full((2, 1, 10), 0.1), np.arange(20.0).reshape(2, 10, 1))[:, 0, 0]
    print("4. For many queries at once, weights times values is one batched matrix product,")
    print(
        "   (n, a, b) by (n, b, c). Two rows of ten weights of 0.1 over the values 0..9 and 10..19"
    )
    print(f"   give {means[0]:.1f} and {means[1]:.1f}\n")

    model, history = parametric(x_train, y_train)
    sharp, bandwidth = model.predict(x_test, verbose=0), float(model.current_bandwidth())
    mse_sharp = error(sharp, truth)
    losses = history.history["loss"]
    print("5. Learned bandwidth: each training point is predicted from all others;")
    print("   that error is made small.")
    print(f"   Leave-one-out error {losses[0]:.3f} -> {losses[-1]:.3f};")
    print(f"   bandwidth 1.000 -> {bandwidth:.3f}")
    print(f"   (w = 1 / bandwidth = {1 / bandwidth:.2f}). Mean squared error {mse_sharp:.3f}")
    print(f"   {verdict(mse_smooth, mse_sharp)}\n")

    fits = {
        "average pooling": average,
        "Gaussian, bandwidth 1": smooth,
        f"Gaussian, learned bandwidth {bandwidth:.2f}": sharp,
    }
    weights = [smooth_weights, model.attention_weights(x_test)]
    draw(options.out, (x_train, y_train, x_test, truth), fits, weights, history)
    result = {
        "mse_average": mse_average,
        "mse_nonparametric": mse_smooth,
        "mse_parametric": mse_sharp,
        "bandwidth": bandwidth,
    }
    print("result:", json.dumps(result))


def function(x):
    return 2 * np.sin(x) + x**0.8


def points(seed):
    """Training inputs, sorted; their noisy heights; test inputs."""
    random = np.random.default_rng(seed)
    x_train = np.sort(random.uniform(0.0, 5.0, 50))
    y_train = function(x_train) + random.normal(0.0, NOISE, 50)
    return x_train, y_train, np.arange(50) / 10


def error(prediction, truth):
    return float(np.mean((prediction - truth) ** 2))


def average_pooling(x_test, y_train):
    return np.full(len(x_test), y_train.mean())


def non_parametric(x_train, y_train, x_test):
    """Pooled values `(50,)` and weights `(50, 50)`, a row a test point."""
    # (1, 50, 1)
    query, key, value = (x[None, :, None].astype("float32") for x in (x_test, x_train, y_train))
    layer = tfattn.NadarayaWatson(kernel="gaussian", bandwidth=1.0)
    output, weights = layer(query=query, key=key, value=value, return_attention_scores=True)
    return keras.ops.convert_to_numpy(output)[0, :, 0], keras.ops.convert_to_numpy(weights)[0]


def parametric(x_train, y_train):
    model = tfattn.NadarayaWatsonRegressor(kernel="gaussian", bandwidth=1.0)
    return model, model.fit(x_train, y_train, epochs=200, verbose=0)


def verdict(mse_smooth, mse_sharp):
    if mse_sharp < mse_smooth:
        return (
            "It follows the points more closely, noise included: see its bumps. Here that pays:\n"
            "   the fixed bandwidth was too wide, and pulled the curve towards the mean."
        )
    return (
        "It is further from the truth than the fixed bandwidth: the training points are noisy,\n"
        "   and a narrow kernel follows their noise more. Leave-one-out sees the noisy heights\n"
        "   only, never the function behind them."
    )


def draw(folder, data, fits, weights, history):
    x_train, y_train, x_test, truth = data
    figures = {
        "fits": plot.regression_fit(
            x_train, y_train, x_test, fits, truth, title="Three ways to pool the same values"
        ),
        "weights": plot.heatmaps(
            weights,
            titles=["bandwidth 1", "learned bandwidth"],
            x_label="Training points (keys), sorted by x",
            y_label="Test points (queries), sorted by x",
        ),
        "loss": plot.loss_curve(
            history, y_label="Leave-one-out mean squared error", title="Learning the bandwidth"
        ),
    }
    for name, figure in figures.items():
        figure.savefig(folder / f"{name}.png", dpi=150)
    print(f"Figures: {', '.join(f'{name}.png' for name in figures)} in {folder}")


if __name__ == "__main__":
    main()
