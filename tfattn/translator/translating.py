"""Translation with the search that the options of a command name."""

import argparse
import contextlib
import sys
from collections.abc import Sequence

import keras

from tfattn.decoding import BeamSearch, GreedySearch, Sampling, Search, rules, translation
from tfattn.translator.corpus import Words

__all__ = ["bar", "search", "settings", "translate"]


def search(options: argparse.Namespace) -> Search:
    """The search that the options of a command name."""
    given = {name: getattr(options, option, None) for option, name in RULES.items()}
    own = [getattr(rules, name)(n) for name, n in given.items() if n is not None]
    if getattr(options, "sample", False):
        # A generator goes on from batch to batch: equal lines get words of their own.
        seed = keras.random.SeedGenerator(options.seed)
        return Sampling(temperature=options.temperature, seed=seed, rules=own)
    if options.beam == 1:
        return GreedySearch(rules=own)
    return BeamSearch(options.beam, options.length_penalty, rules=own)


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


def translate(
    model: keras.Model,
    sentences: Sequence[str],
    words: list[Words],
    search: Search | None = None,
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
