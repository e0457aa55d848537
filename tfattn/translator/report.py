"""Scores, translations and figures of a trained model."""

import json

import keras
import numpy as np

from tfattn import data, plot, training
from tfattn._files import replacing
from tfattn.layers.attention.recording import attention_weights
from tfattn.translator import translating
from tfattn.translator.corpus import Pairs, Words


def show(run, model: keras.Model, history: dict) -> None:
    """Prints scores and a few translations, and draws attention weights and the loss curve.

    Args:
        run: the `Run` that trained the model.
        history: the logs of all epochs.
    """
    options, folder = run.options, run.folder
    sources, references = zip(*run.scored[: options.sentences], strict=True)
    search, progress = translating.search(options), translating.bar()
    hypotheses = translating.translate(model, sources, run.words, search, progress)
    seconds = run.seconds

    print("\nTranslations of held-out sentences:")
    shown = list(zip(sources, hypotheses, references, strict=True))[:5]
    for source, hypothesis, reference in shown:
        print(f"  source     {source}\n  model      {hypothesis}\n  reference  {reference}\n")
    source, hypothesis, _ = max(shown, key=lambda sentences: len(sentences[0]))
    figure = _attention_figure(model, source, hypothesis, run.words)
    figures = {"attention.png": figure, "loss.png": plot.loss_curve(history)}
    for name, figure in figures.items():
        with replacing(folder.path / name) as unfinished:
            figure.savefig(unfinished, dpi=150)
    print(f"figures and model: {folder.path}")

    best = int(np.argmax(history["val_bleu"]))  # the earliest epoch, as in `BestWeights`
    exact = np.mean([h == r for h, r in zip(hypotheses, references, strict=True)])
    swaps = {} if options.data else {"aligned_swaps": swaps_found(model, run.scored, run.words)}
    result = {
        "exact_match": round(float(exact), 4),
        "bleu": round(training.corpus_bleu(hypotheses, references), 2),
        "scored": options.score or "val",
        "sentences": len(sources),
        "val_bleu": round(history["val_bleu"][best], 2),
        "val_loss": round(history["val_loss"][best], 4),
        "best_epoch": best + 1,
        **swaps,
        "parameters": model.count_params(),
        "epochs": len(history["loss"]),
        "training_seconds": round(sum(history["seconds"]), 1),  # sum over all epochs
        "seconds": round(seconds, 1),  # including validation, scores and figures
    }
    print("result:", json.dumps(result))  # one line, easy to parse


def swaps_found(model: keras.Model, pairs: Pairs, words: list[Words]) -> float | None:
    """Fraction of reordered words in toy sentences whose largest attention weight is on the
    aligned source word, for the best head; None if no word is reordered.
    """
    found = []
    for start in range(0, len(pairs), 100):
        batch = pairs[start : start + 100]
        heaviest = np.argmax(_source_attention(model, batch, words), axis=-1)  # (B, H, T)
        found += [
            heaviest[row, :, t] == s
            for row, pair in enumerate(batch)
            for t, s in data.swapped_words(*pair)
        ]
    return round(float(np.mean(found, axis=0).max()), 4) if found else None


def _source_attention(model, pairs, words):
    """Cross-attention weights of the decoder's last block: `(B, H, T, S)`."""
    source_words, target_words = words
    source = _padded([[*source_words.encode(s), source_words.end_id] for s, _ in pairs])
    target_in = _padded([[target_words.begin_id, *target_words.encode(t)] for _, t in pairs])
    recorded = attention_weights(model, (source, target_in))
    last = [name for name in recorded if name.endswith(("cross_attention", "decoder"))][-1]
    weights = recorded[last]
    return weights if weights.ndim == 4 else weights[:, None]


def _padded(rows):
    longest = max(map(len, rows))
    return np.array([row + [0] * (longest - len(row)) for row in rows], "int32")


def _attention_figure(model, source, hypothesis, words):
    source_words, target_words = words
    weights = _source_attention(model, [(source, hypothesis)], words)[0]  # (H, T, S)
    titles = [f"head {h + 1}" for h in range(len(weights))] if len(weights) > 1 else ["alignment"]
    return plot.heatmaps(
        weights,
        row_labels=_tokens(target_words, hypothesis),
        column_labels=_tokens(source_words, source),
        titles=titles,
        x_label="source (keys)",
        y_label="written token (queries)",
    )


def _tokens(vocabulary, sentence):
    return [vocabulary.words[i] for i in (*vocabulary.encode(sentence), vocabulary.end_id)]
