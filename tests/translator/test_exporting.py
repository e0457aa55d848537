"""A run's model in the formats of other programs."""

from pathlib import Path

import pytest

import tfattn
from tests.translator.command import translator
from tfattn import convert, data
from tfattn.translator import arguments
from tfattn.translator.folder import Folder, fingerprint


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
def test_export_writes_to_the_run(format, more, wanted, monkeypatch, tmp_path, capsys):
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
    place = f"out/translator/{arguments.EXPORTS[format]}"
    (tmp_path / place).parent.mkdir(parents=True)
    translator("export", "--to", format, *more)
    assert capsys.readouterr().out.split()[1] == place
    written = tmp_path / place
    assert (written / "file" if written.is_dir() else written).read_text() == wanted


def test_export_page_has_short_sentences_held_out(monkeypatch, tmp_path):
    given = []
    monkeypatch.setattr(Folder, "load_model", lambda folder, *_: (Exported(), ["words"] * 2))
    monkeypatch.setattr(convert, "to_page", lambda *arguments: given.extend(arguments[3:]))
    pairs = data.toy_translation(50, seed=3)
    train, validation = data.split_pairs(pairs, seed=3)
    sentences = fingerprint(line for pair in (*train, *validation) for line in pair)
    settings = {"pairs": 50, "seed": 3}
    Folder(tmp_path).add_to_record(data=None, settings=settings, sentences=sentences)
    translator("export", "--to", "page", "--out", tmp_path)
    short = [source for source, _ in validation if len(source.split()) <= 10]
    assert given == [tmp_path / "page.html", short[:6]] and short


def test_export_missing_package_or_unfit_model_is_named(monkeypatch, refused, tmp_path):
    def to_onnx(model, vocabularies, folder):
        raise ImportError('to_onnx needs onnx: pip install "tfattn[export]"')

    model = tfattn.BahdanauSeq2Seq(5, width=2, units=2)
    monkeypatch.setattr(Folder, "load_model", lambda folder, *_: (model, []))
    monkeypatch.setattr(convert, "to_onnx", to_onnx)
    said = refused("export", "--to", "onnx", folder=tmp_path)
    assert said == 'error: to_onnx needs onnx: pip install "tfattn[export]"'
    said = refused("export", "--to", "litert", "--out", tmp_path, folder=tmp_path)
    assert "to_litert: `model` must be a Transformer" in said
    assert not list(tmp_path.rglob("model.tflite"))
