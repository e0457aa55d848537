"""demos/folder.py: what a run leaves in `--out`, and what it refuses to go on with."""

import types

import keras
import numpy as np
import pytest

from tfattn import data


@pytest.fixture
def folder(demo_module):
    return demo_module("folder")


def test_a_damaged_record_of_a_run_is_named(folder, tmp_path):
    options = types.SimpleNamespace(out=tmp_path)
    folder.keep(options, run=["a"])
    folder.keep(options, model=["b"])
    assert folder.kept(options) == {"run": ["a"], "model": ["b"]}
    for damaged in ('{"run": ["a"', "[]", "3", ""):
        (tmp_path / "run.json").write_text(damaged)
        with pytest.raises(ValueError, match=r"run\.json is damaged.* delete this file to go on"):
            folder.kept(options)


def options_of(folder, **entries):
    none = dict.fromkeys(("preset", "seed", "pairs", "subwords", "tokens", "sentences", "data"))
    return types.SimpleNamespace(
        **{**none, "languages": ("en", "de"), "out": folder, "resume": True, **entries}
    )


def life(epochs):
    """Stands in for the backup of a run of so many epochs."""
    return types.SimpleNamespace(epoch=epochs)


@pytest.mark.parametrize(
    "resume, given, done, wanted, noted",
    [
        (False, None, 0, 50, False),  # of the preset, whatever an earlier run in the folder had
        (True, None, 9, 20, False),
        (True, 30, 15, 30, False),
        (True, 30, 16, 30, True),  # the rate has begun to go down
        (True, 20, 18, 20, False),
        (True, 18, 13, 18, False),
        (True, 18, 14, 18, True),  # and would have by now
        (True, 10, 14, 10, False),  # nothing is left to train
    ],
)
def test_a_resumed_run_ends_where_it_was_to_end(
    folder, plain_preset, tmp_path, capsys, resume, given, done, wanted, noted
):
    options, preset = options_of(tmp_path, resume=resume, epochs=given), plain_preset(cooldown=5)
    folder.keep(options, epochs=20)
    folder.choose_epochs(options, preset, life(done))
    assert options.epochs == wanted
    assert ("note: the run was to end after 20 epochs" in capsys.readouterr().err) == noted


@pytest.mark.parametrize("done, wanted", [(9, 12), (12, 20), (15, 20)])
def test_what_asks_for_a_score_alone_does_not_change_where_a_run_ends(
    folder, plain_preset, tmp_path, done, wanted
):
    options, words = options_of(tmp_path, epochs=12), data.Vocabulary(["a"])
    folder.keep(options, epochs=20)
    folder.record_run(options, plain_preset(), life(done), "", (words, words))
    assert folder.kept(options)["epochs"] == wanted


def test_a_preset_that_stands_for_something_else_by_now_is_refused(folder, plain_preset, tmp_path):
    options, words = options_of(tmp_path, epochs=12), data.Vocabulary(["a"])
    folder.best_weights(options).touch()
    folder.record_run(options, plain_preset(peak=0.5), life(1), "", (words, words))
    folder.check_run(options, plain_preset(peak=0.5, epochs=7), life(1), "")
    with pytest.raises(
        ValueError,
        match="--preset None: the run in .* was begun when that stood for something else",
    ):
        folder.check_run(options, plain_preset(peak=0.25), life(1), "")


def test_other_sentences_are_refused_wherever_they_lie(folder, plain_preset, tmp_path):
    options, words, preset = options_of(tmp_path, epochs=12), data.Vocabulary(["a"]), plain_preset()
    folder.best_weights(options).touch()
    begun = folder.fingerprint(["a b", "c"])
    folder.record_run(options, preset, life(1), begun, (words, words))
    folder.check_run(options, preset, life(1), folder.fingerprint(iter(["a b", "c"])))
    for others in (["a b c"], ["a b", "d"], ["a b", "c", ""]):
        with pytest.raises(
            ValueError, match="the sentences are not those that the run in .* was begun with"
        ):
            folder.check_run(options, preset, life(1), folder.fingerprint(others))


def test_a_run_without_its_best_weights_is_refused_before_it_goes_on(
    folder, plain_preset, tmp_path
):
    options = options_of(tmp_path)
    folder.check_run(options, plain_preset(), life(0), "")
    with pytest.raises(
        ValueError, match=r"best\.weights\.h5 is not there: a run cannot be ended without its best"
    ):
        folder.check_run(options, plain_preset(), life(1), "")


PAIRS = [("a b a b", "c d c d"), ("b", "d")]


def test_a_run_that_has_no_epoch_yet_makes_its_words_anew(folder, plain_preset, tmp_path):
    options = options_of(tmp_path, epochs=12, subwords=0)
    for path in folder.vocabulary_paths(options):
        data.Vocabulary(["left", "by", "another"]).save(path)
    source, target = folder.vocabularies(options, life(0), PAIRS)
    assert sorted(source.words[4:]) == ["a", "b"] and sorted(target.words[4:]) == ["c", "d"]
    folder.record_run(options, plain_preset(), life(0), "", (source, target))
    assert [data.load_vocabulary(path).words for path in folder.vocabulary_paths(options)] == [
        source.words,
        target.words,
    ]


def test_a_run_goes_on_with_its_own_words_or_not_at_all(folder, plain_preset, tmp_path):
    options, paths = (
        options_of(tmp_path, epochs=12, subwords=0),
        folder.vocabulary_paths(options_of(tmp_path)),
    )
    words = folder.vocabularies(options, life(0), PAIRS)
    assert not any(path.exists() for path in paths)  # before all else is in order
    folder.record_run(options, plain_preset(), life(0), "", words)
    found = folder.vocabularies(options, life(1), [("x", "y")])
    assert [each.words for each in found] == [each.words for each in words]
    data.Vocabulary(["x", "y"]).save(paths[1])
    # writes no words over those of a run
    folder.record_run(options, plain_preset(), life(1), "", words)
    with pytest.raises(ValueError, match="are not those that its run was trained with"):
        folder.vocabularies(options, life(1), PAIRS)
    paths[1].unlink()
    with pytest.raises(FileNotFoundError, match=r"target\.vocabulary"):
        folder.vocabularies(options, life(1), PAIRS)
    assert paths[0].exists() and not paths[1].exists()


def test_too_few_subwords_name_the_option(folder, tmp_path):
    with pytest.raises(
        ValueError, match="^--subwords 5: SubwordVocabulary.from_sentences: `size` must"
    ):
        folder.vocabularies(options_of(tmp_path, subwords=5), life(0), PAIRS)


def test_what_could_not_be_written_whole_leaves_the_old_file(folder, tmp_path):
    path = tmp_path / "file.txt"
    with folder.replacing(path) as beside:
        beside.write_text("old")
    with pytest.raises(OSError, match="full"), folder.replacing(path) as beside:
        beside.write_text("ne")
        raise OSError("full")
    assert path.read_text() == "old"
    with folder.replacing(path) as beside:
        beside.write_text("new")
    assert path.read_text() == "new" and [each.name for each in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("resume, noted", [(True, True), (False, False)])
def test_a_resumed_run_that_is_not_there_is_said_to_be_new(
    folder, plain_preset, tmp_path, capsys, resume, noted
):
    folder.check_run(options_of(tmp_path, resume=resume), plain_preset(), life(0), "")
    assert ("holds no run to go on with; a new one begins" in capsys.readouterr().err) == noted


def test_the_weights_of_the_best_epoch_are_kept(folder, tmp_path):
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    path, found = tmp_path / "best.weights.h5", []

    def judged(values, best):
        keep = folder.BestWeights(path, "val_bleu", best)
        keep.set_model(model)
        for value in values:
            model.set_weights([np.full_like(weights, value) for weights in model.get_weights()])
            keep.on_epoch_end(0, {"val_bleu": value})
            model.load_weights(path)
            found.append(float(model.get_weights()[1][0]))
        return keep.best

    assert judged([3.0, 2.0, 5.0, 5.0, 4.0], None) == 5.0
    assert judged([4.0, 5.0, 6.0], 5.0) == 6.0  # the next life of the run
    assert found == [3.0, 3.0, 5.0, 5.0, 5.0, 5.0, 5.0, 6.0]
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


def test_a_new_run_leaves_an_older_model_its_vocabularies(folder, plain_preset, tmp_path):
    options, preset = options_of(tmp_path, resume=False), plain_preset()
    folder.check_run(options, preset, life(0), "")
    (tmp_path / "model.keras").touch()
    with pytest.raises(ValueError, match="holds a model: --out names another folder"):
        folder.check_run(options, preset, life(0), "")


def test_vocabularies_without_a_record_are_said_to_have_none(folder, tmp_path, capsys):
    options, words = types.SimpleNamespace(out=tmp_path), data.Vocabulary(["a"])
    folder.check_vocabularies(options, "model", [words])
    assert "tells which vocabularies its model was trained with" in capsys.readouterr().err
    folder.keep(options, model=folder.fingerprints([words]))
    folder.check_vocabularies(options, "model", [words])
    assert capsys.readouterr().err == ""
    with pytest.raises(ValueError, match="are not those that its model was trained with"):
        folder.check_vocabularies(options, "model", [data.Vocabulary(["b"])])
