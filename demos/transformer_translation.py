"""
A Transformer that translates
=============================

English to French, from a small grammar. A dictionary is not enough there: adjectives change sides,
articles agree with a noun that stands elsewhere, and negation wraps the verb. A small Transformer
learns it in a minute or two on two cores. Then we see where each head of each layer looked, as
pictures and as a page to explore.
"""

# %%
# What you will learn
# -------------------
# - how the parts of the earlier tutorials make a Transformer, with the shape at each arrow;
# - how to train one from nothing, and to translate with it word by word;
# - what each head of encoder, decoder and cross-attention looks at.
#
# Before you begin
# ----------------
# - Prerequisites: :doc:`multi_head`, :doc:`positions`, :doc:`residuals_and_norms` and
#   :doc:`masked_attention`.
# - Time: 20 minutes to read, a minute or two to run on two cores.
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
# Each sublayer is wrapped in a residual and a layer normalization. A residual adds input and
# output, so each sublayer, and the embedding, has outputs in :math:`\mathbb{R}^d`. The embeddings
# are multiplied by the root of the width d, and positional encodings are added. A final linear
# layer and a softmax predict the next word. In the paper one matrix serves both embeddings and that
# map (``share_embeddings=True``); here each language has a vocabulary of its own, and so its own
# matrix.
#
# .. image:: /drawings/transformer.svg
#    :alt: The encoder on the left, the decoder on the right, with the shape at each arrow.
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
    "seconds": round(time.perf_counter() - began, 1),
}
print("result:", json.dumps(result))
# sphinx_gallery_end_ignore
