"""Checks of a resumed run, and its number of epochs."""

import types
from pathlib import Path

import pytest

from tests.translator.command import write_weights
from tfattn import data
from tfattn.translator.arguments import COMMANDS
from tfattn.translator.folder import Folder, fingerprint
from tfattn.translator.run import Run

SETTINGS = [name[2:] for name, option in COMMANDS["train"].options.items() if option.recorded]
WORDS = [data.Vocabulary(["a"]), data.Vocabulary(["b", "c"])]


@pytest.fixture
def folder(tmp_path):
    folder = Folder(tmp_path / "new" / "run")
    folder.path.mkdir(parents=True)
    return folder


@pytest.fixture
def begun(folder, new_preset):
    """The folder of a run of one epoch, of the plain preset and the sentences "a b" and "c"."""
    record(options_of(epochs=12), new_preset(), folder, 0, fingerprint(["a b", "c"]), WORDS)
    write_weights(folder.best_weights)
    return folder


def run_of(options, preset, folder, done, sentences="", vocabularies=WORDS):
    """A run of `done` epochs, without its corpus."""
    run = object.__new__(Run)
    run.options, run.preset, run.folder, run.sentences = options, preset, folder, sentences
    run.backup, run.vocabularies = types.SimpleNamespace(epoch=done), vocabularies
    return run


def check(*given):
    run_of(*given)._check()


def record(*given):
    run_of(*given)._record()


def options_of(**entries):
    none = {**dict.fromkeys(SETTINGS), "pairs": 5, "seed": 2, "epochs": None}
    given = {"languages": ("en", "de"), "data": None, "resume": True}
    return types.SimpleNamespace(**{**none, **given, **entries})


def test_epochs_of_a_resumed_run_are_kept(begun, new_preset):
    begun.add_to_record(epochs=20)
    for resumed, given, done, wanted in [
        (False, None, 0, 50),  # the preset's, also after an earlier run in the folder
        (True, None, 9, 20),
        (True, 30, 15, 30),
        (True, 10, 14, 10),
    ]:
        options = options_of(resume=resumed, epochs=given)
        check(options, new_preset(), begun, done, fingerprint(["a b", "c"]))
        assert options.epochs == wanted


@pytest.mark.parametrize("name", SETTINGS)
def test_check_other_setting_is_refused_by_its_option(folder, new_preset, name):
    values = {
        "init": (Path("ours"), Path("theirs")),
        "languages": (["en", "fr"], ["fr", "en"]),
        "pairs": (7, 9),
        "seed": (3, 4),
    }
    ours, theirs = values.get(name, ("ours", "theirs"))
    record(options_of(epochs=2, **{name: ours}), new_preset(), folder, 0, "", WORDS)
    check(options_of(**{name: ours}), new_preset(), folder, 0, "")
    with pytest.raises(ValueError, match=f"^--{name}: the run in .* was started with .*, not"):
        check(options_of(**{name: theirs}), new_preset(), folder, 0, "")


def test_check_other_sentences_are_refused_wherever_they_lie(begun, new_preset):
    check(options_of(), new_preset(), begun, 1, fingerprint(iter(["a b", "c"])))
    for others in (["a b c"], ["a b", "d"], ["a b", "c", ""]):
        with pytest.raises(ValueError, match="the run in .* was started with different sentences"):
            check(options_of(), new_preset(), begun, 1, fingerprint(others))


def test_check_missing_best_weights_are_named(begun, new_preset):
    sentences = fingerprint(["a b", "c"])
    check(options_of(), new_preset(), begun, 1, sentences)
    begun.best_weights.unlink()
    check(options_of(), new_preset(), begun, 0, sentences)
    said = r"best\.weights\.h5 is missing\. A run cannot be completed without its best"
    with pytest.raises(ValueError, match=said):
        check(options_of(), new_preset(), begun, 1, sentences)


@pytest.mark.parametrize("done", [0, 1])
def test_record_run_keeps_vocabularies_once_it_has_an_epoch(
    begun, new_preset, tmp_path, monkeypatch, done
):
    assert begun.read_record()["data"] is None
    monkeypatch.chdir(tmp_path)
    others = [data.Vocabulary(["x"]), data.Vocabulary(["y"])]
    options = options_of(epochs=12, data=Path("corpus"))
    record(options, new_preset(), begun, done, "", others)
    assert begun.read_record()["data"] == str(tmp_path / "corpus")
    kept = [data.load_vocabulary(path).words for path in begun.vocabulary_files]
    assert kept == [each.words for each in (WORDS if done else others)]


def test_check_new_run_writes_over_no_run_and_no_model(begun, new_preset, capsys, tmp_path):
    for resumed in (True, False):  # where there is no run, one is started
        check(options_of(resume=resumed), new_preset(), Folder(tmp_path / "none"), 0, "")
        said = "contains no run to resume; starting a new run"
        assert (said in capsys.readouterr().err) == resumed
    said = r"already contains a run \(3 epochs\)\. Use --resume to continue it"
    with pytest.raises(ValueError, match=said):
        check(options_of(resume=False), new_preset(), begun, 3, "")
    check(options_of(resume=False), new_preset(), begun, 0, "")
    begun.model.touch()
    for resumed in (False, True):
        said = r"already contains a model, and no backup of its training\. Use --out to choose"
        with pytest.raises(ValueError, match=said):
            check(options_of(resume=resumed), new_preset(), begun, 0, "")
