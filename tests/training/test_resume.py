"""A run that is stopped and started again ends as one that nobody stopped: weights, optimizer,
seeds, logs, best weights. Files that `Backup` does not go on with, and what it says.
"""

import functools
import os
import pathlib
import tempfile

import keras
import numpy as np
import pytest

import tfattn
from tests.helpers.small_training import assert_equal, locking
from tests.helpers.tensors import BACKEND, tf
from tfattn import data, training

pytestmark = pytest.mark.usefixtures("dense_path")

STEPS, SEED = 3, 5  # batches an epoch
ON_TENSORFLOW = {
    "condition": BACKEND == "tensorflow",
    "reason": "about JAX and PyTorch, where `fit` builds a model at its start",
}


def everything(model):
    return [*model.variables, *model.optimizer.variables]


# On batches of text, stopped in the middle of an epoch.


class Stopped(BaseException):
    pass


def stop_in_the_third_epoch():
    def stop(batch, logs):
        if each.model.optimizer.iterations == 2 * each.params["steps"] + 1:
            raise Stopped

    each = keras.callbacks.LambdaCallback(on_train_batch_end=stop)
    return each


def small_translator():
    keras.utils.set_random_seed(SEED)
    source, target = (keras.Input((None,), dtype="int32") for _ in range(2))
    hidden = keras.layers.Dropout(0.3)(keras.layers.Embedding(60, 8)(target))
    model = keras.Model((source, target), keras.layers.Dense(60)(hidden))
    rate = training.InverseSquareRootSchedule(peak=0.03, warmup_steps=7)
    optimizer = keras.optimizers.Adam(rate, use_ema=True, ema_momentum=0.9)
    model.compile(optimizer, tfattn.MaskedCrossentropy(0.1), jit_compile=BACKEND == "jax")
    optimizer.build(model.trainable_variables)
    return model


def train_translator(model, folder, *extra):
    """On batches of similar length, whose words are cut by chance; each epoch has its own."""
    pairs = data.toy_translation(24, seed=SEED)
    words = data.SubwordVocabulary.from_sentences([side for pair in pairs for side in pair], 60)
    dropped, counter = data.SubwordDropout(words, rate=0.3), data.EpochCounter()
    batches = data.token_batches(
        pairs, dropped, dropped, 320, shuffle_seed=SEED, epoch_counter=counter
    )
    backup = training.Backup(folder / "run.backup")
    # The first epoch is the best by this measure.
    best = {"monitor": "loss", "better": max, "best": backup.best("loss", max)}
    keep = training.BestWeights(folder / "best.weights.h5", **best)
    return model.fit(
        batches,
        epochs=3,
        initial_epoch=backup.epoch,
        callbacks=[counter, training.AveragedWeights([keep]), backup, *extra],
        shuffle=False,
        verbose=0,
    ).history


@pytest.mark.slow
def test_backup_training_stopped_in_an_epoch_ends_as_one_that_was_not(tmp_path):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    for folder in (whole, cut):
        folder.mkdir()
    model = small_translator()
    begun = [np.array(variable) for variable in everything(model)]
    history = train_translator(model, whole)
    wanted = [np.array(variable) for variable in everything(model)]
    assert history["loss"][0] == max(history["loss"])

    for variable, value in zip(everything(model), begun, strict=True):
        variable.assign(value)
    with pytest.raises(Stopped):
        train_translator(model, cut, stop_in_the_third_epoch())
    assert training.Backup(cut / "run.backup").epoch == 2
    for variable in everything(model):  # whatever the file leaves out is now wrong
        variable.assign(np.zeros(variable.shape))
    assert train_translator(model, cut) == history
    assert_equal(everything(model), wanted)
    kept = []
    for folder in (cut, whole):
        model.load_weights(folder / "best.weights.h5")
        kept.append(model.get_weights())
    assert_equal(*kept)


# The same with a model of a few weights, stopped between two epochs.


def small_batches(first_epoch):
    """The batches from that epoch on."""

    def stream():
        for epoch in range(first_epoch, 9):
            rng = np.random.default_rng([SEED, epoch])
            for _ in range(STEPS):
                yield (
                    rng.normal(size=(11, 3)).astype("float32"),
                    rng.normal(size=(11, 2)).astype("float32"),
                )

    if BACKEND != "tensorflow":
        return stream()  # of iterators `fit` takes generators alone
    signature = (tf.TensorSpec((11, 3), "float32"), tf.TensorSpec((11, 2), "float32"))
    return tf.data.Dataset.from_generator(stream, output_signature=signature)


def seeded(optimizer="adam", dtype=None, units=2):
    keras.utils.set_random_seed(SEED)
    layers = [keras.layers.Dropout(0.3, seed=SEED), keras.layers.Dense(units, dtype=dtype)]
    model = keras.Sequential([keras.Input((3,)), *layers])
    model.compile(optimizer, "mse", run_eagerly=True)
    return model


def fit(model, backup, epochs, *judges, **arguments):
    arguments = {
        "initial_epoch": backup.epoch,
        "steps_per_epoch": STEPS,
        "verbose": 0,
        "shuffle": False,
        **arguments,
    }
    return model.fit(
        small_batches(backup.epoch), epochs=epochs, callbacks=[*judges, backup], **arguments
    )


@functools.cache
def whole_run(epochs):
    """(all variables, history, the file) of a run that nobody stopped."""
    with tempfile.TemporaryDirectory() as folder:
        path, model = pathlib.Path(folder) / "run.backup", seeded()
        history = fit(model, training.Backup(path), epochs).history
        return [np.array(variable) for variable in everything(model)], history, path.read_bytes()


def whole_and_resumed(tmp_path, new_model, *new_judges):
    """(model, history) of a run of four epochs, and of one stopped after two and taken up by
    another model.
    """

    def stop(epoch, logs):
        if epoch == 2:
            raise KeyboardInterrupt

    def run(name, *others):
        model, backup = new_model(), training.Backup(tmp_path / name)
        return model, fit(model, backup, 4, *[judge() for judge in new_judges], *others)

    with pytest.raises(KeyboardInterrupt):
        run("cut", keras.callbacks.LambdaCallback(on_epoch_begin=stop))
    return run("whole"), run("cut")


# Three batches an epoch, so that half an update is left over at its end.
def lower_rate():
    return keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate / 2)


def accumulating():
    # Three batches an epoch, so that half an update is left over at its end.
    options = {"gradient_accumulation_steps": 2, "use_ema": True, "clipnorm": 1.0}
    return seeded(keras.optimizers.Adam(0.16, **options))


def scaled_bfloat16():
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.01, use_ema=True))
    return seeded(optimizer, "bfloat16")


def scheduled():
    return seeded(keras.optimizers.Adam(training.TransformerSchedule(width=5, warmup_steps=7)))


def unsure():
    return keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: logs.update(sure=[epoch, 0.5])
    )


def score():
    """BLEU, which is NaN between two translations, in the next life too."""

    def translate(model, sources):  # the more steps, the more of the sentence
        words = sources[0].split()
        return [" ".join([*words[: int(model.optimizer.iterations)], *words[:-2]])]

    sentence = "a b c d e f g h i j k l m"
    return training.ValidationBleu(translate, [sentence], [sentence], every=4)


def unbuilt():
    keras.utils.set_random_seed(SEED)
    model = keras.Sequential([keras.layers.Dense(2)])
    model.compile("adam", "mse", run_eagerly=True)
    return model


@pytest.mark.slow
@pytest.mark.parametrize(
    "new_model, judges",
    [
        (accumulating, [lower_rate]),
        (scaled_bfloat16, []),
        (scheduled, [unsure, score]),
        pytest.param(unbuilt, [], marks=pytest.mark.skipif(**ON_TENSORFLOW)),
    ],
)
def test_backup_resumed_run_is_the_whole_one_bit_for_bit(tmp_path, new_model, judges):
    (model, whole), (resumed, again) = whole_and_resumed(tmp_path, new_model, *judges)
    assert_equal(everything(resumed), everything(model))
    for history in (again.history, training.Backup(tmp_path / "cut").history):
        np.testing.assert_equal(history, whole.history)
    assert again.epoch == whole.epoch == [0, 1, 2, 3]
    paths = [variable.path for variable in everything(model)]
    assert new_model is unbuilt or any(path.endswith("seed_generator_state") for path in paths)
    assert model.weights[0].dtype == ("bfloat16" if new_model is scaled_bfloat16 else "float32")
    if lower_rate in judges:
        np.testing.assert_allclose(resumed.optimizer.learning_rate, 0.01)
    if score in judges:
        assert again.history["sure"] == [[0, 0.5], [1, 0.5], [2, 0.5], [3, 0.5]]
        first, *between, last = again.history["val_bleu"]
        assert np.isnan(between).tolist() == [True, True] and last != first


@pytest.mark.slow
def test_backup_serves_two_fits_and_none_of_a_finished_run(tmp_path):
    wanted, history, _ = whole_run(4)
    backup, twice, again = training.Backup(tmp_path / "twice"), seeded(), seeded()
    fit(twice, backup, 2)
    assert fit(twice, backup, 4).history == history
    assert_equal(everything(twice), wanted)
    assert fit(again, training.Backup(tmp_path / "twice"), 4).history == history
    assert_equal(everything(again), wanted)


@pytest.mark.slow
def test_backup_loss_not_finite_ends_training_and_keeps_the_epoch_before(tmp_path):
    x = np.array([[1.0], [np.nan]])
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    backup = training.Backup(tmp_path / "run.backup")
    options = {"batch_size": 1, "shuffle": False, "verbose": 0, "callbacks": [backup]}
    model.fit(x[:1], x[:1], **options)
    expected = r"`loss` must stay finite; .* epoch 2, batch 2; .*keeps 1 epochs.* loss=nan"
    with pytest.raises(ValueError, match=expected):
        model.fit(x, x, epochs=2, initial_epoch=1, **options)
    assert training.Backup(backup.filepath).epoch == 1


# Files.


def backup_of(path, epochs):
    """Of a run of so many epochs; without a file where there are none."""
    if epochs:
        path.write_bytes(whole_run(epochs)[2])
    return training.Backup(path)


@pytest.mark.slow
@pytest.mark.parametrize("epochs", [0, 2])
def test_backup_write_killed_or_failed_is_made_up_by_the_next_fit(tmp_path, monkeypatch, epochs):
    path = tmp_path / "run.backup"
    backup, again = backup_of(path, epochs), seeded()
    # A full disk; a kill before the new file takes the other's place.
    for module, name, error in ((np, "savez", OSError), (os, "replace", Stopped)):

        def failing(*arguments, error=error, **arrays):
            raise error("no")

        with monkeypatch.context() as patches, pytest.raises(error, match="no"):
            patches.setattr(module, name, failing)
            fit(seeded(), backup, 4)
        assert backup.epoch == training.Backup(path).epoch == epochs
    wanted, history, _ = whole_run(4)
    assert fit(again, backup, 4).history == history
    assert_equal(everything(again), wanted)
    assert sorted(os.listdir(tmp_path)) == ["run.backup", "run.backup.lock"]


def adam_of_losses(name):
    return keras.optimizers.LossScaleOptimizer(getattr(keras.optimizers, name)())


@pytest.mark.slow
def test_backup_of_another_model_run_or_epoch_is_refused(tmp_path):
    said = "Backup: `filepath` must belong to this model and optimizer"
    for other in (seeded("sgd"), seeded("adamax"), seeded(units=1)):
        with pytest.raises(ValueError, match=said):
            fit(other, backup_of(tmp_path / "adam", 2), 3)
    fit(seeded(adam_of_losses("Adam")), training.Backup(tmp_path / "scaled"), 1)
    with pytest.raises(ValueError, match=said):
        fit(seeded(adam_of_losses("Adamax")), training.Backup(tmp_path / "scaled"), 2)
    said = r"`initial_epoch` must be `backup.epoch`, here 2. Received: initial_epoch=0"
    with pytest.raises(ValueError, match=said):
        fit(seeded(), backup_of(tmp_path / "adam", 2), 4, initial_epoch=0)
    for epochs in (0, 2):  # and since then another run has written to the file
        stale = backup_of(tmp_path / f"run{epochs}.backup", epochs)
        other = backup_of(stale.filepath, 4)
        said = f"Backup: `filepath` must still have {epochs} epochs.*Received: filepath='4 ep"
        with pytest.raises(ValueError, match=said):
            fit(seeded(), stale, 5)
        assert other.epoch == training.Backup(stale.filepath).epoch == 4
    if BACKEND == "tensorflow":  # elsewhere `fit` builds a model at its start
        with pytest.raises(ValueError, match="Backup: `model` must be built before `fit`"):
            fit(unbuilt(), training.Backup(tmp_path / "unbuilt"), 1)


@pytest.mark.slow
def test_backup_is_locked_while_it_trains_and_has_the_best_value(tmp_path):
    path = tmp_path / "new" / "run.backup"
    path.parent.mkdir()

    def others(epoch, logs):
        with locking(path) as is_locked:
            assert not is_locked

    with locking(path):
        said = "Backup: `filepath` must not be used by another process"
        with pytest.raises(ValueError, match=said):
            fit(seeded(), training.Backup(path), 1)
        assert not path.exists()
    backup = training.Backup(path)
    assert backup.best("val_loss") is None
    fit(seeded(), backup, 1, keras.callbacks.LambdaCallback(on_epoch_end=others))
    with locking(path) as is_locked:
        assert is_locked
    backup.history = {"val_loss": [np.nan, 3.0, 2.0, np.nan]}
    assert backup.best("val_loss", min) == 2.0 and backup.best("val_loss") == 3.0
    with pytest.raises(IsADirectoryError):  # which is not called damaged
        training.Backup(tmp_path)
