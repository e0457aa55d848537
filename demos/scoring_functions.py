"""
Attention scoring functions
===========================

A score says how well a query and a key go together, and a softmax turns scores into weights. We
hide what is padding, try additive attention and the scaled dot product on an example that can be
checked in the head, put five scores side by side, and see what the scale of the dot product is for.
"""

# sphinx_gallery_thumbnail_number = 3
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
    "--out", type=Path, default="out/scoring_functions", metavar="DIR", help="folder for figures"
)
options = parser.parse_args()
options.out.mkdir(parents=True, exist_ok=True)
keras.utils.set_random_seed(options.seed)
random = np.random.default_rng(options.seed)

# %%
# Masked softmax
# --------------
# In kernel regression :math:`-(x - x_i)^2 / 2` went into the softmax. Any other function
# :math:`a(q, k)` of query and key may stand in its place: a *scoring function*. Attention to m
# pairs of key and value is then
#
# .. math:: f(q, (k_1, v_1), \ldots, (k_m, v_m)) = \sum_i \alpha(q, k_i) v_i, \quad
#           \alpha(q, k_i) = \mathrm{softmax}_i \; a(q, k_i)
#
# Sentences of a batch differ in length, and what fills them up must get a weight of 0. One valid
# length a row of the batch is a vector as long as the batch (not as the matrix has rows); one valid
# length a query is a matrix. Here are two matrices of 2 queries by 4 keys: first with lengths 2 and
# 3, one a matrix, then with lengths (1, 3) and (2, 4), query by query.
scores = random.normal(size=(2, 2, 4)).astype("float32")
lengths = {"a row": np.array([2, 3]), "a query": np.array([[1, 3], [2, 4]])}
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
# Additive attention
# ------------------
# A small network with one hidden layer of h units and no biases, for queries and keys of different
# widths:
#
# .. math:: a(q, k) = w_v \cdot \tanh(W_q q + W_k k)
#
# In each of two rows of a batch, one query of width 20 meets ten keys of width 2. The valid lengths
# are 2 and 6, and h is 8. The values 0 … 39 stand in ten rows of four, the same for both. All keys
# are equal, so the keys that count share the weight equally, whatever the network has learned. The
# outputs are the means of the first two values, (2, 3, 4, 5), and of the first six,
# (10, 11, 12, 13). Dropout rests outside of training.
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
# Scaled dot product, and others
# ------------------------------
# Where query and key are of one width d, their dot product is a score,
# :math:`a(q, k) = q \cdot k / \sqrt d`. For n queries :math:`Q` (n, d), m keys :math:`K` (m, d) and
# their values :math:`V` (m, v) at once, attention is :math:`\mathrm{softmax}(Q K^T / \sqrt d) V`,
# of shape (n, v). A matrix between query and key makes the score bilinear, :math:`q^T W k`, for any
# widths. The cosine asks for their angle alone. Below the queries have the width of the keys, 2. On
# equal keys all scores agree.
#
# Arguments go by their names: some write-ups pass queries, keys, values, Keras query, value, key.
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
# Keys that differ show how the scores do. The last row is the exponent of the Gaussian kernel,
# :math:`-\lVert q - k \rVert^2 / 2`: kernel regression is attention with that score. It and the
# cosine look for a key that is like the query; the dot product also likes long keys. The two with
# matrices have not learned anything yet.
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
# variance d. Divided by the root of d, it keeps variance 1 at any width.
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
figure = tfattn.plot.curves(
    widths, variances, "Width d", "Variance of query · key", log_x=True, log_y=True
)
figure.savefig(options.out / "variance.png", dpi=150)
figure

# %%
# Large scores make one weight nearly 1 and the others nearly 0, and there the softmax is flat: the
# derivative of a weight by its own score is :math:`\alpha_i (1 - \alpha_i)`. Below is its mean over
# ten keys. Without the scale less and less gradient gets through to queries and keys.
#
# Additive attention or dot product? On paper they cost about the same. In practice the dot product
# is faster and needs less memory, since it is one matrix product. It is often said that additive
# attention does better for large d: that is so only where the dot product is not scaled.
figure = tfattn.plot.curves(
    widths, slopes, "Width d", "Mean derivative of a weight by its score", log_x=True
)
figure.axes[0].set_ylim(0, None)
figure.savefig(options.out / "gradient.png", dpi=150)
figure

# %%
# With this package
# -----------------
# ``tfattn.Attention(score=...)`` takes any score, and so does ``tfattn.MultiHeadAttention``; the
# scale of the dot product is there without asking.
result = {
    "outputs": {name: output.round(4).tolist() for name, output in outputs.items()},
    "widths": widths.tolist(),
    "variances": variances,
    "slopes": slopes,
}
print("result:", json.dumps(result))
