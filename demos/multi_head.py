"""
Multi-head attention
====================

One attention takes one weighted mean. A word often needs two things at once, say the word before it
and the subject of the sentence, and one mean of both cannot tell them apart. Multi-head attention
takes several means side by side. We write it from scratch, with all heads in one matrix product,
give one head and two heads the same task, and look where each of them looks.
"""

# %%
# What you will learn
# -------------------
# - how all heads are computed at once: the two transpositions, with the shape at each step;
# - why one head cannot do two things at once, and how two heads share the work;
# - which layers are interchangeable: this one, Keras's, and one with another score;
# - how to write the layer yourself, as a class that Keras trains and saves.
#
# Before you begin
# ----------------
# - Prerequisites: :doc:`Attention scoring functions <scoring_functions>`; ``reshape`` and
#   ``transpose`` of NumPy arrays.
# - Time: 15 minutes to read, half a minute to run on two cores.
# - ``options.seed`` is 0 and ``options.out`` the folder for figures: the script's two options.

# sphinx_gallery_thumbnail_number = 2
# sphinx_gallery_start_ignore
import argparse
import json
from pathlib import Path

# sphinx_gallery_end_ignore
import keras
import numpy as np

import tfattn

# sphinx_gallery_start_ignore
from _figures import curves

parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
)
parser.add_argument("--seed", type=int, default=0, help="of everything random (default: 0)")
parser.add_argument(
    "--out", type=Path, default="out/multi_head", metavar="DIR", help="folder for figures"
)
options = parser.parse_args()
options.out.mkdir(parents=True, exist_ok=True)
# sphinx_gallery_end_ignore
keras.utils.set_random_seed(options.seed)

# %%
# Heads are slices of one product
# -------------------------------
# Each head :math:`i` has matrices of its own for queries, keys and values. Its attention :math:`f`
# can be additive or the dot product. The outputs are concatenated, and projected by one more
# matrix:
#
# .. math::
#
#    h_i = f(W_i^{(q)} q, \; W_i^{(k)} k, \; W_i^{(v)} v) \in \mathbb{R}^{p_v}, \qquad
#    \mathrm{output} = W_o \begin{bmatrix} h_1 \\ \vdots \\ h_h \end{bmatrix}
#    \in \mathbb{R}^{p_o}
#
# The projections give each head a subspace of its own, so that the heads can attend to different
# things, say one to near words and one to far words. A single head would average these away.
#
# For queries, keys and values of widths :math:`d_q`, :math:`d_k` and :math:`d_v`, the shapes are
# :math:`W_i^{(q)} \in \mathbb{R}^{p_q \times d_q}`,
# :math:`W_i^{(k)} \in \mathbb{R}^{p_k \times d_k}`,
# :math:`W_i^{(v)} \in \mathbb{R}^{p_v \times d_v}` and
# :math:`W_o \in \mathbb{R}^{p_o \times h p_v}`.
#
# Written so, it is a loop over heads. But where all heads have the same width p, their matrices can
# stand side by side in one, so that one product makes the queries of all heads, and a head is a
# slice of its columns. :math:`(B, T, H \cdot p)` is reshaped to :math:`(B, T, H, p)` and transposed
# to :math:`(B, H, T, p)`, and all heads run at once. The usual choice is
# :math:`p_q h = p_k h = p_v h = p_o`, here H · p = D, which costs about as much as one head of
# width D.
#
# .. figure:: /drawings/multi-head.svg
#    :alt: Query, key and value are projected and split into heads, which attend and are joined.
#
#    Multi-head attention: project, split into heads, attend, join, project, with every shape.

# %%
# From scratch
# ------------
# In plain NumPy, with B = 2 sentences of T = 7 tokens, D = 12 features and H = 4 heads of p = 3.
# Heads are stacked along the batch, as in *Dive into Deep Learning*, where the two functions are
# called ``transpose_qkv`` and ``transpose_output``. A valid length holds for every head of its
# sentence, so each is repeated H times. The last line asserts that the layer has the same output.
heads, size = 4, 3
width = heads * size  # 12
x = np.random.default_rng(options.seed).normal(size=(2, 7, width))
x = x.astype("float32")  # (2, 7, 12)
lengths = np.array([7, 4])  # (2,)
layer = tfattn.MultiHeadAttention(heads, key_dim=size, use_bias=False)
output = layer(query=x, value=x, valid_lens=lengths)
output = keras.ops.convert_to_numpy(output)  # (2, 7, 12)
w_query, w_key, w_value, w_output = (
    w.reshape(width, width)  # (12, 4, 3) or (4, 3, 12) -> (12, 12)
    for w in layer.get_weights()
)


def split_heads(x):
    x = x.reshape(2, 7, heads, size)  # (2, 7, 12) -> (2, 7, 4, 3): B, T, H, p
    x = x.transpose(0, 2, 1, 3)  # (2, 4, 7, 3): B, H, T, p
    return x.reshape(2 * heads, 7, size)  # (8, 7, 3): B · H, T, p


def join_heads(x):
    x = x.reshape(2, heads, 7, size)  # (8, 7, 3) -> (2, 4, 7, 3): B, H, T, p
    x = x.transpose(0, 2, 1, 3)  # (2, 7, 4, 3): B, T, H, p
    return x.reshape(2, 7, width)  # (2, 7, 12): B, T, H · p


queries = split_heads(x @ w_query)  # (2, 7, 12) @ (12, 12) -> (8, 7, 3)
keys = split_heads(x @ w_key)  # (8, 7, 3)
values = split_heads(x @ w_value)  # (8, 7, 3)
scores = queries @ keys.transpose(0, 2, 1)  # (8, 7, 3) @ (8, 3, 7) -> (8, 7, 7)
scores = scores / size**0.5  # (8, 7, 7)
repeated = np.repeat(lengths, heads)  # (2,) -> (8,): 7 7 7 7 4 4 4 4
real = np.arange(7) < repeated[:, None, None]  # (8, 1, 7)
scores = np.where(real, scores, -np.inf)  # (8, 7, 7)
powers = np.exp(scores - scores.max(axis=-1, keepdims=True))  # (8, 7, 7)
shares = powers / powers.sum(axis=-1, keepdims=True)  # (8, 7, 7), each row sums to 1
pooled = shares @ values  # (8, 7, 7) @ (8, 7, 3) -> (8, 7, 3)
joined = join_heads(pooled)  # (8, 7, 3) -> (2, 7, 12)
from_scratch = joined @ w_output  # (2, 7, 12) @ (12, 12) -> (2, 7, 12)
difference = float(np.abs(from_scratch - output).max())
print(f"From scratch against the layer: greatest difference {difference:.1e}")
np.testing.assert_allclose(from_scratch, output, rtol=0, atol=1e-6)

# %%
# The layer differs in three ways. Heads keep an axis of their own, :math:`(B, H, T, p)`, so that a
# mask broadcasts over them instead of being repeated, and several heads can share the keys of one
# (``num_key_value_heads``). A query with no key left to see gets 0; here its row would be
# :math:`-\infty - (-\infty)`, which is NaN. And for long sequences the layer never stores all
# :math:`T \times T` scores: it :doc:`streams them </how-it-streams>` block by block.

# %%
# Keras's layer gives the same
# ----------------------------
# Names, order of the weights and numbers are those of ``keras.layers.MultiHeadAttention``, so its
# weights fit.
theirs = keras.layers.MultiHeadAttention(heads, size, use_bias=False)
theirs.build(x.shape, x.shape)
theirs.set_weights(layer.get_weights())
real = np.arange(7) < lengths[:, None]  # (2, 7)
theirs_output = keras.ops.convert_to_numpy(theirs(x, x, attention_mask=real[:, None, :]))
keras_difference = float(np.abs(theirs_output - output).max())
print(f"Keras's layer against this one: greatest difference {keras_difference:.1e}")

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
figure = curves(np.arange(1, 9), losses, "Epoch", "Loss")
figure.savefig(options.out / "loss.png", dpi=150)
figure

# %%
# Heads that share the work
# -------------------------
# One head has to divide its weight between the two letters. It gets their mean, and from a mean it
# can only guess which letter was which. Its 71% are measured after eight epochs, while its loss is
# still falling; after 40 epochs it reaches 82% to 83% (three seeds). Two heads reach 100% within
# eight. Of two heads, one looks at the letter before and the other at the marked one. The falling
# loss alone leads them there; which head takes which work is left to chance. The star is the mark.
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
# Write the layer yourself
# ------------------------
# As a Keras layer the same makes its four weights in ``build``, with ``add_weight``, so that Keras
# trains and saves them; computes in ``call``; and ``get_config`` has the arguments to make it anew
# when a model is loaded. ``einsum`` takes the place of the transpositions: ``btd,dhp->bhtp``
# multiplies by the matrix of all heads and moves their axis forward. ``valid_lens`` hides the
# padding from every query, ``use_causal_mask`` what comes after it.
@keras.saving.register_keras_serializable("tutorials")
class MultiHeadAttention(keras.layers.Layer):
    def __init__(self, num_heads, key_dim, **kwargs):
        super().__init__(**kwargs)
        self.num_heads, self.key_dim = num_heads, key_dim

    def build(self, query_shape, value_shape):
        of_query, of_value = query_shape[-1], value_shape[-1]
        heads = self.num_heads, self.key_dim  # H, p
        self.w_query = self.matrix("query", (of_query, *heads), of_query)
        self.w_key = self.matrix("key", (of_value, *heads), of_value)
        self.w_value = self.matrix("value", (of_value, *heads), of_value)
        self.w_output = self.matrix("output", (*heads, of_query), of_query)

    def matrix(self, name, shape, width):
        # Xavier's limit for D × (H · p). Keras's own would take three axes for a convolution.
        limit = (6 / (width + self.num_heads * self.key_dim)) ** 0.5
        start = keras.initializers.RandomUniform(-limit, limit)
        return self.add_weight(name=name, shape=shape, initializer=start)

    def call(self, query, value, valid_lens=None, use_causal_mask=False):
        queries = keras.ops.einsum("btd,dhp->bhtp", query, self.w_query)
        keys = keras.ops.einsum("bsd,dhp->bhsp", value, self.w_key)
        values = keras.ops.einsum("bsd,dhp->bhsp", value, self.w_value)
        scores = keras.ops.einsum("bhtp,bhsp->bhts", queries, keys) / self.key_dim**0.5
        place = keras.ops.arange(keras.ops.shape(value)[1])  # (S,)
        if valid_lens is not None:
            lengths = keras.ops.cast(valid_lens, "int32")[:, None, None, None]  # (B, 1, 1, 1)
            scores = keras.ops.where(place < lengths, scores, -np.inf)
        if use_causal_mask:
            scores = keras.ops.where(place <= place[:, None], scores, -np.inf)
        pooled = keras.ops.einsum("bhts,bhsp->bthp", keras.ops.softmax(scores), values)
        return keras.ops.einsum("bthp,hpd->btd", pooled, self.w_output)

    def get_config(self):
        return {**super().get_config(), "num_heads": self.num_heads, "key_dim": self.key_dim}


# %%
# It learns the task with the two questions, in the model from above:
own = MultiHeadAttention(num_heads=2, key_dim=8)
letter, mark = keras.Input((length,), dtype="int32"), keras.Input((length,), dtype="int32")
x = keras.layers.Embedding(letters, 16)(letter) + keras.layers.Embedding(2, 16)(mark)
x = tfattn.LearnedPositionalEncoding(length)(x)
x = keras.layers.Dense(2 * letters)(own(query=x, value=x))  # (B, 8, 40)
model = keras.Model((letter, mark), keras.layers.Reshape((length, 2, letters))(x))
model.compile(keras.optimizers.Adam(0.02), loss)
model.fit((ids[seen], marks[seen]), answers[seen], 64, epochs=8, verbose=0)
answered = model.predict((ids[held_out], marks[held_out]), verbose=0).argmax(axis=-1)
own_accuracy = float(np.mean(answered == answers[held_out]))
print(f"Two heads of our own: {own_accuracy:.0%} of the answers are right")

# %%
# With the same weights both layers give the same, and the same gradients. A step of gradient
# descent at a rate of 1 moves each weight by its gradient, so we let both take one such step on the
# mean squared error of two sentences, 7 and 4 words long, under a causal mask. Our layer is made
# anew from its config; the weights of the package's layer are in the same order. Printed are the
# outputs and the gradients of the four matrices.
sentences, targets = np.random.default_rng(options.seed).normal(size=(2, 2, 7, 16))
both = []
for each in (
    MultiHeadAttention.from_config(own.get_config()),
    tfattn.MultiHeadAttention(num_heads=2, key_dim=8, use_bias=False),
):
    words, lengths = keras.Input((7, 16)), keras.Input((), dtype="int32")
    x = each(query=words, value=words, valid_lens=lengths, use_causal_mask=True)
    model = keras.Model((words, lengths), x)
    each.set_weights(own.get_weights())
    model.compile(keras.optimizers.SGD(1.0), "mean_squared_error")
    outputs = model.predict_on_batch((sentences, np.array([7, 4])))  # (2, 7, 16)
    model.train_on_batch((sentences, np.array([7, 4])), targets)
    moves = [old - new for old, new in zip(own.get_weights(), each.get_weights(), strict=True)]
    both.append([outputs, *moves])
own_difference = []
for name, ours, theirs in zip(("outputs", *"QKVO"), *both, strict=True):
    own_difference.append(float(np.abs(ours - theirs).max() / np.abs(theirs).max()))
    print(f"{name}: up to {np.abs(theirs).max():.2f}, and {own_difference[-1]:.0e} of it apart")
assert max(own_difference) < 1e-5

# %%
# What the package's layer does beyond it:
#
# - biases, dropout, any score, positions in each head, fewer heads of keys than of queries;
# - every mask of this package, those that Keras hands on from layer to layer included, and the
#   weights on request;
# - a query with no key to see gets 0, here NaN; and a NaN under a mask reaches nothing, where 0
#   times NaN is NaN here;
# - long sequences in blocks, without all T × S scores; weights of Keras's layer, LoRA and
#   quantization.
#
# To take the mask that Keras hands on, give ``call`` an argument ``value_mask=None``, which Keras
# fills, hide scores by ``keras.ops.where(value_mask[:, None, None], scores, -np.inf)``, and set
# ``self.supports_masking = True`` in ``__init__``. Now write one: ``python -m exercises open
# MultiHeadAttention`` writes the task of such a layer, with keys of their own, and ``check
# MultiHeadAttention`` trains, saves and loads yours (:doc:`exercises </exercises>`).

# %%
# With this package
# -----------------
# One layer, with the arguments of Keras's, and any score.
layer = tfattn.MultiHeadAttention(num_heads=4, key_dim=16, score=tfattn.AdditiveScore(units=8))
tokens = np.ones((2, 7, 64), "float32")
output = layer(query=tokens, value=tokens, valid_lens=np.array([7, 4]))
print("Output", tuple(output.shape))

# %%
# Summary
# -------
# - Each head attends with matrices of its own; the outputs are concatenated and projected.
# - Heads of one width run at once: project, reshape, transpose, attend, transpose back, reshape.
# - One mean cannot hold two letters apart. Heads take different means, and training divides the
#   work among them.
#
# Questions
# ---------
# **1.** How many weights has the layer without biases, for one head of width 16 and for four of
# width 4, with D = 16?
#
# .. dropdown:: Answer
#
#    :math:`4 D^2 = 1024` both times: three matrices of 16 × (H · p) and one of (H · p) × 16. The
#    number of heads divides the columns and adds none.
#
# **2.** Why not reshape :math:`(B, T, H \cdot p)` to :math:`(B \cdot H, T, p)` at once, without the
# transposition?
#
# .. dropdown:: Answer
#
#    ``reshape`` keeps the order in memory, where all heads of a token come before the next token.
#    The first "head" would be the four heads of token 0, then those of token 1: tokens and heads
#    are mixed, and nothing complains, since the shape is right.
#
# **3.** The lengths are repeated by ``np.repeat``. What would ``np.tile`` do?
#
# .. dropdown:: Answer
#
#    It gives 7 4 7 4 7 4 7 4. The rows are ordered 4 heads of sentence 0, then 4 heads of sentence
#    1, so half of the heads would have the length of the other sentence.
#
# **4.** One head could weigh the letter before with 0.6 and the marked one with 0.4. Why does that
# not solve the task?
#
# .. dropdown:: Answer
#
#    Both answers are linear maps of the same mean. A map that prefers the letter with the larger
#    share names the first one right. The other answer would have to prefer the letter with the
#    smaller share, but not one with none, and a linear map of the mean cannot do that for all
#    letters.
#
# **5.** Write ``split_heads``, ``merge_heads`` and ``repeat_key_heads`` yourself.
#
# .. dropdown:: Answer
#
#    ``python -m exercises open split_heads`` writes the task,
#    ``python -m exercises check split_heads`` checks your function:
#    :doc:`all exercises </exercises>`.
#
# Where to go next
# ----------------
# - :doc:`Self-attention by hand <self_attention_by_hand>`: one head, with every number written out.
# - :doc:`Finding a head <find_a_head>`: heads of a trained model, and what breaks without them.
# - :doc:`Where write-ups go wrong </where-write-ups-go-wrong>`: a torch class of multi-head
#   attention that cannot run; the names of this package are in :doc:`coming from PyTorch
#   </coming-from-pytorch>`.

# sphinx_gallery_start_ignore
result = {
    "difference": difference,
    "keras_difference": keras_difference,
    "accuracy": accuracy,
    "head_agreement": agreement,
    "own_accuracy": own_accuracy,
    "own_difference": own_difference,
}
print("result:", json.dumps(result))
# sphinx_gallery_end_ignore
