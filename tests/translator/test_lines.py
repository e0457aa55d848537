"""Lines to translate: from a terminal, a pipe or a file, raw or split, whole or in pieces."""

import gzip
import io
import os
import sys
import threading

import pytest

from tests.translator.command import status
from tfattn import data, decoding
from tfattn.decoding import Search
from tfattn.translator import lines, translating
from tfattn.translator.folder import Folder

SPLIT = [data.Vocabulary(["a", "hat", "."])] * 2
WITH_CAPITALS = [data.Vocabulary(["A", "hat", "."])] * 2


class Typed(io.TextIOWrapper):
    def __init__(self, text, terminal):
        content = io.BytesIO(text if isinstance(text, bytes) else text.encode())
        content.isatty = lambda: terminal
        super().__init__(content, encoding="utf-8")


@pytest.fixture
def asked(monkeypatch):
    """The batches of lines passed to a stub of a model, which writes capital letters."""
    found = []

    def translate(model, sentences, *_):
        found.append(sentences)
        return [sentence.upper() for sentence in sentences]

    monkeypatch.setattr(translating, "translate", translate)
    return found


@pytest.fixture
def written(monkeypatch):
    """Function from arguments and standard input to the lines that are written."""

    def of(*arguments, text="", terminal=False, words=SPLIT, record=None):
        output = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdin", Typed(text, terminal))
            patch.setattr(sys, "stdout", output)
            patch.setattr(Folder, "load_model", lambda folder, *_: (None, words))
            patch.setattr(Folder, "read_record", lambda folder: record or {})
            assert status("translate", *arguments) == 0
        return output.buffer.getvalue().decode().split("\n")

    return of


@pytest.mark.parametrize("terminal, at_once", [(True, [1, 1, 1]), (False, [2, 1])])
def test_lines_of_a_terminal_are_translated_one_by_one(
    monkeypatch, asked, written, capsys, terminal, at_once
):
    monkeypatch.setattr(lines, "AT_ONCE", 2)
    for raw, split in (([], ", tokens separated by spaces"), (["--raw"], "")):
        asked.clear()
        assert written(*raw, text="a \n\nb", terminal=terminal) == ["A", "", "B", ""]
        assert [len(sentences) for sentences in asked] == at_once
        said = f"One sentence per line{split}; end with Ctrl-D.\n"
        assert capsys.readouterr().err.startswith(said) == terminal


@pytest.mark.parametrize("stream", [[], ["--stream"]])
def test_unknown_words_of_a_run_are_noted_once_with_their_lines(
    monkeypatch, asked, written, capsys, stream
):
    monkeypatch.setattr(lines, "AT_ONCE", 2)
    monkeypatch.setattr(decoding, "translate_stream", lambda *_, **__: iter(()))
    said = "note: the vocabulary lacks words, which are read as <unk>: "
    subwords = data.SubwordVocabulary.from_sentences(["a hat ."], 20)
    for words, text, note in (
        (
            SPLIT,
            "a loaf\na hat\nfresh loaf",
            "'loaf' (line 1); 'fresh', 'loaf' (line 3). A model tr",
        ),
        (SPLIT, "a Hat.\n", "'Hat.' (line 1). With --raw, plain text is tokenized"),
        ([subwords] * 2, "a 猫\n", "'猫' (line 1)\n"),
    ):
        written(*stream, text=text, words=words)
        error = capsys.readouterr().err
        assert error.startswith(said + note) and error.count("\n") == 1
    written(*stream, text="a b\nb\nc\n", terminal=True)
    _, *notes = capsys.readouterr().err.splitlines()
    for note, found in zip(notes, ("'b' (line 1)", "'c' (line 3)"), strict=True):
        assert note.startswith(said + found)
    written(*stream, text="a hat\n")
    assert capsys.readouterr().err == ""


def test_lines_n_best_are_a_line_for_each_hypothesis(monkeypatch, written):
    def n_best(model, sentences, source, target, search, **options):
        assert (search.num_beams, search.num_results) == (3, 2)
        hypotheses = {"a hat": [("b hat", -0.25), ("b", -1.5)], "": [("", 0.0)]}
        return [hypotheses[sentence] for sentence in sentences]

    monkeypatch.setattr(decoding, "translate_n_best", n_best)
    found = written("--n-best", "2", "--beam", "3", text="a hat\n\n")
    assert found == ["1\t-0.2500\tb hat", "2\t-1.5000\tb", "1\t0.0000\t", ""]


def test_lines_streamed_are_written_piece_by_piece(monkeypatch, written):
    def translate_stream(
        model, sentence, source_vocabulary, target_vocabulary, search=None, max_length=None
    ):
        assert (source_vocabulary, target_vocabulary) == tuple(SPLIT) and isinstance(search, Search)
        limits.append(max_length)
        yield from (f"{word} " for word in sentence.upper().split())

    limits = []
    monkeypatch.setattr(translating, "translate", lambda *given: limits.append(given[-2]) or ["B"])
    monkeypatch.setattr(decoding, "translate_stream", translate_stream, raising=False)
    assert written("--stream", text="a hat\n\nhat\n") == ["A HAT ", "", "HAT ", ""]
    limits.clear()
    for arguments in ([], ["--max-length", 7], ["--stream"], ["--stream", "--max-length", 7]):
        assert written(*arguments, text="b\n") == ["B " if "--stream" in arguments else "B", ""]
    assert limits == [None, 7, None, 7]


def test_lines_of_a_file_are_read_as_those_of_a_training(asked, written, tmp_path):
    path, text = tmp_path / "lines.en", "a\u2028b\rö\r\n\nc\n"
    for encoding in ("utf-8", "utf-8-sig", "utf-16"):
        content = text.encode(encoding)
        assert written(text=content) == ["A\u2028B\rÖ", "", "C", ""]
        for packed in (content, gzip.compress(content)):
            path.write_bytes(packed)
            assert written(path) == ["A\u2028B\rÖ", "", "C", ""]


@pytest.mark.parametrize("encoding", ["latin-1", "gbk", "utf-16-le", "utf-16-be"])
def test_lines_in_another_encoding_are_refused_by_line(
    asked, monkeypatch, refused, tmp_path, encoding
):
    path = tmp_path / "lines.en"
    path.write_bytes("a\tb\nü\n".encode(encoding))
    monkeypatch.setattr(Folder, "load_model", lambda folder, *_: (None, SPLIT))
    line = 1 if "utf" in encoding else 2
    said = "must be UTF-8 text, or UTF-16 with a byte order mark (line {} is neither): save it as"
    for command in (["translate", path], ["score", "--pairs", path]):
        found = refused(*command, folder=tmp_path)
        assert found.startswith(f"error: {path} {said.format(line)}"), found
    monkeypatch.setattr(sys, "stdin", Typed(path.read_bytes(), terminal=False))
    found = refused("translate", folder=tmp_path)
    assert found.startswith(f"error: standard input {said.format(line)}") and asked == []


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with a name")
def test_lines_of_a_named_pipe_are_read(asked, written, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    write = (tmp_path / "pipe").write_text  # blocks until a reader opens the pipe
    threading.Thread(target=write, args=("a\nb\n",), daemon=True).start()
    assert written(tmp_path / "pipe") == ["A", "B", ""]


def test_lines_error_names_its_line_after_those_before_it(asked, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(Folder, "load_model", lambda folder, *_: (None, SPLIT))

    def translate(model, sentences, *_):
        if "c" in sentences:
            raise ValueError("translate: `sentences[0]` must not be c; see sentences[0].")
        return sentences

    monkeypatch.setattr(translating, "translate", translate)
    monkeypatch.setattr(lines, "AT_ONCE", 2)
    (tmp_path / "lines").write_text("a\nb\nc\nd\n")
    assert status("translate", tmp_path / "lines") == 1
    said = "error: lines 3 to 4: translate: line 3 must not be c; see line 3.\n"
    output, error = capsys.readouterr()
    assert output == "a\nb\n" and error.endswith(said)


def test_lines_damaged_or_of_a_language_without_spaces_are_refused(monkeypatch, refused, tmp_path):
    monkeypatch.setattr(Folder, "load_model", lambda folder, *_: (None, SPLIT))
    path = tmp_path / "lines.gz"
    for content in (gzip.compress(b"a\n" * 999)[:-9], b"\x1f\x8b\x08 and so on"):
        path.write_bytes(content)
        said = refused("translate", path, folder=tmp_path)
        assert said == f"error: {path} must hold undamaged gzip data"
    monkeypatch.setattr(sys, "stdin", Typed("a\n", False))
    monkeypatch.setattr(Folder, "read_record", lambda _: {"settings": {"languages": ["en", "zh"]}})
    said = refused("translate", "--raw", folder=tmp_path)
    assert said.startswith("error: Moses: `language` must be")


RAW, TOKENS = "A man, in the kid's hat.", "an , in the kid &apos;s hat ."


@pytest.mark.parametrize(
    "words, record, sent",
    [
        (SPLIT, {}, f"a m{TOKENS}"),
        (WITH_CAPITALS, {}, f"A m{TOKENS}"),
        (SPLIT, {"settings": {"languages": ["de", "fr"]}}, None),
        (SPLIT, {"data": None}, f"a m{TOKENS}"),
    ],
)
def test_raw_text_becomes_that_of_the_model_and_comes_back(
    monkeypatch, asked, written, words, record, sent
):
    def echo(model, sentences, *_):
        asked.append(sentences)
        return sentences

    monkeypatch.setattr(translating, "translate", echo)
    text, end = written("--raw", text=f"{RAW}\n", words=words, record=record)
    assert end == ""
    if sent is not None:
        assert asked == [[sent]]
        assert text in (RAW, RAW.replace("kid's", "kid 's"))


def test_raw_text_keeps_the_symbols_of_the_vocabulary(asked, written):
    words = data.SubwordVocabulary.from_sentences(["a man , hat ."], 20, symbols=["<2FR>"])
    written("--raw", text="<2FR> A man, a hat.\n", words=[words] * 2)
    assert asked == [["<2FR> a man , a hat ."]]


def test_ensemble_of_runs_translates_as_one(monkeypatch, asked, written, tmp_path):
    models = []
    monkeypatch.chdir(tmp_path)
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        Folder(tmp_path / name).save_vocabularies(SPLIT)
    monkeypatch.setattr(decoding, "Ensemble", lambda some: models.append(some) or "ensemble")
    assert written("--ensemble", "one", "two", "one", text="a hat\n") == ["A HAT", ""]
    assert models == [(None,) * 3]
    assert written("--ensemble", "one", text="a hat\n") == ["A HAT", ""] and len(models) == 1


def test_ensemble_of_other_vocabularies_is_refused(monkeypatch, refused, tmp_path):
    other = data.Vocabulary(["a", "hats", "."])  # of the same size
    for third in ([other, SPLIT[1]], [SPLIT[0], other]):
        words = {"one": SPLIT, "two": SPLIT, "three": third}
        for name in words:
            (tmp_path / name).mkdir(exist_ok=True)
            Folder(tmp_path / name).save_vocabularies(words[name])
        monkeypatch.setattr(sys, "stdin", Typed("a\n", terminal=False))
        monkeypatch.setattr(Folder, "load_model", lambda run: (None, words[str(run.path)]))  # noqa: B023
        said = refused("translate", "--ensemble", *words, folder=tmp_path)
        assert said == "error: --ensemble: one and three were trained with different vocabularies"
