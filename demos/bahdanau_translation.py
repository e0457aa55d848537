"""
Bahdanau attention
==================

This is how attention came to translation, in 2014. A recurrent network that reads a sentence into
one vector forgets; here the decoder looks back at every word of the source before each word that
it generates. It learns to translate English to French in a minute or two on two cores (a later
tutorial does the same with a Transformer), and we see which English word each French word came
from. In the end we compute one step of the decoder from scratch.
"""

# %%
# What you will learn
# -------------------
# - what query, keys and values are in a recurrent encoder and decoder;
# - how to read an alignment: which word of the source each word of the translation came from;
# - how to write one step of the decoder from scratch: score, softmax, context, new state.
#
# Before you begin
# ----------------
# - Prerequisites: :doc:`Attention scoring functions <scoring_functions>`; what a recurrent network
#   is.
# - Time: 15 minutes to read, a minute or two to run on two cores.
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
    "--out", type=Path, default="out/bahdanau_translation", metavar="DIR", help="folder for figures"
)
options = parser.parse_args()
options.out.mkdir(parents=True, exist_ok=True)
began = time.perf_counter()
# sphinx_gallery_end_ignore
keras.utils.set_random_seed(options.seed)

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
# An encoder without attention hands over one vector of fixed size, however long the sentence.
# Graves (2013, arXiv:1308.0850) let a network that generates handwriting look at its text through a
# window. The window slides forwards only, which fits handwriting: letters are written in the order
# of the text. A translation has another order than its source, so the decoder must be free to look
# anywhere, and that is what Bahdanau, Cho and Bengio (2014, arXiv:1409.0473) gave it.
#
# One recurrent layer reads the sentence forwards, another backwards. Their states :math:`h_s`, one
# per word, are both keys and values. Before word :math:`t'` of the translation the decoder looks at
# them all. The query is its state after the word before, :math:`s_{t'-1}`, and the score is
# additive:
#
# .. math:: a_{t's} = w_v \cdot \tanh(W_q s_{t'-1} + W_k h_s), \quad
#           \alpha_{t's} = \mathrm{softmax}_s \; a_{t's}, \quad
#           c_{t'} = \sum_s \alpha_{t's} h_s
#
# .. figure:: /drawings/bahdanau.svg
#    :alt: The encoder's states are keys and values, the decoder's previous state is the query.
#
#    Bahdanau's encoder and decoder, with the shape at each arrow.
#
# The context :math:`c_{t'}` is another one for each word. It enters the next state together with
# the embedding of the last word. Embeddings have 64 features here, the states 128 in each
# direction.
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
# Each time the likeliest word, until the model predicts the end of the sentence. BLEU counts the
# n-grams, of one to four words, that a translation shares with its reference.
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
# The alignment: for each French word of the translation (a row), the weights over the English words
# of the source (columns). Where an adjective changes sides, the weights leave the diagonal and
# cross it. The data have no such pairs of words; the model found them by learning to translate.
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
# One step from scratch
# ---------------------
# Plain NumPy, from the last state and the last word to the weights, the context, the new state and
# the output. The source has S = 7 words; a state has 128 features, the encoder's output (the
# memory) 256, an embedding 64. The decoder is a layer like the model's, with random weights. First
# the score, the weights and the context.
random = np.random.default_rng(options.seed)
memory = random.normal(size=(7, 256)).astype("float32")  # (S, 256)
state = random.uniform(-1, 1, 128).astype("float32")  # (128,)
word = np.array([[french.begin_id]])  # (1, 1), one sentence and one word
decoder = tfattn.RecurrentDecoder(len(french), width=64, units=128)
decoder.build(word.shape, memory[None].shape)
decoder.set_weights([random.normal(0.0, 0.05, w.shape) for w in decoder.weights])
w_query, w_key, w_score = decoder.score.get_weights()  # (128, 128), (256, 128), (128, 1)
w_input, w_state, (b_input, b_state) = decoder.cells[0].get_weights()
w_output, b_output = decoder.readout.get_weights()  # (448, 64), (64,)

hidden = np.tanh(state @ w_query + memory @ w_key)  # (128,) + (S, 128) -> (S, 128)
scores = hidden @ w_score[:, 0]  # (S, 128) @ (128,) -> (S,)
powers = np.exp(scores - scores.max())  # (S,)
shares = powers / powers.sum()  # (S,), the attention weights
context = shares @ memory  # (S,) @ (S, 256) -> (256,)

# %%
# Then the new state, that of a gated recurrent unit (GRU), and the output. The last lines assert
# that the layer has the same results.
embedded = decoder.embedding.get_weights()[0][french.begin_id]  # (64,), of the last word
inputs = np.concatenate([embedded, context])  # (64,), (256,) -> (320,)
from_input = inputs @ w_input + b_input  # (320,) @ (320, 384) -> (384,)
from_state = state @ w_state + b_state  # (128,) @ (128, 384) -> (384,)
gates = 1 / (1 + np.exp(-from_input[:256] - from_state[:256]))  # (256,)
update, reset = gates[:128], gates[128:]  # (128,), (128,)
candidate = np.tanh(from_input[256:] + reset * from_state[256:])  # (128,)
new_state = update * state + (1 - update) * candidate  # (128,)
joined = np.concatenate([new_state, context, embedded])  # (448,)
vector = np.tanh(joined @ w_output + b_output)  # (448,) @ (448, 64) -> (64,)

by_layer = decoder(
    ids=word,  # (1, 1)
    memory=memory[None],  # (1, S, 256)
    initial_state=[[state[None]]],  # (1, 128)
    return_attention_scores=True,
    return_state=True,
)
for found, wanted in zip(keras.tree.flatten(by_layer), (vector, shares, new_state), strict=True):
    found = keras.ops.convert_to_numpy(found).ravel()  # (64,), (S,), (128,)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-6)

# %%
# The layer does the same for a batch, in a loop over the words. What does not depend on the state
# is computed before the loop, in one product: ``memory @ w_key``, once per sentence, and the
# embeddings times their rows of ``w_input``. Padding gets weights of 0 and changes no state. The
# paper has its output from a maxout of the old state; the layer, like Luong, Pham and Manning
# (2015, arXiv:1508.04025), from a tanh of the new one.

# %%
# With this package
# -----------------
# ``attention_weights`` and a viewer: point at a word and see where it looks. To train with files of
# your own, see :doc:`Train on your own files </train-on-your-own-files>`; ``--model bahdanau`` is
# this model.
viewer = tfattn.plot.viewer(weights, read, written, title=source)
viewer.save(options.out / "viewer.html")
viewer

# %%
# A viewer shows one translation. ``to_page`` puts the model itself into a page, which computes in
# the browser: type a sentence of these words, go through its translation step by step, choose
# another word, and see where the decoder looks then.
tfattn.convert.to_page(model, english, french, options.out / "live.html", sources[:5])
print(f"Figures, viewer.html and live.html in {options.out}")

# %%
# Summary
# -------
# - The encoder's states are keys and values; the query is the state of the decoder. So each word of
#   the translation has a context of its own.
# - The score is additive: queries and keys have different widths, and a small network compares
#   them.
# - The weights are an alignment, learned from pairs of sentences without pairs of words.
#
# Questions
# ---------
# **1.** Why is the query the state *before* the word, and not the new one?
#
# .. dropdown:: Answer
#
#    The new state is computed from the context, so the context must be there first. Luong's
#    attention reverses this: the new state is computed without the context, serves as the query,
#    and the context enters after it.
#
# **2.** Which products can be computed once per sentence, and which at each step?
#
# .. dropdown:: Answer
#
#    :math:`W_k h_s` once, for all s: it has no t'. :math:`W_q s_{t'-1}`, the tanh, the softmax and
#    the context at each step, for S keys.
#
# **3.** What would the heatmap of a window look like that slides forwards only?
#
# .. dropdown:: Answer
#
#    A staircase that never goes back to the left. *tired boys*, *garçons fatigués* needs a step
#    back: the second French word comes from a place left of that of the first.
#
# **4.** The encoder reads in both directions. What would be lost with the forward one alone?
#
# .. dropdown:: Answer
#
#    A state would know the words before its own only. For *not*, the verb that it negates comes
#    after it, and so does the noun with which an adjective agrees.
#
# **5.** Write ``bahdanau_context`` and ``shift_right`` yourself.
#
# .. dropdown:: Answer
#
#    ``python -m exercises open bahdanau_context`` writes the task,
#    ``python -m exercises check bahdanau_context`` checks your function:
#    :doc:`all exercises </exercises>`.
#
# Where to go next
# ----------------
# - :doc:`Multi-head attention <multi_head>`: several alignments at once.
# - :doc:`A Transformer that translates <transformer_translation>`: the same task without
#   recurrence.
# - :doc:`Train on your own files </train-on-your-own-files>`: a model from sentence pairs, by one
#   command.

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
