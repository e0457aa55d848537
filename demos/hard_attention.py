"""
Hard attention
==============

Soft attention takes a weighted mean of everything. Hard attention picks one input and leaves the
others. A pick is not differentiable, so no gradient runs through it. There are two ways around: the
score-function estimator of reinforcement learning (REINFORCE), and the straight-through estimator.
All three learn the same small task here, and we compare what their gradients say.
"""

# %%
# What you will learn
# -------------------
# - why picking one input has no gradient, and two ways to train it all the same;
# - what a baseline does for the score-function estimator, and what it does not change;
# - how to measure whether an estimate of a gradient is right, and how noisy it is.
#
# Before you begin
# ----------------
# You know softmax and :doc:`scoring_functions`, and what a gradient tape records. Twelve minutes to
# read; about half a minute to run on two cores. The script's options are in ``options``:
# ``options.seed``, and ``options.out``, the folder of the figures.

# sphinx_gallery_thumbnail_number = 3
# sphinx_gallery_start_ignore
import argparse
import json
from pathlib import Path

# sphinx_gallery_end_ignore
import keras
import numpy as np
import tensorflow as tf

import tfattn

# sphinx_gallery_start_ignore
from _figures import bars, curves

parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
)
parser.add_argument("--seed", type=int, default=0, help="of everything random (default: 0)")
parser.add_argument(
    "--out", type=Path, default="out/hard_attention", metavar="DIR", help="folder for figures"
)
options = parser.parse_args()
options.out.mkdir(parents=True, exist_ok=True)
# sphinx_gallery_end_ignore

# %%
# The task
# --------
# Six cards lie on a table, each of another color, in any order; on each is a digit from 0 to 5.
# The query names a color, and the answer is the digit of that card. A key is how the card looks
# (its color and some noise), the value its digit. Names and looks are different vectors: the model
# has to learn which name belongs to which look, from correct digits alone. A blind pick is right in
# 1/6 + 5/6 · 1/6 = 31% of all cases.
CARDS, WIDTH = 6, 16
random = np.random.default_rng(options.seed)
names = random.normal(size=(CARDS, WIDTH)) / WIDTH**0.5  # of length 1, or about
looks = random.normal(size=(CARDS, WIDTH)) / WIDTH**0.5


# Queries (B, 1, D), keys (B, S, D), values (B, S, 6); the digits to say (B,).
def deal(count):
    colors = random.permuted(np.tile(np.arange(CARDS), (count, 1)), axis=1)  # (B, S)
    digits = random.integers(CARDS, size=(count, CARDS))  # (B, S)
    rows, places = np.arange(count), random.integers(CARDS, size=count)  # (B,), the card asked for
    query = names[colors[rows, places]][:, None]
    key = looks[colors] + 0.2 * random.normal(size=(count, CARDS, WIDTH))
    arrays = {"query": query, "key": key, "value": np.eye(CARDS)[digits]}
    asked = {name: tf.constant(array, "float32") for name, array in arrays.items()}
    return asked, tf.constant(digits[rows, places])


# %%
# Soft
# ----
# The weights :math:`p` are the softmax of :math:`q W k`, the pooled value :math:`\sum_i p_i v_i`,
# and a linear layer, ``speak``, predicts the digit. Each step is differentiable, so the
# cross-entropy has a gradient. The function has the losses :math:`(B,)` under weights
# :math:`(B, S)`.
def soft(weights, values, digits):
    pooled = tf.linalg.matvec(values, weights, transpose_a=True)  # (B, 6)
    return keras.losses.sparse_categorical_crossentropy(digits, speak(pooled), from_logits=True)


# %%
# Score function
# --------------
# One card :math:`i` is drawn from :math:`p`, and its value alone is seen. The expected loss
# :math:`\sum_i p_i L_i` does have a gradient in the weights, and it can be had from draws:
#
# .. math:: \nabla \sum_i p_i L_i = \mathrm{E}_{i \sim p} [(L_i - b) \nabla \log p_i]
#
# (the classifier, which :math:`L_i` depends on too, has its usual gradient). A pick with less loss
# than the baseline :math:`b` becomes likelier, one with more less likely. Any :math:`b` that does
# not depend on the pick gives the same mean; a good one makes it less noisy. Here it is the mean
# loss of the other rows of the batch.
def score_function(weights, values, digits, with_baseline=True):
    picked = one_of(weights)
    loss = soft(picked, values, digits)
    others = (tf.reduce_sum(loss) - loss) / (len(loss) - 1.0)
    advantage = tf.stop_gradient(loss - others if with_baseline else loss)
    return loss + advantage * tf.math.log(tf.reduce_sum(weights * picked, axis=1))


# The card that was drawn, as 1 among zeros, (B, S).
def one_of(weights):
    picked = keras.random.categorical(tf.math.log(weights), 1, seed=draws)  # (B, 1)
    return tf.one_hot(picked[:, 0], CARDS)


# %%
# Straight through
# ----------------
# Forwards, the card that was drawn counts 1 and the others 0. Backwards, the gradient passes as if
# the weights themselves had been there. That is not the gradient of anything, but it is calm, and
# it often points the right way.
def straight_through(weights, values, digits):
    return soft(weights + tf.stop_gradient(one_of(weights) - weights), values, digits)


# %%
# Training
# --------
# Each kind starts from the same weights and sees the same cards. Asked about new ones, the two hard
# ones pick the card of the greatest weight.
STEPS, EVERY = 200, 10
kinds = {"soft": soft, "score function": score_function, "straight-through": straight_through}
accuracies, examples = {}, {}
for kind, loss_of in kinds.items():
    keras.utils.set_random_seed(options.seed)
    random = np.random.default_rng(options.seed + 1)
    draws = keras.random.SeedGenerator(options.seed)
    attention, speak = tfattn.BilinearAttention(), keras.layers.Dense(CARDS)
    optimizer = keras.optimizers.Adam(0.01)
    test = deal(2000)
    accuracies[kind] = []
    for step in range(STEPS + 1):
        if step % EVERY == 0:
            asked, digits = test
            pooled, weights = attention(**asked, return_attention_scores=True)
            if kind != "soft":
                pooled = tf.one_hot(tf.argmax(weights, axis=2), CARDS) @ asked["value"]  # (B, 1, 6)
            said = tf.argmax(speak(pooled[:, 0]), axis=1)
            accuracies[kind].append(float(np.mean(said == digits)))
            examples[kind] = weights[:3, 0]
        asked, digits = deal(64)
        with tf.GradientTape() as tape:
            _, weights = attention(**asked, return_attention_scores=True)
            loss = tf.reduce_mean(loss_of(weights[:, 0], asked["value"], digits))
        variables = [*attention.trainable_weights, *speak.trainable_weights]
        optimizer.apply(tape.gradient(loss, variables), variables)
    print(f"{kind:17} accuracy {accuracies[kind][-1]:.3f}")

# %%
# All three learn the task, the score function a little later: it sees the value of one card at a
# time, and most of its picks at the start are wrong. (At step 0 all are below the blind pick, which
# at least answers with the digit that it sees.)
chance = 1 / CARDS + (1 - 1 / CARDS) / CARDS
figure = curves(
    np.arange(0, STEPS + 1, EVERY),
    {**accuracies, "a blind pick": np.full(len(accuracies["soft"]), chance)},
    "Steps of training",
    "Accuracy on new cards",
)
figure.savefig(options.out / "accuracy.png", dpi=150)
figure

# %%
# What the gradients say
# ----------------------
# For one batch and a new layer of attention, which knows nothing yet, the expected loss can be
# computed: six picks a row, each with its probability. ``speak`` is the trained one of above.
asked, digits = deal(64)
values = asked["value"]
attention = tfattn.BilinearAttention()
attention(**asked)  # makes its matrix
(matrix,) = attention.trainable_weights
picks = tf.one_hot(np.full((CARDS, 64), np.arange(CARDS)[:, None]), CARDS)  # (S, B, S)
each_loss = tf.stack([soft(pick, values, digits) for pick in picks], axis=1)  # (B, S)
estimators = {
    "exact": lambda w: tf.reduce_sum(w * each_loss, axis=1),
    "without baseline": lambda w: score_function(w, values, digits, False),
    "with baseline": lambda w: score_function(w, values, digits),
    "straight-through": lambda w: straight_through(w, values, digits),
}

# %%
# Beside its exact gradient we lay 300 gradients of each estimator. The score function is right on
# average: the error of the mean is the noise divided by the square root of 300, give or take. The
# baseline only takes noise away. The straight-through estimator has the least noise, but its mean
# is not the gradient, and more draws do not mend that.
gradients = {}
for name, loss_of in estimators.items():
    gradients[name] = []
    for _ in range(1 if name == "exact" else 300):
        with tf.GradientTape() as tape:
            _, weights = attention(**asked, return_attention_scores=True)
            loss = tf.reduce_mean(loss_of(weights[:, 0]))
        gradients[name].append(np.ravel(tape.gradient(loss, matrix.value)))
(exact,) = gradients.pop("exact")
noise, error = {}, {}
for name, drawn in gradients.items():
    noise[name] = float(np.linalg.norm(np.std(drawn, axis=0)) / np.linalg.norm(exact))
    mean = np.mean(drawn, axis=0)
    error[name] = float(np.linalg.norm(mean - exact) / np.linalg.norm(exact))
    print(f"{name:17} noise {noise[name]:.2f}, error of the mean {error[name]:.2f}")

# %%
# Noise and errors as bars, in lengths of the exact gradient:
figure = bars(
    list(noise),
    {"noise of one draw": [*noise.values()], "error of the mean of 300": [*error.values()]},
    "Estimator",
    "In lengths of the exact gradient",
    number_format=".2f",
)
figure.savefig(options.out / "noise.png", dpi=150)
figure

# %%
# Where they look
# ---------------
# The weights of three questions after training, a row each. A hard one picks the darkest card.
# Soft attention has become nearly hard by itself: the task has one right card, and it found it.
figure = tfattn.plot.heatmaps(
    list(examples.values()),
    row_labels=[f"question {n}" for n in "123"],
    column_labels=[f"card {n}" for n in range(1, CARDS + 1)],
    titles=list(examples),
    number_format=".2f",
)
figure.savefig(options.out / "weights.png", dpi=150)
figure

# %%
# With this package
# -----------------
# Every attention layer returns its weights when asked, with their gradient. What is done with them
# is up to you.
pooled, weights = attention(**asked, return_attention_scores=True)
print("Pooled", tuple(pooled.shape), "by weights", tuple(weights.shape))

# %%
# Summary
# -------
# - A pick is a step: moving a weight a little changes nothing, or jumps. So it has no gradient.
# - The score-function estimator is right on average and noisy. A baseline more than halves the
#   noise here, from 2.54 to 1.16 lengths of the gradient (with seed 0), and leaves the mean as it
#   is.
# - The straight-through estimator has little noise, 0.41, and a mean that is not the gradient.
# - Soft attention needs none of this, and where one input is right, it becomes nearly hard by
#   itself.
#
# Questions
# ---------
# .. dropdown:: 1. Why does a baseline leave the mean of the estimates as it is?
#
#    Its part of the mean is :math:`\sum_i p_i b \nabla \log p_i = b \sum_i \nabla p_i = b \nabla 1
#    = 0`. That needs a :math:`b` that is the same for each pick :math:`i`, which the loss of the
#    *other* rows is.
#
# .. dropdown:: 2. With and without the baseline: how many draws for an error of 0.01?
#
#    The error is the noise divided by the square root of their number:
#    :math:`(1.16 / 0.01)^2`, about 13,000, with the baseline, and :math:`(2.54 / 0.01)^2`, about
#    65,000, without. No number does it for the straight-through estimator: its error stays near
#    0.13.
#
# .. dropdown:: 3. When would soft attention not become nearly hard?
#
#    When an answer needs several inputs. If the sum of two cards were asked for, one card alone
#    would leave an error, and the weights would stay on both.
#
# .. dropdown:: 4. Straight-through learns as fast as soft attention. Is it as good?
#
#    The task cannot tell: only the card of the greatest weight counts in the end, so a gradient of
#    about the right direction is enough. Where its mean is 0 the true gradient need not be, so it
#    may settle elsewhere than at the least expected loss.
#
# To write yourself: ``hard_attention`` and ``choice_gradient``, two of the :doc:`exercises
# </exercises>`.
#
# Where to go next
# ----------------
# Tokens that are numbers: :doc:`sets`. Hard and soft attention side by side on captions of images:
# `Xu et al., 2015 <https://arxiv.org/abs/1502.03044>`__; the straight-through estimator: `Bengio et
# al., 2013 <https://arxiv.org/abs/1308.3432>`__.

# sphinx_gallery_start_ignore
result = {
    "accuracy": {kind: shares[-1] for kind, shares in accuracies.items()},
    "chance": round(chance, 4),
    "noise": noise,
    "error": error,
}
print("result:", json.dumps(result))
# sphinx_gallery_end_ignore
