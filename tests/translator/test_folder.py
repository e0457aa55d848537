"""What a run leaves in `--out`: the record, and vocabularies that belong to their run or model."""

import pytest

from tfattn import data
from tfattn.translator.folder import Folder, fingerprint, vocabulary_fingerprints


def test_what_is_added_to_the_record_joins_what_is_there(tmp_path):
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
        '{"settings": {"languages": "en"}}',
    ],
)
def test_a_damaged_record_of_a_run_is_named(tmp_path, damaged):
    folder = Folder(tmp_path)
    folder.record.write_text(damaged)
    with pytest.raises(ValueError, match=r"run\.json is damaged.* delete this file to go on"):
        folder.read_record()


@pytest.mark.parametrize("owner", ["run", "model"])
def test_vocabularies_without_a_record_are_said_to_have_none(tmp_path, capsys, owner):
    folder, words = Folder(tmp_path), [data.Vocabulary(["a"]), data.Vocabulary(["b", "c"])]
    folder.save_vocabularies(words)
    folder.load_vocabularies(owner)
    said = f"tells which vocabularies its {owner} was trained with"
    assert said in capsys.readouterr().err
    folder.add_to_record(**{owner: vocabulary_fingerprints(words)})
    found = folder.load_vocabularies(owner)
    assert capsys.readouterr().err == ""
    assert [each.words for each in found] == [each.words for each in words]


@pytest.mark.parametrize("owner", ["run", "model"])
def test_other_vocabularies_of_the_same_size_are_refused(tmp_path, owner):
    folder, words = Folder(tmp_path), [data.Vocabulary(["a"]), data.Vocabulary(["b", "c"])]
    folder.save_vocabularies(words)
    folder.add_to_record(**{owner: vocabulary_fingerprints(words)})
    data.Vocabulary(["c", "b"]).save(folder.vocabularies[1])
    with pytest.raises(ValueError, match=f"are not those that its {owner} was trained with"):
        folder.load_vocabularies(owner)


@pytest.mark.parametrize("owner", ["run", "model"])
def test_a_vocabulary_of_the_same_words_that_splits_otherwise_is_refused(tmp_path, owner):
    folder, words = Folder(tmp_path), [data.Vocabulary(["a"]), data.Vocabulary(["b", "c"])]
    folder.save_vocabularies(words)
    folder.add_to_record(**{owner: vocabulary_fingerprints(words)})
    data.Vocabulary(["b", "c"], tokenizer=data.Characters()).save(folder.vocabularies[1])
    with pytest.raises(ValueError, match=f"are not those that its {owner} was trained with"):
        folder.load_vocabularies(owner)


def test_subwords_of_other_scores_are_refused(tmp_path):
    """Scores choose among the ways to cut a word."""
    proto = pytest.importorskip("sentencepiece.sentencepiece_model_pb2")
    words = data.SubwordVocabulary.from_sentences(["low lower lowest", "new newer newest"], size=40)
    folder = Folder(tmp_path)
    folder.save_vocabularies([words, words])
    folder.add_to_record(run=vocabulary_fingerprints([words, words]))
    folder.load_vocabularies("run")
    content = proto.ModelProto.FromString(folder.vocabularies[1].read_bytes())
    content.pieces[-1].score -= 3.0
    folder.vocabularies[1].write_bytes(content.SerializeToString())
    assert data.load_vocabulary(folder.vocabularies[1]).words == words.words
    with pytest.raises(ValueError, match="are not those that its run was trained with"):
        folder.load_vocabularies("run")


def test_a_record_may_tell_of_the_words_alone(tmp_path, capsys):
    folder, words = Folder(tmp_path), [data.Vocabulary(["a"]), data.Vocabulary(["b", "c"])]
    folder.save_vocabularies(words)
    folder.add_to_record(run=[fingerprint(each.words) for each in words])
    folder.load_vocabularies("run")
    assert capsys.readouterr().err == ""
    data.Vocabulary(["c", "b"]).save(folder.vocabularies[1])
    with pytest.raises(ValueError, match="are not those that its run was trained with"):
        folder.load_vocabularies("run")


def test_a_vocabulary_that_is_gone_is_named(tmp_path):
    folder, words = Folder(tmp_path), [data.Vocabulary(["a"]), data.Vocabulary(["b"])]
    folder.save_vocabularies(words)
    folder.vocabularies[1].unlink()
    with pytest.raises(FileNotFoundError, match=r"target\.vocabulary"):
        folder.load_vocabularies("run")
