"""Translates the lines of a file or of standard input with a trained model."""

import argparse
import contextlib
import itertools
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NoReturn

import keras

from tfattn import data, decoding
from tfattn.data.parallel import open_text, text_lines
from tfattn.data.subwords import symbol_pattern
from tfattn.decoding import Search
from tfattn.decoding.translate import listed, unknown_words
from tfattn.translator import translating
from tfattn.translator.corpus import Vocabulary
from tfattn.translator.folder import Folder, languages, load_ensemble

AT_ONCE = 1000  # lines that are translated together, before any is written


def translate(options: argparse.Namespace) -> None:
    """Translates all lines with the search selected by the options."""
    paths = options.ensemble or [options.out]
    model, vocabularies = load_ensemble(paths)
    with opened(options.file) as (text, typed):
        before, after = _moses(Folder(paths[0]), vocabularies) if options.raw else (str, str)
        if typed:
            split = "" if options.raw else ", tokens separated by spaces"
            print(f"One sentence per line{split}; end with Ctrl-D.", file=sys.stderr)
        search = translating.search(options, translating.published_search(options, paths))
        at_once = 1 if typed or options.stream else AT_ONCE
        progress = at_once > 1 and not sys.stdout.isatty()
        lines, done = map(before, map(str.strip, text)), 0
        unknown = UnknownWords(vocabularies[0], options.raw)
        try:
            while batch := list(itertools.islice(lines, at_once)):
                encodable = list(itertools.takewhile(unknown.add, batch))
                pieces = _pieces(model, vocabularies, encodable, search, options, progress, after)
                with numbered(done, len(encodable)):
                    for piece in pieces:
                        print(piece, end="", flush=True)
                if typed:
                    unknown.note()
                done += len(encodable)
                if len(encodable) < len(batch):
                    with numbered(done, 1):
                        vocabularies[0].encode(batch[len(encodable)])
        finally:
            unknown.note()


def _pieces(
    model: keras.Model,
    vocabularies: list[Vocabulary],
    batch: list[str],
    search: Search,
    options: argparse.Namespace,
    progress: bool,
    after: Callable[[str], str],
) -> Iterator[str]:
    """What is written for a batch of lines: hypotheses or, with `--stream`, parts of them."""
    arguments = model, batch, vocabularies, search, progress, options.max_length
    if not batch:
        return
    if options.stream:
        source, target = vocabularies
        with translating.without_warnings():
            for line in batch:
                yield from decoding.translate_stream(
                    model, line, source, target, search=search, max_length=options.max_length
                )
                yield "\n"
    elif options.n_best is None:
        yield from (f"{after(text)}\n" for text in translating.translate(*arguments))
    else:
        for best in translating.translate(*arguments, call=decoding.translate_n_best):
            for rank, (text, score) in enumerate(best[: options.n_best], start=1):
                yield f"{rank}\t{score:.4f}\t{after(text)}\n"


class UnknownWords:
    """The words of the lines that a vocabulary lacks. `raw` lines were tokenized."""

    def __init__(self, vocabulary: Vocabulary, raw: bool, name: str = "vocabulary"):
        self.vocabulary, self.raw, self.name = vocabulary, raw, name
        self._found: dict[str, list[str]] = {}
        self._told: set[str] = set()
        self._lines = 0

    def add(self, line: str) -> bool:
        """Whether the vocabulary can encode the next line."""
        self._lines += 1
        try:
            ids = self.vocabulary.encode(line)
        except ValueError:
            return False
        words = [w for w in unknown_words(self.vocabulary, line, ids) if w not in self._told]
        if words:
            self._found[f"line {self._lines}"] = words
        return True

    def note(self) -> None:
        """Names the words that were found since the last note, on standard error."""
        words = {word for each in self._found.values() for word in each}
        if words:
            said = f"the {self.name} lacks words, which are read as <unk>: {listed(self._found)}"
            print(f"note: {said}{self._hint(words)}", file=sys.stderr)
        self._told |= words
        self._found = {}

    def _hint(self, words: Iterable[str]) -> str:
        if getattr(self.vocabulary, "tokenizer", "") is not None:
            return ""  # subwords, or a tokenizer of its own
        bare = {re.sub(r"^\W+|\W+$", "", word) for word in words}
        bare |= {word.lower() for word in bare}
        if not self.raw and not bare.isdisjoint(self.vocabulary.words):
            return ". With --raw, plain text is tokenized as that of the training"
        return ". A model trained with --subwords reads words in parts"


@contextlib.contextmanager
def numbered(done: int, count: int) -> Iterator[None]:
    """Adds line numbers to an error in one of `count` lines that follow `done` earlier lines."""
    try:
        yield
    except ValueError as error:
        where = f"line {done + 1}" if count == 1 else f"lines {done + 1} to {done + count}"
        said = re.sub(_PLACE, lambda place: f"line {done + 1 + int(place[1])}", str(error))
        raise ValueError(f"{where}: {said}") from None


_PLACE = r"`?(?:sentences|pairs)\[(\d+)\]`?"  # in error messages of `decoding`


@contextlib.contextmanager
def opened(path: Path | None) -> Iterator[tuple[Iterator[str], bool]]:
    """The lines of a file, or of standard input for None; and whether a terminal sends them."""

    def fail(expected: str) -> NoReturn:
        raise ValueError(f"{path or 'standard input'} must {expected}")

    with contextlib.nullcontext(sys.stdin.buffer) if path is None else open_text(path) as file:
        yield text_lines(file, fail), file.isatty()


def _moses(
    folder: Folder, vocabularies: list[Vocabulary]
) -> tuple[Callable[[str], str], Callable[[str], str]]:
    """Functions from plain text to the source's tokens, and from target tokens to plain text."""
    if isinstance(vocabularies[0], data.MarianVocabulary):
        raise ValueError(f"--raw: the model in {folder.path} reads and writes plain text already")
    source, target = (
        data.Moses(language, lowercase=not _has_capitals(side))
        for language, side in zip(languages(folder.read_record()), vocabularies, strict=True)
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
