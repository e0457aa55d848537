"""Lines to translate: a file or standard input to standard output, with a trained model."""

import argparse
import contextlib
import itertools
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TextIO

import keras

from tfattn import data
from tfattn.translator import report
from tfattn.translator.corpus import Words
from tfattn.translator.folder import Folder

__all__ = ["translate", "translate_lines"]

AT_ONCE = 1000  # lines that are translated before the first of them is written


def translate(options: argparse.Namespace) -> None:
    """Translates all lines, in the way that the options name.

    Raises:
        ImportError, OSError, ValueError: what a user can mend.
    """
    folder = Folder(options.out)
    if options.file is not None and not options.file.is_file():
        raise FileNotFoundError(f"{options.file} is not there, or is no file")
    model, words = folder.load_model()
    with _opened(options.file) as text:
        before, after = _moses(folder, words) if options.raw else (str, str)
        if text.isatty():
            split = "" if options.raw else ", tokens split by spaces"
            print(f"One sentence a line{split}; end with Ctrl-D.", file=sys.stderr)
        sys.stdout.reconfigure(errors="replace")
        search = report.search(options)
        if options.stream:
            stream_lines(model, words, text, search, options.max_length)
        else:
            translate_lines(model, words, text, search, options.max_length, before, after)


def translate_lines(
    model: keras.Model,
    words: list[Words],
    text: TextIO,
    search: Callable,
    max_length: int | None = None,
    before: Callable[[str], str] = str,
    after: Callable[[str], str] = str,
) -> None:
    """One line at a time from a terminal, a thousand at a time from a file.

    Args:
        before, after: what becomes of a line, and of its translation.
    """
    at_once = 1 if text.isatty() else AT_ONCE
    progress = not text.isatty() and not sys.stdout.isatty() and report.bar()
    lines = map(before, _stripped(text))
    while some := list(itertools.islice(lines, at_once)):
        for translated in report.translate(model, some, words, search, progress, max_length):
            print(after(translated), flush=True)


def stream_lines(
    model: keras.Model,
    words: list[Words],
    text: TextIO,
    search: Callable,
    max_length: int | None = None,
) -> None:
    """One line after the other, each in pieces as they are found."""
    from tfattn.decoding import translate_stream

    for line in _stripped(text):
        for piece in translate_stream(model, line, *words, search=search, max_length=max_length):
            print(piece, end="", flush=True)
        print(flush=True)


def _stripped(text: Iterable[str]) -> Iterator[str]:
    return (line.strip() for line in text)


@contextlib.contextmanager
def _opened(path: Path | None) -> Iterator[TextIO]:
    # One broken byte is no reason to lose the other lines.
    if path is None:
        sys.stdin.reconfigure(errors="replace")
        yield sys.stdin
        return
    with open(path, encoding="utf-8", errors="replace") as text:
        yield text


def _moses(folder: Folder, words: list[Words]) -> tuple[Callable, Callable]:
    """From raw text to the form of the vocabularies, and from that of the target to raw text."""
    record = folder.read_record()
    languages = record.get("settings", {}).get("languages", ("en", "de"))
    if record.get("data", "") is None:
        languages = ("en", "fr")  # of the grammar
    source, target = (
        data.Moses(language, lowercase=not _has_capitals(side))
        for language, side in zip(languages, words, strict=True)
    )
    return (
        lambda line: " ".join(source(line)),
        lambda translated: target.join(translated.split()),
    )


def _has_capitals(vocabulary: Words) -> bool:
    return any(word != word.lower() for word in vocabulary.words)
