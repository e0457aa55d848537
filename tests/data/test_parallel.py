"""Parallel files: line n with line n, whatever the files are made of."""

import gzip

import pytest

from tfattn.data import read_parallel


def write(folder, name, content):
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8"))
    return path


SUMMER = gzip.compress("un été\n".encode())


@pytest.mark.parametrize(
    "source, target, pairs",
    [
        (
            "one\ntwo words\n",
            "un\ndeux mots, été\n",
            [("one", "un"), ("two words", "deux mots, été")],
        ),
        (SUMMER, gzip.compress(b"a summer\n"), [("un été", "a summer")]),
        ("plain\n", SUMMER, [("plain", "un été")]),
        ("one\r\ntwo\r\n", "un\ndeux", [("one", "un"), ("two", "deux")]),
        ("one\n\nthree\n", "un\n\ntrois\n", [("one", "un"), ("", ""), ("three", "trois")]),
        (b"\xef\xbb\xbfone\n", "un\n", [("one", "un")]),  # without the byte order mark
    ],
    ids=["plain", "gzip", "half gzip", "Windows, no last end", "empty lines", "mark"],
)
def test_read_parallel_pairs_lines_in_order(tmp_path, source, target, pairs):
    paths = write(tmp_path, "source.gz", source), write(tmp_path, "target", target)
    assert read_parallel(*paths) == read_parallel(*map(str, paths)) == pairs


def test_read_parallel_ends_a_line_at_a_newline_alone(tmp_path):
    target = write(tmp_path, "b", "un\ndeux\n")
    for character in ("\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c", "\r"):
        source = write(tmp_path, "a", f"one{character}two\nthree\n")
        wanted = [(f"one{character}two", "un"), ("three", "deux")]
        assert read_parallel(source, target) == wanted


@pytest.mark.parametrize("missing", ["source_path", "target_path"])
def test_read_parallel_refuses_a_missing_file_by_name(tmp_path, missing):
    paths = {side: write(tmp_path, side, "x\n") for side in ("source_path", "target_path")}
    for path in (tmp_path / "nowhere.txt", tmp_path):  # a folder is no file
        message = (
            rf"read_parallel: `{missing}` must name an existing file\. Received: .*{path.name}"
        )
        with pytest.raises(FileNotFoundError, match=message):
            read_parallel(**{**paths, missing: path})


LINES = gzip.compress(b"one\ntwo\n" * 50, mtime=0)
DAMAGED = bytes([*LINES[:10], LINES[10] ^ 0xFF, *LINES[11:]])


@pytest.mark.parametrize(
    "source, target, said",
    [
        ("1\n2\n3\n", "1\n2\n", r"`target_path` must have as many lines as .*\(3, not 2\)"),
        (
            "un\nétés\n",
            b"one\n" + "été\n".encode("latin-1"),
            r"`target_path` must be UTF-8 text \(line 2 is not\): save it as",
        ),
        ("un\nö\n".encode("utf-16"), b"", r"`source_path` .* \(line 1 is not\): save"),
        ("un\nö\n".encode("utf-16-le"), b"", r"`source_path` .* \(line 1 is not\): save"),
        (b"", b"", "`source_path` must name a file with at least one line"),
        (gzip.compress(b"", mtime=0), b"", "`source_path` must name a file with at least one line"),
        (LINES[:-9], "un\n", "`source_path` must hold undamaged gzip data"),
        (LINES[:6], "un\n", "`source_path` must hold undamaged gzip data"),
        (LINES[:2], "un\n", "`source_path` must hold undamaged gzip data"),
        (DAMAGED, "un\n", "`source_path` must hold undamaged gzip data"),
    ],
)
def test_read_parallel_refuses_files_without_text_or_of_other_lengths(
    tmp_path, source, target, said
):
    with pytest.raises(ValueError, match=f"read_parallel: {said}"):
        read_parallel(write(tmp_path, "a", source), write(tmp_path, "b", target))
