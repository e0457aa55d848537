"""A run that is killed and started again ends as one that nobody killed: weights, optimizer, seeds,
logs, best weights.
"""

import os
import pathlib
import signal
import sys

import keras
import numpy as np
import pytest

import tfattn
from tests import paths
from tests.processes import python
from tests.resuming import (
    SEED,
    assert_same,
    everything,
    fit,
    seeded,
    small_batches,
    whole_and_resumed,
)
from tests.tensors import BACKEND
from tfattn import data, training

pytestmark = pytest.mark.usefixtures("dense_path")

IDS = 40  # of a vocabulary


# A small Transformer, trained here and in a process that is killed.


def copying_batches(counter):
    """Sentences to copy, in batches of similar length, their words cut by chance; each epoch has
    its own.
    """
    rng = np.random.default_rng(SEED)
    numbers = [" ".join(map(str, rng.integers(10, 99, size=rng.integers(3, 7)))) for _ in range(40)]
    words = data.SubwordVocabulary.from_sentences(numbers, IDS)
    dropped = data.SubwordDropout(words, rate=0.3)
    pairs = list(zip(numbers, numbers, strict=True))
    return data.token_batches(
        pairs, dropped, dropped, 160, shuffle_seed=SEED, epoch_counter=counter
    )


def before(ids):
    return np.pad(ids, ((0, 0), (1, 0)), constant_values=2)[:, :-1]


def translate(model, sources):
    ids = np.array([source.split() for source in sources], "int32")
    return [" ".join(map(str, row)) for row in np.asarray(model((ids, before(ids)))).argmax(-1)]


class Murder(keras.callbacks.Callback):
    """Kills its own process in the middle of the third epoch, as no handler can prevent."""

    def on_train_batch_end(self, batch, logs=None):
        if self.model.optimizer.iterations == 2 * self.params["steps"] + 1:
            os.kill(os.getpid(), signal.SIGKILL)


def new_transformer():
    keras.utils.set_random_seed(SEED)
    model = tfattn.Transformer(IDS, num_layers=1, width=8, num_heads=2, hidden_dim=16, dropout=0.3)
    rate = training.InverseSquareRootSchedule(peak=0.03, warmup_steps=7)
    optimizer = keras.optimizers.Adam(rate, use_ema=True, ema_momentum=0.9)
    model.compile(optimizer, tfattn.MaskedCrossentropy(0.1), jit_compile=BACKEND == "jax")
    model.build(((None, None), (None, None)))
    return model


def train_transformer(model, folder, *extra):
    counter, backup = data.EpochCounter(), training.Backup(folder / "run.backup")
    sentences = [
        " ".join(map(str, row)) for row in np.random.default_rng(SEED).integers(4, 13, size=(7, 5))
    ]
    judges = [
        training.ValidationBleu(translate, sentences, sentences),
        best_weights(folder, backup),
    ]
    return model.fit(
        copying_batches(counter),
        epochs=3,
        initial_epoch=backup.epoch,
        callbacks=[counter, training.AveragedWeights(judges), backup, *extra],
        shuffle=False,
        verbose=0,
    ).history


def best_weights(folder, backup):
    return keras.callbacks.ModelCheckpoint(
        folder / "best.keras",
        monitor="val_bleu",
        mode="max",
        save_best_only=True,
        initial_value_threshold=backup.best("val_bleu"),
    )


@pytest.mark.slow
def test_a_transformer_whose_run_is_killed_in_an_epoch_ends_as_if_it_had_not_been(tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    whole.mkdir()
    model = new_transformer()
    history = train_transformer(model, whole)
    wanted = [np.array(variable) for variable in everything(model)]

    done = python(__file__, killed)
    assert done.returncode == -signal.SIGKILL, done.stderr[-3000:]
    assert training.Backup(killed / "run.backup").epoch == 2
    for variable in everything(model):  # whatever the file leaves out is now wrong
        variable.assign(np.zeros(variable.shape))
    resumed = train_transformer(model, killed)

    assert_same(everything(model), wanted)
    assert resumed == history
    kept, wanted = (
        keras.models.load_model(folder / "best.keras", compile=False) for folder in (killed, whole)
    )
    assert_same(kept.weights, wanted.weights)


# The same with a model of a few weights, stopped between two epochs or in the middle of a backup.


OPTIMIZERS = {
    "adam": lambda: keras.optimizers.Adam(training.TransformerSchedule(width=5, warmup_steps=7)),
    # Three batches an epoch, so that half an update is left over at its end.
    "accumulated": lambda: keras.optimizers.Adam(
        0.01, gradient_accumulation_steps=2, use_ema=True, clipnorm=1.0
    ),
    "scaled": lambda: keras.optimizers.LossScaleOptimizer(
        keras.optimizers.Adam(0.01, use_ema=True)
    ),
}


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_weights_optimizer_and_seeds_go_on_bit_for_bit(tmp_path, name):
    (model, whole), (resumed, history) = whole_and_resumed(
        tmp_path, lambda: seeded(OPTIMIZERS[name]())
    )
    assert_same(everything(resumed), everything(model))
    assert any(variable.path.endswith("seed_generator_state") for variable in everything(model))
    assert history.history == whole.history


@pytest.mark.slow
def test_weights_in_bfloat16_go_on_bit_for_bit(tmp_path):
    (model, _), (resumed, _) = whole_and_resumed(tmp_path, lambda: seeded("adam", "bfloat16"))
    assert model.weights[0].dtype == "bfloat16"
    assert_same(everything(resumed), everything(model))


@pytest.mark.slow
def test_a_rate_that_was_lowered_stays_lowered(tmp_path):
    lower = lambda: keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate / 2)  # noqa: E731
    (model, _), (resumed, _) = whole_and_resumed(
        tmp_path, lambda: seeded(keras.optimizers.SGD(0.16)), lower
    )
    np.testing.assert_allclose(resumed.optimizer.learning_rate, 0.01)
    assert_same(everything(resumed), everything(model))


class Killed(BaseException):
    pass


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("when", ["half written", "before it takes the other's place"])
def test_a_kill_during_a_backup_leaves_the_one_before(tmp_path, monkeypatch, when):
    path, savez = tmp_path / "run.backup", np.savez
    backup = training.Backup(path)
    fit(seeded("adam"), backup, 2)

    def half(file, **arrays):
        savez(file, **arrays)
        file.truncate(file.tell() // 2)
        raise Killed

    def none(*arguments):
        raise Killed

    with monkeypatch.context() as patches:
        patches.setattr(*((np, "savez", half) if when == "half written" else (os, "replace", none)))
        with pytest.raises(Killed):
            fit(seeded("adam"), training.Backup(path), 4)

    resumed, model, backup = seeded("adam"), seeded("adam"), training.Backup(path)
    assert backup.epoch == 2
    fit(resumed, backup, 4)
    fit(model, training.Backup(tmp_path / "whole"), 4)
    assert_same(everything(resumed), everything(model))
    assert sorted(os.listdir(tmp_path)) == ["run.backup", "whole"]


@pytest.mark.slow
def test_the_history_of_a_resumed_run_is_that_of_all_its_lives(tmp_path):
    def unsure():
        return keras.callbacks.LambdaCallback(
            on_epoch_end=lambda epoch, logs: logs.update(sure=[epoch, 0.5])
        )

    (_, whole), (_, history) = whole_and_resumed(tmp_path, lambda: seeded("adam"), unsure)
    assert history.history == whole.history
    assert history.history["sure"] == [[0, 0.5], [1, 0.5], [2, 0.5], [3, 0.5]]
    assert history.epoch == whole.epoch == [0, 1, 2, 3]
    assert training.Backup(tmp_path / "cut").history == whole.history


@pytest.mark.slow
def test_a_bleu_that_stands_between_two_translations_stands_in_the_next_life(tmp_path):
    sentence = "a b c d e f g h i j k l m"

    def translate(model, sources):  # the more steps, the more of the sentence
        words = sources[0].split()
        return [" ".join([*words[: int(model.optimizer.iterations)], *words[:-2]])]

    def score():
        return training.ValidationBleu(translate, [sentence], [sentence], every=4)

    (_, whole), (_, history) = whole_and_resumed(tmp_path, lambda: seeded("adam"), score)
    first, *between, last = whole.history["val_bleu"]
    assert between == [first, first] and last != first
    assert history.history == whole.history


@pytest.mark.slow
def test_a_finished_run_has_nothing_to_do_and_keeps_its_history(tmp_path):
    path = tmp_path / "run.backup"
    model, again = seeded("adam"), seeded("adam")
    history = fit(model, training.Backup(path), 3).history
    assert fit(again, training.Backup(path), 3).history == history
    assert_same(again.weights, model.weights)


@pytest.mark.slow
def test_one_object_serves_two_fits(tmp_path):
    (model, _), _ = whole_and_resumed(tmp_path, lambda: seeded("adam"))
    backup, twice = training.Backup(tmp_path / "twice"), seeded("adam")
    fit(twice, backup, 2)
    fit(twice, backup, 4)
    assert_same(everything(twice), everything(model))


@pytest.mark.slow
def test_an_epoch_cut_up_by_steps_goes_on_with_the_next_batch(tmp_path):
    whole, cut = seeded("adam"), seeded("adam")
    fit(whole, training.Backup(tmp_path / "whole"), 10, data=small_batches(), steps_per_epoch=2)
    for epochs in (3, 10):
        backup = training.Backup(tmp_path / "cut")
        fit(cut, backup, epochs, data=small_batches(skip=2 * backup.epoch), steps_per_epoch=2)
    assert_same(everything(cut), everything(whole))


@pytest.mark.slow
def test_a_resumed_run_keeps_the_best_weights_of_its_earlier_life(tmp_path):
    path, best = tmp_path / "run.backup", {}

    def run(epochs, bleu):
        backup, model = training.Backup(path), seeded("adam")
        score = keras.callbacks.LambdaCallback(
            on_epoch_end=lambda epoch, logs: logs.update(val_bleu=bleu[epoch])
        )
        keep = keras.callbacks.LambdaCallback(
            on_epoch_end=lambda epoch, logs: best.update({epoch: model.get_weights()})
        )
        fit(model, backup, epochs, score, best_weights(tmp_path, backup), keep)
        return keras.models.load_model(tmp_path / "best.keras").get_weights()

    def assert_kept(weights, epoch):
        assert all(
            np.array_equal(one, other) for one, other in zip(weights, best[epoch], strict=True)
        )

    assert_kept(run(2, [3.0, 7.0]), 1)
    assert_kept(run(4, [None, None, 5.0, 6.0]), 1)
    assert_kept(run(5, [None] * 4 + [8.0]), 4)
    backup = training.Backup(path)
    assert backup.best("val_bleu") == 8.0 and backup.best("val_bleu", min) == 3.0
    assert backup.best("val_loss") is None
    backup.history["val_loss"] = [np.nan, 3.0, 2.0, np.nan]  # no value that others are measured by
    assert backup.best("val_loss", min) == 2.0 and backup.best("val_loss") == 3.0


if __name__ == "__main__":
    with paths.dense():
        train_transformer(new_transformer(), pathlib.Path(sys.argv[1]), Murder())
