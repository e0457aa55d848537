"""Parallel text files: line n of one file translates line n of the other."""

import codecs
import contextlib
import gzip
import os
import zlib
from collections.abc import Callable, Iterator
from typing import BinaryIO, NoReturn, cast

from tfattn import _checks
from tfattn.data.base import existing

_GZIP_MAGIC = b"\x1f\x8b"


def read_parallel(
    source_path: str | os.PathLike[str], target_path: str | os.PathLike[str]
) -> list[tuple[str, str]]:
    r"""Reads two text files whose lines are translations of each other.

    A file is UTF-8, with or without a byte order mark, plain or compressed with gzip. A line ends
    only at "\n" or "\r\n": other line separators of Unicode stay in the sentence, so that the
    lines of both files keep their numbers. Empty lines are kept, for the same reason.

    Args:
        source_path: path of the source file.
        target_path: path of the target file.
    Returns:
        A list of `(source, target)` strings, one pair per line, without line ends.
    Raises:
        FileNotFoundError: one of the files does not exist.
        ValueError: the files differ in their number of lines, or one of them is empty, in another
            encoding, or damaged gzip data.
    Example:
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     english, german = pathlib.Path(folder, "en"), pathlib.Path(folder, "de")
        ...     _ = english.write_text("a dog\na cat\n", encoding="utf-8")
        ...     _ = german.write_text("ein Hund\neine Katze\n", encoding="utf-8")
        ...     read_parallel(english, german)
        [('a dog', 'ein Hund'), ('a cat', 'eine Katze')]
    """
    source = _read_lines("source_path", source_path)
    target = _read_lines("target_path", target_path)
    if len(source) != len(target):
        expected = f"have as many lines as `source_path` ({len(source)}, not {len(target)})"
        _checks.fail("read_parallel", "target_path", expected, str(target_path))
    return list(zip(source, target, strict=True))


def _read_lines(argument: str, path: str | os.PathLike[str]) -> list[str]:
    who = "read_parallel"
    path = existing(who, argument, path)

    def fail(expected: str) -> NoReturn:
        _checks.fail(who, argument, expected, path)

    with open_text(path) as file:
        lines = list(text_lines(file, fail))
    if not lines:
        fail("name a file with at least one line")
    return lines


@contextlib.contextmanager
def open_text(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """The bytes of a file, plain or compressed with gzip, for `text_lines`."""
    with open(path, "rb") as file:
        packed = file.peek(2)[:2] == _GZIP_MAGIC
        yield cast(BinaryIO, gzip.open(file)) if packed else file


def text_lines(file: BinaryIO, fail: Callable[[str], NoReturn]) -> Iterator[str]:
    r"""The lines of UTF-8 text, read one by one, without their ends, "\n" or "\r\n".

    `fail` raises an error, from what the file must do: "be UTF-8 text".
    """
    number = 0
    try:
        for number, line in enumerate(file, 1):
            kept = line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
            text = kept.removesuffix(b"\n").removesuffix(b"\r").decode()
            if "\0" in text:  # UTF-16 or UTF-32
                raise UnicodeDecodeError("utf-8", line, 0, 1, "NUL in text")
            yield text
    except UnicodeDecodeError:
        fail(
            f"be UTF-8 text (line {number} is not): save it as UTF-8 in an editor, or convert it "
            "by iconv -f ENCODING -t UTF-8"
        )
    except (gzip.BadGzipFile, EOFError, zlib.error):
        fail("hold undamaged gzip data")
