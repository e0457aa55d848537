"""
Attention scoring functions
===========================

A score measures how well a query matches a key, and a softmax turns scores into weights. We hide
padding, try additive attention and the scaled dot product on an example that you can check in your
head, compare five scores, and see what the scale of the dot product is for.
"""

# %%
# What you will learn
# -------------------
# - how to write a masked softmax, and why a large negative number is not a mask;
# - how to write additive attention, whose broadcast has four axes;
# - what the scores have in common, and why the dot product is divided by :math:`\sqrt d`;
# - how to write both as layers that Keras trains and saves.
#
# Before you begin
# ----------------
# - Prerequisites: :doc:`kernel_regression` and :doc:`batched_matmul`; broadcasting in NumPy.
# - Time: 20 minutes to read, half a minute to run.
# - ``options.seed`` is 0 and ``options.out`` the folder for figures: the script's two options.

# sphinx_gallery_thumbnail_number = 3
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
import tensorflow as tf

import tfattn

# sphinx_gallery_start_ignore
from _figures import curves

parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
)
parser.add_argument("--seed", type=int, default=0, help="of everything random (default: 0)")
parser.add_argument(
    "--out", type=Path, default="out/scoring_functions", metavar="DIR", help="folder for figures"
)
options = parser.parse_args()
options.out.mkdir(parents=True, exist_ok=True)
# sphinx_gallery_end_ignore
keras.utils.set_random_seed(options.seed)
random = np.random.default_rng(options.seed)

# %%
# Scoring functions
# -----------------
# In kernel regression :math:`-(x - x_i)^2 / 2` went into the softmax. Any other function
# :math:`a(\mathbf q, \mathbf k)` of query and key may stand in its place: a *scoring function*.
# Attention to m pairs of key and value is then, where vectors are bold, and q, k and v are widths,
#
# .. math:: f(\mathbf q, (\mathbf k_1, \mathbf v_1), \ldots, (\mathbf k_m, \mathbf v_m))
#           = \sum_i \alpha(\mathbf q, \mathbf k_i) \mathbf v_i, \quad
#           \alpha(\mathbf q, \mathbf k_i) = \mathrm{softmax}_i \; a(\mathbf q, \mathbf k_i)
#
# .. math:: \mathbf q \in \mathbb{R}^q, \; \mathbf k_i \in \mathbb{R}^k, \;
#           \mathbf v_i \in \mathbb{R}^v, \quad f(\mathbf q, \ldots) \in \mathbb{R}^v
#
# The score is one number, whatever the widths. Where the widths q and k differ, there is no dot
# product of query and key, and the score needs matrices.
#
# .. figure:: /drawings/scoring-function.svg
#    :alt: Query and keys enter the scoring function; a softmax of the scores weights the values.
#
#    The scoring function compares the query with each key, and a softmax of the scores weights
#    the values.

# %%
# Masked softmax
# --------------
# Sentences of a batch differ in length, and the padding must get a weight of 0: with 5 keys and a
# valid length of 2, the last three weights are 0, and the first two sum to 1. One valid length per
# sample is a vector as long as the batch (not as the matrix has rows); one valid length per query
# is a matrix. Here are two matrices of 2 queries by 4 keys: first with lengths 2 and 3, one per
# matrix, then with lengths (1, 3) and (2, 4), query by query.
scores = random.normal(size=(2, 2, 4)).astype("float32")
lengths = {"per sample": np.array([2, 3]), "per query": np.array([[1, 3], [2, 4]])}
masked = np.stack([tfattn.masked_softmax(scores, valid_lens=n) for n in lengths.values()])
figure = tfattn.plot.heatmaps(
    masked,  # (2, 2, 2, 4)
    titles=[
        "lengths (2, 3): matrix 1",
        "matrix 2",
        "lengths ((1, 3), (2, 4)): matrix 1",
        "matrix 2",
    ],
    number_format=".2f",
)
figure.savefig(options.out / "masked_softmax.png", dpi=150)
figure

# %%
# Masked softmax from scratch
# ---------------------------
# Write-ups flatten the scores to rows, repeat the lengths once per query, fill hidden scores with
# :math:`-10^6`, and take a softmax. In NumPy, for both forms of the lengths:
for given in lengths.values():
    batch, queries, keys = scores.shape  # B, T, S
    rows = scores.reshape(batch * queries, keys)  # (B · T, S)
    per_query = given.reshape(batch, -1)  # (B, 1), for all queries, or (B, T)
    per_query = np.broadcast_to(per_query, (batch, queries))  # (B, T)
    per_row = per_query.reshape(batch * queries, 1)  # (B · T, 1)
    visible = np.arange(keys) < per_row  # (S,) < (B · T, 1): (B · T, S)
    filled = np.where(visible, rows, -1e6)  # (B · T, S)
    powers = np.exp(filled - filled.max(axis=1, keepdims=True))  # (B · T, S)
    weights = powers / powers.sum(axis=1, keepdims=True)  # rows sum to 1
    by_hand = weights.reshape(batch, queries, keys)  # (B, T, S)
    by_package = tfattn.masked_softmax(scores, valid_lens=given)  # (B, T, S)
    by_package = keras.ops.convert_to_numpy(by_package)
    np.testing.assert_allclose(by_hand, by_package, rtol=0, atol=1e-6)

# %%
# A number is not a mask, however large. The first query below has no key at all, and the filled
# softmax spreads its weight over the padding. The scores of the second are lower than
# :math:`-10^6`, and all its weight goes to hidden keys.
extreme = np.array([[[1, 2, 3, 4], [-2e6, -2e6, 0, 0]]], "float32")  # (1, 2, 4)
none_and_two = np.array([[0, 2]])  # (1, 2), one length per query
visible = np.arange(4) < none_and_two[:, :, None]  # (1, 2, 4)
filled = np.where(visible, extreme, -1e6)  # (1, 2, 4)
powers = np.exp(filled - filled.max(axis=-1, keepdims=True))  # (1, 2, 4)
filled_weights = powers / powers.sum(axis=-1, keepdims=True)  # (1, 2, 4)
masked_weights = tfattn.masked_softmax(extreme, valid_lens=none_and_two)
masked_weights = keras.ops.convert_to_numpy(masked_weights)
print(f"Filled with -1e6: {filled_weights[0].tolist()}")
print(f"masked_softmax:   {masked_weights[0].tolist()}")

# %%
# ``tfattn.masked_softmax`` keeps the mask. It subtracts the largest *visible* score, gives hidden
# keys weights of exactly 0, and multiplies a row without keys by 0, so its gradient stays finite
# too. Its sums are in float32 or wider: in float16 the number :math:`-10^6` is :math:`-\infty`, and
# a filled row without keys becomes NaN. The layers also remove the values of hidden keys before the
# product, since 0 times NaN is NaN (:doc:`masked_attention`).

# %%
# Additive attention
# ------------------
# A small network with one hidden layer of h units and no biases, for queries and keys of different
# widths:
#
# .. math:: a(\mathbf q, \mathbf k)
#           = \mathbf w_v \cdot \tanh(\mathbf W_q \mathbf q + \mathbf W_k \mathbf k), \quad
#           \mathbf W_q \in \mathbb{R}^{h \times q}, \;
#           \mathbf W_k \in \mathbb{R}^{h \times k}, \; \mathbf w_v \in \mathbb{R}^h
#
# It is the same as a network whose input is query and key concatenated, a vector of width q + k.
# The hidden width h is a hyperparameter.
#
# In each of two samples, one query of 20 normal random numbers meets ten keys of width 2, which are
# all ones. The valid lengths are 2 and 6, and h is 8. The values 0 … 39 stand in ten rows of four,
# the same for both. All keys are equal, so the keys that count share the weight equally, whatever
# the network has learned. The outputs are the means of the first two values, (2, 3, 4, 5), and of
# the first six, (10, 11, 12, 13). The dropout of 0.1 is off outside of training.
key = np.ones((2, 10, 2), "float32")
value = np.tile(np.arange(40, dtype="float32").reshape(1, 10, 4), (2, 1, 1))
valid_lens = np.array([2, 6])
query = random.normal(size=(2, 1, 20)).astype("float32")
outputs = {}
outputs["additive"], weights = tfattn.AdditiveAttention(units=8, dropout=0.1)(
    query=query, key=key, value=value, valid_lens=valid_lens, return_attention_scores=True
)
figure = tfattn.plot.heatmaps(
    weights[:, 0], titles="Equal keys, lengths 2 and 6", number_format=".2f"
)
figure.savefig(options.out / "weights.png", dpi=150)
figure

# %%
# Additive attention from scratch
# -------------------------------
# Write-ups make it a class of three linear layers without biases, with dropout on the weights. The
# class comes below; here are its computations. Each of T queries is paired with each of S keys, and
# a hidden layer of h numbers stands between them. An axis of size 1 for the keys in the queries,
# and one for the queries in the keys, makes their sum a tensor of four axes: (B, T, 1, h) plus
# (B, 1, S, h) is (B, T, S, h). Now keys differ, and so do the three queries of each sample.
draw = np.random.default_rng(1).normal
q = draw(size=(2, 3, 20))  # (B, T, 20)
k, v = draw(size=(2, 10, 2)), draw(size=(2, 10, 4))  # (B, S, 2), (B, S, 4)
w_q = draw(0.0, 0.1, size=(20, 8))  # (20, h): W_q transposed, queries are rows
w_k = draw(0.0, 0.1, size=(2, 8))  # (2, h)
w_v = draw(0.0, 0.1, size=(8, 1))  # (h, 1)

projected_q = q @ w_q  # (B, T, 20) by (20, h): (B, T, h)
projected_k = k @ w_k  # (B, S, 2) by (2, h): (B, S, h)
left = projected_q[:, :, None, :]  # (B, T, 1, h)
right = projected_k[:, None, :, :]  # (B, 1, S, h)
hidden = np.tanh(left + right)  # (B, T, S, h): each query with each key
pairs = hidden @ w_v  # (B, T, S, h) by (h, 1): (B, T, S, 1)
pairs = pairs[:, :, :, 0]  # (B, T, S)
visible = np.arange(10) < valid_lens[:, None, None]  # (B, 1, S)
pairs = np.where(visible, pairs, -np.inf)  # (B, T, S); each query has a key
powers = np.exp(pairs - pairs.max(axis=-1, keepdims=True))  # (B, T, S)
weights = powers / powers.sum(axis=-1, keepdims=True)  # (B, T, S)
pooled = weights @ v  # (B, T, S) by (B, S, 4): (B, T, 4)

layer = tfattn.AdditiveAttention(units=8)
layer.build(q.shape, v.shape, k.shape)
layer.set_weights([w_q, w_k, w_v])
q, k, v = (each.astype("float32") for each in (q, k, v))
by_layer = layer(query=q, key=k, value=v, valid_lens=valid_lens)  # (B, T, 4)
by_layer = keras.ops.convert_to_numpy(by_layer)
np.testing.assert_allclose(pooled, by_layer, rtol=0, atol=1e-6)

# %%
# The layer projects each query and each key once, as here, and adds them pair by pair.
# For long sequences it never holds the four axes: it walks over blocks of queries and keys, and
# computes the blocks again for the gradient. Its masked softmax takes care of queries without keys,
# and in ``tfattn.MultiHeadAttention`` each head has its own :math:`w_v`.

# %%
# Scaled dot product, and others
# ------------------------------
# Where query and key have one width d, their dot product is a score,
# :math:`a(\mathbf q, \mathbf k) = \mathbf q \cdot \mathbf k / \sqrt d`. For n queries
# :math:`\mathbf Q` (n, d), m keys :math:`\mathbf K` (m, d) and their values :math:`\mathbf V`
# (m, v) at once, attention is
# :math:`\mathrm{softmax}(\mathbf Q \mathbf K^\top / \sqrt d) \mathbf V`, of shape (n, v). A matrix
# between query and key makes the score bilinear, :math:`\mathbf q^\top \mathbf W \mathbf k`, for
# any widths. The cosine asks for their angle alone. Below the queries have the width of the keys,
# 2. On equal keys all scores agree.
#
# Pass arguments by name: the order of some write-ups is queries, keys, values, that of Keras query,
# value, key.
query = random.normal(size=(2, 1, 2)).astype("float32")
layers = {
    "scaled dot product": tfattn.DotProductAttention(dropout=0.5),
    "bilinear": tfattn.BilinearAttention(),
    "cosine": tfattn.Attention(score=tfattn.CosineScore()),
}
for name, layer in layers.items():
    outputs[name] = layer(query=query, key=key, value=value, valid_lens=valid_lens)
outputs = {name: keras.ops.convert_to_numpy(output)[:, 0] for name, output in outputs.items()}
for name, output in outputs.items():
    print(f"{name}: {output[0].round(3)} and {output[1].round(3)}")

# %%
# Unequal keys show how the scores differ. The last row is the exponent of the Gaussian kernel,
# :math:`-\lVert \mathbf q - \mathbf k \rVert^2 / 2`: kernel regression is attention with that
# score. It and the cosine look for a key that is like the query; the dot product also likes long
# keys. The two with matrices have not learned anything yet.
query, key = random.normal(size=(1, 1, 4)), random.normal(size=(1, 8, 4))
query, key = query.astype("float32"), key.astype("float32")
kinds = {
    "dot product": tfattn.DotProductScore(),
    "cosine": tfattn.CosineScore(temperature=0.5),
    "bilinear": tfattn.BilinearScore(),
    "additive": tfattn.AdditiveScore(units=8),
    "Gaussian": tfattn.KernelScore("gaussian"),
}
rows = [tfattn.masked_softmax(score(query, key))[0, 0] for score in kinds.values()]
figure = tfattn.plot.heatmaps(
    np.stack(rows), row_labels=list(kinds), y_label="Score", number_format=".2f"
)
figure.savefig(options.out / "scores.png", dpi=150)
figure

# %%
# What the scale is for
# ---------------------
# Let query and key have d independent components of mean 0 and variance 1. Each product
# :math:`q_i k_i` then has mean 0 and variance 1, and the dot product, a sum of d of them, has
# variance d. Divided by the root of d, it keeps variance 1 at any width. (Some write-ups divide by
# d itself: the variance is then 1/d, and at large widths all weights are nearly equal.)
widths = 2 ** np.arange(2, 10)  # 4 ... 512
variances = {"unscaled": [], "scaled": []}
slopes = {"unscaled": [], "scaled": []}
for width in widths:
    query = random.normal(size=(2000, 1, width)).astype("float32")
    key = random.normal(size=(2000, 10, width)).astype("float32")
    for name, scale in (("unscaled", 1.0), ("scaled", None)):
        products = tfattn.DotProductScore(scale)(query, key)  # (2000, 1, 10)
        weights = keras.ops.convert_to_numpy(tfattn.masked_softmax(products))
        variances[name].append(float(np.var(products)))
        slopes[name].append(float(np.mean(weights * (1 - weights))))
figure = curves(widths, variances, "Width d", "Variance of query · key", log_x=True, log_y=True)
figure.savefig(options.out / "variance.png", dpi=150)
figure

# %%
# Large scores make one weight nearly 1 and the others nearly 0, and there the softmax is flat: the
# derivative of a weight by its own score is :math:`\alpha_i (1 - \alpha_i)`. Below is its mean over
# ten keys. Without the scale less and less gradient gets through to queries and keys.
figure = curves(widths, slopes, "Width d", "Mean derivative of a weight by its score", log_x=True)
figure.axes[0].set_ylim(0, None)
figure.savefig(options.out / "gradient.png", dpi=150)
figure


# %%
# Write the layer yourself
# ------------------------
# Now both attentions as Keras layers. What they have in common, a masked softmax, dropout on the
# weights and the product with the values, is in a class of its own. ``valid_lens`` has one length
# per sample or one per query. ``get_config`` has the arguments to make the layer anew when a model
# is loaded.
class MaskedAttention(keras.layers.Layer):
    def __init__(self, dropout=0.0, **kwargs):
        super().__init__(**kwargs)
        self.dropout = keras.layers.Dropout(dropout, dtype=self.dtype_policy)

    def pool(self, scores, value, valid_lens):
        if valid_lens is not None:
            lengths = keras.ops.cast(valid_lens, "int32")  # (B,) or (B, T)
            lengths = keras.ops.reshape(lengths, (keras.ops.shape(scores)[0], -1, 1))  # (B, _, 1)
            place = keras.ops.arange(keras.ops.shape(scores)[-1])  # (S,)
            visible = place < lengths  # (B, 1, S) or (B, T, S)
            scores = keras.ops.where(visible, scores, -np.inf)
        weights = self.dropout(keras.ops.softmax(scores))  # (B, T, S), dropped in training only
        return keras.ops.matmul(weights, value)  # (B, T, S) by (B, S, v): (B, T, v)

    def get_config(self):
        return {**super().get_config(), "dropout": self.dropout.rate}


# %%
# Additive attention makes its three matrices in ``build``, when it sees the widths of queries and
# keys for the first time. What ``add_weight`` makes is trained and saved; a ``tf.Variable`` that
# the layer only keeps as an attribute is not.
@keras.saving.register_keras_serializable("tutorials")
class AdditiveAttention(MaskedAttention):
    def __init__(self, units, **kwargs):
        super().__init__(**kwargs)
        self.units = units

    def build(self, query_shape, value_shape, key_shape):
        self.w_q = self.add_weight(name="w_q", shape=(query_shape[-1], self.units))
        self.w_k = self.add_weight(name="w_k", shape=(key_shape[-1], self.units))
        self.w_v = self.add_weight(name="w_v", shape=(self.units, 1))

    def call(self, query, value, key, valid_lens=None):
        left = keras.ops.matmul(query, self.w_q)[:, :, None]  # (B, T, 1, h)
        right = keras.ops.matmul(key, self.w_k)[:, None]  # (B, 1, S, h)
        hidden = keras.ops.tanh(left + right)  # (B, T, S, h)
        scores = keras.ops.matmul(hidden, self.w_v)[..., 0]  # (B, T, S)
        return self.pool(scores, value, valid_lens)

    def get_config(self):
        return {**super().get_config(), "units": self.units}


# %%
# The dot product has nothing to learn, so there is no ``build``.
@keras.saving.register_keras_serializable("tutorials")
class DotProductAttention(MaskedAttention):
    def call(self, query, value, key, valid_lens=None):
        product = keras.ops.matmul(query, keras.ops.swapaxes(key, 1, 2))  # (B, T, S)
        return self.pool(product / query.shape[-1] ** 0.5, value, valid_lens)


# %%
# They train on queries, keys and values of the widths above. The keys are points in the plane, and
# a query is one of four vectors of width 20. Each of the four asks for another thing: the value of
# the point farthest to the right, to the left, at the top or at the bottom. Only the first 2 to 10
# points count. The dot product needs queries of width 2, so a linear layer comes before it, and is
# what its model learns. Zeros for an answer would have an error of about 1.
questions, asked = random.normal(size=(4, 20)), random.integers(4, size=(1024, 3))
keys, values = random.normal(size=(1024, 10, 2)), random.normal(size=(1024, 10, 4))
lengths = random.integers(2, 11, size=1024)
directions = np.array([[1, 0], [-1, 0], [0, 1], [0, -1]])[asked]  # (1024, 3, 2)
far = directions @ keys.swapaxes(1, 2)  # (1024, 3, 2) by (1024, 2, 10): (1024, 3, 10)
far = np.where(np.arange(10) < lengths[:, None, None], far, -np.inf)
answers = np.take_along_axis(values, far.argmax(axis=-1)[..., None], axis=1)  # (1024, 3, 4)

trained = {"additive": AdditiveAttention(units=8), "dot product": DotProductAttention()}
narrow = {"additive": keras.layers.Identity(), "dot product": keras.layers.Dense(2, use_bias=False)}
own_losses = {}
for name, own in trained.items():
    inputs = [keras.Input(each.shape[1:]) for each in (questions[asked], keys, values, lengths)]
    asks, k_in, v_in, n_in = inputs
    output = own(query=narrow[name](asks), key=k_in, value=v_in, valid_lens=n_in)
    model = keras.Model(inputs, output)
    model.compile(keras.optimizers.Adam(0.03), "mean_squared_error")
    data = [questions[asked], keys, values, lengths]
    losses = model.fit(data, answers, batch_size=64, epochs=20, verbose=0).history["loss"]
    own_losses[name] = [losses[0], losses[-1]]
    print(f"{name}: mean squared error {losses[0]:.2f} -> {losses[-1]:.2f}")

# %%
# With the same weights our layers give the same as the package's, and the same gradients: of the
# mean square of the output by the weights, the queries, the keys and the values. The data are those
# of additive attention from scratch, with one length per query. All layers are in float64, where
# rounding hides nothing; the config makes ours anew.
packages = {
    "additive": tfattn.AdditiveAttention(units=8, dtype="float64"),
    "dot product": tfattn.DotProductAttention(dtype="float64"),
}
lengths, differences = np.array([[2, 5, 10], [6, 1, 3]]), {}
for name, package in packages.items():
    own = trained[name]
    mine = type(own).from_config({**own.get_config(), "dtype": "float64"})
    asks = q if name == "additive" else q[..., :2]
    data = {"query": asks, "key": k, "value": v}
    data = {each: tf.constant(array, "float64") for each, array in data.items()}
    both = []
    for layer in (mine, package):
        layer(**data)  # builds it
        layer.set_weights(own.get_weights())
        with tf.GradientTape() as tape:
            tape.watch(data)
            pooled = layer(**data, valid_lens=lengths)  # (2, 3, 4)
            error = tf.reduce_mean(pooled**2)
        gradients = tape.gradient(error, [*layer.trainable_variables, *data.values()])
        both.append([pooled, *gradients])
    differences[name] = [float(np.abs(a - b).max()) for a, b in zip(*both, strict=True)]
    print(f"{name}, largest difference of outputs: {differences[name][0]:.0e},", end=" ")
    print(f"of {len(gradients)} gradients: {max(differences[name][1:]):.0e}")
    assert max(differences[name]) < 1e-5

# %%
# What the package's layers do beyond it:
#
# - every mask of this package, those that Keras hands on from layer to layer included, and a bias
#   on the scores;
# - a query with no key to see gets 0, here NaN; and a NaN under a mask reaches nothing, where 0
#   times NaN is NaN here;
# - long sequences in blocks, never with four axes at once; sums of half precision in float32; the
#   weights on request.
#
# To take the mask that Keras hands on, give ``call`` an argument ``key_mask=None``, which Keras
# fills, hide scores by ``keras.ops.where(key_mask[:, None], scores, -np.inf)``, and set
# ``self.supports_masking = True`` in ``__init__``. Now write them: ``python -m exercises open
# AdditiveAttention``, and ``DotProductAttention``, write the tasks of such layers, and ``check``
# with the same name trains, saves and loads yours (:doc:`exercises </exercises>`).

# %%
# Additive attention or dot product
# ---------------------------------
# On paper they cost about the same. Additive attention has three matrices to learn,
# :math:`h (q + k + 1)` numbers, 184 in the first example; the dot product has none, and is one
# matrix product. It is faster and needs less memory (question 2: 67 MB against 4.3 GB). Here are
# the two layers above on 4 sequences of 256 tokens, with h = d = 64, in turns, each compiled. What
# takes the time is the hyperbolic tangent of :math:`B \cdot T \cdot S \cdot h` numbers. On two
# cores of an AMD EPYC it took 12 times as long; the number differs between machines:
tokens = random.normal(size=(4, 256, 64)).astype("float32")
timed = {"additive": AdditiveAttention(units=64), "dot product": DotProductAttention()}
timed = {name: tf.function(layer) for name, layer in timed.items()}
times = {name: [] for name in timed}
for _ in range(8):
    for name, attend in timed.items():
        start = time.perf_counter()
        attend(query=tokens, value=tokens, key=tokens)
        times[name].append(time.perf_counter() - start)
medians = {name: np.median(seconds[1:]) for name, seconds in times.items()}  # the first compiles
ratio = medians["additive"] / medians["dot product"]
print(f"additive attention takes {ratio:.0f} times as long as the dot product")

# %%
# It is often said that additive attention does better, or does so for large d: that holds where the
# dot product is not scaled (Vaswani et al. 2017, section 3.2.1). Without the scale, translators of
# Britz et al. 2017 (arXiv:1703.03906, table 5) had 21.78 BLEU with 512 units of attention and 18.22
# with 1,024; with additive attention 22.47 and 22.10.

# %%
# With this package
# -----------------
# ``tfattn.Attention(score=...)`` takes any score, and so does ``tfattn.MultiHeadAttention``; the
# scale of the dot product is the default.

# %%
# Summary
# -------
# - A score compares a query with a key; a softmax over the keys makes weights of scores. Each score
#   gives another attention, the rest stays the same.
# - A mask says which keys take part. Hidden keys have weights of exactly 0, and a query without
#   keys pools to 0; filling scores with a large negative number guarantees neither.
# - Additive attention takes queries and keys of any widths, and learns three matrices. The dot
#   product needs equal widths, learns nothing and is one matrix product.
# - Dividing by :math:`\sqrt d` keeps the variance of scores at 1, so the gradient of the softmax
#   does not vanish.
#
# Questions
# ---------
# **1.** What goes wrong if hidden scores are filled with 0?
#
# .. dropdown:: Answer
#
#    :math:`e^0 = 1`: padding gets weight like any key of score 0, and the most where the real
#    scores are negative.
#
# **2.** How much memory does the tensor ``hidden`` of additive attention need for one sentence of T
# = S = 4096 tokens, h = 64, in float32?
#
# .. dropdown:: Answer
#
#    :math:`4096^2 \cdot 64` numbers of 4 bytes, 4.3 GB. The scores alone are 67 MB. So the package
#    computes it in blocks.
#
# **3.** Queries and keys all have length 1. How do the weights of the Gaussian score and of the
# unscaled dot product differ?
#
# .. dropdown:: Answer
#
#    Not at all: :math:`-\lVert \mathbf q - \mathbf k \rVert^2 / 2 = \mathbf q \cdot \mathbf k - 1`,
#    and a softmax does not change when all scores of a row lose the same number.
#
# **4.** In the example of additive attention, why do the outputs not depend on the weights of the
# layer?
#
# .. dropdown:: Answer
#
#    All keys of a sample are equal, so all scores of a query are, whatever the matrices. Equal
#    scores give equal weights.
#
# **5.** Write them yourself: ``masked_softmax``, ``additive_scores`` and ``dot_product_attention``
# are :doc:`exercises </exercises>`.
#
# .. dropdown:: Answer
#
#    ``python -m exercises open masked_softmax`` writes the task, ``check masked_softmax``
#    checks it. Its inputs have rows that are masked entirely, so a filled softmax fails.
#
# Where to go next
# ----------------
# - :doc:`Bahdanau attention <bahdanau_translation>`: additive attention in a recurrent translator.
# - :doc:`Multi-head attention <multi_head>`: several scores side by side.
# - :doc:`Masked attention <masked_attention>`: other masks than valid lengths.

# sphinx_gallery_start_ignore
result = {
    "outputs": {name: output.round(4).tolist() for name, output in outputs.items()},
    "widths": widths.tolist(),
    "variances": variances,
    "slopes": slopes,
    "own_losses": own_losses,
    "own_differences": differences,
    "additive_over_dot_product": float(ratio),
}
print("result:", json.dumps(result))
# sphinx_gallery_end_ignore
