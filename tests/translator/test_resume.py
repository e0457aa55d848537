"""Checks of a resumed run, and its number of epochs."""

import types
from pathlib import Path

import pytest

from tests.translator.command import write_weights
from tfattn import data
from tfattn.translator.folder import Folder, fingerprint, vocabulary_fingerprints
from tfattn.translator.presets import Phase
from tfattn.translator.resume import SETTINGS, check_run, chosen_epochs, record_run

WORDS = [data.Vocabulary(["a"]), data.Vocabulary(["b", "c"])]


@pytest.fixture
def folder(tmp_path):
    return Folder(tmp_path / "new" / "run")


@pytest.fixture
def begun(folder, new_preset):
    """The folder of a run of one epoch, of the plain preset and the sentences "a b" and "c"."""
    record_run(options_of(epochs=12), new_preset(), folder, 0, fingerprint(["a b", "c"]), WORDS)
    write_weights(folder.best_weights)
    return folder


def options_of(**entries):
    none = {**dict.fromkeys(SETTINGS), "pairs": 5, "seed": 2}
    given = {"languages": ("en", "de"), "data": None, "resume": True}
    return types.SimpleNamespace(**{**none, **given, **entries})


def test_chosen_epochs_of_a_resumed_run_are_kept(begun, new_preset, capsys):
    begun.add_to_record(epochs=20)
    preset = new_preset(phases=(Phase("plain", 50, peak=1.0, cooldown=5),))
    for resume, given, done, wanted, noted in [
        (False, None, 0, 50, False),  # the preset's, also after an earlier run in the folder
        (True, None, 9, 20, False),
        (True, 30, 15, 30, False),
        (True, 30, 16, 30, True),  # the cooldown has started
        (True, 20, 18, 20, False),
        (True, 18, 13, 18, False),
        (True, 18, 14, 18, True),  # the cooldown would have started by now
        (True, 10, 14, 10, False),  # training is complete
    ]:
        options = options_of(resume=resume, epochs=given)
        assert chosen_epochs(options, preset, begun, done) == wanted
        said = capsys.readouterr().err
        assert ("note: the run was planned for 20 epochs" in said) == noted, (given, done)
    for done, wanted in [(15, 20), (12, 20), (9, 12)]:  # a request for a score changes nothing
        record_run(options_of(epochs=12), new_preset(), begun, done, "", WORDS)
        assert begun.read_record()["epochs"] == wanted


PHASES = (Phase("plain", 2, 0.5), Phase("bpe_dropout", 2, 0.5), Phase("plain", 2, 0.5, 1))


def test_check_run_preset_with_changed_settings_is_refused(folder, new_preset):
    preset = new_preset(phases=PHASES)
    record_run(options_of(epochs=12), preset, folder, 0, "", WORDS)
    write_weights(folder.best_weights)
    check_run(options_of(), preset._replace(tokens=9, subwords=3), folder, 1, "")
    said = "--preset None: the run in .* was started with different settings for this preset"
    for other in (preset._replace(warmup=7), preset._replace(phases=PHASES[:2])):
        with pytest.raises(ValueError, match=said):
            check_run(options_of(), other, folder, 1, "")


def test_check_run_another_preset_resumes_where_completed_epochs_are_equal(
    folder, new_preset, capsys
):
    first = new_preset(phases=PHASES)
    record_run(options_of(preset="first", epochs=6), first, folder, 0, "", WORDS)
    write_weights(folder.best_weights)
    longer = first._replace(phases=(*PHASES, Phase("plain", 3, 0.5, cooldown=2)))
    asked = options_of(preset="longer", epochs=None)
    for done in (1, 4, 6):
        check_run(asked, longer, folder, done, "")
        assert chosen_epochs(asked, longer, folder, done) == 9
        same = options_of(preset="first", epochs=None)
        assert chosen_epochs(same, first, folder, done) == 6
    assert capsys.readouterr().err == ""  # the rate does as planned
    plain, cut, last = PHASES
    for other, done in [
        (longer, 7),
        (longer._replace(phases=(plain._replace(epochs=3), cut)), 3),
        (longer._replace(phases=(plain._replace(peak=0.25), cut)), 1),
        (longer._replace(phases=(plain, cut, last._replace(cooldown=0))), 6),
        (longer._replace(warmup=7), 1),
    ]:
        said = "^--preset: the run in .* was started with first, not with longer"
        with pytest.raises(ValueError, match=said):
            check_run(asked, other, folder, done, "")
    options = options_of(preset="longer", epochs=9)
    record_run(options, longer, folder, 6, "", WORDS)
    record = folder.read_record()
    assert record["settings"]["preset"] == "longer" and record["epochs"] == 9
    check_run(asked, longer, folder, 7, "")


@pytest.mark.parametrize("name", SETTINGS)
def test_check_run_other_setting_is_refused_by_its_option(folder, new_preset, name):
    values = {"languages": (["en", "fr"], ["fr", "en"]), "pairs": (7, 9), "seed": (3, 4)}
    ours, theirs = values.get(name, ("ours", "theirs"))
    record_run(options_of(epochs=2, **{name: ours}), new_preset(), folder, 0, "", WORDS)
    check_run(options_of(**{name: ours}), new_preset(), folder, 0, "")
    if name == "init":
        check_run(options_of(init="./ours/"), new_preset(), folder, 0, "")
    with pytest.raises(ValueError, match=f"^--{name}: the run in .* was started with .*, not"):
        check_run(options_of(**{name: theirs}), new_preset(), folder, 0, "")


def test_check_run_other_sentences_are_refused_wherever_they_lie(begun, new_preset):
    check_run(options_of(), new_preset(), begun, 1, fingerprint(iter(["a b", "c"])))
    for others in (["a b c"], ["a b", "d"], ["a b", "c", ""]):
        with pytest.raises(ValueError, match="the run in .* was started with different sentences"):
            check_run(options_of(), new_preset(), begun, 1, fingerprint(others))


def test_check_run_missing_or_damaged_best_weights_are_named(begun, new_preset):
    sentences = fingerprint(["a b", "c"])
    check_run(options_of(), new_preset(), begun, 1, sentences)
    begun.best_weights.write_bytes(begun.best_weights.read_bytes()[:-2])
    with pytest.raises(OSError, match=r"best\.weights\.h5 is damaged"):
        check_run(options_of(), new_preset(), begun, 1, sentences)
    begun.best_weights.unlink()
    check_run(options_of(), new_preset(), begun, 0, sentences)
    said = r"best\.weights\.h5 is missing\. A run cannot be completed without its best"
    with pytest.raises(OSError, match=said):
        check_run(options_of(), new_preset(), begun, 1, sentences)


@pytest.mark.parametrize("done", [0, 1])
def test_record_run_keeps_vocabularies_once_it_has_an_epoch(
    begun, new_preset, tmp_path, monkeypatch, done
):
    assert begun.read_record()["data"] is None
    monkeypatch.chdir(tmp_path)
    others = [data.Vocabulary(["x"]), data.Vocabulary(["y"])]
    options = options_of(epochs=12, data=Path("corpus"))
    record_run(options, new_preset(), begun, done, "", others)
    assert begun.read_record()["data"] == str(tmp_path / "corpus")
    assert begun.read_record()["run"] == vocabulary_fingerprints(others)
    kept = [data.load_vocabulary(path).words for path in begun.vocabulary_files]
    assert kept == [each.words for each in (WORDS if done else others)]


def test_check_run_new_run_writes_over_no_run_and_no_model(begun, new_preset, capsys, tmp_path):
    for resume in (True, False):  # where there is no run, one is started
        check_run(options_of(resume=resume), new_preset(), Folder(tmp_path / "none"), 0, "")
        said = "contains no run to resume; starting a new run"
        assert (said in capsys.readouterr().err) == resume
    said = r"already contains a run \(3 epochs\)\. Use --resume to continue it"
    with pytest.raises(ValueError, match=said):
        check_run(options_of(resume=False), new_preset(), begun, 3, "")
    check_run(options_of(resume=False), new_preset(), begun, 0, "")
    begun.model.touch()
    for resume, said in ((False, ""), (True, r", and no backup\.npz to resume its training from")):
        said = rf"already contains a model{said}\. Use --out to choose another folder"
        with pytest.raises(ValueError, match=said):
            check_run(options_of(resume=resume), new_preset(), begun, 0, "")
