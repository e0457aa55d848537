"""A run: its output, its files, and a resumed run."""

import contextlib
import ctypes
import io
import json
import os
import re
import shutil
import sys
import types
from typing import NamedTuple

import keras
import numpy as np
import pytest

from tests.helpers import paths
from tests.helpers.processes import python
from tests.translator.command import (
    OUT,
    SMALL,
    TOY,
    result,
    status,
    translator,
    write_corpus,
    write_weights,
)
from tfattn import data
from tfattn.translator import translating
from tfattn.translator.arguments import DEFAULT_OUT, parse
from tfattn.translator.folder import Folder
from tfattn.translator.presets import MODELS, PRESETS
from tfattn.translator.run import Run, keep_freed_memory

pytestmark = pytest.mark.usefixtures("dense_path")

PAIRS = data.toy_translation(60, seed=0)


# Of one trained run: what it shows, what the other commands make of it, and its resumption.


class Trained(NamedTuple):
    """A folder with `out`, the folder of a run of one epoch, and the run's output."""

    folder: object
    output: str

    @property
    def out(self):
        return self.folder / "here" / "and" / "there"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder, output = tmp_path_factory.mktemp("trained"), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(output):
        patch.setitem(PRESETS["bahdanau"], "toy", SMALL)
        patch.chdir(folder)
        with paths.dense():
            translator("train", *TOY, "--epochs", 1)
    return Trained(folder, output.getvalue())


@pytest.fixture(scope="module")
def loaded(trained):
    """Model and vocabularies of that run; tests share the compiled functions."""
    return Folder(trained.out).load_model()


@pytest.fixture
def folder(trained, tmp_path, monkeypatch):
    """A copy of the folder of a run of one epoch."""
    monkeypatch.setitem(PRESETS["bahdanau"], "toy", SMALL)
    return shutil.copytree(trained.folder, tmp_path / "copy")


@pytest.fixture
def out(folder, loaded, monkeypatch):
    """The run in such a copy, with its model already loaded; the copy is the working directory."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(Folder, "load_model", lambda folder, *_: loaded)
    return folder / "here" / "and" / "there"


@pytest.mark.slow
def test_run_shows_what_it_has_done_and_is_resumed(trained, loaded, folder, refused, capsys):
    before = result(trained.output)
    assert {"exact_match", "bleu", "val_bleu", "val_loss", "parameters"} <= set(before)
    assert before["scored"] == "val" and before["sentences"] == 20
    assert before["epochs"] == before["best_epoch"] == 1
    assert "270 training pairs, 30 held out" in trained.output
    untrained = float(trained.output.split("validation loss before training ")[1].split()[0])
    assert before["val_loss"] < untrained
    for line in ("  source     ", "  model      ", "  reference  "):
        assert trained.output.count(line) == 5
    for picture in ("attention.png", "loss.png"):
        assert (trained.out / picture).stat().st_size > 10_000
    assert loaded[0].count_params() == before["parameters"]
    assert not keras.saving.load_model(trained.out / "model.keras").compiled
    assert not list(trained.out.glob("unfinished*"))

    train = ("train", *TOY)
    said = refused(*train, "--epochs", 1, folder=folder)  # finished, and kept all the same
    assert "already contains a run (1 epochs). Use --resume to continue it" in said
    said = refused(*train, "--epochs", 2, "--resume", "--tokens", 512, folder=folder)
    assert "--tokens: the run in here/and/there was started with 768, not 512" in said
    translator(*train, "--epochs", 2, "--resume")
    resumed = capsys.readouterr().out
    numbers = result(resumed)
    assert numbers["epochs"] == 2
    gained = numbers["val_bleu"] - before["val_bleu"]
    assert gained >= 0 and numbers["best_epoch"] == (2 if gained else 1)
    assert "Epoch 1/2" not in resumed and "Epoch 2/2" in resumed


@pytest.mark.slow
@pytest.mark.tensorflow
def test_export_saved_model_gives_what_the_model_gives(out, loaded, capsys):
    import tensorflow as tf

    assert not loaded[0].compiled
    translator("export", "--to", "saved_model", *OUT)
    assert capsys.readouterr().out == "saved_model: here/and/there/saved_model\n"
    served = tf.saved_model.load(out / "saved_model")
    ids = np.array([[4, 5, 6, 3]], "int32")
    np.testing.assert_allclose(served.serve((ids, ids)), loaded[0]((ids, ids)), atol=1e-5)
    assert status("export", "--to", "saved_model", *OUT) == 1
    assert "saved_model already exists. Move it, or delete it." in capsys.readouterr().err


@pytest.mark.slow
def test_translate_in_a_process_writes_lines_and_one_note(folder, monkeypatch):
    """In a new process, to cover the output of importing TensorFlow."""
    monkeypatch.delenv("TF_CPP_MIN_LOG_LEVEL", raising=False)
    text = "she is tired .\n\na zebra ☃ sings " + "and sings " * 60 + ".\n我喜欢黑猫。\n"
    command = ("-m", "tfattn.translator", "translate", "--stream", *OUT)
    asked = python(*command, folder=folder, text=text)
    first, second, _, _, rest = asked.stdout.split("\n")
    assert first and second == "" and rest == ""
    (note,) = asked.stderr.splitlines()
    assert note.startswith("note: ") and "zebra" in note  # the vocabulary lacks it
    assert asked.returncode == 0


@pytest.mark.slow
def test_lines_sampled_depend_on_seed_and_line(out, capsys):
    (out / "lines").write_text("she is tired .\n" * 5)

    def drawn(*options):
        translator("translate", *OUT, "--sample", *options, out / "lines")
        return capsys.readouterr().out.splitlines()

    once = drawn()
    assert len(once) == 5 and len(set(once)) > 1
    assert drawn("--seed", 0) == once != drawn("--seed", 1)


@pytest.mark.slow
def test_score_of_a_trained_run_is_that_of_its_training(trained, out, capsys):
    translator("score", "--out", out, "--sentences", 20)
    found = result(capsys.readouterr().out)
    bleu = json.loads(trained.output.split("result: ")[1])["bleu"]
    assert found["runs"][str(out)]["val"]["BLEU"]["score"] == bleu


# Of models of few weights.


@pytest.mark.slow
def test_run_of_a_transformer_learns_from_files_in_subwords(
    tmp_path, new_preset, monkeypatch, capsys
):
    pairs = [("a dog barks .", "ein hund bellt ."), ("a cat sleeps .", "eine katze schläft .")] * 20
    write_corpus(tmp_path, pairs, ("train", "val", "test"))
    monkeypatch.chdir(tmp_path)
    sizes = {"num_layers": 1, "width": 8, "num_heads": 2, "hidden_dim": 16}
    preset = new_preset(sizes=sizes, tokens=512, subwords=60, epochs=1)
    monkeypatch.setitem(PRESETS["transformer"], "tiny", preset)  # the default preset for files
    translator("train", "--data", tmp_path, "--sentences", 5, "--score", "test")
    output = capsys.readouterr().out
    assert "40 training pairs, 40 held out" in output
    numbers = result(output)
    assert numbers["scored"] == "test" and numbers["sentences"] == 5
    assert (tmp_path / "out" / "translator" / "attention.png").exists()


def word_by_word(source_size, target_size, share_embeddings, seed, dropout):
    """A model that predicts each word from the previous word: fast to trace."""
    source, target_in = keras.Input((None,), dtype="int32"), keras.Input((None,), dtype="int32")
    tokens = keras.layers.Embedding(target_size, 5)(target_in)
    tokens = keras.layers.Dropout(dropout, seed=seed)(tokens)
    return keras.Model((source, target_in), keras.layers.Dense(target_size)(tokens))


@pytest.fixture
def run_of(tmp_path, new_preset, monkeypatch):
    """Function from training pairs and to validate with, and options, to the `Run` of a model
    of few weights.
    """

    def run(train, validation, *options, **entries):
        preset = new_preset(sizes={"dropout": 0.3}, warmup=3, ema_window=2, **entries)
        monkeypatch.setitem(PRESETS["bahdanau"], "toy", preset)
        monkeypatch.setitem(MODELS, "bahdanau", word_by_word)
        write_corpus(tmp_path, train, ["train"])
        write_corpus(tmp_path, validation, ["val"])
        common = ("--data", tmp_path, "--model", "bahdanau", "--preset", "toy")
        options = parse([str(option) for option in ("train", *common, *options)])
        keras.utils.set_random_seed(options.seed)
        return Run(options)

    return run


@pytest.mark.slow
def test_a_resumed_training_continues_its_phases(run_of, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(translating, "translate", lambda model, sources, words: list(sources))

    def train(out, epochs, *more):
        options = ("--subwords", 90, "--tokens", 256, "--epochs", epochs, "--sentences", 5)
        run = run_of(
            PAIRS, PAIRS, *options, "--out", tmp_path / out, *more, peak=0.01, bpe_dropout=(1, 2)
        )
        model = run.fit()
        return run.backup.history, model.get_weights()

    monkeypatch.setattr("tfattn.translator.run.PROGRESS_EVERY", 0.0)
    whole, wanted = train("whole", 5)
    output = capsys.readouterr().out
    assert all(f"Epoch {epoch}/5\n" in output for epoch in range(1, 6))
    assert re.search(r"^1/\d+ - \d+s - accuracy: 0\.\d{4} - loss: \d+\.\d{4}$", output, re.M)
    scores = [" - val_bleu: " in line for line in output.splitlines() if " - val_loss: " in line]
    assert scores == [True, False, False, False, True]
    train("resumed", 1)  # to the end of a phase
    for epochs in (4, 5):  # from there, and from amid one
        resumed, found = train("resumed", epochs, "--resume")
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(one, other)
    assert np.isnan(resumed["val_bleu"]).tolist() == [False, True, True, False, False]
    for name in ("loss", "val_loss", "accuracy"):
        np.testing.assert_array_equal(resumed[name], whole[name])
        for out in ("whole", "resumed"):
            table = np.genfromtxt(tmp_path / out / "epochs.csv", delimiter=",", names=True)
            np.testing.assert_allclose(table[name], whole[name], rtol=1e-6)
            assert table["epoch"].tolist() == [*range(5)]


@pytest.mark.slow
def test_run_best_epoch_without_bleu_has_the_least_loss(run_of, tmp_path, monkeypatch):
    monkeypatch.setattr(translating, "translate", lambda model, sources, words: list(sources))
    pairs = [("a cat", "一只猫"), ("a dog", "一只狗")] * 5
    run = run_of(pairs, pairs, "--tokens", 64, "--out", tmp_path / "out", epochs=3, peak=0.05)
    model, history = run.fit(), run.backup.history
    np.testing.assert_equal(history["val_bleu"], [0.0, np.nan, 0.0])
    best = np.argmin(history["val_loss"])
    assert best > 0 and run.monitored == ("val_loss", min)
    run._init = model
    found = run._compiled_model().evaluate(run.held_out, verbose=0, return_dict=True)["loss"]
    assert found == pytest.approx(history["val_loss"][best], rel=1e-5)
    measured = run_of(PAIRS, PAIRS, "--tokens", 64, "--out", tmp_path / "new")
    assert measured.monitored == ("val_bleu", max)


@pytest.mark.slow
def test_run_of_few_updates_says_what_serves_better(run_of, tmp_path, capsys):
    options = ("--tokens", 64, "--epochs", 2, "--out", tmp_path / "out")
    run = run_of(PAIRS, PAIRS, *options, tokens=6400)
    updates = 2 * len(run.phases[0].batches)
    run._note_few_updates()
    assert capsys.readouterr().err == "" and updates > 6 == 2 * run.preset.warmup
    run.preset = run.preset._replace(warmup=updates)
    run._note_few_updates()
    said = f"note: {updates} updates, and --preset toy is made for {2 * updates} or more; try more"
    assert capsys.readouterr().err.startswith(said)


@pytest.mark.slow
def test_run_model_to_begin_with_is_loaded_once_and_before_the_training(
    run_of, tmp_path, monkeypatch
):
    words = [data.Vocabulary.from_sentences(side) for side in zip(*PAIRS, strict=True)]
    model, loaded = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)]), []
    monkeypatch.setattr(
        Folder, "load_model", lambda *given: loaded.append(given[1:]) or (model, words)
    )
    options = ("--tokens", 64, "--out", tmp_path / "out", "--init", tmp_path / "first")
    begun = run_of(PAIRS, PAIRS, *options)
    assert begun._compiled_model() is model and loaded == [()]
    resumed = resumed_run(run_of, PAIRS, options, begun, monkeypatch)
    assert resumed._compiled_model() is model and len(loaded) == 2
    assert [each.words for each in resumed.vocabularies] == [each.words for each in words]


@pytest.mark.slow
def test_run_resumed_keeps_its_vocabularies(run_of, tmp_path, monkeypatch):
    options = ("--tokens", 64, "--out", tmp_path / "out")
    begun = run_of(PAIRS, PAIRS, *options)
    monkeypatch.setattr(Run, "_check", lambda run: vars(run.options).update(epochs=2))
    found, wanted = resumed_run(run_of, PAIRS[:9], options, begun, monkeypatch), begun.vocabularies
    assert [each.words for each in found.vocabularies] == [each.words for each in wanted]
    data.Vocabulary(["other"]).save(begun.folder.vocabulary_files[1])
    with pytest.raises(ValueError, match="are not those of its model"):
        resumed_run(run_of, PAIRS, options, begun, monkeypatch)


def resumed_run(run_of, pairs, options, begun, monkeypatch):
    write_weights(begun.folder.best_weights)
    done = types.SimpleNamespace(epoch=1, history={}, best=lambda *_: 0.5)
    monkeypatch.setattr("tfattn.training.Backup", lambda path: done)
    return run_of(pairs, PAIRS, *options, "--resume")


@pytest.mark.slow
@pytest.mark.parametrize("backend, compiled", [("jax", True), ("tensorflow", False)])
def test_run_step_is_compiled_on_jax_alone(backend, compiled, run_of, tmp_path, monkeypatch):
    run = run_of(PAIRS, PAIRS, "--tokens", 64, "--out", tmp_path / "out")
    monkeypatch.setattr(keras.backend, "backend", lambda: backend)
    assert run._compiled_model().jit_compile is compiled


def test_keep_freed_memory_leaves_it_to_the_environment(monkeypatch):
    for name in [name for name in os.environ if name.startswith("MALLOC_")]:
        monkeypatch.delenv(name)
    keep_freed_memory()  # with the C library of this machine
    asked = []
    library = types.SimpleNamespace(mallopt=lambda *given: asked.append(given))
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(ctypes, "CDLL", lambda _: library)
    keep_freed_memory()
    assert dict(asked) == {-3: 1 << 30, -1: 1 << 30, -2: 64 << 20}
    asked.clear()
    monkeypatch.setenv("MALLOC_ARENA_MAX", "1")
    keep_freed_memory()
    assert asked == []
    monkeypatch.delenv("MALLOC_ARENA_MAX")
    monkeypatch.setattr(ctypes, "CDLL", lambda _: object())  # musl
    keep_freed_memory()


def test_train_full_disk_or_memory_is_one_line_and_a_bug_a_traceback(
    tmp_path, monkeypatch, refused
):
    def fit():
        raise errors.pop(0)

    monkeypatch.setattr("tfattn.translator.__main__.Run", lambda _: types.SimpleNamespace(fit=fit))
    errors = [
        OSError(28, "No space left on device"),
        MemoryError(),
        RuntimeError("RESOURCE_EXHAUSTED: 9 bytes"),
        RuntimeError("a fault"),
    ]
    Folder(tmp_path / DEFAULT_OUT).path.mkdir(parents=True)
    Folder(tmp_path / DEFAULT_OUT).backup.touch()
    assert refused("train", folder=tmp_path) == (
        "error: [Errno 28] No space left on device. Run again with --resume to continue after the "
        "last completed epoch."
    )
    for _ in range(2):
        assert refused("train", folder=tmp_path) == (
            "error: out of memory. Use a smaller --tokens. Run again with --resume to continue "
            "after the last completed epoch."
        )
    with pytest.raises(RuntimeError, match="a fault"):
        refused("train", folder=tmp_path)


@pytest.mark.slow
def test_run_batch_too_small_is_refused_and_long_lines_held_out_need_none(run_of, tmp_path):
    pairs = [("a " * 20, "a")] * 2
    said = "`tokens_per_batch` must be at least 24, for the longest"
    with pytest.raises(ValueError, match=said):
        run_of(pairs, pairs, "--tokens", 8, "--out", tmp_path / "out")
    words = [("a", "a")] * 2
    run = run_of(words, [("a", "a " * 99)], "--tokens", 64, "--out", tmp_path / "out")
    assert [target.shape for _, target in run.held_out.as_numpy_iterator()] == [(1, 100)]
