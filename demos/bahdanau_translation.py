"""Bahdanau's translator: a recurrent model, and where it looked before each word.

This is how attention came to translation, in 2014. A recurrent network that reads a sentence into
one vector forgets; here the decoder looks back at every word that was read, before each word that
it writes. It learns the same sentences as `transformer_translation.py`, takes a minute or two on
two cores, and writes its figures to `out/bahdanau_translation`.

`python -m tfattn.translator --model bahdanau` trains such models with files of your own.
"""

import argparse
import json
import time
from pathlib import Path

import keras
import numpy as np

import tfattn

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--seed", type=int, default=0, help="of everything random (default: 0)")
parser.add_argument("--out", type=Path, default="out/bahdanau_translation", metavar="DIR")
options = parser.parse_args()
options.out.mkdir(parents=True, exist_ok=True)
keras.utils.set_random_seed(options.seed)
began = time.perf_counter()

# %%
# **Data.** English sentences of a small grammar and their French translations, a tenth of them held
# out. An element of `batches` is `((source, target_in), target_out)`: the English sentence, the
# French words so far, and at each place the French word that comes next.
train, held_out = tfattn.data.split_pairs(tfattn.data.toy_translation(14_000, options.seed))
english, french = map(tfattn.data.Vocabulary.from_sentences, zip(*train, strict=True))
batches = tfattn.data.token_batches(train, english, french, 768, shuffle_seed=options.seed)
held_out_batches = tfattn.data.token_batches(held_out, english, french, 1024)
print(f"{len(train)} pairs to learn from, {len(held_out)} held out. The first of them:")
print("  " + " | ".join(train[0]))
print(f"{len(english)} English and {len(french)} French words and marks")

# %%
# **Model.** One recurrent layer reads the sentence forwards, another backwards; their states, one
# a word, are the memory. At each step the decoder's state is the query: the score of a word is
# v · tanh(W query + U key), additive attention.
model = tfattn.BahdanauSeq2Seq(len(english), len(french), width=64, units=128, dropout=0.1)

# %%
# **Training.** The learning rate rises for 200 steps, then falls. Adam averages the weights over
# about a hundred steps; validation looks at the average, which `fit` leaves in the model. The
# smoothed loss asks for 0.9 of the probability on the right word, so it never comes near zero.
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
    callbacks=[tfattn.training.AveragedWeights()],
)
tfattn.plot.loss_curve(history).savefig(options.out / "loss.png", dpi=150)

# %%
# **Translation.** Each time the likeliest word, until the model says that the sentence ends. BLEU
# counts the runs of one to four words that a translation shares with its reference.
sources, references = zip(*held_out, strict=True)
translations = tfattn.translate(model, sources, english, french)
bleu = tfattn.training.corpus_bleu(translations, references)
exact = np.mean([ours == theirs for ours, theirs in zip(translations, references, strict=True)])
print("\nTranslations of held-out sentences:")
for source, translation, reference in list(zip(sources, translations, references, strict=True))[:5]:
    print(f"  source     {source}\n  model      {translation}\n  reference  {reference}\n")
print(f"BLEU on {len(sources)} held-out sentences: {bleu:.2f}; {exact:.1%} are right to the letter")

# %%
# **Where it looked.** The alignment: for each French word that is written (a row), the weights over
# the English words (columns). Where an adjective changes sides, the diagonal has a knot.
source, translation = max(zip(sources[:5], translations[:5], strict=True), key=lambda p: len(p[0]))
source_ids = [*english.encode(source), english.end_id]
target_ids = [*french.encode(translation), french.end_id]
target_in = [french.begin_id, *target_ids[:-1]]
weights = tfattn.attention_weights(model, (np.array([source_ids]), np.array([target_in])))
(alignment,) = weights.values()  # the one layer that attends: (1, T, S)
tfattn.plot.heatmaps(
    alignment[0],
    row_labels=[french.words[i] for i in target_ids],
    column_labels=[english.words[i] for i in source_ids],
    x_label="read (keys)",
    y_label="written (queries)",
).savefig(options.out / "attention.png", dpi=150)
print(f"Figures: attention.png, loss.png in {options.out}")

result = {
    "exact_match": round(float(exact), 4),
    "bleu": round(bleu, 2),
    "val_loss": round(history.history["val_loss"][-1], 4),
    "parameters": model.count_params(),
    "seconds": round(time.perf_counter() - began, 1),
}
print("result:", json.dumps(result))
