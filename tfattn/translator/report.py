"""Scores, translations and figures of a trained model."""

import json
from typing import Any

import keras
import numpy as np

from tfattn import plot, training
from tfattn._files import replacing
from tfattn.layers.attention.weights import attention_weights
from tfattn.translator import translating
from tfattn.translator.corpus import Vocabulary
from tfattn.translator.run import Run


def show(run: Run, model: keras.Model, history: dict[str, Any]) -> None:
    """Prints scores and a few translations, and draws attention weights and the loss curve.

    Args:
        run: the `Run` that trained the model.
        history: the logs of all epochs.
    """
    options, folder = run.options, run.folder
    sources, references = zip(*run.scored[: options.sentences], strict=True)
    search = translating.search(options, translating.published_search(options, [folder.path]))
    hypotheses = translating.translate(model, sources, run.vocabularies, search, translating.bar())
    seconds = run.seconds  # before the figures

    print("\nTranslations of held-out sentences:")
    shown = list(zip(sources, hypotheses, references, strict=True))[:5]
    for source, hypothesis, reference in shown:
        print(f"  source     {source}\n  model      {hypothesis}\n  reference  {reference}\n")
    source, hypothesis, _ = max(shown, key=lambda sentences: len(sentences[0]))
    figure = _attention_figure(model, source, hypothesis, run.vocabularies)
    figures = {"attention.png": figure, "loss.png": plot.loss_curve(history)}
    for name, figure in figures.items():
        with replacing(folder.path / name) as unfinished:
            figure.savefig(unfinished, dpi=150)
    print(f"figures and model: {folder.path}")

    best = run.best_epoch(history)
    val_bleu = history["val_bleu"][best]
    exact = np.mean([h == r for h, r in zip(hypotheses, references, strict=True)])
    result = {
        "exact_match": round(float(exact), 4),
        "bleu": round(training.corpus_bleu(hypotheses, references), 2),
        "scored": options.score or "val",
        "sentences": len(sources),
        "val_bleu": None if np.isnan(val_bleu) else round(val_bleu, 2),
        "val_loss": round(history["val_loss"][best], 4),
        "best_epoch": best + 1,
        "parameters": model.count_params(),
        "epochs": len(history["loss"]),
        "training_seconds": round(sum(history["seconds"]), 1),  # of all epochs, with validation
        "seconds": round(seconds, 1),  # from the start of the command
    }
    print("result:", json.dumps(result))  # one line, easy to parse


def _source_attention(
    model: keras.Model, source: str, target: str, vocabularies: list[Vocabulary]
) -> np.ndarray:
    """Cross-attention weights of the decoder's last block: `(H, T, S)`."""
    source_vocabulary, target_vocabulary = vocabularies
    tokens = [*source_vocabulary.encode(source), source_vocabulary.end_id]
    target_in = [target_vocabulary.begin_id, *target_vocabulary.encode(target)]
    recorded = attention_weights(model, (np.array([tokens]), np.array([target_in])))
    last = [name for name in recorded if name.endswith(("cross_attention", "decoder"))][-1]
    weights = recorded[last]
    return weights[0] if weights.ndim == 4 else weights


def _attention_figure(
    model: keras.Model, source: str, hypothesis: str, vocabularies: list[Vocabulary]
) -> Any:
    source_vocabulary, target_vocabulary = vocabularies
    weights = _source_attention(model, source, hypothesis, vocabularies)  # (H, T, S)
    titles = [f"head {h}" for h in range(len(weights))] if len(weights) > 1 else ["alignment"]
    return plot.heatmaps(
        weights,
        row_labels=_tokens(target_vocabulary, hypothesis),
        column_labels=_tokens(source_vocabulary, source),
        titles=titles,
        x_label="source (keys)",
        y_label="written token (queries)",
    )


def _tokens(vocabulary: Vocabulary, sentence: str) -> list[str]:
    return [vocabulary.words[i] for i in (*vocabulary.encode(sentence), vocabulary.end_id)]
