"""Files of a run that were damaged, cut off or exchanged: whoever reads one says so in a sentence
that names the file.
"""

import io
import json
import re
import shutil

import keras
import numpy as np
import pytest

import tfattn
from tests.translator.command import status, write_corpus
from tfattn import data, training
from tfattn.translator.folder import Folder

WORDS = [data.Vocabulary(["a"]), data.Vocabulary(["b", "c"])]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The folder of a run: record, vocabularies, model and backup."""
    folder, x = Folder(tmp_path_factory.mktemp("whole")), np.ones((1, 3))
    folder.save_vocabularies(WORDS)
    model = tfattn.BahdanauSeq2Seq(*map(len, WORDS), width=2, units=2)
    model.build(((None, None), (None, None)))
    folder.save_model(model)
    folder.add_to_record(settings={})
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(5, name="dense")])
    model.compile("adam", "mse", run_eagerly=True)
    model.fit(x, np.ones((1, 5)), verbose=0, callbacks=[training.Backup(folder.backup)])
    return folder, keras.ops.convert_to_numpy(model.layers[0].kernel).tobytes()


@pytest.fixture
def folder(whole, tmp_path):
    return Folder(shutil.copytree(whole[0].path, tmp_path / "copy"))


def arrays(**named):
    file = io.BytesIO()
    np.savez(file, **named)
    return file.getvalue()


def array():
    file = io.BytesIO()
    np.save(file, np.ones(3))
    return file.getvalue()


# From the content of a file to another, given the bytes of a weight in it.
ANY_FILE = {
    "a changed weight": lambda b, weight: b.replace(weight, weight[:9] + b"\7" + weight[10:]),
    "without its end": lambda b, weight: b[:-100],
    "without two bytes": lambda b, weight: b[:-2],
    "half": lambda b, weight: b[: len(b) // 2],
    "nine bytes": lambda b, weight: b[:9],
    "zeros at its end": lambda b, weight: b[:-9] + bytes(9),
    "empty": lambda b, weight: b"",
    "text": lambda b, weight: b"hello",
}
BACKUP = {
    "array": lambda b, weight: array(),
    "another file of NumPy's": lambda b, weight: arrays(weights=np.ones(3)),
    "no epoch": lambda b, weight: arrays(logs=np.array(json.dumps({"history": {}}))),
    "no logs": lambda b, weight: arrays(logs=np.array("[3]")),
    "encrypted": lambda b, weight: b.replace(b"PK\1\2\x2d\3\x2d\0\0", b"PK\1\2\x2d\3\x2d\0\1"),
}


@pytest.mark.slow
@pytest.mark.parametrize("damage", [*ANY_FILE, *BACKUP])
def test_state_of_a_training_damaged_is_refused_by_name(whole, folder, damage):
    change, weight = {**ANY_FILE, **BACKUP}[damage], whole[1]
    training.Backup(folder.backup)  # which is whole
    folder.backup.write_bytes(change(folder.backup.read_bytes(), weight))
    said = "Backup: `filepath` must be an intact file of `Backup`; delete it to"
    with pytest.raises(ValueError, match=said):
        training.Backup(folder.backup)


def forget(folder):
    """Removes the fingerprints from the record, as in a folder of an older run."""
    folder.record.write_text(json.dumps({"settings": {}}))


def changed_byte(folder):
    content = bytearray(folder.model.read_bytes())
    content[len(content) // 2] ^= 1  # of a weight
    folder.model.write_bytes(content)


def cut_off(folder):
    folder.model.write_bytes(folder.model.read_bytes()[:5000])


def no_translator(folder):
    keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)]).save(folder.model)


def other_words(folder):
    data.Vocabulary(["c", "b"]).save(folder.vocabulary_files[1])


def of_a_later_zip(folder):
    content = bytearray(folder.model.read_bytes())
    content[content.index(b"PK\1\2") + 6] = 99  # the version that is needed to extract
    folder.model.write_bytes(content)


def words_of_another_size(folder):
    data.Vocabulary(["a", "b", "c"]).save(folder.vocabulary_files[1])
    forget(folder)


def no_vocabulary(folder):
    folder.vocabulary_files[0].unlink()


RUN = {
    changed_byte: r"model\.keras cannot be loaded as a model",
    cut_off: r"model\.keras cannot be loaded as a model",
    of_a_later_zip: r"model\.keras cannot be loaded as a model",
    no_translator: r"model\.keras: `model` must have `encode` and `step`",
    other_words: "the vocabularies in .* are not those of its model",
    words_of_another_size: r"model\.keras: `target_vocabulary` must have 6 entries, as in",
    no_vocabulary: r"`path` must name an existing file.*source\.vocabulary",
}


@pytest.mark.slow
@pytest.mark.parametrize("tamper", RUN, ids=lambda tamper: tamper.__name__)
def test_run_tampered_with_is_refused_by_every_command(tamper, refused, folder):
    tamper(folder)
    write_corpus(folder.path, [("a", "b")], ["val"])
    score = ["score", "--data", folder.path]
    for command in (["translate"], score, ["export", "--to", "saved_model"]):
        said = refused(*command, "--out", folder.path, folder=folder.path)
        assert re.search(RUN[tamper], said), said
        if tamper is not changed_byte:
            break


@pytest.mark.slow
def test_run_without_recorded_fingerprints_is_loaded(folder):
    forget(folder)
    folder.load_model()


def test_record_damaged_is_refused_by_name(tmp_path, capsys):
    folder = Folder(tmp_path)
    folder.save_vocabularies(WORDS)
    folder.model.touch()
    for record in ('{"run": ["a"', ""):
        folder.record.write_text(record)
        with pytest.raises(ValueError, match=r"run\.json cannot be read\. Delete it to continue"):
            folder.read_record()
    assert status("translate", "--out", folder.path) == 1
    assert "run.json cannot be read" in capsys.readouterr().err
