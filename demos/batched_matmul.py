"""
Batched matrix multiplication
=============================

Attention is two matrix products with a softmax between them, and a batch of sentences needs as many
pairs of products. One batched product computes them together. Here are the shapes to remember, two
weighted means that you can check in your head, and the same means from attention.
"""

# %%
# What you will learn
# -------------------
# - which shapes a batched product takes and gives;
# - why a weighted mean is a matrix product, and where its axes come from;
# - how the same product sits in attention.
#
# Before you begin
# ----------------
# - Prerequisites: the product of two matrices; :doc:`attention_cues` for weights and values.
# - Time: 4 minutes to read, 10 seconds to run.
# - ``options.out`` is the folder for the figure: the script's option ``--out``.

# sphinx_gallery_start_ignore
import argparse
import json
from pathlib import Path

# sphinx_gallery_end_ignore
import keras
import numpy as np
from matplotlib.figure import Figure

import tfattn

# sphinx_gallery_start_ignore
parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
)
parser.add_argument("--seed", type=int, default=0, help="changes nothing: nothing is random")
parser.add_argument(
    "--out", type=Path, default="out/batched_matmul", metavar="DIR", help="folder for the figure"
)
options = parser.parse_args()
options.out.mkdir(parents=True, exist_ok=True)
# sphinx_gallery_end_ignore
keras.utils.set_random_seed(options.seed)

# %%
# Shapes
# ------
# A batched product multiplies matrix by matrix: :math:`(n, a, b)` times :math:`(n, b, c)` gives
# :math:`(n, a, c)`. The n products are independent. Each number of the result is a sum over b, here
# of four ones.
left, right = np.ones((2, 1, 4), "float32"), np.ones((2, 4, 6), "float32")
product = keras.ops.convert_to_numpy(keras.ops.matmul(left, right))  # (2, 1, 6)
print(f"{left.shape} times {right.shape} gives {product.shape}, every number {product.max():.0f}")
one_by_one = np.stack([a @ b for a, b in zip(left, right, strict=True)])
print(f"The same, matrix by matrix: {np.array_equal(product, one_by_one)}")

# %%
# Weighted means
# --------------
# A row of weights that sums to 1, times a column of values, is a weighted mean. Two rows of ten
# weights of 0.1 meet the values 0 … 9 and 10 … 19. In attention n is the batch B, a the number of
# queries T, b that of keys S, and c the width of the values: weights :math:`(B, T, S)` times values
# :math:`(B, S, D)` are outputs :math:`(B, T, D)`. Here B = 2, T = 1, S = 10 and D = 1.
weights = np.full((2, 10), 0.1, "float32")
values = np.arange(20, dtype="float32").reshape(2, 10)
means = weights[:, None, :] @ values[:, :, None]  # (2, 1, 10) by (2, 10, 1): (2, 1, 1)
print(f"The means are {means[0, 0, 0]:.1f} and {means[1, 0, 0]:.1f}")

# %%
# In the picture each product is a row of weights, a column of values and one number. Both are
# computed at once.
figure = Figure(figsize=(8.4, 3.6), layout="constrained")
for number, axes in enumerate(figure.subplots(1, 2)):
    for name, matrix, left_end in [
        ("weights (1, 10)", weights[number, None], 0),
        ("values (10, 1)", values[number, :, None], 11.5),
        ("mean (1, 1)", means[number], 14.5),
    ]:
        rows, columns = matrix.shape
        box = (left_end, left_end + columns, rows / 2, -rows / 2)
        cmap, lowest, highest = ("Blues", -8, 40) if matrix.max() > 1 else ("magma_r", 0, 0.4)
        axes.imshow(matrix, cmap=cmap, vmin=lowest, vmax=highest, extent=box)
        for (row, column), entry in np.ndenumerate(matrix):
            written = f"{entry:.1f}".removeprefix("0") if entry % 1 else f"{entry:.0f}"
            place = (left_end + column + 0.5, row - rows / 2 + 0.5)
            axes.text(*place, written, ha="center", va="center", fontsize=7.5)
        axes.text(left_end + columns / 2, -rows / 2 - 0.3, name, ha="center", fontsize=8)
    axes.text(10.75, 0, "·", ha="center", va="center")
    axes.text(13.5, 0, "=", ha="center", va="center")
    axes.set(xlim=(-0.1, 16.2), ylim=(5.1, -6.1))
    axes.set_title(f"matrix {number + 1} of the batch", fontsize=10)
    axes.axis("off")
figure.savefig(options.out / "means.png", dpi=150)
figure

# %%
# With this package
# -----------------
# The same means come from attention whose query matches every key alike: all scores are 0, so each
# of the ten values gets a weight of 1/10.
query, keys = np.zeros((2, 1, 3), "float32"), np.ones((2, 10, 3), "float32")
attended, found = tfattn.attend(
    query=query, key=keys, value=values[:, :, None], return_weights=True
)  # (2, 1, 1), (2, 1, 10)
attended = keras.ops.convert_to_numpy(attended)
print(f"attend: {attended[0, 0, 0]:.1f} and {attended[1, 0, 0]:.1f}")

# %%
# Summary
# -------
# - A batched product multiplies matrix by matrix: :math:`(n, a, b)` by :math:`(n, b, c)` is
#   :math:`(n, a, c)`, a sum over b.
# - A row of weights that sums to 1, times a column of values, is a weighted mean.
# - In attention, queries (B, T, D) by transposed keys (B, D, S) give scores (B, T, S), and weights
#   (B, T, S) by values (B, S, D) give outputs (B, T, D).
#
# Questions
# ---------
# **1.** What are the shapes of (3, 5, 2) times (3, 2, 7), and of (2, 1, 4) times (3, 4, 6)?
#
# .. dropdown:: Answer
#
#    (3, 5, 7). The second is an error: there are 2 matrices on the left and 3 on the right. (A
#    single matrix, (1, 1, 4), would be used three times.)
#
# **2.** Why not ``weights @ values.T``, (2, 10) by (10, 2), without new axes?
#
# .. dropdown:: Answer
#
#    It is one product of shape (2, 2) that multiplies every row of weights with the values of every
#    sample. The two means wanted are its diagonal; the rest is computed for nothing.
#
# **3.** How many multiplications does attention take for B = 32, T = 10, S = 20 and width 64?
#
# .. dropdown:: Answer
#
#    32 · 10 · 20 · 64 = 409,600 for the scores, and as many for the outputs.
#
# **4.** Write the second product of attention as ``np.einsum``.
#
# .. dropdown:: Answer
#
#    ``np.einsum("bts,bsd->btd", weights, values)``: the letter that is missing on the right, s, is
#    summed over.
#
# **5.** Write ``weighted_sums`` yourself: :doc:`exercises </exercises>`.
#
# .. dropdown:: Answer
#
#    ``python -m exercises open weighted_sums`` writes the task, ``check weighted_sums``
#    checks it.
#
# Where to go next
# ----------------
# - :doc:`Attention scoring functions <scoring_functions>`: where the weights come from.
# - :doc:`Multi-head attention <multi_head>`: heads as one more axis of the batch.

# sphinx_gallery_start_ignore
result = {
    "product_shape": product.shape,
    "product": float(product.max()),
    "means_shape": means.shape,
    "means": means[:, 0, 0].tolist(),
    "attended_shape": attended.shape,
    "attended": attended[:, 0, 0].tolist(),
}
print("result:", json.dumps(result))
# sphinx_gallery_end_ignore
