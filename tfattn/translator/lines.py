"""Translates the lines of a file or of standard input with a trained model."""

import argparse
import contextlib
import functools
import itertools
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, NoReturn

import keras

from tfattn import data, decoding
from tfattn._program import check_interrupt
from tfattn.data.parallel import open_text, text_lines
from tfattn.data.subwords import symbol_pattern
from tfattn.decoding import Search
from tfattn.translator import alignment, translating
from tfattn.translator.corpus import Vocabulary
from tfattn.translator.folder import Folder, languages, load_ensemble

AT_ONCE = 1000  # lines that are translated together, before any is written


def translate(options: argparse.Namespace) -> None:
    """Translates all lines with the search selected by the options."""
    paths = options.ensemble or [options.out]
    folder = Folder(paths[0])
    if options.file is not None and (not options.file.exists() or options.file.is_dir()):
        raise FileNotFoundError(f"{options.file} is not a file")
    if options.mbr:
        decoding.minimum_bayes_risk(["a"])  # fail early if sacrebleu is missing
    model, vocabularies = load_ensemble(paths)
    with opened(options.file) as (text, typed):
        before, after = _moses(folder, vocabularies) if options.raw else (str, str)
        if typed:
            split = "" if options.raw else ", tokens separated by spaces"
            print(f"One sentence per line{split}; end with Ctrl-D.", file=sys.stderr)
        search = translating.search(options, translating.published_search(options, paths))
        if options.stream:
            stream_lines(model, vocabularies, text, search, options.max_length)
            return
        if options.replace_unknown:
            alignment.check_vocabularies(vocabularies)
        hypotheses = functools.partial(_hypotheses, model, vocabularies, search, options)
        translate_lines(text, typed, vocabularies[0], hypotheses, before, after)


def _hypotheses(
    model: keras.Model,
    vocabularies: list[Vocabulary],
    search: Search,
    options: argparse.Namespace,
    batch: list[str],
    progress: bool,
) -> Iterator[tuple[str, str]]:
    """(Columns before the text, text) of each hypothesis for the lines of a batch."""
    arguments = model, batch, vocabularies, search, progress, options.max_length
    sources: Sequence[str]
    texts: Sequence[str]
    columns: Sequence[str]
    if options.mbr:
        samples = translating.translate(model, list(batch) * options.mbr, *arguments[2:])
        risks = [decoding.minimum_bayes_risk(samples[i :: len(batch)]) for i in range(len(batch))]
        sources, texts = batch, [least.text for least, *_ in risks]
        columns = [""] * len(texts)
    elif options.n_best is None:
        sources, texts = batch, translating.translate(*arguments)
        columns = [""] * len(texts)
    else:
        found = translating.translate(*arguments, call=decoding.translate_n_best)
        sources, columns, texts = zip(
            *(
                (line, f"{rank}\t{score:.4f}\t", text)
                for line, best in zip(batch, found, strict=True)
                for rank, (text, score) in enumerate(best[: options.n_best], start=1)
            ),
            strict=True,
        )
    if options.replace_unknown:
        texts = alignment.replace_unknown(model, vocabularies, sources, texts)
    return zip(columns, texts, strict=True)


def translate_lines(
    text: Iterable[str],
    typed: bool,
    vocabulary: Vocabulary,
    hypotheses: Callable[[list[str], bool], Iterable[tuple[str, str]]],
    before: Callable[[str], str] = str,
    after: Callable[[str], str] = str,
) -> None:
    """Translates lines from a terminal one at a time, from a file in batches of 1000, up to a line
    that the vocabulary cannot encode.

    Args:
        typed: whether the lines come from a terminal.
        vocabulary: the source vocabulary.
        hypotheses: function from lines, and whether to show a progress bar, to (columns before the
            text, text) of each hypothesis.
        before, after: functions applied to each line and to each translation.
    """
    at_once = 1 if typed else AT_ONCE
    progress = not typed and not sys.stdout.isatty() and translating.bar()
    lines, done = map(before, _stripped(text)), 0
    while batch := list(itertools.islice(lines, at_once)):
        encodable = list(itertools.takewhile(functools.partial(_can_encode, vocabulary), batch))
        if encodable:
            with _numbered(done, len(encodable)):
                found = hypotheses(encodable, progress)
            check_interrupt()
            for columns, translated in found:
                print(columns + after(translated), flush=True)
        done += len(encodable)
        if len(encodable) < len(batch):
            with _numbered(done, 1):
                vocabulary.encode(batch[len(encodable)])


def _can_encode(vocabulary: Vocabulary, line: str) -> bool:
    try:
        vocabulary.encode(line)
    except ValueError:
        return False
    return True


def stream_lines(
    model: keras.Model,
    vocabularies: list[Vocabulary],
    text: Iterable[str],
    search: Search,
    max_length: int | None = None,
) -> None:
    """Translates line by line and writes pieces of each translation as soon as they are final."""
    source, target = vocabularies
    for done, line in enumerate(_stripped(text)):
        with _numbered(done, 1):
            pieces = decoding.translate_stream(
                model, line, source, target, search=search, max_length=max_length
            )
            for piece in pieces:
                print(piece, end="", flush=True)
        print(flush=True)


@contextlib.contextmanager
def _numbered(done: int, count: int) -> Iterator[None]:
    """Adds line numbers to an error in one of `count` lines that follow `done` earlier lines."""
    try:
        yield
    except ValueError as error:
        where = f"line {done + 1}" if count == 1 else f"lines {done + 1} to {done + count}"

        def number(match: re.Match[str]) -> str:
            return f"line {done + 1 + int(match[1]) % count}"  # several samples of each line

        raise ValueError(f"{where}: {re.sub(_PLACE, number, str(error))}") from None


_PLACE = r"`?sentences\[(\d+)\]`?"  # in error messages of `translate`


def _stripped(text: Iterable[str]) -> Iterator[str]:
    return (line.strip() for line in text)


@contextlib.contextmanager
def opened(path: Path | None) -> Iterator[tuple[Iterator[str], bool]]:
    """The lines of a file, plain or compressed by gzip, or of standard input for None; and whether
    they come from a terminal.
    """

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
    try:
        source, target = (
            data.Moses(language, lowercase=not _has_capitals(side))
            for language, side in zip(languages(folder.read_record()), vocabularies, strict=True)
        )
    except ValueError as error:
        raise ValueError(f"--raw: {error}") from None
    symbol = symbol_pattern(getattr(vocabularies[0], "symbols", ()))

    def tokens(line: str) -> str:
        parts = symbol.split(line)  # symbols, which Moses would split, have odd indices
        parts[::2] = (" ".join(source(part)) for part in parts[::2])
        return " ".join(filter(None, parts))

    return tokens, lambda translated: target.join(translated.split())


def _has_capitals(vocabulary: Vocabulary) -> bool:
    symbols = getattr(vocabulary, "symbols", ())
    return any(word != word.lower() for word in vocabulary.words if word not in symbols)
