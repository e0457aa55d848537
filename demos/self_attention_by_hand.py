"""
Self-attention by hand
======================

Three inputs, three matrices, and every number on the way to the three outputs; then the same from
one call of the layer. Nothing is random, so you can follow it with pencil and paper. The products
are not scaled by 1 / sqrt of the width, so that they stay whole numbers.
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


def show(title, matrix, number_format=".0f"):
    print(title)
    for row in matrix:
        print("    ", "  ".join(f"{number:{number_format}}" for number in row))


# %%
# 1. Inputs
# ---------
# Three tokens of width 4, one a row.
inputs = np.array([[1, 0, 1, 0], [0, 2, 0, 2], [1, 1, 1, 1]], "float32")
show("1. Three inputs of width 4, one a row", inputs)

# %%
# 2. Three matrices
# -----------------
# One makes keys of the inputs, one queries and one values. In a model they are learned; here they
# are given.
w_key = np.array([[0, 0, 1], [1, 1, 0], [0, 1, 0], [1, 1, 0]], "float32")
w_query = np.array([[1, 0, 1], [1, 0, 0], [0, 0, 1], [0, 1, 1]], "float32")
w_value = np.array([[0, 2, 0], [0, 3, 0], [1, 0, 3], [1, 1, 0]], "float32")

# %%
# 3. Keys, queries, values
# ------------------------
# A key says what a token offers, a query what it looks for, a value what it hands over.
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
powers = np.exp(scores - scores.max(axis=1, keepdims=True))
weights = powers / powers.sum(axis=1, keepdims=True)
show("5. Weights: softmax of each row; it sums to 1", weights, ".4e")

# %%
# 6. and 7. The first output
# --------------------------
# Each value times its weight, and their sum.
weighted = weights[0][:, None] * values
show("6. For the first query: each value (row) times its weight", weighted, ".4f")
print(f"7. The first output is their sum: {', '.join(f'{x:.4f}' for x in weighted.sum(axis=0))}")

# %%
# 8. All outputs
# --------------
# The same for every query at once is a matrix product.
#
# The well-known walk-through of this example writes the weights with one decimal, and the 0.063 of
# its first row as 0.0. It then finds 2.0, 7.0, 1.5 for the first output. With all digits that is
# 1.9366, 6.6831, 1.5951.
output = weights @ values
one_decimal = np.array([[0.0, 0.5, 0.5], [0.0, 1.0, 0.0], [0.0, 0.9, 0.1]])
show("8. And so for every query: weights times values", output, ".4f")
show("   With the weights to one decimal", one_decimal @ values, ".1f")

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
np.testing.assert_allclose(layer_weights, weights, rtol=1e-5)
np.testing.assert_allclose(layer_output, output, rtol=1e-5)
print("9. tfattn.MultiHeadAttention with these matrices, one head and scale 1, in one call.")
print("   Weights and outputs are those from above.")

names = ["input 1", "input 2", "input 3"]
figure = tfattn.plot.heatmaps(
    layer_weights, names, names, titles="Who looks at whom", number_format=".4f"
)
figure.savefig(options.out / "weights.png", dpi=150)
figure

# %%
result = {"weights": layer_weights.tolist(), "output": layer_output.tolist()}
print("result:", json.dumps(result))
