"""Scores, translations and figures of a trained model."""

import json
from typing import Any

import keras
import numpy as np

from tfattn import plot, training
from tfattn._files import replacing
from tfattn.layers.attention.weights import attention_weights
from tfattn.translator import translating
from tfattn.translator.corpus import Vocabularies
from tfattn.translator.run import Run


def show(run: Run, model: keras.Model) -> None:
    """Prints scores and a few translations, and draws attention weights and the loss curve."""
    options, folder = run.options, run.folder
    sources, references = zip(*run.scored[: options.sentences], strict=True)
    hypotheses = translating.translate(model, sources, run.vocabularies, run.search, progress=True)

    print("\nTranslations of held-out sentences:")
    shown = list(zip(sources, hypotheses, references, strict=True))[:5]
    for source, hypothesis, reference in shown:
        print(f"  source     {source}\n  model      {hypothesis}\n  reference  {reference}\n")
    source, hypothesis, _ = max(shown, key=lambda sentences: len(sentences[0]))
    attention = _attention_figure(model, source, hypothesis, run.vocabularies)
    figures = {"attention.png": attention, "loss.png": plot.loss_curve(run.backup.history)}
    for name, figure in figures.items():
        with replacing(folder.path / name) as unfinished:
            figure.savefig(unfinished, dpi=150)
    print(f"figures and model: {folder.path}")

    history, (name, better) = run.backup.history, run.monitored
    best = history[name].index(run.backup.best(name, better))
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
    }
    print("result:", json.dumps(result))  # one line, easy to parse


def _attention_figure(
    model: keras.Model, source: str, hypothesis: str, vocabularies: Vocabularies
) -> Any:
    """Where each head of the decoder's last block attends while it writes the hypothesis."""
    reads, writes = vocabularies
    read = [*reads.encode(source), reads.end_id]
    written = [*writes.encode(hypothesis), writes.end_id]
    target_in = [writes.begin_id, *written[:-1]]
    recorded = attention_weights(model, (np.array([read]), np.array([target_in])))
    last = [name for name in recorded if name.endswith(("cross_attention", "decoder"))][-1]
    weights = recorded[last]  # (1, H, T, S), or (1, T, S) of the recurrent model
    heads = weights[0] if weights.ndim == 4 else weights
    return plot.heatmaps(
        heads,
        row_labels=[writes.words[i] for i in written],
        column_labels=[reads.words[i] for i in read],
        titles=[f"head {h}" for h in range(len(heads))] if len(heads) > 1 else ["alignment"],
        x_label="source (keys)",
        y_label="written token (queries)",
    )
