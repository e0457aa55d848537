"""
Masked attention
================

A mask says which key a query may look at. The causal mask hides the future, so that a language
model can learn from all places of a text at once; other masks hide padding, far words, or other
texts in the same row. We draw them, change a word and look whose output moves, and put NaN where
nobody may look.
"""

# sphinx_gallery_thumbnail_number = 3
import argparse
import json
from pathlib import Path

import keras
import numpy as np

import tfattn
from tfattn import masks

parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
)
parser.add_argument("--seed", type=int, default=0, help="of everything random (default: 0)")
parser.add_argument(
    "--out", type=Path, default="out/masked_attention", metavar="DIR", help="folder for figures"
)
options = parser.parse_args()
options.out.mkdir(parents=True, exist_ok=True)
keras.utils.set_random_seed(options.seed)

# %%
# The causal triangle
# -------------------
# A decoder writes word by word, each from those that it has written (it is *autoregressive*). In
# training it is given the whole sentence and learns all its words at once. What it writes at a
# place must not depend on what comes later, or training would leak the answers, so query :math:`t`
# may look at key :math:`s` only where :math:`s \le t`. The others are left out of the softmax, and
# each row still sums to 1:
#
# .. math:: \alpha_{ts} = \frac{\exp a_{ts}}{\sum_{s' \le t} \exp a_{ts'}}
#
# The first word can look only at itself, so its one weight is 1.
words = "the old cat sleeps on the warm stove".split()
tokens = np.random.default_rng(options.seed).normal(size=(1, 8, 16)).astype("float32")
attention = tfattn.DotProductAttention()
output, weights = attention(
    query=tokens, value=tokens, use_causal_mask=True, return_attention_scores=True
)
figure = tfattn.plot.heatmaps(weights[0], words, words, number_format=".2f")
figure.savefig(options.out / "triangle.png", dpi=150)
print("Each row of the triangle sums to", *np.sum(weights[0], axis=1).round(4))
figure

# %%
# Change a later word
# -------------------
# Does the future leak? Two models of four layers with the same sizes read a text of eight words.
# Then its sixth word is replaced. Without a mask, every output moves. With the causal mask, those
# of the first five places stay as they are: not nearly, but to the last bit.
ids = np.array([[5, 6, 7, 8, 9, 10, 11, 12]])
other_ids = np.array([[5, 6, 7, 8, 9, 13, 11, 12]])
sizes = {"num_layers": 4, "width": 32, "num_heads": 4, "hidden_dim": 64}
models = {
    "no mask (encoder)": tfattn.TransformerEncoder(20, **sizes),
    "causal mask (language model)": tfattn.CausalLM(20, **sizes),
}
moved = {
    name: np.max(np.abs(model(other_ids) - model(ids)), axis=(0, 2))  # (8,)
    for name, model in models.items()
}
without, causal = moved.values()
leak = float(causal[:5].max())
print(f"The sixth word changed. Greatest change of an output before it: {leak} with the mask,")
print(f"{without[:5].max():.2f} without it")
places = [str(place) for place in range(1, 9)]
figure = tfattn.plot.bars(places, moved, "Place in the text", "Greatest change of the output")
figure.savefig(options.out / "moved.png", dpi=150)
figure

# %%
# Masks to choose from
# --------------------
# Rows are queries, columns are keys. A mask here is an object and no matrix: a rule that can be
# asked about any pair, so that a long text needs no square of bools. Masks join with ``&``, ``|``
# and ``~``.
#
# - ``window(3)``: the keys less than three places away.
# - ``prefix(3)``: the first three keys are open to all, such as a question before its answer.
# - ``segments``: two texts share a row, and each stays by itself.
# - causal and window: the sliding window of long language models.
# - causal or prefix: the question is read in both directions, the answer written in one.
# - causal and segments: two texts in one row for a language model.
# - window and ``strided(2)``: every second key of the window, a dilated one.
# - ``chunks(4)``: each chunk of four positions by itself; with ``chunk_ends(4)`` the last of each
#   chunk is open to all, to sum it up.
# - ``blocks(plan, 2)``: a plan of blocks of two queries and two keys, computed once.
two_texts = masks.segments([[0, 0, 0, 0, 0, 1, 1, 1]])
plan = np.eye(4, dtype=bool) | (np.arange(4) == 0)
shown = {
    "causal()": masks.causal(),
    "window(3)": masks.window(3),
    "prefix(3)": masks.prefix(3),
    "segments(...)": two_texts,
    "causal() & window(3)": masks.causal() & masks.window(3),
    "causal() | prefix(3)": masks.causal() | masks.prefix(3),
    "causal() & segments(...)": masks.causal() & two_texts,
    "~window(3)": ~masks.window(3),
    "window(4) & strided(2)": masks.window(4) & masks.strided(2),
    "chunks(4)": masks.chunks(4),
    "chunks(4) | chunk_ends(4)": masks.chunks(4) | masks.chunk_ends(4),
    "blocks(plan, 2)": masks.blocks(plan, size=2),
}
figure = tfattn.plot.mask_pictures(list(shown.values()), 8, titles=list(shown), columns=4)
figure.savefig(options.out / "masks.png", dpi=150)
squares = {name: np.broadcast_to(mask.dense(8, 8), (1, 8, 8)) for name, mask in shown.items()}
pairs = {name: int(square.sum()) for name, square in squares.items()}
for name, count in pairs.items():
    print(f"{name:25} {count:2} of 64 pairs may attend")
figure

# %%
# Padding, and a query that sees nothing
# --------------------------------------
# Sentences of a batch differ in length. ``valid_lens`` says how many keys of each are real: here
# 5, 8 and 0. It has one length for each row of the batch, not one for each row of the matrix.
# The last sentence is empty. Its queries have nothing to take a mean of, and the answer is exactly
# 0. A softmax that only adds a large negative number to hidden scores would look at all the
# padding alike.
batch = np.repeat(tokens, 3, axis=0)  # (3, 8, 16)
lengths = np.array([5, 8, 0])
pooled, weights = attention(
    query=batch, value=batch, valid_lens=lengths, return_attention_scores=True
)
sees_nothing = float(np.max(np.abs(pooled[2])))
print(f"Weights of a query sum to {np.sum(weights[:, 0], axis=1).round(4)};")
print(f"the greatest output of a query that sees nothing is {sees_nothing}")
titles = [f"{length} real keys" for length in lengths]
figure = tfattn.plot.heatmaps(weights, titles=titles)
figure.savefig(options.out / "padding.png", dpi=150)
figure

# %%
# NaN under a mask
# ----------------
# A weight of 0 does not hide everything: 0 times NaN is NaN. Here the last three keys are padding
# that somebody left unset. By hand, with the usual :math:`-10^9` added to their scores, every
# output becomes NaN. In this package what lies under a mask is taken out before it is multiplied,
# and the outputs are those of the sentence without its padding.
broken = tokens.copy()
broken[:, 5:] = np.nan
scores = tokens[0] @ np.nan_to_num(broken[0]).T / 4.0  # (8, 8), scaled by the root of the width
scores[:, 5:] -= 1e9
by_hand = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True) @ broken[0]  # (8, 16)
lengths = np.array([5])
guarded = np.asarray(attention(query=tokens, value=broken, valid_lens=lengths))[0]
short = np.asarray(attention(query=tokens, value=tokens[:, :5]))[0]
lost = {"by hand": int(np.isnan(by_hand).sum()), "masked": int(np.isnan(guarded).sum())}
print(f"Outputs lost to NaN, of {guarded.size}: {lost}")
print(f"Difference from the sentence without padding: {np.abs(guarded - short).max():.1e}")

# %%
# With this package
# -----------------
# Any mask goes into any attention layer, beside the lengths; all that are given must allow a pair.
layer = tfattn.MultiHeadAttention(num_heads=4, key_dim=4)
local = masks.causal() & masks.window(3)
output = layer(query=batch, value=batch, attention_mask=local, valid_lens=np.array([5, 8, 0]))
print("Output", tuple(output.shape))

result = {
    "leak": leak,
    "moved_without_mask": float(without[:5].max()),
    "pairs": pairs,
    "sees_nothing": sees_nothing,
    "lost_to_nan": lost,
}
print("result:", json.dumps(result))
