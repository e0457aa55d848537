"""The folder of a run: its lock, its record, and the vocabularies of a run or a model."""

import zipfile

import keras
import pytest

from tests.helpers.small_training import locking
from tests.translator.command import TOY
from tfattn import data
from tfattn.translator.folder import Folder

WORDS = [data.Vocabulary(["a"]), data.Vocabulary(["b", "c"])]


def test_folder_is_written_by_one_training_at_a_time(tmp_path, refused):
    out = tmp_path / "here" / "and" / "there"
    out.mkdir(parents=True)
    with locking(Folder(out).backup):
        said = refused("train", *TOY, folder=tmp_path)
    assert said == (
        "error: another training run writes to here/and/there. Wait for its end, or use --out to "
        "choose another folder."
    )
    assert [each.name for each in out.iterdir()] == ["backup.npz.lock"]


def test_folder_may_be_a_dangling_link_but_not_a_file(tmp_path, refused):
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "new" / "run")
    for folder in (Folder(link), Folder(link / "below")):
        folder.lock()
        assert folder.read_record() == {}
        folder.add_to_record(sentences="a")
        folder.add_to_record(model=["b"])
        assert folder.read_record() == {"sentences": "a", "model": ["b"]}
    assert (tmp_path / "new" / "run" / "below" / "run.json").exists()
    (tmp_path / "file").touch()
    said = refused("train", "--out", "file", folder=tmp_path)
    assert said.startswith("error: [Errno 17] File exists: ")


@pytest.fixture
def folder(tmp_path):
    """A folder with two vocabularies."""
    folder = Folder(tmp_path)
    folder.save_vocabularies(WORDS)
    return folder


def test_folder_vocabularies_other_than_recorded_are_refused(folder):
    found = folder.load_vocabularies()
    assert [each.words for each in found] == [each.words for each in WORDS]
    for other in (
        data.Vocabulary(["c", "b"]),
        data.Vocabulary(["b", "c"], tokenizer=data.Characters()),
    ):
        other.save(folder.vocabulary_files[1])
        with pytest.raises(ValueError, match="are not those of its model"):
            folder.load_vocabularies()
    folder.record.unlink()
    assert folder.load_vocabularies()[1].words == other.words


def test_folder_subwords_of_other_scores_are_refused(tmp_path):
    """Scores determine the segmentation of a word."""
    try:
        from sentencepiece import sentencepiece_model_pb2 as proto
    except ImportError:
        pytest.skip("this sentencepiece needs a newer protobuf than the lowest TensorFlow takes")
    words = data.SubwordVocabulary.from_sentences(["low lower lowest", "new newer newest"], size=40)
    folder = Folder(tmp_path)
    folder.save_vocabularies([words, words])
    folder.load_vocabularies()
    content = proto.ModelProto.FromString(folder.vocabulary_files[1].read_bytes())
    content.pieces[-1].score -= 3.0
    folder.vocabulary_files[1].write_bytes(content.SerializeToString())
    assert data.load_vocabulary(folder.vocabulary_files[1]).words == words.words
    with pytest.raises(ValueError, match="are not those of its model"):
        folder.load_vocabularies()


def test_folder_fault_in_loading_is_not_damage_of_its_file(folder, monkeypatch):
    def load_model(path, compile):
        raise error

    zipfile.ZipFile(folder.model, "w").close()
    monkeypatch.setattr(keras.models, "load_model", load_model)
    error = KeyError("layers")
    with pytest.raises(ValueError, match=r"model\.keras cannot be loaded .*\(KeyError: ") as found:
        folder.load_model()
    assert found.value.__cause__ is error
    for error in (AttributeError("of our own"), RuntimeError("RESOURCE_EXHAUSTED")):
        with pytest.raises(type(error), match=str(error)):
            folder.load_model()
