"""Translates the lines of a file or of standard input with a trained model."""

import argparse
import contextlib
import gzip
import io
import itertools
import re
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TextIO

import keras

from tfattn import data
from tfattn.decoding import Search
from tfattn.translator import translating
from tfattn.translator.corpus import Words
from tfattn.translator.folder import Folder

AT_ONCE = 1000  # lines that are translated together, before any is written


def translate(options: argparse.Namespace) -> None:
    """Translates all lines with the search selected by the options."""
    folder = Folder(options.out)
    if options.file is not None and (not options.file.exists() or options.file.is_dir()):
        raise FileNotFoundError(f"{options.file}: no such file")
    model, words = folder.load_model()
    with _opened(options.file) as text:
        before, after = _moses(folder, words) if options.raw else (str, str)
        if text.isatty():
            split = "" if options.raw else ", tokens separated by spaces"
            print(f"One sentence per line{split}; end with Ctrl-D.", file=sys.stderr)
        sys.stdout.reconfigure(errors="replace")
        search = translating.search(options)
        if options.stream:
            stream_lines(model, words, text, search, options.max_length)
        else:
            translate_lines(model, words, text, search, options.max_length, before, after)


def translate_lines(
    model: keras.Model,
    words: list[Words],
    text: TextIO,
    search: Search,
    max_length: int | None = None,
    before: Callable[[str], str] = str,
    after: Callable[[str], str] = str,
) -> None:
    """Translates lines from a terminal one at a time, from a file in batches of 1000.

    Args:
        before, after: functions applied to each line and to each translation.
    """
    at_once = 1 if text.isatty() else AT_ONCE
    progress = not text.isatty() and not sys.stdout.isatty() and translating.bar()
    lines, done = map(before, _stripped(text)), 0
    while some := list(itertools.islice(lines, at_once)):
        with _numbered(done, len(some)):
            found = translating.translate(model, some, words, search, progress, max_length)
        for translated in found:
            print(after(translated), flush=True)
        done += len(some)


def stream_lines(
    model: keras.Model,
    words: list[Words],
    text: TextIO,
    search: Search,
    max_length: int | None = None,
) -> None:
    """Translates line by line and writes pieces of each translation as soon as they are final."""
    from tfattn.decoding import translate_stream

    for done, line in enumerate(_stripped(text)):
        with _numbered(done, 1):
            pieces = translate_stream(model, line, *words, search=search, max_length=max_length)
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

        def of_all(found):
            return f"line {done + 1 + int(found[1])}"

        raise ValueError(f"{where}: {re.sub(_PLACE, of_all, str(error))}") from None


_PLACE = r"`?sentences\[(\d+)\]`?"  # in error messages of `translate`


def _stripped(text: Iterable[str]) -> Iterator[str]:
    return (line.strip() for line in text)


# A file may begin with a byte order mark. Invalid bytes are replaced, to keep the other lines. A
# lone "\r" does not end a line, as in `data.read_parallel`.
_READING = {"encoding": "utf-8-sig", "errors": "replace", "newline": "\n"}


@contextlib.contextmanager
def _opened(path: Path | None) -> Iterator[TextIO]:
    if path is None:
        sys.stdin.reconfigure(**_READING)
        yield sys.stdin
        return
    with open(path, "rb") as file:
        plain = gzip.open(file) if file.peek(2)[:2] == b"\x1f\x8b" else file
        with io.TextIOWrapper(plain, **_READING) as text:
            try:
                yield text
            except (gzip.BadGzipFile, EOFError, zlib.error):
                raise ValueError(f"{path} contains damaged gzip data") from None


def _moses(folder: Folder, words: list[Words]) -> tuple[Callable, Callable]:
    """Functions from plain text to the source's tokens, and from target tokens to plain text."""
    record = folder.read_record()
    languages = record.get("settings", {}).get("languages", ("en", "de"))
    if record.get("data", "") is None:
        languages = ("en", "fr")  # of the grammar
    try:
        source, target = (
            data.Moses(language, lowercase=not _has_capitals(side))
            for language, side in zip(languages, words, strict=True)
        )
    except ValueError as error:
        raise ValueError(f"--raw: {error}") from None
    return (
        lambda line: " ".join(source(line)),
        lambda translated: target.join(translated.split()),
    )


def _has_capitals(vocabulary: Words) -> bool:
    return any(word != word.lower() for word in vocabulary.words)
