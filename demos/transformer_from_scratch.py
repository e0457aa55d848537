"""
The whole Transformer, top to bottom
====================================

Encoder, decoder, masks, loss, training and translation in about 150 lines of plain Keras, to read
from top to bottom. No layer of this package is in the model. The package's Transformer gets the
same weights and gives the same numbers, and then both are trained in the same way.
"""

# %%
# What you will learn
# -------------------
# - how to write each part as a Keras layer, with the shape at each line;
# - where the two masks go, and how padding is left out of the loss;
# - how to train the model with teacher forcing, and to translate with it word by word.
#
# Before you begin
# ----------------
# - Prerequisites: :doc:`transformer_translation`, which explains the architecture.
# - Time: 30 minutes to read, about two minutes to run on two cores.
# - ``options.seed`` is 0 and ``options.out`` the folder for figures: the script's two options.

# sphinx_gallery_thumbnail_number = 2
# sphinx_gallery_start_ignore
import argparse
import json
from pathlib import Path

# sphinx_gallery_end_ignore
import keras
import numpy as np
from keras import ops

import tfattn

# sphinx_gallery_start_ignore
from _figures import curves

parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
)
parser.add_argument("--seed", type=int, default=0, help="of everything random (default: 0)")
parser.add_argument(
    "--out",
    type=Path,
    default="out/transformer_from_scratch",
    metavar="DIR",
    help="folder for figures",
)
options = parser.parse_args()
options.out.mkdir(parents=True, exist_ok=True)
# sphinx_gallery_end_ignore
keras.utils.set_random_seed(options.seed)
registered = keras.saving.register_keras_serializable("from_scratch")  # for saved files

# %%
# Data
# ----
# Pairs of sentences from a small grammar, a tenth of them held out. Words become ids, and 0 is
# padding: every row has the same length. The decoder reads the second of the ``inputs``, which
# begins with a begin token, and is to predict ``target_out``, the same sentence one token later. To
# give it the right words so far is called teacher forcing.
train, held_out = tfattn.data.split_pairs(tfattn.data.toy_translation(14_000, options.seed))
english, french = map(tfattn.data.Vocabulary.from_sentences, zip(*train, strict=True))
length = max(len(words.split()) for pair in train + held_out for words in pair) + 1


def arrays(pairs):
    sources = [[*english.encode(source), english.end_id] for source, _ in pairs]
    targets = [[french.begin_id, *french.encode(t), french.end_id] for _, t in pairs]
    source = keras.utils.pad_sequences(sources, length, padding="post")  # (N, S)
    target = keras.utils.pad_sequences(targets, length + 1, padding="post")  # (N, T + 1)
    return (source, target[:, :-1]), target[:, 1:]  # ((N, S), (N, T)), (N, T)


inputs, target_out = arrays(train)
held_out_inputs, held_out_target = arrays(held_out)
print(f"{len(train)} pairs to learn from, {len(held_out)} held out; {length} tokens a row")

# %%
# Positions
# ---------
# Attention does not know the order of its inputs, so each token gets a vector of its position,
# sines and cosines in turn. The embeddings :math:`(B, T, D)` are multiplied by the root of D first,
# so that both have about the same size. The table :math:`(T, D)` is a constant: there is nothing to
# learn.


@registered
class PositionalEncoding(keras.layers.Layer):
    def call(self, x):  # (B, T, D)
        length, width = x.shape[1:]
        positions = np.arange(length)[:, None]  # (T, 1)
        rates = 10_000.0 ** (-np.arange(0, width, 2) / width)  # (D / 2,)
        angles = positions * rates  # (T, D / 2)
        table = np.stack([np.sin(angles), np.cos(angles)], axis=-1)  # (T, D / 2, 2)
        table = table.reshape(length, width).astype("float32")  # (T, D)
        return x * width**0.5 + table  # (B, T, D)


# %%
# Masks
# -----
# True means "may attend". The padding mask :math:`(B, 1, 1, S)` hides keys that are no words; the
# causal mask :math:`(T, T)` hides later words from each query. The axes of 1 repeat for all heads
# and queries, so both fit the scores :math:`(B, H, T, S)`, and ``&`` joins them.


def padding_mask(ids):
    return ops.not_equal(ids, 0)[:, None, None, :]  # (B, S) -> (B, 1, 1, S)


def causal_mask(length):
    places = ops.arange(length)  # (T,)
    return places[:, None] >= places  # (T, 1), (T,) -> (T, T)


print(ops.convert_to_numpy(causal_mask(4)).astype(int))

# %%
# Multi-head attention
# --------------------
# Queries come from one sequence :math:`(B, T, D)`, keys and values from another or the same one,
# :math:`(B, S, D)`. Each is mapped and split into H heads of p = D / H features. The scores are
# divided by the root of p; where the mask is False, −10⁹ makes the weight 0, since each query sees
# a key here (:doc:`scoring_functions` has the others). The heads' outputs are joined to
# :math:`(B, T, D)` and mapped once more.


@registered
class MultiHeadAttention(keras.layers.Layer):
    def __init__(self, num_heads, width, **kwargs):
        super().__init__(**kwargs)
        self.num_heads, self.width = num_heads, width
        self.to_queries, self.to_keys = keras.layers.Dense(width), keras.layers.Dense(width)
        self.to_values, self.to_output = keras.layers.Dense(width), keras.layers.Dense(width)

    def split(self, x):
        size = self.width // self.num_heads
        x = ops.reshape(x, (-1, x.shape[1], self.num_heads, size))  # (B, T, D) -> (B, T, H, p)
        return ops.transpose(x, (0, 2, 1, 3))  # (B, H, T, p)

    def call(self, query, value, attention_mask, return_weights=False):
        queries = self.split(self.to_queries(query))  # (B, H, T, p)
        keys = self.split(self.to_keys(value))  # (B, H, S, p)
        values = self.split(self.to_values(value))  # (B, H, S, p)
        scores = ops.matmul(queries, ops.transpose(keys, (0, 1, 3, 2)))  # (B, H, T, S)
        scores = scores / queries.shape[-1] ** 0.5  # (B, H, T, S)
        scores = ops.where(attention_mask, scores, -1e9)  # (B, H, T, S)
        weights = ops.softmax(scores)  # (B, H, T, S)
        pooled = ops.matmul(weights, values)  # (B, H, T, p)
        joined = ops.transpose(pooled, (0, 2, 1, 3))  # (B, T, H, p)
        joined = ops.reshape(joined, (-1, query.shape[1], self.width))  # (B, T, D)
        output = self.to_output(joined)  # (B, T, D)
        return (output, weights) if return_weights else output

    def get_config(self):
        return {**super().get_config(), "num_heads": self.num_heads, "width": self.width}


# %%
# Add & norm, feed-forward
# ------------------------
# Around each sublayer: dropout, the residual sum, layer normalization. The feed-forward network is
# two linear maps with a ReLU between, the same at each position. All of it maps :math:`(B, T, D)`
# to :math:`(B, T, D)`.


@registered
class AddNorm(keras.layers.Layer):
    def __init__(self, dropout, **kwargs):
        super().__init__(**kwargs)
        self.dropout = keras.layers.Dropout(dropout)
        self.norm = keras.layers.LayerNormalization(epsilon=1e-5)

    def call(self, x, output):
        return self.norm(x + self.dropout(output))  # (B, T, D)

    def get_config(self):
        return {**super().get_config(), "dropout": self.dropout.rate}


@registered
class FeedForward(keras.layers.Layer):
    def __init__(self, hidden_dim, width, **kwargs):
        super().__init__(**kwargs)
        self.inner = keras.layers.Dense(hidden_dim, activation="relu")
        self.outer = keras.layers.Dense(width)

    def call(self, x):
        return self.outer(self.inner(x))  # (B, T, D) -> (B, T, hidden) -> (B, T, D)

    def get_config(self):
        sizes = {"hidden_dim": self.inner.units, "width": self.outer.units}
        return {**super().get_config(), **sizes}


# %%
# A block of the encoder
# ----------------------
# Self-attention, then the feed-forward network: :math:`(B, S, D)` to :math:`(B, S, D)`.


@registered
class EncoderBlock(keras.layers.Layer):
    def __init__(self, num_heads, width, hidden_dim, dropout, **kwargs):
        super().__init__(**kwargs)
        self.sizes = {"num_heads": num_heads, "width": width}
        self.sizes |= {"hidden_dim": hidden_dim, "dropout": dropout}
        self.attention = MultiHeadAttention(num_heads, width)
        self.attention_norm = AddNorm(dropout)
        self.feed_forward = FeedForward(hidden_dim, width)
        self.feed_forward_norm = AddNorm(dropout)

    def call(self, x, padding):
        x = self.attention_norm(x, self.attention(x, x, padding))  # (B, S, D)
        return self.feed_forward_norm(x, self.feed_forward(x))  # (B, S, D)

    def get_config(self):
        return {**super().get_config(), **self.sizes}


# %%
# A block of the decoder
# ----------------------
# Between the two sublayers stands a third: queries from the target :math:`(B, T, D)`, keys and
# values from the encoder's output, ``memory`` :math:`(B, S, D)`.


@registered
class DecoderBlock(keras.layers.Layer):
    def __init__(self, num_heads, width, hidden_dim, dropout, **kwargs):
        super().__init__(**kwargs)
        self.sizes = {"num_heads": num_heads, "width": width}
        self.sizes |= {"hidden_dim": hidden_dim, "dropout": dropout}
        self.attention = MultiHeadAttention(num_heads, width)
        self.attention_norm = AddNorm(dropout)
        self.cross_attention = MultiHeadAttention(num_heads, width)
        self.cross_attention_norm = AddNorm(dropout)
        self.feed_forward = FeedForward(hidden_dim, width)
        self.feed_forward_norm = AddNorm(dropout)

    def call(self, x, memory, causal, padding):
        x = self.attention_norm(x, self.attention(x, x, causal))  # (B, T, D)
        x = self.cross_attention_norm(x, self.cross_attention(x, memory, padding))  # (B, T, D)
        return self.feed_forward_norm(x, self.feed_forward(x))  # (B, T, D)

    def get_config(self):
        return {**super().get_config(), **self.sizes}


# %%
# The model
# ---------
# From ids :math:`(B, S)` and :math:`(B, T)` to one score for each word of the target vocabulary, at
# each position: :math:`(B, T, V)`. Embeddings begin with a length of about 1. ``call`` takes
# ``training``, though no line uses it: Keras passes it on to all layers within, and without it
# ``fit`` would train without dropout.


@registered
class Transformer(keras.Model):
    def __init__(self, source_size, target_size, num_layers, block, **kwargs):
        super().__init__(**kwargs)
        self.sizes = {"source_size": source_size, "target_size": target_size}
        self.sizes |= {"num_layers": num_layers, "block": block}
        width, normal = block["width"], keras.initializers.RandomNormal
        vectors = normal(stddev=width**-0.5), normal(stddev=width**-0.5)
        self.positions = PositionalEncoding()
        self.dropout = keras.layers.Dropout(block["dropout"])
        self.source_embedding = keras.layers.Embedding(source_size, width, vectors[0])
        self.encoder = [EncoderBlock(**block) for _ in range(num_layers)]
        self.target_embedding = keras.layers.Embedding(target_size, width, vectors[1])
        self.decoder = [DecoderBlock(**block) for _ in range(num_layers)]
        self.to_logits = keras.layers.Dense(target_size)

    def encode(self, source):
        x = self.dropout(self.positions(self.source_embedding(source)))  # (B, S) -> (B, S, D)
        for block in self.encoder:
            x = block(x, padding_mask(source))  # (B, S, D)
        return x

    def decode(self, target, memory, source):
        causal = padding_mask(target) & causal_mask(target.shape[1])  # (B, 1, T, T)
        x = self.dropout(self.positions(self.target_embedding(target)))  # (B, T) -> (B, T, D)
        for block in self.decoder:
            x = block(x, memory, causal, padding_mask(source))  # (B, T, D)
        return self.to_logits(x)  # (B, T, D) -> (B, T, V)

    def call(self, inputs, training=None):
        source, target = inputs
        return self.decode(target, self.encode(source), source)

    def get_config(self):
        return {**super().get_config(), **self.sizes}


# %%
# The loss without padding
# ------------------------
# A cross-entropy at each position, :math:`(B, T)`, and its mean over real words only. The learning
# rate rises for 200 steps, and then falls along a cosine, to 0 at the last one.


@registered
def masked_loss(target, logits):  # (B, T), (B, T, V)
    losses = ops.sparse_categorical_crossentropy(target, logits, from_logits=True)  # (B, T)
    real = ops.cast(ops.not_equal(target, 0), losses.dtype)  # (B, T)
    return ops.sum(losses * real) / ops.sum(real)


def trained(model, epochs=3, batch_size=64):
    keras.utils.set_random_seed(options.seed)
    steps = epochs * -(-len(target_out) // batch_size)
    rate = keras.optimizers.schedules.CosineDecay(
        0.0, steps - 200, warmup_target=0.003, warmup_steps=200
    )
    optimizer = keras.optimizers.Adam(rate, beta_2=0.98, epsilon=1e-9)
    model.compile(optimizer, loss=masked_loss, jit_compile=False)
    valid = held_out_inputs, held_out_target
    return model.fit(
        inputs, target_out, batch_size, epochs=epochs, validation_data=valid, verbose=2
    )


# %%
# The same weights, the same numbers
# ----------------------------------
# Before training, the package's model gets the weights of this one. They stand in the same order;
# only the axes of heads are joined here. Both then score the same sentences. The last line asserts
# that they agree to :math:`10^{-4}`.
block = {"num_heads": 4, "width": 64, "hidden_dim": 128, "dropout": 0.1}
ours = Transformer(len(english), len(french), num_layers=2, block=block)
package = tfattn.Transformer(len(english), len(french), num_layers=2, **block)
few = held_out_inputs[0][:64], held_out_inputs[1][:64]
ours(few), package(few)
pairs = zip(ours.get_weights(), package.get_weights(), strict=True)
package.set_weights([mine.reshape(theirs.shape) for mine, theirs in pairs])
logits = [ops.convert_to_numpy(model(few)) for model in (ours, package)]  # (64, T, V) each
difference = float(np.abs(logits[0] - logits[1]).max())
print(f"{ours.count_params():,} weights; greatest difference of the logits {difference:.1e}")
assert difference < 1e-4

# %%
# Training both
# -------------
# ``fit`` reads all positions at once. Both models begin with the same weights, see the same batches
# and take as many steps; only the features that dropout leaves out differ.
histories = {"from scratch": trained(ours), "package": trained(package)}
losses = {name: each.history["val_loss"] for name, each in histories.items()}
figure = curves(np.arange(1, 4), losses, "Epoch", "Validation loss")
figure.axes[0].set(yscale="log", xticks=range(1, 4))
figure.savefig(options.out / "loss.png", dpi=150)
figure

# %%
# Translation
# -----------
# Greedy decoding: a row begins with the begin token, and each step writes the likeliest next word
# for all sentences, until the rows are full. What follows the first end token does not count. The
# encoder runs once, the decoder once per step, over all words again.


def greedy(model, source):
    memory = model.encode(source)  # (B, S, D)
    target = np.zeros((len(source), length + 1), "int32")  # (B, T + 1)
    target[:, 0] = french.begin_id
    for t in range(length):
        logits = model.decode(target[:, :-1], memory, source)[:, t]  # (B, V)
        target[:, t + 1] = ops.convert_to_numpy(ops.argmax(logits, axis=-1))  # (B,)
    ended = np.cumsum(target == french.end_id, axis=1) > 0  # (B, T + 1)
    return [french.decode(row) for row in np.where(ended, 0, target)[:, 1:]]


sources, references = zip(*held_out, strict=True)
translations = {
    "from scratch": greedy(ours, held_out_inputs[0]),
    "package": tfattn.translate(package, sources, english, french),
}
exact = {}
for name, written in translations.items():
    right = [mine == wanted for mine, wanted in zip(written, references, strict=True)]
    exact[name] = float(np.mean(right))
    print(f"{name}: {exact[name]:.1%} of {len(right)} held-out sentences are right to the letter")

# %%
# Where it looked
# ---------------
# The layer returns its weights on request. Here the last block's attention from French to English
# :math:`(H, T, S)`, of a sentence in which an adjective changes places.
(row,) = [i for i, s in enumerate(sources) if "black" in s and "noir" in references[i]][:1]
source, target = held_out_inputs[0][row : row + 1], held_out_inputs[1][row : row + 1]
memory = ours.encode(source)  # (1, S, D)
causal = padding_mask(target) & causal_mask(length)  # (1, 1, T, T)
x = ours.positions(ours.target_embedding(target))  # (1, T, D)
x = ours.decoder[0](x, memory, causal, padding_mask(source))  # (1, T, D)
last = ours.decoder[1]
x = last.attention_norm(x, last.attention(x, x, causal))  # (1, T, D)
_, weights = last.cross_attention(x, memory, padding_mask(source), return_weights=True)
read, written = [[*held_out[row][side].split(), "<eos>"] for side in (0, 1)]
weights = ops.convert_to_numpy(weights)[0, :, : len(written), : len(read)]  # (H, T, S)
figure = tfattn.plot.head_grid({"decoder": weights}, written, read, "French looks at English")
figure.savefig(options.out / "heads.png", dpi=150)
figure

# %%
# Saving
# ------
# A file holds what ``get_config`` returns, and the weights. The loaded model gives the same
# numbers.
ours.save(options.out / "model.keras")
loaded = keras.saving.load_model(options.out / "model.keras")
again = float(np.abs(ops.convert_to_numpy(loaded(few)) - ops.convert_to_numpy(ours(few))).max())
print(f"Greatest difference after loading: {again:.1e}")

# %%
# With this package
# -----------------
# ``tfattn.Transformer`` is the same model. Beyond these lines it has:
#
# - masks that go along with the tensors, and padding with NaN that reaches no other token;
# - long sequences block by block, without an array of T × S scores;
# - translation with caches of keys and values, beam search, sampling and rules, in one
#   compiled loop;
# - pre-norm, other scores, positions, norms and networks, as layers passed in;
# - weights of every layer by one call, export to other formats, half precision;
# - checks of shapes and arguments, with errors that name them.

# %%
# Summary
# -------
# - A Transformer is a few layers, each short: attention, sum and norm, feed-forward network.
# - Two masks are enough: padding, and later words. The loss leaves padding out too.
# - Training computes all positions at once; translation goes word by word.
#
# Questions
# ---------
# **1.** Why may the target's padding be left out of the causal mask here?
#
# .. dropdown:: Answer
#
#    Padding stands at the end, where the causal mask hides it from every real word, and the loss
#    does not count what padding predicts.
#
# **2.** What happens if the loss is a plain mean over all positions?
#
# .. dropdown:: Answer
#
#    Padding counts too. About half of the positions are padding, the model soon predicts it, and
#    the loss looks better than the translations are.
#
# Where to go next
# ----------------
# - :doc:`Finding a head <find_a_head>`: which heads a translation depends on.

# sphinx_gallery_start_ignore
result = {"difference": difference, "loaded": again, "exact_match": exact, "val_loss": losses}
print("result:", json.dumps(result))
# sphinx_gallery_end_ignore
