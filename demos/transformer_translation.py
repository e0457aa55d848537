"""
A Transformer that translates
=============================

English to French, from a small grammar. A dictionary is not enough there: adjectives change sides,
articles agree with a noun that stands elsewhere, and negation wraps the verb. A small Transformer
learns it in a minute or two on two cores. Then we see where each head of each layer looked, as
pictures and as a page to explore.
"""

# sphinx_gallery_thumbnail_number = 2
import argparse
import json
import time
from pathlib import Path

import keras
import numpy as np

import tfattn

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
keras.utils.set_random_seed(options.seed)
began = time.perf_counter()

# %%
# Data
# ----
# Pairs of sentences, a tenth of them held out: the model never learns from these. A vocabulary
# turns words into ids. An element of ``batches`` is ``((source, target_in), target_out)``: the
# model reads the English sentence and the French words so far, and is to say the next French word,
# at every place of the sentence at once. Sentences of similar length share a batch, of at most 768
# tokens on a side, so that little of it is padding.
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
# Here the tutorials come together. The encoder is a stack of N blocks. A block has two
# sublayers:
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
# Around each sublayer stand a residual and a layer normalization. The embeddings are multiplied by
# the root of the width d, and positional encodings are added. A last linear map and a softmax say
# the next word. In the paper one matrix serves both embeddings and that map
# (``share_embeddings=True``); here each language has a vocabulary of its own, and so its own
# matrix.
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
# The model writes word by word: each time the likeliest one, until it says that the sentence ends.
# BLEU counts the runs of one to four words that a translation shares with its reference; 100 is the
# same text.
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
# Between the two
# ---------------
# Here the French word that is written next looks at the English sentence. Follow an adjective that
# comes after its noun: its row has weight on its English word, to the left of the noun, and in some
# heads on the noun, with which it has to agree.
figure = tfattn.plot.head_grid(between, written, read, "Between: French looks at English")
figure.savefig(options.out / "between.png", dpi=150)
figure

# %%
# The same as lines, the mean of the last layer's heads. Where words change places, lines cross.
last = list(between.values())[-1].mean(axis=0)  # (H, T, S) -> (T, S)
figure = tfattn.plot.flow(last, written, read, "Last layer, mean of the heads")
figure.savefig(options.out / "flow.png", dpi=150)
figure

# %%
# With this package
# -----------------
# ``attention_weights`` and a viewer: one file without a network, in which you choose a layer and a
# head and point at a word. To train with sentence pairs of your own, see
# ``python -m tfattn.translator train --help``.
viewer = tfattn.plot.viewer(weights, read, written, written_before, title=source)
viewer.save(options.out / "viewer.html")
print(f"Figures and viewer.html in {options.out}")

result = {
    "exact_match": round(float(exact), 4),
    "bleu": round(bleu, 2),
    "val_loss": round(history.history["val_loss"][-1], 4),
    "parameters": model.count_params(),
    "seconds": round(time.perf_counter() - began, 1),
}
print("result:", json.dumps(result))
viewer
