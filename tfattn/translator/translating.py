"""Translation with the search selected by the options."""

import argparse
import contextlib
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras

from tfattn import decoding
from tfattn.decoding import rules
from tfattn.translator.corpus import Vocabularies
from tfattn.translator.folder import Folder

# From an option to the class in `tfattn.decoding.rules`.
RULES = {
    "no_repeat_ngrams": "NoRepeatNgrams",
    "repetition_penalty": "RepetitionPenalty",
    "min_length": "MinLength",
}


def search(
    options: argparse.Namespace, published: Mapping[str, Any] | None = None
) -> decoding.Search:
    """The search selected by the options of a command, or of `published_search`."""
    published = dict(published or {})
    first = published.pop("first_token", None)
    used: list[rules.Rule] = [] if first is None else [rules.TargetPrefix([first], scored=False)]
    given = {name: getattr(options, option, None) for option, name in RULES.items()}
    used += [getattr(rules, name)(n) for name, n in given.items() if n is not None]
    if getattr(options, "sample", False):
        # The generator's state advances with each batch, so that equal lines get different samples.
        seed = keras.random.SeedGenerator(options.seed)
        return decoding.Sampling(temperature=options.temperature, seed=seed, rules=used)
    if published:
        return decoding.PooledBeamSearch(**published, rules=used)
    if options.beam in (None, 1):
        return decoding.GreedySearch(rules=used)
    num_results = getattr(options, "n_best", None) or 1
    penalty = 1.0 if options.length_penalty is None else options.length_penalty
    return decoding.BeamSearch(options.beam, penalty, num_results, rules=used)


def published_search(options: argparse.Namespace, paths: Sequence[Path]) -> dict[str, Any]:
    """Arguments of `PooledBeamSearch`, as published or given, and `first_token` of translations."""
    first = Folder(paths[0]).read_record().get("search", {})
    beams = {} if getattr(options, "sample", False) or options.beam == 1 else first
    if options.length_penalty is not None and (options.beam or beams.get("num_beams", 1)) == 1:
        raise ValueError("--length-penalty needs --beam K with K above 1")
    if "num_beams" not in beams:
        return {name: first[name] for name in ("first_token",) if name in first}
    given = {"num_beams": options.beam, "length_penalty": options.length_penalty}
    return {**first, **{name: value for name, value in given.items() if value is not None}}


def translate(
    model: keras.Model,
    sentences: Sequence[str],
    vocabularies: Vocabularies,
    search: decoding.Search | None = None,
    progress: bool = False,
    max_length: int | None = None,
    call: Callable[..., list[Any]] = decoding.translate,
) -> list[Any]:
    """The translations, or the results of `call`; a terminal on standard error shows progress."""
    progress = progress and sys.stderr.isatty()
    with contextlib.redirect_stdout(sys.stderr) if progress else contextlib.nullcontext():
        return call(
            model,
            sentences,
            *vocabularies,
            search,
            batch_size=128,
            max_length=max_length,
            progress=progress,
        )
