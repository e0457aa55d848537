"""
Masked attention
================

A mask says which keys a query may attend to. The causal mask hides later words, so that a language
model can learn from all positions of a text at once; other masks hide padding, distant words, or
other texts in the same row. We draw them, change a word and see which outputs change, and put NaN
under a mask.
"""

# %%
# What you will learn
# -------------------
# - why a decoder needs a causal mask, and that nothing leaks through it;
# - which masks there are, and how to combine them;
# - what a query gets that sees nothing, and why a weight of 0 does not hide NaN.
#
# Before you begin
# ----------------
# - Prerequisites: :doc:`scoring_functions` for the masked softmax; :doc:`self_attention_by_hand`.
# - Time: 10 minutes to read, 20 seconds to run.
# - ``options.seed`` is 0 and ``options.out`` the folder for figures: the script's two options.

# sphinx_gallery_thumbnail_number = 3
# sphinx_gallery_start_ignore
import argparse
import json
from pathlib import Path

# sphinx_gallery_end_ignore
import keras
import numpy as np

import tfattn
from tfattn import masks

# sphinx_gallery_start_ignore
from _figures import bars

parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
)
parser.add_argument("--seed", type=int, default=0, help="of everything random (default: 0)")
parser.add_argument(
    "--out", type=Path, default="out/masked_attention", metavar="DIR", help="folder for figures"
)
options = parser.parse_args()
options.out.mkdir(parents=True, exist_ok=True)
# sphinx_gallery_end_ignore
keras.utils.set_random_seed(options.seed)

# %%
# The causal triangle
# -------------------
# A decoder generates word by word, each from the words before it (it is *autoregressive*). In
# training it is given the whole sentence and learns all its words at once. Its output at a position
# must not depend on later words, or training would leak the answers. So query :math:`t` attends to
# key :math:`s` only where :math:`s \le t`. The others take no part in the softmax, and each row
# still sums to 1:
#
# .. math:: \alpha_{ts} = \frac{\exp a_{ts}}{\sum_{s' \le t} \exp a_{ts'}}
#
# The first word attends to itself alone, so its one weight is 1.
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
# Do later words leak? Two models of four layers with the same sizes read a text of eight words.
# Then its sixth word is replaced. Without a mask, every output changes. With the causal mask, those
# of the first five positions stay the same to the last bit.
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
figure = bars(places, moved, "Place in the text", "Greatest change of the output")
figure.savefig(options.out / "moved.png", dpi=150)
figure

# %%
# Masks to choose from
# --------------------
# Rows are queries, columns are keys. A mask here is an object, not a matrix: a rule that answers
# for any pair, so that a long text needs no square of bools. ``&``, ``|`` and ``~`` combine masks.
#
# - ``window(3)``: the keys less than three positions away.
# - ``prefix(3)``: all queries see the first three keys, such as a question before its answer.
# - ``segments``: two texts share a row, and neither sees the other.
# - causal and window: the sliding window of long language models.
# - causal or prefix: the question is read in both directions, the answer generated in one.
# - causal and segments: two texts in one row for a language model.
# - ``chunks(4)``: each chunk of four positions by itself.
# - ``window(2) | prefix(2)``: neighbors, and two keys for all queries, as in Longformer.
#
# A mask of your own is a class with ``on``, from positions to bools. ``EverySecond`` makes a window
# dilated. With ``ChunkEnds`` all queries also see the last position of each chunk, which can sum it
# up.


class EverySecond(masks.Mask):
    def on(self, grid):
        return (grid.key_positions() - grid.query_positions()) % 2 == 0  # (t, s)


class ChunkEnds(masks.Mask):
    def on(self, grid):
        return grid.key_positions() % 4 == 3  # (1, s)


# %%
# Twelve masks over eight queries and eight keys:
two_texts = masks.segments([[0, 0, 0, 0, 0, 1, 1, 1]])
shown = {
    "causal()": masks.causal(),
    "window(3)": masks.window(3),
    "prefix(3)": masks.prefix(3),
    "segments(...)": two_texts,
    "causal() & window(3)": masks.causal() & masks.window(3),
    "causal() | prefix(3)": masks.causal() | masks.prefix(3),
    "causal() & segments(...)": masks.causal() & two_texts,
    "~window(3)": ~masks.window(3),
    "window(4) & EverySecond()": masks.window(4) & EverySecond(),
    "chunks(4)": masks.chunks(4),
    "chunks(4) | ChunkEnds()": masks.chunks(4) | ChunkEnds(),
    "window(2) | prefix(2)": masks.window(2) | masks.prefix(2),
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
# Sentences of a batch differ in length. Those beyond a greatest length are truncated, the others
# padded to a common one, and ``valid_lens`` says how many keys of each are real: here 5, 8 and 0.
# It has one length per sample of the batch, not one per row of the matrix. The last sentence is
# empty. Its queries have nothing to average, and the output is exactly 0. A softmax that only adds
# a large negative number to hidden scores would average all the padding.
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
# that was never set. By hand, with the usual :math:`-10^9` added to their scores, every output
# becomes NaN. This package replaces hidden values before the product, and the outputs are those of
# the sentence without its padding.
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
# Any attention layer takes any mask, with valid lengths or without; a query attends to a key that
# all of them allow.
layer = tfattn.MultiHeadAttention(num_heads=4, key_dim=4)
local = masks.causal() & masks.window(3)
output = layer(query=batch, value=batch, attention_mask=local, valid_lens=np.array([5, 8, 0]))
print("Output", tuple(output.shape))

# %%
# Summary
# -------
# - A causal mask hides later keys from each query. Training at all positions at once then sees what
#   generation sees, and nothing leaks, to the last bit.
# - Masks are rules that combine with ``&``, ``|`` and ``~``. Hidden keys take no part in the
#   softmax; their weights are exactly 0.
# - A query without keys pools to exactly 0, and NaN under a mask reaches no output.
#
# Questions
# ---------
# **1.** A decoder with a cache has T = 2 new queries and S = 5 keys. Which keys does each query see
# under a causal mask?
#
# .. dropdown:: Answer
#
#    The last query is aligned with the last key: the first query sees keys 1 to 4, the second 1 to
#    5. A triangle that begins at the top left would show it one and two.
#
# **2.** Four layers have the mask ``causal() & window(3)``. How far back does the last output
# depend on inputs?
#
# .. dropdown:: Answer
#
#    Each layer reaches two positions back, so four reach eight.
#
# **3.** Two texts share a row. What is wrong with ``causal() | segments(...)``?
#
# .. dropdown:: Answer
#
#    Or allows too much: the second text sees the first, which lies before it, and each text sees
#    its own later words. ``causal() & segments(...)`` is meant.
#
# **4.** A mask of floats, 0 for visible and :math:`-10^9` for hidden, is cast to bool. Which keys
# does it show?
#
# .. dropdown:: Answer
#
#    The hidden ones: 0 is False, any other number True. The meaning is inverted without a message.
#    This package refuses a float mask, and names ``bias``, which is added to scores.
#
# **5.** Write ``causal_mask``, ``padding_mask`` and ``sliding_window_mask`` yourself:
# :doc:`exercises </exercises>`.
#
# .. dropdown:: Answer
#
#    ``python -m exercises open causal_mask`` writes the task, ``check causal_mask`` checks
#    it, also with more keys than queries.
#
# Where to go next
# ----------------
# - :doc:`A Transformer that translates <transformer_translation>`: padding and causal masks in a
#   whole model.
# - :doc:`Masks </masks>`: each mask with its picture, its arguments and its cost.
# - :doc:`Long sequences </long-sequences>`: blocks that a mask hides are never computed.

# sphinx_gallery_start_ignore
result = {
    "leak": leak,
    "moved_without_mask": float(without[:5].max()),
    "pairs": pairs,
    "sees_nothing": sees_nothing,
    "lost_to_nan": lost,
}
print("result:", json.dumps(result))
# sphinx_gallery_end_ignore
