"""A Transformer that translates: from sentences to pictures of where it looked.

English to French, from a small grammar. A dictionary is not enough there: adjectives change sides,
articles agree with a noun that stands elsewhere, and negation wraps the verb. This takes a minute
or two on two cores, and writes its figures to `out/transformer_translation`.

`python -m tfattn.translator --help` trains, resumes and scores such models with files of your own.
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
parser.add_argument("--out", type=Path, default="out/transformer_translation", metavar="DIR")
options = parser.parse_args()
options.out.mkdir(parents=True, exist_ok=True)
keras.utils.set_random_seed(options.seed)
began = time.perf_counter()

# %%
# **Data.** Pairs of sentences, a tenth of them held out: the model never learns from these. A
# vocabulary turns words into ids. An element of `batches` is `((source, target_in), target_out)`:
# the model reads the English sentence and the French words so far, and is to say the next French
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
# **Model.** The encoder reads with two blocks, the decoder writes with two. Each block looks in
# four ways, its heads, at all words that it may see.
model = tfattn.Transformer(
    len(english), len(french), num_layers=2, width=128, num_heads=4, hidden_dim=256, dropout=0.1
)

# %%
# **Training.** The learning rate rises for 400 steps, then falls: early steps on random weights
# must be small. Adam averages the weights over about a hundred steps, and validation looks at that
# average, which `fit` leaves in the model. `jit_compile=False`, for XLA would compile each of the
# twenty shapes of the batches anew. The loss is smoothed: it asks for 0.9 of the probability on the
# right word, so it never comes near zero.
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
    callbacks=[tfattn.training.AveragedWeights()],
)
tfattn.plot.loss_curve(history).savefig(options.out / "loss.png", dpi=150)

# %%
# **Translation.** The model writes word by word: each time the likeliest one, until it says that
# the sentence ends. BLEU counts the runs of one to four words that a translation shares with its
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
# **Where it looked.** For each French word that is written (a row), the weights of the last
# decoder block over the English words (columns), one picture a head. Follow the adjective: its
# row looks back across the noun.
source, translation = max(zip(sources[:5], translations[:5], strict=True), key=lambda p: len(p[0]))
source_ids = [*english.encode(source), english.end_id]
target_ids = [*french.encode(translation), french.end_id]
target_in = [french.begin_id, *target_ids[:-1]]
weights = tfattn.attention_weights(model, (np.array([source_ids]), np.array([target_in])))
heads = list(weights.values())[-1][0]  # (H, T, S), the last that were computed
tfattn.plot.heatmaps(
    heads,
    row_labels=[french.words[i] for i in target_ids],
    column_labels=[english.words[i] for i in source_ids],
    titles=[f"head {h + 1}" for h in range(len(heads))],
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
