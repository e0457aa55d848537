"""Translation with the search selected by the options."""

import argparse
import contextlib
import sys
from collections.abc import Sequence

import keras

from tfattn.decoding import BeamSearch, GreedySearch, Sampling, Search, rules, translation
from tfattn.translator.corpus import Words


def search(options: argparse.Namespace) -> Search:
    """The search selected by the options of a command."""
    given = {name: getattr(options, option, None) for option, name in RULES.items()}
    own = [getattr(rules, name)(n) for name, n in given.items() if n is not None]
    if getattr(options, "sample", False):
        # The generator's state advances with each batch, so that equal lines get different samples.
        seed = keras.random.SeedGenerator(options.seed)
        return Sampling(temperature=options.temperature, seed=seed, rules=own)
    if options.beam == 1:
        return GreedySearch(rules=own)
    return BeamSearch(options.beam, options.length_penalty, rules=own)


# From an option to the class in `tfattn.decoding.rules`.
RULES = {
    "no_repeat_ngrams": "NoRepeatNgrams",
    "repetition_penalty": "RepetitionPenalty",
    "min_length": "MinLength",
}


def settings(options: argparse.Namespace) -> dict[str, object]:
    """The options given for `search` and `translate`, without those left at their defaults."""
    found = {"beam": options.beam, "length_penalty": options.length_penalty}
    given = {name: getattr(options, name, None) for name in (*RULES, "max_length", "sentences")}
    return found | {name: value for name, value in given.items() if value is not None}


def translate(
    model: keras.Model,
    sentences: Sequence[str],
    words: list[Words],
    search: Search | None = None,
    progress: bool = False,
    max_length: int | None = None,
) -> list[str]:
    """The translations; the progress bar is written to standard error."""
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
    """Whether to show a progress bar: standard error is a terminal."""
    return sys.stderr.isatty()
