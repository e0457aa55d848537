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
        with pytest.raises(ValueError, match=r"run\.json is damaged.* --out names another folder"):
            folder.kept(options)


def options_of(folder, **entries):
    none = dict.fromkeys(("preset", "seed", "data", "pairs", "subwords", "tokens", "sentences"))
    return types.SimpleNamespace(**{**none, "languages": ("en", "de"), "out": folder, "resume": True, **entries})


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
    folder.choose_epochs(options, preset, types.SimpleNamespace(epoch=done))
    assert options.epochs == wanted
    assert ("note: the run was to end after 20 epochs" in capsys.readouterr().out) == noted


@pytest.mark.parametrize("done, wanted", [(9, 12), (12, 20), (15, 20)])
def test_what_asks_for_a_score_alone_does_not_change_where_a_run_ends(folder, plain_preset, tmp_path, done, wanted):
    options, words = options_of(tmp_path, epochs=12), data.Vocabulary(["a"])
    folder.keep(options, epochs=20)
    folder.record_run(options, plain_preset(), types.SimpleNamespace(epoch=done), (words, words))
    assert folder.kept(options)["epochs"] == wanted


def test_a_preset_that_stands_for_something_else_by_now_is_refused(folder, plain_preset, tmp_path):
    options, words, begun = options_of(tmp_path, epochs=12), data.Vocabulary(["a"]), types.SimpleNamespace(epoch=1)
    folder.record_run(options, plain_preset(peak=0.5), begun, (words, words))
    folder.check_settings(options, plain_preset(peak=0.5, epochs=7), begun)
    with pytest.raises(ValueError, match="--preset None: the run in .* was begun when that stood for something else"):
        folder.check_settings(options, plain_preset(peak=0.25), begun)


@pytest.mark.parametrize("resume, noted", [(True, True), (False, False)])
def test_a_resumed_run_that_is_not_there_is_said_to_be_new(folder, plain_preset, tmp_path, capsys, resume, noted):
    folder.check_settings(options_of(tmp_path, resume=resume), plain_preset(), types.SimpleNamespace(epoch=0))
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
    none = types.SimpleNamespace(epoch=0)
    folder.check_settings(options, preset, none)
    (tmp_path / "model.keras").touch()
    with pytest.raises(ValueError, match="holds a model: --out names another folder"):
        folder.check_settings(options, preset, none)


def test_vocabularies_without_a_record_are_said_to_have_none(folder, tmp_path, capsys):
    options, words = types.SimpleNamespace(out=tmp_path), data.Vocabulary(["a"])
    folder.check_vocabularies(options, "model", words)
    assert "tells which vocabularies its model was trained with" in capsys.readouterr().err
    folder.keep(options, model=folder.fingerprints(words))
    folder.check_vocabularies(options, "model", words)
    assert capsys.readouterr().err == ""
    with pytest.raises(ValueError, match="are not those that its model was trained with"):
        folder.check_vocabularies(options, "model", data.Vocabulary(["b"]))
