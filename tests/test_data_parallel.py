"""Parallel files: line n with line n, whatever the files are made of."""

import gzip

import pytest

from tfattn.data import read_parallel


def write(folder, name, content):
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8"))
    return path


def test_lines_are_paired_in_order(tmp_path):
    source = write(tmp_path, "a.en", "one\ntwo words\n")
    target = write(tmp_path, "a.fr", "un\ndeux mots, été\n")
    assert read_parallel(source, target) == [("one", "un"), ("two words", "deux mots, été")]


def test_paths_may_be_strings(tmp_path):
    source, target = write(tmp_path, "a", "x\n"), write(tmp_path, "b", "y\n")
    assert read_parallel(str(source), str(target)) == [("x", "y")]


def test_gzip_is_known_by_its_content_under_any_name(tmp_path):
    source = write(tmp_path, "a.en.gz", gzip.compress("un été\n".encode()))
    target = write(tmp_path, "plain_name", gzip.compress(b"a summer\n"))
    named_gz = write(tmp_path, "b.gz", "plain\n")
    assert read_parallel(source, target) == [("un été", "a summer")]
    assert read_parallel(named_gz, target) == [("plain", "a summer")]


def test_windows_line_ends_and_missing_last_line_end(tmp_path):
    source = write(tmp_path, "a", "one\r\ntwo\r\n")
    target = write(tmp_path, "b", "un\ndeux")
    assert read_parallel(source, target) == [("one", "un"), ("two", "deux")]


@pytest.mark.parametrize("character", ["\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c", "\r"])
def test_only_newline_ends_a_line(tmp_path, character):
    source = write(tmp_path, "a", f"one{character}two\nthree\n")
    target = write(tmp_path, "b", "un\ndeux\n")
    assert read_parallel(source, target) == [(f"one{character}two", "un"), ("three", "deux")]


def test_empty_lines_keep_their_place(tmp_path):
    source, target = write(tmp_path, "a", "one\n\nthree\n"), write(tmp_path, "b", "un\n\ntrois\n")
    assert read_parallel(source, target) == [("one", "un"), ("", ""), ("three", "trois")]


def test_byte_order_mark_is_no_part_of_the_text(tmp_path):
    source, target = write(tmp_path, "a", b"\xef\xbb\xbfone\n"), write(tmp_path, "b", "un\n")
    assert read_parallel(source, target) == [("one", "un")]


@pytest.mark.parametrize("missing", ["source_path", "target_path"])
def test_missing_file_is_refused_by_name(tmp_path, missing):
    paths = {side: write(tmp_path, side, "x\n") for side in ("source_path", "target_path")}
    paths[missing] = tmp_path / "nowhere.txt"
    message = rf"read_parallel: `{missing}` must name an existing file\. Received: .*nowhere\.txt"
    with pytest.raises(FileNotFoundError, match=message):
        read_parallel(**paths)


def test_folder_is_no_file(tmp_path):
    with pytest.raises(FileNotFoundError, match="`source_path` must name an existing file"):
        read_parallel(tmp_path, tmp_path)


def test_sides_of_different_length_are_refused_with_both_counts(tmp_path):
    source, target = write(tmp_path, "a", "1\n2\n3\n"), write(tmp_path, "b", "1\n2\n")
    message = r"`target_path` must have as many lines as `source_path` \(3, not 2\)"
    with pytest.raises(ValueError, match=message):
        read_parallel(source, target)


def test_bytes_that_are_not_utf8_are_refused_with_their_line(tmp_path):
    source = write(tmp_path, "a", "un\nétés\n")
    target = write(tmp_path, "b", b"one\n" + "été\n".encode("latin-1"))
    with pytest.raises(ValueError, match=r"`target_path` must be UTF-8 text \(line 2 is not\)"):
        read_parallel(source, target)


@pytest.mark.parametrize("content", [b"", gzip.compress(b"", mtime=0)], ids=["plain", "gzip"])
def test_empty_file_is_refused(tmp_path, content):
    source, target = write(tmp_path, "a", content), write(tmp_path, "b", content)
    with pytest.raises(ValueError, match="`source_path` must name a file with at least one line"):
        read_parallel(source, target)


@pytest.mark.parametrize("keep", [slice(None, -9), slice(None, 6), slice(None, 2)])
def test_damaged_gzip_is_refused(tmp_path, keep):
    source = write(tmp_path, "a.gz", gzip.compress(b"one\ntwo\n" * 50)[keep])
    with pytest.raises(ValueError, match="`source_path` must hold undamaged gzip data"):
        read_parallel(source, write(tmp_path, "b", "un\n"))


def test_gzip_with_wrong_bytes_inside_is_refused(tmp_path):
    content = bytearray(gzip.compress(b"one\ntwo\nthree\n"))
    content[10] ^= 0xFF
    source = write(tmp_path, "a.gz", bytes(content))
    with pytest.raises(ValueError, match="`source_path` must hold undamaged gzip data"):
        read_parallel(source, write(tmp_path, "b", "un\n"))
