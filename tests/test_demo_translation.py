"""demos/transformer_translation.py and demos/bahdanau_translation.py, run as a user runs them, on little data."""

import importlib.util
import json
import os
import subprocess
import sys
import types
from pathlib import Path

import keras
import numpy as np
import pytest

import tfattn
from tfattn import data

DEMOS = Path(__file__).parents[1] / "demos"
NAMES = ["transformer_translation", "bahdanau_translation"]


def run(name, *arguments, folder, text=None):
    environment = {**os.environ, "PYTHONPATH": str(DEMOS.parent), "TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [sys.executable, str(DEMOS / f"{name}.py"), *map(str, arguments)]
    # What stands for a broken byte in the text becomes that byte.
    coding = {"encoding": "utf-8", "errors": "surrogateescape"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, input=text, **coding)


def result(output):
    return json.loads(output.strip().splitlines()[-1].removeprefix("result: "))


@pytest.fixture(scope="module")
def swaps():
    """demos/swaps.py, which the demos import from their own folder."""
    spec = importlib.util.spec_from_file_location("swaps", DEMOS / "swaps.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def shared(monkeypatch):
    """demos/translation.py, what both demos share."""
    monkeypatch.syspath_prepend(DEMOS)
    for name in ("common", "folder", "swaps", "translation"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return importlib.import_module("translation")


def last_line(output):
    return output.strip().splitlines()[-1]


def test_swapped_words_are_found_in_both_sentences(swaps):
    pairs = [
        ("the black cat sees a small dog .", "le chat noir voit un petit chien ."),
        ("she is tired .", "elle est fatiguée ."),
    ]
    ((sources, targets, found),) = swaps.swaps_of(pairs)
    assert sources[0] == pairs[0][0] and targets[1] == pairs[1][1]
    # «chat» is the cat, third word of its sentence, and «noir» is black, the second; «petit» keeps its side.
    assert sorted(found) == [(0, 1, 2), (0, 2, 1)]


@pytest.mark.parametrize("shift, share", [(0, 1.0), (1, 0.0)])
def test_alignments_are_right_where_the_heaviest_word_is_the_true_one(swaps, shift, share):
    pairs = data.toy_translation(200, seed=3)
    words = [data.Vocabulary.from_sentences(side) for side in zip(*pairs, strict=True)]
    wanted = iter(swaps.swaps_of(pairs))

    def alignment(model, source, target_in):
        """Two heads: one looks at the true word, or beside it, the other always at the first."""
        weights = np.zeros((*target_in.shape, source.shape[1]))
        for row, written, true in next(wanted)[2]:
            weights[row, written, true + shift] = 1.0
        return np.stack([np.eye(1, source.shape[1]) + 0 * weights, weights], axis=1), ["first", "second"]

    assert swaps.aligned_swaps(None, alignment, pairs, *words) == share


@pytest.mark.parametrize("cooldown, epochs, start", [(0, 5, None), (2, 5, 21), (9, 5, 0)])
def test_the_rate_goes_down_to_zero_in_the_last_epochs(shared, cooldown, epochs, start):
    preset = shared.Preset({}, subwords=0, tokens=1, epochs=1, peak=0.01, warmup=3, look_back=1, cooldown=cooldown)
    rate = shared._rate(preset, [7] * epochs)
    plain = tfattn.InverseSquareRootSchedule(0.01, 3)
    steps = range(epochs * 7)
    factors = np.array([float(rate(step)) / float(plain(step)) for step in steps])
    if start is None:
        np.testing.assert_array_equal(factors, 1.0)
    else:
        wanted = np.minimum(1.0, (35 - np.arange(35)) / (35 - start))
        np.testing.assert_allclose(factors, wanted, rtol=1e-5)


def test_a_damaged_record_of_a_run_is_named(shared, tmp_path):
    options = types.SimpleNamespace(out=tmp_path)
    shared.folder.keep(options, run=["a"])
    shared.folder.keep(options, model=["b"])
    assert shared.folder.kept(options) == {"run": ["a"], "model": ["b"]}
    (tmp_path / "run.json").write_text('{"run": ["a"')
    with pytest.raises(ValueError, match=r"run\.json is damaged.* --out names another folder"):
        shared.folder.kept(options)


def plain_preset(shared, **entries):
    entries = {"subwords": 0, "tokens": 1, "epochs": 50, "peak": 1.0, "warmup": 1, "look_back": 1, **entries}
    return shared.Preset({}, **entries)


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
def test_a_resumed_run_ends_where_it_was_to_end(shared, tmp_path, capsys, resume, given, done, wanted, noted):
    options, preset = options_of(tmp_path, resume=resume, epochs=given), plain_preset(shared, cooldown=5)
    shared.folder.keep(options, epochs=20)
    shared.folder.choose_epochs(options, preset, types.SimpleNamespace(epoch=done))
    assert options.epochs == wanted
    assert ("note: the run was to end after 20 epochs" in capsys.readouterr().out) == noted


@pytest.mark.parametrize("done, wanted", [(9, 12), (12, 20), (15, 20)])
def test_what_asks_for_a_score_alone_does_not_change_where_a_run_ends(shared, tmp_path, done, wanted):
    options, words = options_of(tmp_path, epochs=12), data.Vocabulary(["a"])
    shared.folder.keep(options, epochs=20)
    shared.folder.record_run(options, plain_preset(shared), types.SimpleNamespace(epoch=done), (words, words))
    assert shared.folder.kept(options)["epochs"] == wanted


def test_a_preset_that_stands_for_something_else_by_now_is_refused(shared, tmp_path):
    options, words, begun = options_of(tmp_path, epochs=12), data.Vocabulary(["a"]), types.SimpleNamespace(epoch=1)
    shared.folder.record_run(options, plain_preset(shared, peak=0.5), begun, (words, words))
    shared.folder.check_settings(options, plain_preset(shared, peak=0.5, epochs=7), begun)
    with pytest.raises(ValueError, match="--preset None: the run in .* was begun when that stood for something else"):
        shared.folder.check_settings(options, plain_preset(shared, peak=0.25), begun)


def test_a_new_run_leaves_an_older_model_its_vocabularies(shared, tmp_path):
    options, preset = options_of(tmp_path, resume=False), plain_preset(shared)
    none = types.SimpleNamespace(epoch=0)
    shared.folder.check_settings(options, preset, none)
    (tmp_path / "model.keras").touch()
    with pytest.raises(ValueError, match="holds a model: --out names another folder"):
        shared.folder.check_settings(options, preset, none)


def test_vocabularies_without_a_record_are_said_to_have_none(shared, tmp_path, capsys):
    options, words = types.SimpleNamespace(out=tmp_path), data.Vocabulary(["a"])
    shared.folder.check_vocabularies(options, "model", words)
    assert "tells which vocabularies its model was trained with" in capsys.readouterr().err
    shared.folder.keep(options, model=shared.folder.fingerprints(words))
    shared.folder.check_vocabularies(options, "model", words)
    assert capsys.readouterr().err == ""
    with pytest.raises(ValueError, match="are not those that its model was trained with"):
        shared.folder.check_vocabularies(options, "model", data.Vocabulary(["b"]))


def test_a_batch_too_small_for_a_sentence_names_the_option(shared):
    options, words = types.SimpleNamespace(tokens=8, seed=0, epochs=1, subwords=0), data.Vocabulary(["a"])
    preset = shared.Preset({}, subwords=0, tokens=1, epochs=1, peak=1, warmup=1, look_back=1)
    pairs = [("a " * 20, "a")]
    with pytest.raises(
        ValueError, match="--tokens 8, lines of at most 100 tokens: .* must be at least 24, for the longest"
    ):
        shared._batches(options, preset, pairs, pairs, (words, words))


COURSE = (("plain", 2), ("cut", 4), ("twice", 5))


@pytest.mark.parametrize(
    "epochs, wanted",
    [
        (7, [range(2), range(2, 4), range(4, 5), range(5, 7)]),
        (5, [range(2), range(2, 4), range(4, 5)]),
        (3, [range(2), range(2, 3)]),
        (1, [range(1)]),
    ],
)
def test_phases_follow_the_course_of_the_preset(shared, epochs, wanted):
    pairs = data.toy_translation(60, seed=0)
    words = data.SubwordVocabulary.from_sentences([sentence for pair in pairs for sentence in pair], 90)
    options = types.SimpleNamespace(tokens=256, seed=0, epochs=epochs)

    def sources(batches):
        return [source for (source, _), _ in batches.as_numpy_iterator()]

    def tokens(batches):
        return sum(map(np.count_nonzero, sources(batches)))

    phases, held_out = shared._batches(options, plain_preset(shared, course=COURSE), pairs, pairs, (words, words))
    assert [phase.epochs for phase in phases] == wanted
    plain, *others = [phase.batches for phase in phases]
    assert tokens(plain) == tokens(held_out)
    for cut in others[:1]:
        assert tokens(cut) > 1.05 * tokens(plain) and sum(map(len, sources(cut))) == 60
    for double in others[1:2]:
        assert all(np.array_equal(*np.split(source, 2)) for source in sources(double))
        assert tokens(double) == 2 * tokens(plain) and max(map(np.size, sources(double))) <= 256
    for last in others[2:]:
        assert tokens(last) == tokens(plain) and len(last) == len(plain)


def test_whole_words_are_not_cut(shared):
    pairs = data.toy_translation(60, seed=0)
    words = data.Vocabulary.from_sentences([sentence for pair in pairs for sentence in pair])
    options = types.SimpleNamespace(tokens=256, seed=0, epochs=4)
    phases, _ = shared._batches(options, plain_preset(shared, course=COURSE), pairs, pairs, (words, words))
    assert len(phases) == 2 and len({len(phase.batches) for phase in phases}) == 1


@pytest.mark.slow
def test_a_training_goes_through_its_phases_and_on_with_them(shared, tmp_path):
    pairs = data.toy_translation(60, seed=0)
    words = data.SubwordVocabulary.from_sentences([sentence for pair in pairs for sentence in pair], 90)
    preset = plain_preset(shared, peak=0.01, warmup=3, look_back=2, course=(("plain", 1), ("cut", 3)))

    def train(out, epochs):
        options = types.SimpleNamespace(tokens=256, seed=0, epochs=4, subwords=90, out=out)
        out.mkdir(exist_ok=True)
        keras.utils.set_random_seed(0)
        model = tfattn.Transformer(len(words), num_layers=1, width=8, num_heads=2, hidden_dim=8, dropout=0.3)
        model.build(((None, None), (None, None)))
        phases, held_out = shared._batches(options, preset, pairs, pairs, (words, words))
        backup = shared.training.Backup(out / "backup.npz")
        phases = [
            phase._replace(epochs=range(phase.epochs.start, min(phase.epochs.stop, epochs)))
            for phase in phases
            if phase.epochs.start < epochs
        ]
        return shared._train(options, preset, model, backup, phases, held_out, pairs[:5], (words, words))

    whole = train(tmp_path / "whole", 4)
    for epochs in (1, 2, 4):  # stopped at the end of a phase, and amid one
        resumed = train(tmp_path / "resumed", epochs)
    for name in ("loss", "val_loss", "accuracy"):
        np.testing.assert_array_equal(resumed[name], whole[name])


TOY = ("--pairs", 400, "--sentences", 20, "--out", "here/and/there")


@pytest.fixture(scope="module", params=NAMES)
def toy(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("toy")
    done = run(request.param, *TOY, "--epochs", 1, folder=folder)
    assert done.returncode == 0, done.stderr
    return request.param, folder, done.stdout


@pytest.mark.slow
def test_a_demo_shows_what_it_has_done(toy):
    _, folder, output = toy
    numbers = result(output)
    assert {"exact_match", "bleu", "val_bleu", "val_loss", "parameters", "seconds"} <= set(numbers)
    assert 0 <= numbers["aligned_swaps"] <= 1
    assert numbers["sentences"] == 20 and numbers["best_epoch"] == 1
    assert 0 < numbers["training_seconds"] < numbers["seconds"]
    before = float(output.split("validation loss before training ")[1].split()[0])
    assert numbers["val_loss"] < before
    assert output.count("  source     ") == output.count("  model      ") == output.count("  reference  ") == 5
    out = folder / "here" / "and" / "there"
    for picture in ("attention.png", "loss.png"):
        assert (out / picture).stat().st_size > 10_000
    assert keras.models.load_model(out / "model.keras").count_params() == numbers["parameters"]


@pytest.mark.slow
def test_a_run_is_kept_resumed_and_asked(toy):
    name, folder, _ = toy
    refused = run(name, *TOY, "--epochs", 1, folder=folder)  # finished, and kept all the same
    assert refused.returncode == 1
    assert "holds a run of 1 epochs: --resume goes on with it" in last_line(refused.stderr)
    refused = run(name, *TOY, "--epochs", 2, "--resume", "--tokens", 512, folder=folder)
    assert refused.returncode == 1
    assert "--tokens: the run in here/and/there was begun with 768, and not with 512" in last_line(refused.stderr)
    before = result(toy[2])
    resumed = run(name, *TOY, "--epochs", 2, "--resume", folder=folder)
    assert resumed.returncode == 0, resumed.stderr
    numbers = result(resumed.stdout)
    assert numbers["epochs"] == 2 and numbers["training_seconds"] > before["training_seconds"]
    gained = numbers["val_bleu"] - before["val_bleu"]
    assert gained >= 0 and (numbers["best_epoch"] == 2 or gained == 0)
    assert "Epoch 1/2" not in resumed.stdout and "Epoch 2/2" in resumed.stdout
    lines = "she is tired .\n\na zebra ☃ \udcff sings " + "and sings " * 60 + ".\n"
    asked = run(
        name, "--translate", "--beam", 2, "--length-penalty", 0.5, "--out", "here/and/there", folder=folder, text=lines
    )
    assert asked.returncode == 0, asked.stderr
    translations = asked.stdout.split("\n")
    assert len(translations) == 4 and translations[0] and translations[1] == "" and translations[3] == ""
    # Another vocabulary, of the same size.
    path = folder / "here" / "and" / "there" / "target.vocabulary"
    *words, last, final = data.load_vocabulary(path).words[4:]
    data.Vocabulary([*words, final, last]).save(path)
    asked = run(name, "--translate", "--out", "here/and/there", folder=folder, text=lines)
    assert asked.returncode == 1
    assert "are not those that its model was trained with" in last_line(asked.stderr)
    refused = run(name, *TOY, "--epochs", 3, "--resume", folder=folder)
    assert refused.returncode == 1
    assert "are not those that its run was trained with" in last_line(refused.stderr)


@pytest.mark.slow
def test_learns_from_files_in_subwords(tmp_path):
    pairs = [("a dog barks .", "ein hund bellt ."), ("a cat sleeps .", "eine katze schläft .")] * 20
    for part in ("train", "val", "test"):
        for place, language in enumerate(("en", "de")):
            lines = "".join(pair[place] + "\n" for pair in pairs)
            (tmp_path / f"{part}.{language}").write_text(lines, encoding="utf-8")
    options = ("--data", tmp_path, "--preset", "toy", "--subwords", 60, "--epochs", 1, "--sentences", 5)
    done = run("transformer_translation", *options, "--score", "test", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "40 pairs to learn from, 40 held out" in done.stdout
    assert result(done.stdout)["scored"] == "test"
    assert (tmp_path / "out" / "transformer_translation" / "attention.png").exists()


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_what_is_missing_is_named(name, tmp_path):
    done = run(name, "--data", tmp_path / "nowhere", folder=tmp_path)
    assert done.returncode == 1
    assert last_line(done.stderr).startswith("error: ") and "train.en" in last_line(done.stderr)
    assert not (tmp_path / "out").exists()
    done = run(name, "--translate", folder=tmp_path, text="a line\n")
    assert done.returncode == 1
    assert last_line(done.stderr).startswith("error: ") and "train first" in last_line(done.stderr)


def test_what_is_scored_at_the_end_is_looked_for_at_the_start(tmp_path):
    for part in ("train", "val"):
        for language in ("en", "de"):
            (tmp_path / f"{part}.{language}").write_text("a b\n" * 30)
    done = run(NAMES[0], "--data", tmp_path, "--score", "tset", folder=tmp_path)
    assert done.returncode == 1 and "tset.en" in last_line(done.stderr)
    assert "Epoch" not in done.stdout and not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", NAMES)
def test_help_names_every_option(name, tmp_path):
    done = run(name, "--help", folder=tmp_path)
    assert done.returncode == 0
    for option in (
        *("--seed", "--out", "--data", "--languages", "--pairs", "--preset", "--subwords", "--epochs", "--tokens"),
        *("--beam", "--length-penalty", "--score", "--sentences", "--resume", "--translate"),
    ):
        assert option in done.stdout
