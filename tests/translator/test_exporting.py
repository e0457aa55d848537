"""A run's model in the formats of other programs, and model folders that were tampered with."""

import json
import re
from pathlib import Path

import keras
import numpy as np
import pytest

import tfattn
from tests.translator.command import OUT, TOY, status, translator
from tfattn import convert, data
from tfattn.translator import arguments
from tfattn.translator.folder import Folder, fingerprint


@pytest.mark.slow
@pytest.mark.tensorflow
@pytest.mark.usefixtures("dense_path")
def test_a_saved_model_gives_what_the_model_gives(out, loaded, capsys):
    import tensorflow as tf

    assert not loaded[0].compiled
    translator("export", "--to", "saved_model", *OUT)
    assert capsys.readouterr().out == "saved_model: here/and/there/saved_model\n"
    served = tf.saved_model.load(out / "saved_model")
    ids = np.array([[4, 5, 6, 3]], "int32")
    np.testing.assert_allclose(served.serve((ids, ids)), loaded[0]((ids, ids)), atol=1e-5)
    assert status("export", "--to", "saved_model", *OUT) == 1
    assert "saved_model already exists. Use --into to choose another" in capsys.readouterr().err


class Exported:
    """A stub of a model; records the format of its export."""

    def export(self, path, format="tf_saved_model", verbose=True):
        assert not verbose
        path = Path(path)
        (path / "file" if path.is_dir() else path).write_text(format)


@pytest.mark.parametrize(
    "format, more, wanted",
    [
        ("saved_model", [], "tf_saved_model"),
        ("litert", [], "litert"),
        ("onnx", [], "onnx"),
        ("ctranslate2", [], "ctranslate2 None"),
        ("ctranslate2", ["--quantization", "int8"], "ctranslate2 int8"),
        ("page", [], "page int8"),
        ("page", ["--quantization", "float16"], "page float16"),
    ],
)
def test_a_format_is_written_to_the_run_or_to_a_given_path(
    format, more, wanted, monkeypatch, tmp_path, capsys
):
    model, words = Exported(), [data.Vocabulary(["a"]), data.Vocabulary(["b"])]
    monkeypatch.setattr(Folder, "load_model", lambda folder, *_: (model, words))
    monkeypatch.chdir(tmp_path)

    def to_onnx(found, vocabularies, folder):
        assert found is model and vocabularies is words
        folder.write_text("onnx")

    def to_litert(found, path):
        assert found is model
        path.write_text("litert")

    def to_ctranslate2(found, vocabularies, folder, quantization=None):
        assert found is model and vocabularies is words
        folder.write_text(f"ctranslate2 {quantization}")

    def to_page(found, *arguments, quantization="int8"):
        *vocabularies, path, examples = arguments
        assert found is model and vocabularies == words and examples == []
        path.write_text(f"page {quantization}")

    monkeypatch.setattr(convert, "to_onnx", to_onnx)
    monkeypatch.setattr(convert, "to_litert", to_litert)
    monkeypatch.setattr(convert, "to_ctranslate2", to_ctranslate2)
    monkeypatch.setattr(convert, "to_page", to_page)
    default = f"out/translator/{arguments.EXPORTS[format]}"
    for place, options in ((default, []), ("new/place", ["--into", "new/place"])):
        translator("export", "--to", format, *more, *options)
        assert capsys.readouterr().out.split()[1] == place
        written = tmp_path / place
        assert (written / "file" if written.is_dir() else written).read_text() == wanted


def test_a_page_has_short_sentences_of_the_validation_data(monkeypatch, tmp_path):
    given = []
    monkeypatch.setattr(Folder, "load_model", lambda folder, *_: (Exported(), ["words"] * 2))
    monkeypatch.setattr(convert, "to_page", lambda *arguments: given.extend(arguments[3:]))
    pairs = data.toy_translation(50, seed=3)
    train, validation = data.split_pairs(pairs, seed=3)
    sentences = fingerprint(line for pair in (*train, *validation) for line in pair)
    settings = {"pairs": 50, "seed": 3}
    Folder(tmp_path).add_to_record(data=None, settings=settings, sentences=sentences)
    translator("export", "--to", "page", "--out", tmp_path, "--into", tmp_path / "page.html")
    short = [source for source, _ in validation if len(source.split()) <= 10]
    assert given == [tmp_path / "page.html", short[:6]] and short


def test_a_missing_package_is_named(monkeypatch, tmp_path, refused):
    def to_onnx(model, vocabularies, folder):
        raise ImportError('to_onnx needs onnx: pip install "tfattn[export]"')

    monkeypatch.setattr(Folder, "load_model", lambda folder, *_: (Exported(), []))
    monkeypatch.setattr(convert, "to_onnx", to_onnx)
    said = refused("export", "--to", "onnx", folder=tmp_path)
    assert said == 'error: to_onnx needs onnx: pip install "tfattn[export]"'


def test_a_recurrent_model_is_not_exported_to_litert(monkeypatch, refused, tmp_path):
    model = tfattn.BahdanauSeq2Seq(5, width=2, units=2)
    monkeypatch.setattr(Folder, "load_model", lambda folder, *_: (model, []))
    said = refused("export", "--to", "litert", *OUT, folder=tmp_path)
    assert "to_litert: `model` must be a Transformer" in said
    assert not list(tmp_path.rglob("model.tflite"))


# Damaged folders: every command that loads them reports one sentence.

COMMANDS = [("translate", *OUT), ("score", *OUT), ("export", "--to", "saved_model", *OUT)]


def forget(out):
    """Removes the fingerprints from the record."""
    record = Folder(out).read_record()
    kept = {name: record[name] for name in ("settings", "data", "sentences")}
    (out / "run.json").write_text(json.dumps(kept))


def other_target_words(out):
    *words, last, final = data.load_vocabulary(out / "target.vocabulary").words[4:]
    data.Vocabulary([*words, final, last]).save(out / "target.vocabulary")


def words_of_another_size(out):
    data.Vocabulary(["a"]).save(out / "target.vocabulary")
    forget(out)


def no_vocabulary(out):
    (out / "source.vocabulary").unlink()


def damaged_record(out):
    (out / "run.json").write_text("{")


def changed_byte(out):
    content = bytearray((out / "model.keras").read_bytes())
    content[len(content) // 2] ^= 1
    (out / "model.keras").write_bytes(content)


def cut_off(out):
    (out / "model.keras").write_bytes((out / "model.keras").read_bytes()[:5000])
    forget(out)


def no_translator(out):
    keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)]).save(out / "model.keras")
    forget(out)


TAMPERED = {
    changed_byte: r"model\.keras was damaged or replaced after its training",
    other_target_words: "the vocabularies in .* are not the vocabularies of its model",
    words_of_another_size: r"model\.keras expects vocabularies of \d+ and \d+ entries",
    no_vocabulary: r"`path` must name an existing file.*source\.vocabulary",
    damaged_record: r"run\.json cannot be read",
    cut_off: r"model\.keras cannot be loaded as a model",
    no_translator: r"model\.keras contains a Sequential, which does not translate",
}


@pytest.mark.slow
@pytest.mark.parametrize("tamper", TAMPERED, ids=lambda tamper: tamper.__name__)
def test_a_damaged_folder_is_reported_in_one_sentence(tamper, refused, folder):
    tamper(folder / "here" / "and" / "there")
    for command in COMMANDS if tamper is changed_byte else COMMANDS[:1]:
        said = refused(*command, folder=folder)
        assert re.search(TAMPERED[tamper], said), said


@pytest.mark.slow
def test_a_run_is_resumed_only_with_its_own_vocabularies(refused, folder):
    other_target_words(folder / "here" / "and" / "there")
    said = refused("train", *TOY, "--epochs", 2, "--resume", folder=folder)
    assert "are not the vocabularies of its run" in said


@pytest.mark.slow
def test_a_model_without_a_recorded_fingerprint_is_accepted(folder, capsys):
    out = folder / "here" / "and" / "there"
    forget(out)
    Folder(out).load_model()
    assert "has no record of the vocabularies that its" in capsys.readouterr().err
