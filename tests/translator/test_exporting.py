"""A run's model in the formats of other programs, and model folders that were tampered with."""

import json
import re
import zipfile

import keras
import numpy as np
import pytest

from tests.translator.command import TOY, status, translator
from tfattn import convert, data
from tfattn.translator import arguments
from tfattn.translator.folder import Folder

OUT = ("--out", "here/and/there")


@pytest.mark.slow
@pytest.mark.tensorflow
def test_a_saved_model_gives_what_the_model_gives(out, capsys):
    import tensorflow as tf

    translator("export", "--to", "saved_model", *OUT)
    assert capsys.readouterr().out == "saved_model: here/and/there/saved_model\n"
    served = tf.saved_model.load(out / "saved_model")
    ids = np.array([[4, 5, 6, 3]], "int32")
    model, _ = Folder(out).load_model()
    np.testing.assert_allclose(served.serve((ids, ids)), model((ids, ids)), atol=1e-5)
    assert status("export", "--to", "saved_model", *OUT) == 1
    assert "saved_model is there already: --into names another path" in capsys.readouterr().err


class Exported:
    """Stands in for a model; notes what it is exported as."""

    def export(self, path, format="tf_saved_model", verbose=True):
        assert not verbose
        path.write_text(format)


@pytest.fixture
def exported(monkeypatch, tmp_path, capsys):
    """Function from arguments to what lies at the path that the command names."""
    words = [data.Vocabulary(["a"]), data.Vocabulary(["b"])]
    monkeypatch.setattr(Folder, "load_model", lambda folder: (Exported(), words))
    monkeypatch.chdir(tmp_path)

    def to_onnx(model, vocabularies, folder):
        assert isinstance(model, Exported) and list(vocabularies) == words
        folder.write_text("onnx")

    def to_ctranslate2(model, vocabularies, folder, quantization=None):
        assert isinstance(model, Exported) and list(vocabularies) == words
        folder.write_text(f"ctranslate2 {quantization}")

    monkeypatch.setattr(convert, "to_onnx", to_onnx, raising=False)
    monkeypatch.setattr(convert, "to_ctranslate2", to_ctranslate2, raising=False)

    def of(*arguments):
        translator("export", *arguments)
        _, path = capsys.readouterr().out.split()
        return path, (tmp_path / path).read_text()

    return of


@pytest.mark.parametrize(
    "format, more, wanted",
    [
        ("saved_model", [], "tf_saved_model"),
        ("litert", [], "litert"),
        ("onnx", [], "onnx"),
        ("ctranslate2", [], "ctranslate2 None"),
        ("ctranslate2", ["--quantization", "int8"], "ctranslate2 int8"),
    ],
)
def test_each_format_has_its_place_in_the_run_or_where_it_is_named(exported, format, more, wanted):
    default = f"out/translator/{arguments.EXPORTS[format]}"
    assert exported("--to", format, *more) == (default, wanted)
    assert exported("--to", format, *more, "--into", "new/place") == ("new/place", wanted)


def test_what_is_not_installed_is_named(monkeypatch, tmp_path, refused):
    def to_onnx(model, vocabularies, folder):
        raise ImportError('to_onnx needs onnx: pip install "tfattn[export]"')

    monkeypatch.setattr(Folder, "load_model", lambda folder: (Exported(), []))
    monkeypatch.setattr(convert, "to_onnx", to_onnx, raising=False)
    said = refused("export", "--to", "onnx", folder=tmp_path)
    assert said == 'error: to_onnx needs onnx: pip install "tfattn[export]"'


@pytest.mark.slow
def test_a_recurrent_model_has_no_litert_file_from_here(refused, folder):
    said = refused("export", "--to", "litert", *OUT, folder=folder)
    assert "--to litert: a recurrent model needs a known batch and source length" in said
    assert not (folder / "here" / "and" / "there" / "model.tflite").exists()


# Folders that somebody has tampered with: each is one sentence, in every command that loads them.

COMMANDS = [("translate", *OUT), ("score", *OUT), ("export", "--to", "saved_model", *OUT)]


def other_target_words(out):
    *words, last, final = data.load_vocabulary(out / "target.vocabulary").words[4:]
    data.Vocabulary([*words, final, last]).save(out / "target.vocabulary")


def words_of_another_size(out):
    data.Vocabulary(["a"]).save(out / "target.vocabulary")
    forget(out)


def no_vocabulary(out):
    (out / "source.vocabulary").unlink()


def damaged_vocabulary(out):
    (out / "source.vocabulary").write_text('{"words": ["a", "<eos>"]}')


def damaged_record(out):
    (out / "run.json").write_text("{")


def no_model(out):
    (out / "model.keras").unlink()


def changed_byte(out):
    content = bytearray((out / "model.keras").read_bytes())
    content[len(content) // 2] ^= 1
    (out / "model.keras").write_bytes(content)


def cut_off(out):
    (out / "model.keras").write_bytes((out / "model.keras").read_bytes()[:5000])
    forget(out)


def other_weights(out):
    """The file as a zip is whole, and its weights are not those of its layers."""
    path = out / "model.keras"
    with zipfile.ZipFile(path) as file:
        parts = {name: file.read(name) for name in file.namelist()}
    config = json.loads(parts["config.json"])
    config["config"]["units"] += 1
    parts["config.json"] = json.dumps(config).encode()
    with zipfile.ZipFile(path, "w") as file:
        for name, content in parts.items():
            file.writestr(name, content)
    forget(out)


def no_translator(out):
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.save(out / "model.keras")
    forget(out)


def forget(out):
    """As if the record knew nothing of files."""
    record = Folder(out).read_record()
    kept = {name: record[name] for name in ("settings", "data", "sentences")}
    (out / "run.json").write_text(json.dumps(kept))


TAMPERED = {
    other_target_words: "the vocabularies in .* are not those that its model was trained with",
    words_of_another_size: r"model\.keras is of other vocabularies .* it takes \d+ and \d+ entries",
    no_vocabulary: r"`path` must name an existing file.*source\.vocabulary",
    damaged_vocabulary: r"`path` must name a file that .*source\.vocabulary",
    damaged_record: r"run\.json is damaged",
    no_model: r"model\.keras is not there: train first",
    changed_byte: r"model\.keras is not the file that the training wrote: it was damaged, or",
    cut_off: r"model\.keras cannot be loaded as a model",
    other_weights: r"model\.keras cannot be loaded as a model",
    no_translator: r"model\.keras holds a Sequential, which does not translate",
}


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("tamper", TAMPERED, ids=lambda tamper: tamper.__name__)
def test_a_folder_that_was_tampered_with_is_one_sentence(tamper, refused, folder):
    tamper(folder / "here" / "and" / "there")
    for command in COMMANDS:
        said = refused(*command, folder=folder)
        assert re.search(TAMPERED[tamper], said), said


@pytest.mark.slow
def test_a_run_goes_on_with_its_own_vocabularies_alone(refused, folder):
    other_target_words(folder / "here" / "and" / "there")
    said = refused("train", *TOY, "--epochs", 2, "--resume", folder=folder)
    assert "are not those that its run was trained with" in said


@pytest.mark.slow
@pytest.mark.tensorflow
def test_a_model_of_which_the_record_says_nothing_is_taken(out, capsys):
    forget(out)
    translator("export", "--to", "saved_model", *OUT)
    assert "note: no record in" in capsys.readouterr().err
