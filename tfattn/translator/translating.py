"""Translation with the search selected by the options."""

import argparse
import contextlib
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras

from tfattn import decoding
from tfattn.decoding import rules
from tfattn.translator.corpus import Vocabulary
from tfattn.translator.folder import Folder


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
        seed = keras.random.SeedGenerator(options.seed or 0)
        return decoding.Sampling(temperature=options.temperature or 1.0, seed=seed, rules=used)
    if published:
        return decoding.PooledBeamSearch(**published, rules=used)
    if options.beam in (None, 1):
        return decoding.GreedySearch(rules=used)
    num_results = getattr(options, "n_best", None) or 1
    return decoding.BeamSearch(options.beam, _length_penalty(options), num_results, rules=used)


def published_search(options: argparse.Namespace, paths: Sequence[Path]) -> dict[str, Any]:
    """Arguments of `PooledBeamSearch`, as published or given, and `first_token` of translations."""
    searches = [Folder(path).read_record().get("search", {}) for path in paths]
    first = searches[0]
    if options.beam == 1 or getattr(options, "sample", False):
        return {name: first[name] for name in ("first_token",) if name in first}
    if any(search != first for search in searches):
        print(
            "note: --ensemble: the runs were published with different searches; the search of "
            f"{paths[0]} is used",
            file=sys.stderr,
        )
    given = {"num_beams": options.beam, "length_penalty": options.length_penalty}
    given = {name: value for name, value in given.items() if value is not None}
    if "num_beams" in first:
        return {**first, **given}
    if list(given) == ["length_penalty"]:
        raise ValueError(
            f"--length-penalty needs --beam K with K above 1: {paths[0]} has no beams of its own"
        )
    return first


# From an option to the class in `tfattn.decoding.rules`.
RULES = {
    "no_repeat_ngrams": "NoRepeatNgrams",
    "repetition_penalty": "RepetitionPenalty",
    "min_length": "MinLength",
}


def settings(options: argparse.Namespace) -> dict[str, Any]:
    """Beam, length penalty, and the other given options of `search` and `translate`."""
    found = {"beam": options.beam or 1, "length_penalty": _length_penalty(options)}
    given = {name: getattr(options, name, None) for name in (*RULES, "max_length", "sentences")}
    return found | {name: value for name, value in given.items() if value is not None}


def _length_penalty(options: argparse.Namespace) -> float:
    return 1.0 if options.length_penalty is None else options.length_penalty


def translate(
    model: keras.Model,
    sentences: Sequence[str],
    vocabularies: list[Vocabulary],
    search: decoding.Search | None = None,
    progress: bool = False,
    max_length: int | None = None,
    call: Callable[..., list[Any]] = decoding.translate,
) -> list[Any]:
    """The translations, or the results of `call`; a terminal on standard error shows progress."""
    progress = progress and sys.stderr.isatty()
    options = {"batch_size": 128, "max_length": max_length, "progress": progress}
    shown = contextlib.redirect_stdout(sys.stderr) if progress else contextlib.nullcontext()
    with shown, without_warnings():
        return call(model, sentences, *vocabularies, search, **options)


@contextlib.contextmanager
def without_warnings() -> Iterator[None]:
    """Without the warnings of unknown words, which a command notes once."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"\w+: `\w+` lacks words")
        yield
