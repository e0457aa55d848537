"""
Bahdanau attention
==================

This is how attention came to translation, in 2014. A recurrent network that reads a sentence into
one vector forgets; here the decoder looks back at every word that was read, before each word that
it writes. It learns to translate English to French in a minute or two on two cores (the last steps
of the tutorials do the same with a Transformer), and we see which English word each French word
came from.
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
    "--out", type=Path, default="out/bahdanau_translation", metavar="DIR", help="folder for figures"
)
options = parser.parse_args()
options.out.mkdir(parents=True, exist_ok=True)
keras.utils.set_random_seed(options.seed)
began = time.perf_counter()

# %%
# Data
# ----
# English sentences of a small grammar and their French translations, a tenth of them held out. An
# element of ``batches`` is ``((source, target_in), target_out)``: the English sentence, the French
# words so far, and at each place the French word that comes next.
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
# One recurrent layer reads the sentence forwards, another backwards. Their states :math:`h_s`, one
# a word, are both keys and values. Before it writes word :math:`t`, the decoder looks at them all.
# The query is its state after the word before, :math:`q_{t-1}`, and the score is additive:
#
# .. math:: a_{ts} = w_v \cdot \tanh(W_q q_{t-1} + W_k h_s), \quad
#           \alpha_{ts} = \mathrm{softmax}_s \; a_{ts}, \quad c_t = \sum_s \alpha_{ts} h_s
#
# The context :math:`c_t` is another one for each word. It goes into the next state together with
# the embedding of the last word. Embeddings have 64 features here, the
# states 128 in each direction.
model = tfattn.BahdanauSeq2Seq(len(english), len(french), width=64, units=128, dropout=0.1)

# %%
# Training
# --------
# The learning rate rises for 200 steps, then falls. Adam averages the weights over about a hundred
# steps; validation looks at the average, which ``fit`` leaves in the model. The smoothed loss asks
# for 0.9 of the probability on the right word, so it never comes near zero.
rate = tfattn.InverseSquareRootSchedule(peak=0.003, warmup_steps=200)
model.compile(
    keras.optimizers.Adam(rate, beta_2=0.98, epsilon=1e-9, use_ema=True, ema_momentum=0.99),
    loss=tfattn.MaskedCrossentropy(label_smoothing=0.1),
    metrics=[tfattn.MaskedAccuracy(name="accuracy")],
    jit_compile=False,  # XLA would compile each shape of a batch anew
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
# Each time the likeliest word, until the model says that the sentence ends. BLEU counts the runs of
# one to four words that a translation shares with its reference.
sources, references = zip(*held_out, strict=True)
translations = tfattn.translate(model, sources, english, french)
bleu = tfattn.training.corpus_bleu(translations, references)
exact = np.mean([ours == theirs for ours, theirs in zip(translations, references, strict=True)])
print("\nTranslations of held-out sentences:")
for source, translation, reference in list(zip(sources, translations, references, strict=True))[:5]:
    print(f"  source     {source}\n  model      {translation}\n  reference  {reference}\n")
print(f"BLEU on {len(sources)} held-out sentences: {bleu:.2f}; {exact:.1%} are right to the letter")

# %%
# Where it looked
# ---------------
# The alignment: for each French word that is written (a row), the weights over the English words
# (columns). Where an adjective changes sides, the weights leave the diagonal and cross it. Nobody
# told the model which words belong together; it found them on its way to the right translation.
source, translation = max(zip(sources[:5], translations[:5], strict=True), key=lambda p: len(p[0]))
source_ids = [*english.encode(source), english.end_id]
target_ids = [*french.encode(translation), french.end_id]
target_in_ids = [french.begin_id, *target_ids[:-1]]
read = [english.words[i] for i in source_ids]
written = [french.words[i] for i in target_ids]
weights = tfattn.attention_weights(model, (np.array([source_ids]), np.array([target_in_ids])))
((alignment,),) = weights.values()  # of the one layer that attends, the one sentence: (T, S)
figure = tfattn.plot.heatmaps(
    alignment, written, read, x_label="Read (keys)", y_label="Written (queries)"
)
figure.savefig(options.out / "attention.png", dpi=150)
figure

# %%
# The same as lines: a crossing is a pair of words that change places.
figure = tfattn.plot.flow(alignment, written, read)
figure.savefig(options.out / "flow.png", dpi=150)
figure

# %%
# Word by word
# ------------
# The alignment is a dictionary of this sentence: for each French word the English one that it
# looked at most.
for word, looked_at, weight in zip(
    written, np.argmax(alignment, axis=1), np.max(alignment, axis=1), strict=True
):
    print(f"  {word:12} {read[looked_at]:12} {weight:.2f}")

# %%
# With this package
# -----------------
# ``attention_weights`` and a viewer: point at a word and see where it looks. To train with files of
# your own, see ``python -m tfattn.translator train --help``; ``--model bahdanau`` is this model.
viewer = tfattn.plot.viewer(weights, read, written, title=source)
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
