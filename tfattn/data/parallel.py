"""Parallel text files: line n of one file translates line n of the other."""

import codecs
import gzip
import os
import zlib

from tfattn import _checks

_GZIP_MAGIC = b"\x1f\x8b"


def read_parallel(
    source_path: str | os.PathLike[str], target_path: str | os.PathLike[str]
) -> list[tuple[str, str]]:
    r"""Reads two UTF-8 text files whose lines are translations of each other.

    Each file may be plain or compressed with gzip, as detected from its content. A line ends only
    at "\n" or "\r\n": other line separators of Unicode stay in the sentence, so that the lines of
    both files keep their numbers. Empty lines are kept, for the same reason.

    Args:
        source_path: path of the source file.
        target_path: path of the target file.
    Returns:
        A list of `(source, target)` strings, one pair per line, without line ends.
    Raises:
        FileNotFoundError: one of the files does not exist.
        ValueError: the files differ in their number of lines, or one of them is empty, not UTF-8,
            or damaged gzip data.
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
    lines = _read_bytes(argument, path).split(b"\n")
    if lines[-1] == b"":  # the last line ends with "\n"
        lines.pop()
    if not lines:
        _checks.fail("read_parallel", argument, "name a file with at least one line", str(path))
    lines[0] = lines[0].removeprefix(codecs.BOM_UTF8)  # a byte order mark of an editor
    sentences = []
    for number, line in enumerate(lines, start=1):
        try:
            sentences.append(line.removesuffix(b"\r").decode("utf-8"))
        except UnicodeDecodeError:
            expected = f"be UTF-8 text (line {number} is not)"
            _checks.fail("read_parallel", argument, expected, str(path))
    return sentences


def _read_bytes(argument: str, path: str | os.PathLike[str]) -> bytes:
    path = _checks.path("read_parallel", argument, path)
    if not os.path.isfile(path):
        expected = "name an existing file"
        _checks.fail("read_parallel", argument, expected, str(path), error=FileNotFoundError)
    with open(path, "rb") as file:
        content = file.read()
    if not content.startswith(_GZIP_MAGIC):
        return content
    try:
        return gzip.decompress(content)
    except (OSError, EOFError, zlib.error):
        return _checks.fail("read_parallel", argument, "hold undamaged gzip data", str(path))
