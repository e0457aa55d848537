"""Translates the lines of a file or of standard input with a trained model."""

import argparse
import contextlib
import itertools
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

from tfattn import data, decoding
from tfattn.data.parallel import open_text, text_lines
from tfattn.data.subwords import symbol_pattern
from tfattn.translator import translating
from tfattn.translator.corpus import Vocabularies, Vocabulary
from tfattn.translator.folder import Folder, load_ensemble

AT_ONCE = 1000  # lines that are translated together, before any is written
# In messages of `decoding`.
_PLACE = re.compile(r"`?(?:sentences|pairs)\[(\d+)\]`?|(?<=\()sentence(?=\))")
_HINT = re.compile("A `SubwordVocabulary` reads.*")
_OPTIONS = "--raw tokenizes plain text; a model trained with --subwords reads words in parts"


def translate(options: argparse.Namespace) -> None:
    """Translates all lines with the search selected by the options."""
    paths = options.ensemble or [options.out]
    with opened(options.file) as (text, typed):
        model, vocabularies = load_ensemble(paths)
        before, after = _moses(Folder(paths[0]), vocabularies) if options.raw else (str, str)
        if typed:
            split = "" if options.raw else ", tokens separated by spaces"
            print(f"One sentence per line{split}; end with Ctrl-D.", file=sys.stderr)
        search = translating.search(options, translating.published_search(options, paths))
        at_once = 1 if typed or options.stream else AT_ONCE
        lines, done = map(before, map(str.strip, text)), 0
        while batch := list(itertools.islice(lines, at_once)):
            with numbered(done, len(batch)):
                for piece in _pieces(model, batch, vocabularies, search, options, after):
                    print(piece, end="", flush=True)
            done += len(batch)


def _pieces(
    model: Any,
    batch: list[str],
    vocabularies: Vocabularies,
    search: decoding.Search,
    options: argparse.Namespace,
    after: Callable[[str], str],
) -> Iterator[str]:
    """What is written for a batch of lines: hypotheses or, with `--stream`, parts of them."""
    if options.stream:
        (line,), limit = batch, options.max_length
        yield from decoding.translate_stream(
            model, line, *vocabularies, search=search, max_length=limit
        )
        yield "\n"
        return
    call = decoding.translate_n_best if options.n_best else decoding.translate
    progress = len(batch) > 1 and not sys.stdout.isatty()
    found = translating.translate(
        model, batch, vocabularies, search, progress, options.max_length, call
    )
    for each in found:
        if not options.n_best:
            yield f"{after(each)}\n"
            continue
        for rank, (text, score) in enumerate(each[: options.n_best], start=1):
            yield f"{rank}\t{score:.4f}\t{after(text)}\n"


@contextlib.contextmanager
def numbered(done: int, count: int) -> Iterator[None]:
    """Notes warnings, and names the lines of errors, in `count` lines after `done` earlier ones."""

    def by_line(message: object) -> str:
        text = _PLACE.sub(lambda place: f"line {done + 1 + int(place[1] or 0)}", str(message))
        return _HINT.sub(_OPTIONS, text)

    try:
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always", UserWarning)
            yield
        for warning in found:
            print(f"note: {by_line(warning.message)}", file=sys.stderr)
    except ValueError as error:
        where = f"line {done + 1}" if count == 1 else f"lines {done + 1} to {done + count}"
        raise ValueError(f"{where}: {by_line(error)}") from None


@contextlib.contextmanager
def opened(path: Path | None) -> Iterator[tuple[Iterator[str], bool]]:
    """The lines of a file, or of standard input for None; and whether a terminal sends them."""

    def fail(expected: str) -> NoReturn:
        raise ValueError(f"{path or 'standard input'} must {expected}")

    with contextlib.nullcontext(sys.stdin.buffer) if path is None else open_text(path) as file:
        yield text_lines(file, fail), file.isatty()


def _moses(
    folder: Folder, vocabularies: Vocabularies
) -> tuple[Callable[[str], str], Callable[[str], str]]:
    """Functions from plain text to the source's tokens, and from target tokens to plain text."""
    if isinstance(vocabularies[0], data.MarianVocabulary):
        raise ValueError(f"--raw: the model in {folder.path} reads and writes plain text already")
    source, target = (
        data.Moses(language, lowercase=not _has_capitals(side))
        for language, side in zip(folder.languages(), vocabularies, strict=True)
    )
    symbol = symbol_pattern(getattr(vocabularies[0], "symbols", ()))

    def tokens(line: str) -> str:
        parts = symbol.split(line)  # symbols, which Moses would split, have odd indices
        parts[::2] = (" ".join(source(part)) for part in parts[::2])
        return " ".join(filter(None, parts))

    return tokens, lambda translated: target.join(translated.split())


def _has_capitals(vocabulary: Vocabulary) -> bool:
    symbols = getattr(vocabulary, "symbols", ())
    return any(word != word.lower() for word in vocabulary.words if word not in symbols)
