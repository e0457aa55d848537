"""
Multi-head attention
====================

One attention takes one weighted mean. A word often needs two things at once, say the word before it
and the subject of the sentence, and one mean of both cannot tell them apart. Multi-head attention
takes several means side by side. We cut its heads out of one matrix product, give one head and two
heads the same task, and look where each of them looks.
"""

# sphinx_gallery_thumbnail_number = 2
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
    "--out", type=Path, default="out/multi_head", metavar="DIR", help="folder for figures"
)
options = parser.parse_args()
options.out.mkdir(parents=True, exist_ok=True)
keras.utils.set_random_seed(options.seed)

# %%
# Heads are slices of one product
# -------------------------------
# Each head :math:`i` has matrices of its own for queries, keys and values. It can be any attention,
# additive or dot product. The outputs are concatenated, and projected by one more matrix:
#
# .. math::
#
#    \mathrm{head}_i = \mathrm{attention}(x W_i^{(q)}, x W_i^{(k)}, x W_i^{(v)}), \qquad
#    \mathrm{output} = [\mathrm{head}_1, \ldots, \mathrm{head}_H] \, W_o
#
# Written so, it is a loop over heads. But where all heads have the same width p, their matrices can
# stand side by side in one, so that one product makes the queries of all heads, and a head is a
# slice of its columns. The layer does so: :math:`(B, T, H \cdot p)` is reshaped to
# :math:`(B, T, H, p)` and turned to :math:`(B, H, T, p)`, and all heads run at once. The usual
# choice is H · p = D for queries, keys, values and output, which costs about as much as one head
# of width D. Here H = 4, p = 4 and D = 16. Valid lengths hold for every head alike. We do it head
# by head, and compare.
heads, width = 4, 16
x = np.random.default_rng(options.seed).normal(size=(2, 7, width)).astype("float32")  # (2, 7, 16)
lengths = np.array([7, 4])
layer = tfattn.MultiHeadAttention(num_heads=heads, key_dim=width // heads, use_bias=False)
output = keras.ops.convert_to_numpy(layer(query=x, value=x, valid_lens=lengths))
w_query, w_key, w_value, w_output = layer.get_weights()  # (16, 4, 4) three times, (4, 4, 16)

queries, keys, values = (x @ w.reshape(width, width) for w in (w_query, w_key, w_value))
joined = []
for head in range(heads):
    columns = slice(head * 4, head * 4 + 4)
    pooled = tfattn.attend(
        query=queries[..., columns],
        key=keys[..., columns],
        value=values[..., columns],
        mask=tfattn.masks.padding(lengths),  # one length a sentence, for every head
    )
    joined.append(keras.ops.convert_to_numpy(pooled))  # (2, 7, 4)
by_slices = np.concatenate(joined, axis=-1) @ w_output.reshape(width, width)
slices_difference = float(np.abs(by_slices - output).max())
print(f"Head by head against the layer: greatest difference {slices_difference:.1e}")

# %%
# Keras's layer gives the same
# ----------------------------
# Names, order of the weights and numbers are those of ``keras.layers.MultiHeadAttention``, so its
# weights fit.
theirs = keras.layers.MultiHeadAttention(heads, width // heads, use_bias=False)
theirs.build(x.shape, x.shape)
theirs.set_weights(layer.get_weights())
real = np.arange(7) < lengths[:, None]  # (2, 7)
theirs_output = keras.ops.convert_to_numpy(theirs(x, x, attention_mask=real[:, None, :]))
keras_difference = float(np.abs(theirs_output - output).max())
print(f"Keras's layer against ours: greatest difference {keras_difference:.1e}")

# %%
# A task with two questions
# -------------------------
# A row of eight letters, one of them marked. Every place has to name two letters: the one before it
# (the first place names itself), and the marked one. There is little else in the model: letters,
# marks and positions are embedded and added (a later tutorial is about positions), then one
# attention layer, and one linear map to the two answers.
#
# One head has all the width, or two heads have half of it each: as many weights. The third model
# has two heads with an additive score, since any score goes into the layer.
letters, length, rows = 20, 8, 4096
random = np.random.default_rng(options.seed)
ids = random.integers(letters, size=(rows, length))  # (4096, 8)
marked = random.integers(length, size=rows)
marks = np.eye(length, dtype=int)[marked]  # (4096, 8), a 1 in each row
before = np.array([0, *range(length - 1)])  # the place before each place
answers = np.stack([ids[:, before], np.repeat(ids[marks == 1][:, None], length, axis=1)], axis=-1)

layers = {
    "one head": tfattn.MultiHeadAttention(num_heads=1, key_dim=16),
    "two heads": tfattn.MultiHeadAttention(num_heads=2, key_dim=8),
    "two additive heads": tfattn.MultiHeadAttention(
        num_heads=2, key_dim=8, score=tfattn.AdditiveScore(units=32)
    ),
}
seen, held_out = slice(512, None), slice(512)
losses, accuracy, weights = {}, {}, {}
for name, attention in layers.items():
    letter, mark = keras.Input((length,), dtype="int32"), keras.Input((length,), dtype="int32")
    x = keras.layers.Embedding(letters, 16)(letter) + keras.layers.Embedding(2, 16)(mark)
    x = tfattn.LearnedPositionalEncoding(length)(x)
    x = keras.layers.Dense(2 * letters)(attention(query=x, value=x))  # (B, 8, 40)
    model = keras.Model((letter, mark), keras.layers.Reshape((length, 2, letters))(x))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.02), loss)
    history = model.fit((ids[seen], marks[seen]), answers[seen], 64, epochs=8, verbose=0)
    losses[name] = history.history["loss"]
    answered = model.predict((ids[held_out], marks[held_out]), verbose=0).argmax(axis=-1)
    accuracy[name] = float(np.mean(answered == answers[held_out]))
    found = tfattn.attention_weights(model, (ids[held_out], marks[held_out]))
    (weights[name],) = found.values()  # (512, H, 8, 8)
    print(f"{name:18}: {accuracy[name]:.0%} of the answers are right")
figure = tfattn.plot.curves(np.arange(1, 9), losses, "Epoch", "Loss")
figure.savefig(options.out / "loss.png", dpi=150)
figure

# %%
# Heads that share the work
# -------------------------
# One head has to divide its weight between the two letters. What it gets is their mean, and from a
# mean it can only guess which letter was which. Of two heads, one looks at the letter before and
# the other at the marked one. Nobody told them so: that is how the loss falls. Which head takes
# which work is left to chance. The star is the mark.
row = int(np.argmax(marked[held_out] == 4))
words = [chr(ord("A") + letter) for letter in ids[row]]
words[marked[row]] += "*"
panels = np.concatenate([each[row] for each in weights.values()])  # (5, 8, 8)
titles = [f"{name}: head {head}" for name in layers for head in range(layers[name].num_heads)]
figure = tfattn.plot.heatmaps(panels, words, words, titles=titles, columns=3)
figure.savefig(options.out / "heads.png", dpi=150)

# A head's weight on the letter before and on the marked one, where these are two places.
place = np.arange(length)
apart = before != marked[held_out, None]  # (512, 8)
agreement = {}
for name, each in weights.items():  # (512, H, 8, 8)
    on_before = each[:, :, place, before].swapaxes(1, 2)[apart]  # (N, H)
    on_mark = each[np.arange(512), :, :, marked[held_out]].swapaxes(1, 2)[apart]  # (N, H)
    agreement[name] = np.stack([on_before.mean(axis=0), on_mark.mean(axis=0)], axis=1).tolist()
    for head, (first, second) in enumerate(agreement[name]):
        weight = f"weight {first:.2f} on the letter before, {second:.2f} on the mark"
        print(f"{name}: head {head}: {weight}")
figure

# %%
# With this package
# -----------------
# One layer, with the arguments of Keras's, and any score.
layer = tfattn.MultiHeadAttention(num_heads=4, key_dim=16, score=tfattn.AdditiveScore(units=8))
tokens = np.ones((2, 7, 64), "float32")
output = layer(query=tokens, value=tokens, valid_lens=np.array([7, 4]))
print("Output", tuple(output.shape))

result = {
    "slices_difference": slices_difference,
    "keras_difference": keras_difference,
    "accuracy": accuracy,
    "head_agreement": agreement,
}
print("result:", json.dumps(result))
