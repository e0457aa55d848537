"""
Self-attention by hand
======================

Three inputs, three matrices, and every number on the way to the three outputs; then the same from
one call of the layer. Nothing is random, so you can follow it with pencil and paper. The products
are not scaled by 1 / sqrt of the width, so that they stay whole numbers.
"""

# %%
# What you will learn
# -------------------
# - the eight steps of self-attention, with every number;
# - how to write them as one function in NumPy, and that the layer gives the same;
# - what is still missing on the way to a Transformer.
#
# Before you begin
# ----------------
# - Prerequisites: products of matrices; :doc:`scoring_functions` for the softmax of scores.
# - Time: 10 minutes to read, 10 seconds to run.
# - ``options.out`` is the folder for the figure: the script's option ``--out``.

# sphinx_gallery_start_ignore
import argparse
import json
from pathlib import Path

# sphinx_gallery_end_ignore
import keras
import numpy as np

import tfattn

# sphinx_gallery_start_ignore
parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
)
parser.add_argument("--seed", type=int, default=0, help="changes nothing, as nothing is random")
parser.add_argument(
    "--out",
    type=Path,
    default="out/self_attention_by_hand",
    metavar="DIR",
    help="folder for figures",
)
options = parser.parse_args()
options.out.mkdir(parents=True, exist_ok=True)
# sphinx_gallery_end_ignore


def show(title, matrix, number_format=".0f"):
    print(title)
    for row in matrix:
        print("    ", "  ".join(f"{number:{number_format}}" for number in row))


# %%
# Self-attention
# --------------
# In self-attention queries, keys and values come from the same n inputs, and each input gets an
# output that depends on all of them:
#
# .. math:: y_i = f(x_i, (x_1, x_1), \ldots, (x_n, x_n)) \in \mathbb{R}^d
#
# It is also called *intra-attention*. Before the Transformer it was used for reading comprehension,
# summarization and textual entailment (Vaswani et al. 2017, section 2); it is what BERT, RoBERTa
# and many models after them have in common.
#
# Eight steps
# -----------
# Each card holds the numbers of one step, which the code below computes.
#
# .. figure:: /drawings/self-attention.svg
#    :alt: Eight cards with the numbers of the eight steps, from three inputs to three outputs.
#
#    The eight steps with their numbers: from three inputs to three outputs.
#

# %%
# 1. Inputs
# ---------
# Three tokens of width 4, one per row.
inputs = np.array([[1, 0, 1, 0], [0, 2, 0, 2], [1, 1, 1, 1]], "float32")
show("1. Three inputs of width 4, one per row", inputs)

# %%
# 2. Three matrices
# -----------------
# One makes keys of the inputs, one queries and one values. Here they are given. In a model
#
# - they begin with small random numbers (Gaussian, or uniform; scaled after Xavier, as in Keras, or
#   after Kaiming), and are learned;
# - a bias vector may be added to each product;
# - keys and queries have one width, since they are multiplied; the width of the values is free, and
#   is that of the outputs.
w_key = np.array([[0, 0, 1], [1, 1, 0], [0, 1, 0], [1, 1, 0]], "float32")
w_query = np.array([[1, 0, 1], [1, 0, 0], [0, 0, 1], [0, 1, 1]], "float32")
w_value = np.array([[0, 2, 0], [0, 3, 0], [1, 0, 3], [1, 1, 0]], "float32")

# %%
# 3. Keys, queries, values
# ------------------------
# A query is compared with the keys; the values are averaged.
keys, queries, values = inputs @ w_key, inputs @ w_query, inputs @ w_value  # (3, 3) each
show("3. Keys: inputs times key matrix", keys)
show("   Queries: inputs times query matrix", queries)
show("   Values: inputs times value matrix", values)

# %%
# 4. Scores
# ---------
# Each query (a row) with each key (a column): their dot products.
scores = queries @ keys.T  # (3, 3)
show("4. Scores: each query (row) with each key (column), dot products", scores)

# %%
# 5. Weights
# ----------
# The softmax of each row: all positive, and their sum is 1.
powers = np.exp(scores - scores.max(axis=1, keepdims=True))  # (3, 3)
weights = powers / powers.sum(axis=1, keepdims=True)  # (3, 3)
show("5. Weights: softmax of each row; it sums to 1", weights, ".4e")

# %%
# 6. and 7. Weighted values, and their sum
# ----------------------------------------
# For each query: each value times its weight, and their sum, the output.
weighted = weights[:, :, None] * values  # (3, 3, 1) times (3, 3): (3, 3, 3)
for number, products in enumerate(weighted, 1):
    show(f"6. Query {number}: each value (row) times its weight", products, ".4f")
    print(f"7. Output {number}, their sum: {', '.join(f'{x:.4f}' for x in products.sum(axis=0))}")

# %%
# 8. All outputs
# --------------
# Steps 6 and 7 for every query at once are a matrix product.
#
# The well-known walk-through of this example writes the weights with one decimal, and the 0.063 of
# its first row as 0.0. It then finds 2.0, 7.0, 1.5 for the first output. With all digits that is
# 1.9366, 6.6831, 1.5951.
output = weights @ values  # (3, 3) by (3, 3): (3, 3)
one_decimal = np.array([[0.0, 0.5, 0.5], [0.0, 1.0, 0.0], [0.0, 0.9, 0.1]])
show("8. And so for every query: weights times values", output, ".4f")
show("   With the weights to one decimal", one_decimal @ values, ".1f")

# %%
# The eight steps from scratch
# ----------------------------
# In NumPy, for n inputs of width d, keys and queries of width p, and values of width v:


# The outputs (n, v) and the weights (n, n) of n inputs (n, d).
def self_attention(x, w_query, w_key, w_value):
    keys = x @ w_key  # 3. (n, d) by (d, p): (n, p)
    queries = x @ w_query  # 3. (n, d) by (d, p): (n, p)
    values = x @ w_value  # 3. (n, d) by (d, v): (n, v)
    scores = queries @ keys.T  # 4. (n, p) by (p, n): (n, n)
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))  # 5. (n, n)
    weights = powers / powers.sum(axis=1, keepdims=True)  # 5. rows sum to 1
    outputs = np.empty_like(values)  # (n, v)
    for query in range(len(x)):  # 8. for every query
        weighted = weights[query][:, None] * values  # 6. (n, 1) · (n, v): (n, v)
        outputs[query] = weighted.sum(axis=0)  # 7. (v,)
    return outputs, weights


x = inputs.astype("float64")  # 1. (3, 4)
hand_output, hand_weights = self_attention(x, w_query, w_key, w_value)  # 2. (4, 3) each
np.testing.assert_allclose(hand_output, output, rtol=1e-6)

# %%
# With this package
# -----------------
# One call of the layer, with one head and these matrices. Its matrices have an axis for the heads;
# the last one, which joins the heads, changes nothing here. Keyword arguments keep the order of
# query and value plain.
layer = tfattn.MultiHeadAttention(
    num_heads=1, key_dim=3, output_shape=3, use_bias=False, score=tfattn.DotProductScore(scale=1.0)
)
tokens = inputs[None]  # (1, 3, 4)
layer.build(tokens.shape, tokens.shape)
layer.set_weights([w_query[:, None], w_key[:, None], w_value[:, None], np.eye(3)[None]])
layer_output, layer_weights = layer(query=tokens, value=tokens, return_attention_scores=True)
layer_output = keras.ops.convert_to_numpy(layer_output)[0]  # (3, 3)
layer_weights = keras.ops.convert_to_numpy(layer_weights)[0, 0]  # (3, 3)
np.testing.assert_allclose(layer_weights, hand_weights, rtol=0, atol=1e-6)
np.testing.assert_allclose(layer_output, hand_output, rtol=1e-6, atol=1e-6)
print("9. tfattn.MultiHeadAttention with these matrices, one head and scale 1, in one call.")
print("   Weights and outputs are those from above.")

# %%
# The layer differs from the function in three things. It takes a batch, and several heads at once.
# It divides the scores by the root of the width of the keys, unless told otherwise. And it takes
# masks, and computes the weights of long sequences in blocks instead of n by n at once.
names = ["input 1", "input 2", "input 3"]
figure = tfattn.plot.heatmaps(
    layer_weights, names, names, titles="Who looks at whom", number_format=".4f"
)
figure.savefig(options.out / "weights.png", dpi=150)
figure

# %%
# From here to a Transformer
# --------------------------
# - Scores are divided by the root of the width of the keys: :doc:`scoring_functions`.
# - Several heads work side by side: :doc:`multi_head`.
# - Tokens become vectors by an embedding. Their order changes nothing so far, so positions are
#   added: :doc:`positions`.
# - Sentences are cut (truncated) at a greatest length, and padded to the length of the longest;
#   masks hide the padding, and later words from earlier ones: :doc:`masked_attention`.
# - Between one self-attention and the next is a feed-forward network, two linear maps with a ReLU
#   between: :doc:`transformer_translation`.
# - Residual connections and layer normalization let the layers be stacked:
#   :doc:`residuals_and_norms`.
#
# Summary
# -------
# - Self-attention turns n inputs into n outputs. Each output is a weighted mean of the values of
#   all inputs.
# - Three matrices make queries, keys and values. All else, scores, softmax and mean, has no
#   parameters.
# - One function of ten lines does it. The layer adds batch, heads, scale and masks.
#
# Questions
# ---------
# **1.** Swap the first and the third input. What happens to the outputs?
#
# .. dropdown:: Answer
#
#    The first and the third output are swapped, the numbers stay: self-attention does not see the
#    order of its inputs. Positions have to be added.
#
# **2.** Divide the scores by :math:`\sqrt 3`, as the scaled dot product does. What are the weights
# of the first query?
#
# .. dropdown:: Answer
#
#    The scores are 1.155, 2.309 and 2.309, the weights 0.136, 0.432 and 0.432: less unequal than
#    0.063, 0.468 and 0.468.
#
# **3.** The values are to have width 5. Which shapes change?
#
# .. dropdown:: Answer
#
#    The value matrix becomes (4, 5), values and outputs (3, 5). Keys, queries, scores and weights
#    stay.
#
# **4.** Why does the second query attend to the second input almost alone?
#
# .. dropdown:: Answer
#
#    Its scores are 4, 16 and 12. A score that is higher by 4 has :math:`e^4`, about 55 times the
#    weight: 0.982 against 0.018.
#
# **5.** Write ``self_attention`` yourself, without the loop: :doc:`exercises </exercises>`.
#
# .. dropdown:: Answer
#
#    ``python -m exercises open self_attention`` writes the task, ``check self_attention``
#    checks it. Steps 6 to 8 are ``weights @ values``.
#
# Where to go next
# ----------------
# - :doc:`Convolution, recurrence, self-attention <convolution_recurrence_attention>`: what it
#   costs, compared with the others.
# - :doc:`Positional encoding <positions>`: gives the inputs an order.

# sphinx_gallery_start_ignore
result = {"weights": layer_weights.tolist(), "output": layer_output.tolist()}
print("result:", json.dumps(result))
# sphinx_gallery_end_ignore
