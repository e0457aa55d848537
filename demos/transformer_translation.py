"""
A Transformer that translates
=============================

English to French, from a small grammar. A dictionary is not enough there: adjectives change sides,
articles agree with a noun that stands elsewhere, and negation wraps the verb. A small Transformer
learns it in a minute or two on two cores. Then we see where each head of each layer looked, as
pictures and as a page to explore, and write the blocks of encoder and decoder as Keras layers.
"""

# %%
# What you will learn
# -------------------
# - how the parts of the earlier tutorials make a Transformer, with the shape at each arrow;
# - how to train one from nothing, and to translate with it word by word;
# - what each head of encoder, decoder and cross-attention looks at;
# - how to write the blocks of encoder and decoder as layers that Keras trains and saves.
#
# Before you begin
# ----------------
# - Prerequisites: :doc:`multi_head`, :doc:`positions`, :doc:`residuals_and_norms` and
#   :doc:`masked_attention`.
# - Time: 30 minutes to read, two or three minutes to run on two cores.
# - ``options.seed`` is 0 and ``options.out`` the folder for figures: the script's two options.

# sphinx_gallery_thumbnail_number = 2
# sphinx_gallery_start_ignore
import argparse
import json
import time
from pathlib import Path

# sphinx_gallery_end_ignore
import keras
import numpy as np

import tfattn

# sphinx_gallery_start_ignore
parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
)
parser.add_argument("--seed", type=int, default=0, help="of everything random (default: 0)")
parser.add_argument(
    "--out",
    type=Path,
    default="out/transformer_translation",
    metavar="DIR",
    help="folder for figures",
)
options = parser.parse_args()
options.out.mkdir(parents=True, exist_ok=True)
began = time.perf_counter()
# sphinx_gallery_end_ignore
keras.utils.set_random_seed(options.seed)

# %%
# Data
# ----
# Pairs of sentences, a tenth of them held out: the model never learns from these. A vocabulary
# turns words into ids. An element of ``batches`` is ``((source, target_in), target_out)``: the
# model reads the English sentence and the French words so far, and is to predict the next French
# word, at every place of the sentence at once. Sentences of similar length share a batch, of at
# most 768 tokens on a side, so that little of it is padding.
train, held_out = tfattn.data.split_pairs(tfattn.data.toy_translation(14_000, options.seed))
english, french = map(tfattn.data.Vocabulary.from_sentences, zip(*train, strict=True))
batches = tfattn.data.token_batches(train, english, french, 768, shuffle_seed=options.seed)
held_out_batches = tfattn.data.token_batches(held_out, english, french, 1024)
print(f"{len(train)} pairs to learn from, {len(held_out)} held out. The first of them:")
print("  " + " | ".join(train[0]))
print(f"{len(english)} English and {len(french)} French words and marks")

# %%
# Model
# -----
# Here the tutorials come together. A Transformer has no recurrence and no convolution over words:
# only attention carries information from one word to another, and no word waits for the one before.
# So in training all places are computed at once. That saved time: the paper's base model was
# trained in 12 hours on eight P100 GPUs. From English to German it took a seventh of the operations
# of GNMT, a recurrent model, :math:`3.3 \cdot 10^{18}` against :math:`2.3 \cdot 10^{19}`, for more
# BLEU, 27.3 against 24.6 (Vaswani et al. 2017, arXiv:1706.03762, table 2).
#
# The encoder turns the words :math:`(x_1, \ldots, x_n)` into as many vectors
# :math:`(z_1, \ldots, z_n)`. From these the decoder generates the translation
# :math:`(y_1, \ldots, y_m)` one word at a time, and reads at each step the words so far: it is
# autoregressive. In training its input is the target sentence shifted right by one: a mark of the
# beginning is put in front and the last token is left out, so that each position predicts the next
# token.
#
# The encoder is a stack of N blocks. A block has two sublayers:
#
# 1. multi-head self-attention, where each English word looks at all English words;
# 2. a feed-forward network, two linear maps with a ReLU between,
#    :math:`\max(0, x W_1 + b_1) W_2 + b_2`. It is the same at every position, and another one in
#    each block.
#
# The decoder is a stack of N blocks too, with three sublayers each:
#
# 1. masked self-attention, where each French word looks at those before it and at itself;
# 2. cross-attention: the queries come from the decoder, keys and values are the encoder's output;
# 3. a feed-forward network.
#
# Each sublayer is wrapped in a residual and a layer normalization,
# :math:`\mathrm{LN}(x + \mathrm{sublayer}(x))`. A residual adds input and output, so each sublayer,
# and the embedding, has outputs in :math:`\mathbb{R}^d`. The embeddings are multiplied by the root
# of the width d, and positional encodings are added. A final linear layer and a softmax predict the
# next word. In the paper one matrix serves both embeddings and that map
# (``share_embeddings=True``); here each language has a vocabulary of its own, and so its own
# matrix.
#
# .. figure:: /drawings/transformer.svg
#    :alt: The encoder on the left, the decoder on the right, with the shape at each arrow.
#
#    The Transformer: a block of the encoder, a block of the decoder, and the shape at each arrow.
#
# The base model of the paper has N = 6, d = 512, 8 heads and an inner width of 2048 in the
# feed-forward network: the defaults of ``tfattn.Transformer``. Ours is small.
model = tfattn.Transformer(
    len(english), len(french), num_layers=2, width=128, num_heads=4, hidden_dim=256, dropout=0.1
)

# %%
# Training
# --------
# The learning rate rises for 400 steps, then falls: early steps on random weights must be small.
# Adam averages the weights over about a hundred steps, and validation looks at that average, which
# ``fit`` leaves in the model. The loss is smoothed: it asks for 0.9 of the probability on the right
# word, so it never comes near zero. ``jit_compile=False``, for XLA would compile each of the twenty
# shapes of the batches anew.
rate = tfattn.InverseSquareRootSchedule(peak=0.0018, warmup_steps=400)
model.compile(
    keras.optimizers.Adam(rate, beta_2=0.98, epsilon=1e-9, use_ema=True, ema_momentum=0.99),
    loss=tfattn.MaskedCrossentropy(label_smoothing=0.1),
    metrics=[tfattn.MaskedAccuracy(name="accuracy")],
    jit_compile=False,
)
history = model.fit(
    batches,
    validation_data=held_out_batches,
    epochs=5,
    shuffle=False,  # the batches shuffle themselves
    verbose=2,
    callbacks=[tfattn.training.AveragedWeights()],
)
figure = tfattn.plot.loss_curve(history)
figure.savefig(options.out / "loss.png", dpi=150)
figure

# %%
# Translation
# -----------
# The model writes word by word: each time the likeliest one, until it predicts the end of the
# sentence. BLEU counts the n-grams, of one to four words, that a translation shares with its
# reference; 100 is the same text.
sources, references = zip(*held_out, strict=True)
translations = tfattn.translate(model, sources, english, french)
bleu = tfattn.training.corpus_bleu(translations, references)
exact = np.mean([ours == theirs for ours, theirs in zip(translations, references, strict=True)])
print("\nTranslations of held-out sentences:")
for source, translation, reference in list(zip(sources, translations, references, strict=True))[:5]:
    print(f"  source     {source}\n  model      {translation}\n  reference  {reference}\n")
print(f"BLEU on {len(sources)} held-out sentences: {bleu:.2f}; {exact:.1%} are right to the letter")

# %%
# Where the encoder looked
# ------------------------
# One call runs the model and returns the weights of all its attention layers, by path. We take the
# longest of the five sentences. First the encoder, where English words look at English words: a row
# of pictures for each layer, a column for each head. Heads do different work: compare how far from
# the diagonal their dark cells lie.
source, translation = max(zip(sources[:5], translations[:5], strict=True), key=lambda p: len(p[0]))
source_ids = [*english.encode(source), english.end_id]
target_ids = [*french.encode(translation), french.end_id]
target_in_ids = [french.begin_id, *target_ids[:-1]]
read = [english.words[i] for i in source_ids]
written = [french.words[i] for i in target_ids]
written_before = [french.words[i] for i in target_in_ids]
weights = tfattn.attention_weights(model, (np.array([source_ids]), np.array([target_in_ids])))
encoder = {path: w[0] for path, w in weights.items() if "encoder" in path}  # (H, S, S) each
decoder = {path: w[0] for path, w in weights.items() if "decoder" in path and "self" in path}
between = {path: w[0] for path, w in weights.items() if "cross" in path}  # (H, T, S) each
figure = tfattn.plot.head_grid(encoder, read, read, "Encoder: English looks at English")
figure.savefig(options.out / "encoder.png", dpi=150)
figure

# %%
# The decoder, which may not look ahead
# -------------------------------------
# Each row is the French word that is written next, each column a word that was written before it,
# from the mark of the beginning on. Above the diagonal all is 0: that is the causal mask.
figure = tfattn.plot.head_grid(decoder, written, written_before, "Decoder: French looks back")
figure.savefig(options.out / "decoder.png", dpi=150)
figure

# %%
# Cross-attention
# ---------------
# Here the French word that is written next looks at the English sentence. Follow an adjective that
# comes after its noun: its row has weight on its English word, to the left of the noun, and in some
# heads on the noun, with which it has to agree.
figure = tfattn.plot.head_grid(between, written, read, "Cross-attention: French looks at English")
figure.savefig(options.out / "between.png", dpi=150)
figure

# %%
# The same as lines, the mean of the last layer's heads. Where words change places, lines cross.
last = list(between.values())[-1].mean(axis=0)  # (H, T, S) -> (T, S)
figure = tfattn.plot.flow(last, written, read, "Last layer, mean of the heads")
figure.savefig(options.out / "flow.png", dpi=150)
figure

# %%
# The feed-forward network is two convolutions
# --------------------------------------------
# A block of the encoder is written from scratch in :doc:`residuals_and_norms`. Here is its second
# sublayer again, in another way. A convolution with a kernel of one word applies one linear map at
# every position, and so does the feed-forward network: it equals two convolutions of kernel size 1,
# with a ReLU between. The last line asserts it.
feed_forward = tfattn.PositionwiseFeedForward(hidden_dim=256)
tokens = np.random.default_rng(options.seed).normal(size=(2, 7, 128))  # (B, T, D)
tokens = tokens.astype("float32")  # (2, 7, 128)
by_layer = keras.ops.convert_to_numpy(feed_forward(tokens))  # (2, 7, 128)
w_1, b_1, w_2, b_2 = feed_forward.get_weights()
w_1, w_2 = w_1[None], w_2[None]  # (1, 128, 256), (1, 256, 128): kernels of one word
inner = keras.ops.conv(tokens, w_1) + b_1  # (2, 7, 256)
inner = keras.ops.maximum(inner, 0.0)  # (2, 7, 256)
outer = keras.ops.conv(inner, w_2) + b_2  # (2, 7, 128)
outer = keras.ops.convert_to_numpy(outer)  # (2, 7, 128)
np.testing.assert_allclose(outer, by_layer, rtol=0, atol=1e-6)

# %%
# Encoder or decoder alone
# ------------------------
# Many models take one half. The encoder alone reads a text whole: BERT (arXiv:1810.04805) and
# RoBERTa (arXiv:1907.11692); here :class:`tfattn.TransformerEncoder`. The decoder alone continues a
# text: GPT; here :class:`tfattn.CausalLM`. T5 (arXiv:1910.10683) has both, like this one. They all
# rest on self-attention. Tokens need not be words: patches of an image in vision (ViT,
# arXiv:2010.11929), pieces of sound in speech (Whisper, arXiv:2212.04356), states, actions and
# rewards in reinforcement learning (Decision Transformer, arXiv:2106.01345).


# %%
# Write the layer yourself
# ------------------------
# A block is a few sublayers, and attention is the one with something in it. Here it is with its
# residual, dropout and norm. The weights are made in ``build``, with ``add_weight``, in the order
# of the package's; the heads have an axis of their own in them, so no reshaping is needed. Encoder
# and decoder differ in what they pass as ``memory`` and as ``attention_mask``.
@keras.saving.register_keras_serializable("tutorials")
class AttentionSublayer(keras.layers.Layer):
    def __init__(self, num_heads, dropout=0.0, **kwargs):
        super().__init__(**kwargs)
        self.num_heads, self.dropout = num_heads, dropout
        self.output_dropout = keras.layers.Dropout(dropout, dtype=self.dtype_policy)
        self.norm = keras.layers.LayerNormalization(epsilon=1e-5, dtype=self.dtype_policy)
        self.supports_masking = True

    def build(self, x_shape, memory_shape):
        width, size = x_shape[-1], x_shape[-1] // self.num_heads
        split = (width, self.num_heads, size), (self.num_heads, size)  # (D, H, p), (H, p)
        joined = (self.num_heads, size, width), (width,)  # (H, p, D), (D,)
        self.kernels, self.biases = [], []
        shapes = {"query": split, "key": split, "value": split, "output": joined}
        for name, (kernel, bias) in shapes.items():
            normal = keras.initializers.RandomNormal(stddev=width**-0.5)
            self.kernels.append(self.add_weight(name=name, shape=kernel, initializer=normal))
            zeros = {"name": f"{name}_bias", "initializer": "zeros"}
            self.biases.append(self.add_weight(shape=bias, **zeros))
        self.norm.build(x_shape)

    def call(self, x, memory, attention_mask=None, training=None):
        to_queries, to_keys, to_values, to_output = self.kernels
        b_queries, b_keys, b_values, b_output = self.biases
        queries = keras.ops.einsum("btd,dhp->bhtp", x, to_queries) + b_queries[:, None]
        keys = keras.ops.einsum("bsd,dhp->bhsp", memory, to_keys) + b_keys[:, None]
        values = keras.ops.einsum("bsd,dhp->bhsp", memory, to_values) + b_values[:, None]
        scores = keras.ops.einsum("bhtp,bhsp->bhts", queries, keys) / keys.shape[-1] ** 0.5
        if attention_mask is not None:
            scores = keras.ops.where(attention_mask, scores, -1e9)  # (B, H, T, S)
        pooled = keras.ops.matmul(keras.ops.softmax(scores), values)  # (B, H, T, p)
        output = keras.ops.einsum("bhtp,hpd->btd", pooled, to_output) + b_output  # (B, T, D)
        return self.norm(x + self.output_dropout(output, training=training))

    def get_config(self):
        own = {"num_heads": self.num_heads, "dropout": self.dropout}
        return {**super().get_config(), **own}


# %%
# The block of the encoder is this sublayer and the feed-forward network. That of the decoder has
# the sublayer twice, first under the causal mask, then with the encoder's output as memory; it
# inherits the rest. An embedding with ``mask_zero=True`` makes a mask, True at real words.
# Keras passes it to the argument ``mask``, or with several inputs to ``inputs_mask`` and
# ``memory_mask``; with ``supports_masking`` it goes on to the next block.
@keras.saving.register_keras_serializable("tutorials")
class EncoderBlock(keras.layers.Layer):
    def __init__(self, num_heads, hidden_dim, dropout=0.0, **kwargs):
        super().__init__(**kwargs)
        self.num_heads, self.hidden_dim, self.dropout = num_heads, hidden_dim, dropout
        self.supports_masking = True

    def build(self, inputs_shape):
        self.self_attention = self.attention_over(inputs_shape, inputs_shape)
        self.build_feed_forward(inputs_shape)

    def attention_over(self, inputs_shape, memory_shape):
        layer = AttentionSublayer(self.num_heads, self.dropout, dtype=self.dtype_policy)
        layer.build(inputs_shape, memory_shape)
        return layer

    def build_feed_forward(self, inputs_shape):
        options, width = {"dtype": self.dtype_policy}, inputs_shape[-1]
        self.inner = keras.layers.Dense(self.hidden_dim, activation="relu", **options)
        self.inner.build(inputs_shape)
        self.outer = keras.layers.Dense(width, **options)
        self.outer.build((*inputs_shape[:-1], self.hidden_dim))
        self.output_dropout = keras.layers.Dropout(self.dropout, **options)
        self.norm = keras.layers.LayerNormalization(epsilon=1e-5, **options)
        self.norm.build(inputs_shape)

    def feed_forward(self, x, training):
        output = self.outer(self.inner(x))  # (B, T, D) -> (B, T, hidden) -> (B, T, D)
        return self.norm(x + self.output_dropout(output, training=training))

    def call(self, inputs, mask=None, training=None):
        keys = None if mask is None else mask[:, None, None]  # (B, T) -> (B, 1, 1, T)
        x = self.self_attention(inputs, inputs, keys, training=training)  # (B, T, D)
        return self.feed_forward(x, training)

    def get_config(self):
        own = {"num_heads": self.num_heads, "hidden_dim": self.hidden_dim, "dropout": self.dropout}
        return {**super().get_config(), **own}


@keras.saving.register_keras_serializable("tutorials")
class DecoderBlock(EncoderBlock):
    def build(self, inputs_shape, memory_shape):
        self.self_attention = self.attention_over(inputs_shape, inputs_shape)
        self.cross_attention = self.attention_over(inputs_shape, memory_shape)
        self.build_feed_forward(inputs_shape)

    def call(self, inputs, memory, inputs_mask=None, memory_mask=None, training=None):
        places = keras.ops.arange(keras.ops.shape(inputs)[1])  # (T,)
        earlier = places[:, None] >= places  # (T, T), each word and those before it
        if inputs_mask is not None:
            earlier = keras.ops.logical_and(earlier, inputs_mask[:, None, None])  # (B, 1, T, T)
        keys = None if memory_mask is None else memory_mask[:, None, None]  # (B, 1, 1, S)
        x = self.self_attention(inputs, inputs, earlier, training=training)  # (B, T, D)
        x = self.cross_attention(x, memory, keys, training=training)  # (B, T, D)
        return self.feed_forward(x, training)


# %%
# Two translators of one block each, from our blocks and from the package's, begin with the same
# weights. On a batch of held-out sentences, padding included, their scores of the next word agree.
# Then both take one step of plain gradient descent at a rate of 1. It subtracts the gradient, so
# weights before minus weights after are the gradients, also of the embeddings, the blocks' inputs.
# All blocks are made from the config of ours.
encoder_config = EncoderBlock(num_heads=4, hidden_dim=256).get_config()
decoder_config = DecoderBlock(num_heads=4, hidden_dim=256).get_config()
one_block = {}
for name, encoder_block, decoder_block in (
    ("ours", EncoderBlock, DecoderBlock),
    ("package", tfattn.TransformerEncoderBlock, tfattn.TransformerDecoderBlock),
):
    ids = keras.Input((None,), dtype="int32"), keras.Input((None,), dtype="int32")
    positions = tfattn.SinusoidalPositionalEncoding(input_scale=128**0.5)
    x, y = (
        positions(keras.layers.Embedding(len(words), 128, mask_zero=True)(of_side))
        for words, of_side in zip((english, french), ids, strict=True)
    )
    memory = encoder_block.from_config(encoder_config)(x)
    y = decoder_block.from_config(decoder_config)(y, memory)
    one_block[name] = keras.Model(ids, keras.layers.Dense(len(french))(y))
start = one_block["ours"].get_weights()
few, few_out = next(iter(held_out_batches))
scores, gradients = [], []
for small in one_block.values():
    small.set_weights(start)
    scores.append(keras.ops.convert_to_numpy(small(few)))  # (B, T, V)
    loss = tfattn.MaskedCrossentropy()
    small.compile(keras.optimizers.SGD(1.0), loss, jit_compile=False)
    small.train_on_batch(few, few_out)
    after = small.get_weights()
    gradients.append([old - new for old, new in zip(start, after, strict=True)])
real = keras.ops.convert_to_numpy(few[1]) != 0  # (B, T); what is computed at padding counts nowhere
block_differences = {
    "outputs": float(np.abs(scores[0] - scores[1])[real].max()),
    "gradients": max(float(np.abs(a - b).max()) for a, b in zip(*gradients, strict=True)),
}
print("Largest differences:", {name: f"{apart:.0e}" for name, apart in block_differences.items()})
assert max(block_differences.values()) < 1e-5

# %%
# They train, too: a hundred batches, from the same weights.
block_losses = {}
for name, small in one_block.items():
    small.set_weights(start)
    loss = tfattn.MaskedCrossentropy()
    small.compile(keras.optimizers.Adam(0.001), loss, jit_compile=False)
    of_train = tfattn.data.token_batches(train, english, french, 768, shuffle_seed=options.seed)
    history_of = small.fit(of_train, epochs=2, steps_per_epoch=50, shuffle=False, verbose=0)
    block_losses[name] = history_of.history["loss"]
    print(f"{name}: loss {block_losses[name][0]:.2f} in the first 50 batches,", end=" ")
    print(f"{block_losses[name][1]:.2f} in the next 50")

# %%
# What the package's blocks do beyond them:
#
# - every mask of this package, and lengths and biases; padding with NaN reaches no other word;
# - another score, shared key heads, positions in the attention, norm or feed-forward network, as
#   layers passed in; pre-norm; dropout of the attention weights;
# - the weights on request, and sequences too long for an array of T × S scores;
# - a decoder without an encoder, as in language models, and a step that generates word by word with
#   cached keys and values;
# - half precision, and checks of shapes and arguments with errors that name them.
#
# A score of :math:`-10^9` is no mask where a query sees no key (:doc:`scoring_functions`). Here
# each sees one, and other scores are far above.
#
# Now write them: ``python -m exercises open EncoderBlock``, and ``DecoderBlock``, write the tasks
# of such layers, and ``check`` with the same name trains, saves and loads yours
# (:doc:`exercises </exercises>`).

# %%
# With this package
# -----------------
# ``attention_weights`` and a viewer: one file without a network, in which you choose a layer and a
# head and point at a word. To train with sentence pairs of your own, see
# :doc:`Train on your own files </train-on-your-own-files>`.
viewer = tfattn.plot.viewer(weights, read, written, written_before, title=source)
viewer.save(options.out / "viewer.html")
viewer

# %%
# A viewer shows one translation. ``to_page`` puts the model itself into a page: type a sentence of
# these words, go through its translation step by step, switch a head off.
tfattn.convert.to_page(model, english, french, options.out / "live.html", sources[:5])
print(f"Figures, viewer.html and live.html in {options.out}")

# %%
# Summary
# -------
# - An encoder of self-attention and feed-forward networks reads the source; a decoder with a causal
#   mask and cross-attention predicts the next word of the target.
# - Attention is used three times: in the encoder, in the decoder, and between them. Each sublayer
#   has its residual and norm, and width d.
# - In training all places are computed at once, from the right words so far; in translation each
#   word waits for the one before.
#
# Questions
# ---------
# **1.** S English and T French words, H heads. Which shapes have the weights of the three kinds of
# attention?
#
# .. dropdown:: Answer
#
#    Encoder :math:`(H, S, S)`, decoder :math:`(H, T, T)` with 0 above the diagonal, cross-attention
#    :math:`(H, T, S)`: one row per query.
#
# **2.** How many weights has a block of the encoder with d = 512 and an inner width of 2048? Which
# part has most of them?
#
# .. dropdown:: Answer
#
#    Attention :math:`4 (512^2 + 512) = 1,050,624`, feed-forward network :math:`2 \cdot 512 \cdot
#    2048 + 2048 + 512 = 2,099,712`, two norms :math:`4 \cdot 512 = 2,048`: together 3,152,384. Two
#    thirds are in the feed-forward network.
#
# **3.** The decoder's input is its target, shifted by one place. What would it learn without the
# shift?
#
# .. dropdown:: Answer
#
#    To copy. The causal mask lets each place look at itself, where the word to predict would stand.
#
# **4.** Why does a decoder keep keys and values of earlier words when it translates?
#
# .. dropdown:: Answer
#
#    Under the causal mask later words do not change them. With a cache each step computes one new
#    word; without it, each step computes the whole sentence again.
#
# **5.** Write ``masked_loss`` and ``decoder_step`` yourself.
#
# .. dropdown:: Answer
#
#    ``python -m exercises open decoder_step`` writes the task,
#    ``python -m exercises check decoder_step`` checks your function:
#    :doc:`all exercises </exercises>`.
#
# Where to go next
# ----------------
# - :doc:`The whole Transformer, top to bottom <transformer_from_scratch>`: each line of it.
# - :doc:`Finding a head <find_a_head>`: which heads this translation depends on.
# - :doc:`Train on your own files </train-on-your-own-files>`: a model from sentence pairs, by one
#   command. :doc:`Decoding </decoding>`: beam search, sampling, rules.

# sphinx_gallery_start_ignore
result = {
    "exact_match": round(float(exact), 4),
    "bleu": round(bleu, 2),
    "val_loss": round(history.history["val_loss"][-1], 4),
    "parameters": model.count_params(),
    "block_differences": block_differences,
    "block_losses": block_losses,
    "seconds": round(time.perf_counter() - began, 1),
}
print("result:", json.dumps(result))
# sphinx_gallery_end_ignore
