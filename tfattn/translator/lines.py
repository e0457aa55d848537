"""Translates the lines of a file or of standard input with a trained model."""

import argparse
import contextlib
import itertools
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

from tfattn import data, decoding
from tfattn.data.parallel import open_text, text_lines
from tfattn.data.subwords import symbol_pattern
from tfattn.decoding.translate import listed, unknown_words
from tfattn.translator import translating
from tfattn.translator.corpus import Vocabularies, Vocabulary
from tfattn.translator.folder import Folder, load_ensemble

AT_ONCE = 1000  # lines that are translated together, before any is written
_PLACE = re.compile(r"`?(?:sentences|pairs)\[(\d+)\]`?")  # in messages of `decoding`


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
        unknown = UnknownWords(vocabularies[0], options.raw)
        try:
            while batch := list(itertools.islice(lines, at_once)):
                for line in batch:
                    unknown.add(line)
                with numbered(done, len(batch)):
                    for piece in _pieces(model, batch, vocabularies, search, options, after):
                        print(piece, end="", flush=True)
                done += len(batch)
                if typed:
                    unknown.note()
        finally:
            unknown.note()


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


class UnknownWords:
    """The words of the lines that a vocabulary lacks. `raw` lines were tokenized."""

    def __init__(self, vocabulary: Vocabulary, raw: bool, name: str = "vocabulary"):
        self.vocabulary, self.raw, self.name = vocabulary, raw, name
        self._found: dict[str, list[str]] = {}
        self._told: set[str] = set()
        self._lines = 0

    def add(self, line: str) -> None:
        """Reads the next line."""
        self._lines += 1
        ids = self.vocabulary.encode(line)
        words = [w for w in unknown_words(self.vocabulary, line, ids) if w not in self._told]
        if words:
            self._found[f"line {self._lines}"] = words

    def note(self) -> None:
        """Names the words that were found since the last note, on standard error."""
        words = {word for each in self._found.values() for word in each}
        if words:
            said = f"the {self.name} lacks words, which are read as <unk>: {listed(self._found)}"
            print(f"note: {said}{self._hint(words)}", file=sys.stderr)
        self._told |= words
        self._found = {}

    def _hint(self, words: set[str]) -> str:
        if getattr(self.vocabulary, "tokenizer", "") is not None:
            return ""  # subwords, or a tokenizer of its own
        bare = {re.sub(r"^\W+|\W+$", "", word) for word in words}
        bare |= {word.lower() for word in bare}
        if not self.raw and not bare.isdisjoint(self.vocabulary.words):
            return ". With --raw, plain text is tokenized as that of the training"
        return ". A model trained with --subwords reads words in parts"


@contextlib.contextmanager
def numbered(done: int, count: int) -> Iterator[None]:
    """Names the lines of errors in `count` lines after `done` earlier ones."""
    try:
        yield
    except ValueError as error:
        where = f"line {done + 1}" if count == 1 else f"lines {done + 1} to {done + count}"
        said = _PLACE.sub(lambda place: f"line {done + 1 + int(place[1])}", str(error))
        raise ValueError(f"{where}: {said}") from None


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
