"""The folder of a run: its lock, its record, and the vocabularies of a run or a model."""

import pytest

from tests.helpers.processes import locking
from tests.translator.command import TOY
from tfattn import data
from tfattn.translator.folder import Folder, vocabulary_fingerprints

WORDS = [data.Vocabulary(["a"]), data.Vocabulary(["b", "c"])]


def test_one_training_at_a_time_writes_to_a_folder(tmp_path, refused):
    out = tmp_path / "here" / "and" / "there"
    out.mkdir(parents=True)
    with locking(Folder(out).backup):
        said = refused("train", *TOY, folder=tmp_path)
    assert said == (
        "error: another training run writes to here/and/there. Wait for its end, or use --out to "
        "choose another folder."
    )
    assert [each.name for each in out.iterdir()] == ["backup.npz.lock"]
    late = Folder(tmp_path / "new")
    late.take()
    late.path.mkdir()  # as another training does, since it was looked for
    with pytest.raises(ValueError, match="another training run writes to"):
        late.take(new=True)


def test_a_folder_may_be_a_dangling_link_but_not_a_file(tmp_path, refused):
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "new" / "run")
    for folder in (Folder(link), Folder(link / "below")):
        folder.take()
        folder.take(new=True)
        folder.add_to_record(run=["a"])
    assert (tmp_path / "new" / "run" / "below" / "run.json").exists()
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for name in ("file", "loop"):
        said = refused("train", "--out", name, folder=tmp_path)
        assert said == f"error: {name} is not a folder. Use --out to choose another path."


def test_new_entries_are_added_to_the_record(tmp_path):
    folder = Folder(tmp_path)
    assert folder.read_record() == {}
    folder.add_to_record(run=["a"])
    folder.add_to_record(model=["b"])
    assert folder.read_record() == {"run": ["a"], "model": ["b"]}


@pytest.mark.parametrize(
    "damaged",
    [
        *('{"run": ["a"', "[]", "3", "", "[" * 100_000),
        *('{"data": null}', '{"data": null, "settings": {"pairs": 9, "seed": 1}}'),
        *('{"settings": []}', '{"data": 5}', '{"model": "a"}', '{"epochs": "many"}'),
        *('{"settings": {"languages": null}}', '{"settings": {"languages": ["en", 3]}}'),
        *('{"settings": {"languages": "en"}}', '{"search": {"num_beams": "6"}}'),
        '{"search": {"beams": 6}}',
    ],
)
def test_a_damaged_record_of_a_run_is_named(tmp_path, damaged):
    folder = Folder(tmp_path)
    folder.record.write_text(damaged)
    with pytest.raises(ValueError, match=r"run\.json cannot be read\. Delete it to continue"):
        folder.read_record()


@pytest.fixture
def folder(tmp_path):
    """A folder with two vocabularies."""
    folder = Folder(tmp_path)
    folder.save_vocabularies(WORDS)
    return folder


@pytest.mark.parametrize("owner", ["run", "model"])
def test_vocabularies_without_a_record_print_a_note(folder, capsys, owner):
    folder.load_vocabularies(owner)
    said = f"has no record of the vocabularies that its {owner} was trained with"
    assert said in capsys.readouterr().err
    folder.add_to_record(**{owner: vocabulary_fingerprints(WORDS)})
    found = folder.load_vocabularies(owner)
    assert capsys.readouterr().err == ""
    assert [each.words for each in found] == [each.words for each in WORDS]


OF_THE_SAME_SIZE = data.Vocabulary(["c", "b"])
SPLIT_OTHERWISE = data.Vocabulary(["b", "c"], tokenizer=data.Characters())


@pytest.mark.parametrize(
    "owner, other",
    [("run", OF_THE_SAME_SIZE), ("model", SPLIT_OTHERWISE)],
)
def test_other_vocabularies_are_refused(folder, capsys, owner, other):
    folder.add_to_record(**{owner: vocabulary_fingerprints(WORDS)})
    folder.load_vocabularies(owner)
    assert capsys.readouterr().err == ""
    other.save(folder.vocabulary_files[1])
    with pytest.raises(ValueError, match=f"are not the vocabularies of its {owner}"):
        folder.load_vocabularies(owner)


def test_subwords_of_other_scores_are_refused(tmp_path):
    """Scores determine the segmentation of a word."""
    try:
        from sentencepiece import sentencepiece_model_pb2 as proto
    except ImportError:
        pytest.skip("this sentencepiece needs a newer protobuf than the lowest TensorFlow takes")
    words = data.SubwordVocabulary.from_sentences(["low lower lowest", "new newer newest"], size=40)
    folder = Folder(tmp_path)
    folder.save_vocabularies([words, words])
    folder.add_to_record(run=vocabulary_fingerprints([words, words]))
    folder.load_vocabularies("run")
    content = proto.ModelProto.FromString(folder.vocabulary_files[1].read_bytes())
    content.pieces[-1].score -= 3.0
    folder.vocabulary_files[1].write_bytes(content.SerializeToString())
    assert data.load_vocabulary(folder.vocabulary_files[1]).words == words.words
    with pytest.raises(ValueError, match="are not the vocabularies of its run"):
        folder.load_vocabularies("run")
