"""Scores, translations and pictures of a trained model."""

import argparse
import contextlib
import functools
import json
import sys
from collections.abc import Callable, Sequence

import keras
import numpy as np

from tfattn import data, plot, training
from tfattn._files import replacing
from tfattn.decoding import beam_search, greedy_search, sample, translation
from tfattn.layers.attention.recording import attention_weights
from tfattn.translator.corpus import Pairs, Words

__all__ = ["bar", "search", "settings", "show", "swaps_found", "translate"]


def search(options: argparse.Namespace) -> Callable:
    """The search that the options of a command name."""
    rules = _rules(options)
    if getattr(options, "sample", False):
        # A generator goes on from batch to batch: equal lines get words of their own.
        seed = keras.random.SeedGenerator(options.seed)
        return functools.partial(sample, temperature=options.temperature, seed=seed, **rules)
    if options.beam == 1:
        return functools.partial(greedy_search, **rules) if rules else greedy_search
    return functools.partial(
        beam_search, num_beams=options.beam, length_penalty=options.length_penalty, **rules
    )


# From an option to the rule of `tfattn.decoding.rules` that takes its number.
RULES = {
    "no_repeat_ngrams": "NoRepeatNgrams",
    "repetition_penalty": "RepetitionPenalty",
    "min_length": "MinLength",
}


def settings(options: argparse.Namespace) -> dict[str, object]:
    """What `search` and `translate` do by these options, but for what nobody asked for."""
    found = {"beam": options.beam, "length_penalty": options.length_penalty}
    asked = {name: getattr(options, name, None) for name in (*RULES, "max_length", "sentences")}
    return found | {name: value for name, value in asked.items() if value is not None}


def _rules(options: argparse.Namespace) -> dict[str, list]:
    """The argument `rules` of a search, where options name any."""
    given = {name: getattr(options, option, None) for option, name in RULES.items()}
    if not any(number is not None for number in given.values()):
        return {}
    from tfattn.decoding import rules

    return {"rules": [getattr(rules, name)(n) for name, n in given.items() if n is not None]}


def translate(
    model: keras.Model,
    sentences: Sequence[str],
    words: list[Words],
    search: Callable = greedy_search,
    progress: bool = False,
    max_length: int | None = None,
) -> list[str]:
    """The translations; a progress bar goes to standard error."""
    with contextlib.redirect_stdout(sys.stderr) if progress else contextlib.nullcontext():
        return translation.translate(
            model,
            sentences,
            *words,
            search,
            batch_size=128,
            max_length=max_length,
            progress=progress,
        )


def bar() -> bool:
    """Whether somebody sees a progress bar."""
    return sys.stderr.isatty()


def show(run, model: keras.Model, history: dict) -> None:
    """Prints scores and a few translations, and draws where the model looked and what it learnt.

    Args:
        run: the `Run` that trained the model.
        history: that of all its epochs.
    """
    options, folder = run.options, run.folder
    sources, references = zip(*run.scored[: options.sentences], strict=True)
    hypotheses = translate(model, sources, run.words, search(options), progress=bar())
    seconds = run.seconds

    print("\nTranslations of held-out sentences:")
    shown = list(zip(sources, hypotheses, references, strict=True))[:5]
    for source, hypothesis, reference in shown:
        print(f"  source     {source}\n  model      {hypothesis}\n  reference  {reference}\n")
    # The longest of the five has the most to show.
    source, hypothesis, _ = max(shown, key=lambda sentences: len(sentences[0]))
    figure = _attention_figure(model, source, hypothesis, run.words)
    figures = {"attention.png": figure, "loss.png": plot.loss_curve(history)}
    for name, figure in figures.items():
        with replacing(folder.path / name) as unfinished:
            figure.savefig(unfinished, dpi=150)
    print(f"figures and model: {folder.path}")

    best = int(np.argmax(history["val_bleu"]))  # the first of equals, which is the one that is kept
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
        "training_seconds": round(sum(history["seconds"]), 1),  # of all epochs
        "seconds": round(seconds, 1),  # of all of it
    }
    print("result:", json.dumps(result))  # one line, for people and for programs


def swaps_found(
    model: keras.Model, pairs: Pairs, words: list[Words], batch_size: int = 100
) -> float | None:
    """Share of the words of toy sentences that change places for which the heaviest source word is
    the true one, best head; None where no word changes places.
    """
    found = []
    for start in range(0, len(pairs), batch_size):
        batch = pairs[start : start + batch_size]
        heaviest = np.argmax(_source_attention(model, batch, words), axis=-1)  # (B, H, T)
        found += [
            heaviest[row, :, t] == s
            for row, pair in enumerate(batch)
            for t, s in data.swapped_words(*pair)
        ]
    return round(float(np.mean(found, axis=0).max()), 4) if found else None


def _source_attention(model, pairs, words):
    """The decoder's attention over the source, that of its last block: `(B, H, T, S)`."""
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
    """Where each written token looked in the source."""
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
