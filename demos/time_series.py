"""
A time series
=============

A series of numbers goes on as it went on before, in a like situation: that is attention over the
past. Here it forecasts series with a season, a trend and noise, beside two baselines that cost
nothing: the last value, and a straight linear map of the same window. Where all series have one
season, the linear map wins. Where each has its own, attention does.
"""

# %%
# What you will learn
# -------------------
# - how to make queries, keys and values of a series of numbers;
# - how the causal mask turns one pass into a forecast at each step;
# - when attention forecasts better than a linear map, and when it does not.
#
# Before you begin
# ----------------
# You know :doc:`kernel_regression`, :doc:`masked_attention`, and least squares. Twelve minutes to
# read; about half a minute to run on two cores. The script's options are in ``options``:
# ``options.seed``, and ``options.out``, the folder of the figures.

# sphinx_gallery_thumbnail_number = 2
# sphinx_gallery_start_ignore
import argparse
import json
from pathlib import Path

# sphinx_gallery_end_ignore
import keras
import numpy as np
from matplotlib.figure import Figure
from sklearn.linear_model import LinearRegression

import tfattn

# sphinx_gallery_start_ignore
from _figures import bars, curves

parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
)
parser.add_argument("--seed", type=int, default=0, help="of everything random (default: 0)")
parser.add_argument(
    "--out", type=Path, default="out/time_series", metavar="DIR", help="folder for figures"
)
options = parser.parse_args()
options.out.mkdir(parents=True, exist_ok=True)
# sphinx_gallery_end_ignore
keras.utils.set_random_seed(options.seed)

# %%
# The data
# --------
# A series is a season (three waves of any size and phase), a trend and noise of standard deviation
# 0.2. In the first data set each season has 12 steps, like the months of a year. In the second each
# series has a season of its own, of 6 to 16 steps, and the model is not told how many. It learns
# from 1500 series and forecasts new ones: 64 values are given, and the next is to be predicted.
WINDOW, AHEAD, NOISE = 64, 24, 0.2
random = np.random.default_rng(options.seed)


def series_of(count, periods):
    # `count` series `(N, WINDOW + AHEAD)`, and the periods of their seasons `(N,)`.
    period = random.choice(periods, (count, 1))
    time, waves = np.arange(WINDOW + AHEAD), np.arange(1, 4)
    angle = 2 * np.pi * waves[:, None] * time / period[:, None]  # (N, 3, L)
    phase = random.uniform(0, 2 * np.pi, (count, 3, 1))
    season = (random.normal(size=(count, 1, 3)) / waves) @ np.sin(angle + phase)  # (N, 1, L)
    trend = random.normal(0, 0.01, (count, 1)) * time
    noise = random.normal(0, NOISE, (count, WINDOW + AHEAD))
    return (season[:, 0] + trend + noise).astype("float32"), period[:, 0]


worlds = {"one season": [12], "a season each": np.arange(6, 17)}
data = {name: (series_of(1500, each), series_of(500, each)) for name, each in worlds.items()}

# %%
# Keys: what it was like. Values: what came next
# ----------------------------------------------
# The query at a step is the last 12 values, less their mean. A key is the same at an earlier step,
# and its value is what came next there, less that mean, and the key once more. So the model can
# say: when the curve looked as it does now, it went up by so much. Attention by distance is
# :doc:`kernel regression <kernel_regression>`, here with maps of query and key that are learned,
# and two heads. A linear layer behind it sees the query too.
#
# The causal mask makes one pass over a window ask for a forecast at each of its steps, and each
# step looks only at pairs that lie behind it. Query t and key t are a step apart, so the usual
# triangle is the right one. No positions are added: the twelve values tell where in the season a
# step is, and how long ago that was does not matter.
CONTEXT = 12


def pairs_of(series):
    # Queries and keys `(N, T, CONTEXT)`, what came after the keys `(N, T, 1)`, and the targets
    # `(N, T, 1)`, both less the mean of their contexts `(N, T, 1)`.
    contexts = np.lib.stride_tricks.sliding_window_view(series, CONTEXT, axis=1)
    means = contexts.mean(axis=2, keepdims=True)
    contexts = contexts - means
    after = series[:, CONTEXT:, None] - means[:, :-1]
    asked = {"now": contexts[:, 1:-1], "before": contexts[:, :-2], "after": after[:, :-1]}
    return asked, after[:, 1:], means[:, 1:-1]


def attention_model():
    length = WINDOW - CONTEXT
    now, before = (keras.Input((length, CONTEXT), name=name) for name in ("now", "before"))
    after = keras.Input((length, 1), name="after")
    value = keras.layers.Concatenate()([after, before])
    attention = tfattn.MultiHeadAttention(2, 8, score=tfattn.KernelScore(), output_shape=16)
    x = attention(query=now, key=before, value=value, use_causal_mask=True)
    output = keras.layers.Dense(1)(keras.layers.Concatenate()([x, now]))
    return keras.Model({"now": now, "before": before, "after": after}, output)


def next_by_attention(model, windows):
    # The next value `(N,)` of windows `(N, WINDOW)`.
    unknown = np.zeros((len(windows), 1), "float32")  # the last target, which nothing looks at
    asked, _, means = pairs_of(np.concatenate([windows, unknown], axis=1))
    return (keras.ops.convert_to_numpy(model(asked)) + means)[:, -1, 0]


# %%
# One step ahead
# --------------
# The linear baseline is ordinary least squares, fitted on the same 1500 windows: 64 weights and a
# constant, found exactly. The noise alone makes an error of 0.2, which no forecast avoids. Beside
# the models stands a fit of the waves and the trend to each window by someone who was told the
# period.
#
# With one season the linear map is the right model: the value of a year ago, and of two years ago,
# always stand at the same places. It is as good as one who was told, and attention is about a third
# worse, although it learned from a forecast at each step of a window. With a season each there are
# no such places. The linear map has to do for all periods at once. Attention looks in each window
# for itself, and is now much the better of the two. Nobody comes near to one who was told.
def next_when_told(windows, periods):
    time = np.arange(WINDOW + 1)
    forecasts = []
    for window, period in zip(windows, periods, strict=True):
        angle = 2 * np.pi * np.arange(1, 4)[:, None] * time / period
        parts = np.stack([np.ones(WINDOW + 1), time, *np.sin(angle), *np.cos(angle)], axis=1)
        forecasts.append(parts[-1] @ np.linalg.lstsq(parts[:-1], window, rcond=None)[0])
    return np.array(forecasts)


def rmse(difference):
    return float(np.sqrt(np.mean(difference**2)))


models, linear, errors = {}, {}, {}
for name, ((series, _), (new, periods)) in data.items():
    keras.utils.set_random_seed(options.seed)
    models[name] = attention_model()
    asked, targets, _ = pairs_of(series[:, : WINDOW + 1])
    falling = keras.optimizers.schedules.CosineDecay(0.01, decay_steps=8 * 47)
    models[name].compile(keras.optimizers.Adam(falling), "mse")
    models[name].fit(asked, targets, batch_size=32, epochs=8, verbose=0)
    linear[name] = LinearRegression().fit(series[:, :WINDOW], series[:, WINDOW])
    window, answer = new[:, :WINDOW], new[:, WINDOW]
    forecasts = {
        "last value": window[:, -1],
        "linear": linear[name].predict(window),
        "attention": next_by_attention(models[name], window),
        "told the period": next_when_told(window, periods),
    }
    errors[name] = {kind: rmse(forecast - answer) for kind, forecast in forecasts.items()}
    print(name, *[f"{kind}: {error:.3f}" for kind, error in errors[name].items()], sep="  ")
figure = bars(
    list(errors["one season"]),
    {name: list(by.values()) for name, by in errors.items()},
    "Forecast",
    "Root mean squared error",
    number_format=".2f",
)
figure.savefig(options.out / "errors.png", dpi=150)
figure

# %%
# Where it looks
# --------------
# The weights of the last query of one series, each drawn at the step that its value has come from.
# One head looks whole seasons back, at the steps that are like the one to predict, though it was
# never told how long the season is. The other looks at other parts of the season: a map of query
# and key is learned, and what looks alike to a head need not look so to us. ``near`` counts for
# each head what share of its weight lies within a step of whole seasons, in all new series, beside
# the share of the steps that do.
name = "a season each"
new, periods = data[name][1]
asked, _, _ = pairs_of(new[:, : WINDOW + 1])
(all_weights,) = tfattn.attention_weights(models[name], asked).values()  # (N, H, T, T)
weights = all_weights[:, :, -1]  # (N, H, T), of the last query
back = np.arange(WINDOW - CONTEXT, 0, -1)  # (T,), how many steps a key lies behind
off = (back + periods[:, None] // 2) % periods[:, None] - periods[:, None] // 2
on_season = np.abs(off) <= 1  # (N, T)
near = (weights * on_season[:, None]).sum(axis=2).mean(axis=0)  # (H,)
by_chance = float(on_season.mean())
print(f"near: {near[0]:.2f} and {near[1]:.2f} of a head's weight, on {by_chance:.2f} of the steps")
row = int(np.flatnonzero(periods == 11)[0])
figure = Figure(figsize=(8, 4), layout="constrained")
curve, below = figure.subplots(2, sharex=True, height_ratios=[3, 2])
steps = np.arange(WINDOW + 1)
curve.plot(steps[:-1], new[row, :WINDOW], color="0.2", label="given")
curve.plot(WINDOW, new[row, WINDOW], "o", color="0.2", fillstyle="none", label="to predict")
curve.set_ylabel("Value")
curve.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, frameon=False)
for head, color in enumerate(("#0072b2", "#d55e00")):
    place = WINDOW - back + 0.4 * head - 0.2
    below.bar(place, weights[row, head], width=0.4, color=color, label=f"head {head}")
for axes in (curve, below):
    for season in range(1, 1 + WINDOW // 11):
        axes.axvline(WINDOW - 11 * season, color="0.7", linestyle=":", zorder=0)
    axes.spines[["top", "right"]].set_visible(False)
below.set(xlabel="Step (dotted: whole seasons before the one to predict)", ylabel="Weight")
below.legend(loc="upper left", frameon=False)
figure.savefig(options.out / "weights.png", dpi=150)
figure

# %%
# Further ahead
# -------------
# Each forecast is appended to the window, and the next value is predicted, 24 times. An error goes
# on in the forecasts after it. The linear map loses the season soon, since it does not know how
# long it is; with attention the forecasts keep it.
further = {
    "linear": linear[name].predict,
    "attention": lambda w: next_by_attention(models[name], w),
}
paths, far = {"last value": np.repeat(new[:, WINDOW - 1 : WINDOW], AHEAD, axis=1)}, {}
for kind, next_of in further.items():
    path = new[:, :WINDOW]
    for _ in range(AHEAD):
        path = np.column_stack([path, next_of(path[:, -WINDOW:])]).astype("float32")
    paths[kind] = path[:, WINDOW:]
truth = new[:, WINDOW:]
for kind, path in paths.items():
    far[kind] = rmse(path - truth)
    print(f"{kind}, 1 to {AHEAD} steps ahead: {far[kind]:.3f}")
ahead = np.arange(WINDOW, WINDOW + AHEAD)
figure = curves(
    {"given": np.arange(WINDOW), "truth": ahead, **{kind: ahead for kind in paths}},
    {"given": new[row, :WINDOW], "truth": truth[row], **{k: p[row] for k, p in paths.items()}},
    "Step",
    "Value",
)
figure.axes[0].legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=5, frameon=False)
figure.savefig(options.out / "forecast.png", dpi=150)
figure

# %%
# With this package
# -----------------
# Any attention layer takes numbers: query, key and value are your choice, and
# ``use_causal_mask=True`` lets a query see the past only. Fit the linear map first, always. It is
# exact, it takes milliseconds, and where the season is known it is hard to beat.

# %%
# Summary
# -------
# - Key: what it was like. Value: what came next. The rest is kernel regression with learned maps.
# - Where all series share a season, least squares on a window is exact and hard to beat.
# - Where each has its own, fixed places in a window mean nothing, and attention finds the like
#   ones.
# - A forecast far ahead is made of forecasts; an error goes on in those after it.
#
# Questions
# ---------
# .. dropdown:: 1. Why is the mean of the context taken off?
#
#    Two stretches of the same shape at different heights should match. Without it the height, and
#    so the trend, would decide which keys are near.
#
# .. dropdown:: 2. Why is the usual triangle right, with its diagonal?
#
#    No query sees its target: key :math:`t` is a step earlier than query :math:`t`. Its value is
#    the last value that query :math:`t` holds itself; the target comes after that.
#
# .. dropdown:: 3. With one season, why does attention not do as well as least squares?
#
#    It could take the value of a year ago too. But the best forecast there is one fixed linear map
#    of the window, and least squares finds it exactly. Attention must learn where to look, its
#    weights cannot be negative, and they never ignore unlike steps altogether.
#
# .. dropdown:: 4. One head has less weight on whole seasons than chance. Is it useless?
#
#    0.10 against 0.29; but weights cannot tell. Switch it off and measure the error:
#    :doc:`find_a_head` shows how.
#
# To write yourself: ``gaussian_weights`` and ``causal_mask``, two of the :doc:`exercises
# </exercises>`.
#
# Where to go next
# ----------------
# Claims of papers to measure yourself: :doc:`laws`. :doc:`The guides </guides>` go on: :doc:`which
# layer </choose>` for a task of your own, :doc:`long sequences </long-sequences>`, :doc:`what heads
# do </interpret>`.

# sphinx_gallery_start_ignore
result = {"errors": errors, "near": near.tolist(), "by_chance": by_chance, "far": far}
print("result:", json.dumps(result))
# sphinx_gallery_end_ignore
