"""A run that is stopped and started again ends as one that nobody stopped: weights, optimizer,
seeds, logs, best weights. Files that `Backup` does not go on with, and what it says.
"""

import functools
import io
import json
import os
import pathlib
import tempfile

import keras
import numpy as np
import pytest

import tfattn
from tests.helpers.processes import locking
from tests.helpers.tensors import BACKEND, tf
from tfattn import data, training

pytestmark = pytest.mark.usefixtures("dense_path")

STEPS, SEED = 3, 5  # batches an epoch


def everything(model):
    return [*model.variables, *model.optimizer.variables]


def assert_same(ours, theirs):
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(np.array(one), np.array(other))


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
def test_a_run_that_is_stopped_in_an_epoch_ends_as_if_it_had_not_been(tmp_path):
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
    assert_same(everything(model), wanted)
    kept = []
    for folder in (cut, whole):
        model.load_weights(folder / "best.weights.h5")
        kept.append(model.get_weights())
    assert_same(*kept)


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


def lower_rate():
    return keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate / 2)


# Three batches an epoch, so that half an update is left over at its end.
ACCUMULATED = {"gradient_accumulation_steps": 2, "use_ema": True, "clipnorm": 1.0}
RUNS = {
    "accumulated": (lambda: keras.optimizers.Adam(0.16, **ACCUMULATED), "float32", [lower_rate]),
    "scaled, bfloat16": (
        lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.01, use_ema=True)),
        *("bfloat16", []),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_weights_optimizer_and_seeds_are_resumed_bit_for_bit(tmp_path, name):
    optimizer, dtype, judges = RUNS[name]
    (model, whole), (resumed, history) = whole_and_resumed(
        tmp_path, lambda: seeded(optimizer(), dtype), *judges
    )
    assert model.weights[0].dtype == dtype
    assert_same(everything(resumed), everything(model))
    assert any(variable.path.endswith("seed_generator_state") for variable in everything(model))
    assert history.history == whole.history
    if judges:
        np.testing.assert_allclose(resumed.optimizer.learning_rate, 0.01)


@pytest.mark.slow
def test_the_history_of_a_resumed_run_is_complete(tmp_path):
    sentence = "a b c d e f g h i j k l m"

    def unsure():
        return keras.callbacks.LambdaCallback(
            on_epoch_end=lambda epoch, logs: logs.update(sure=[epoch, 0.5])
        )

    def translate(model, sources):  # the more steps, the more of the sentence
        words = sources[0].split()
        return [" ".join([*words[: int(model.optimizer.iterations)], *words[:-2]])]

    def score():  # whose value stands between two translations, in the next life too
        return training.ValidationBleu(translate, [sentence], [sentence], every=4)

    def new_model():
        schedule = training.TransformerSchedule(width=5, warmup_steps=7)
        return seeded(keras.optimizers.Adam(schedule))

    (model, whole), (resumed, history) = whole_and_resumed(tmp_path, new_model, unsure, score)
    assert_same(everything(resumed), everything(model))
    assert history.history == whole.history
    assert history.history["sure"] == [[0, 0.5], [1, 0.5], [2, 0.5], [3, 0.5]]
    first, *between, last = history.history["val_bleu"]
    assert between == [first, first] and last != first
    assert history.epoch == whole.epoch == [0, 1, 2, 3]
    assert training.Backup(tmp_path / "cut").history == whole.history


@pytest.mark.slow
def test_one_object_serves_two_fits_and_a_finished_run_has_nothing_to_do(tmp_path):
    wanted, history, _ = whole_run(4)
    backup, twice, again = training.Backup(tmp_path / "twice"), seeded(), seeded()
    fit(twice, backup, 2)
    assert fit(twice, backup, 4).history == history
    assert_same(everything(twice), wanted)
    assert fit(again, training.Backup(tmp_path / "twice"), 4).history == history
    assert_same(everything(again), wanted)


def test_a_loss_that_is_not_finite_ends_the_training_and_keeps_the_epoch_before(tmp_path):
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


def test_the_best_value_is_of_all_epochs_that_have_a_number(tmp_path):
    backup = training.Backup(tmp_path / "run.backup")
    assert backup.best("val_loss") is None
    backup.history = {"val_loss": [np.nan, 3.0, 2.0, np.nan]}
    assert backup.best("val_loss", min) == 2.0 and backup.best("val_loss") == 3.0


# Files.


def backup_of(path, epochs):
    """Of a run of so many epochs; without a file where there are none."""
    if epochs:
        path.write_bytes(whole_run(epochs)[2])
    return training.Backup(path)


def array_file():
    file = io.BytesIO()
    np.save(file, np.ones(3))
    return file.getvalue()


def named_arrays(**arrays):
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


DAMAGES = {
    "end": lambda b: b[:-100],
    "half": lambda b: b[: len(b) // 2],
    "empty": lambda b: b"",
    "text": lambda b: b"hello",
    "array": lambda b: array_file(),
    "another file of NumPy's": lambda b: named_arrays(weights=np.ones(3)),
    "no epoch": lambda b: named_arrays(logs=np.array(json.dumps({"history": {}}))),
    "no logs": lambda b: named_arrays(logs=np.array("[3]")),
    "said to be encrypted": lambda b: b.replace(b"PK\1\2\x2d\3\x2d\0\0", b"PK\1\2\x2d\3\x2d\0\1"),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_file_is_refused_with_a_sentence(tmp_path, damage):
    path = tmp_path / "run.backup"
    path.write_bytes(damage(whole_run(2)[2]))
    said = "Backup: `filepath` must be an intact file of `Backup`; delete it to"
    with pytest.raises(ValueError, match=said):
        training.Backup(path)


def test_a_file_that_may_not_be_opened_is_not_called_damaged(tmp_path):
    with pytest.raises(IsADirectoryError):
        training.Backup(tmp_path)


@pytest.mark.slow
def test_the_backup_of_another_model_or_optimizer_is_refused(tmp_path):
    said = "Backup: `filepath` must belong to this model and optimizer"
    for other in (seeded("sgd"), seeded("adamax"), seeded(units=1)):
        with pytest.raises(ValueError, match=said):
            fit(other, backup_of(tmp_path / "adam", 2), 3)
    scaled, adam, adamax = (
        getattr(keras.optimizers, name) for name in ("LossScaleOptimizer", "Adam", "Adamax")
    )
    fit(seeded(scaled(adam())), training.Backup(tmp_path / "scaled"), 1)
    with pytest.raises(ValueError, match=said):
        fit(seeded(scaled(adamax())), training.Backup(tmp_path / "scaled"), 2)


@pytest.mark.slow
@pytest.mark.parametrize("epochs", [0, 2])
def test_a_file_that_another_run_has_written_to_since_is_refused(tmp_path, epochs):
    stale = backup_of(tmp_path / "run.backup", epochs)
    other = backup_of(tmp_path / "run.backup", 4)
    said = f"Backup: `filepath` must still have {epochs} epochs.*Received: filepath='4 ep"
    with pytest.raises(ValueError, match=said):
        fit(seeded(), stale, 5)
    assert other.epoch == training.Backup(tmp_path / "run.backup").epoch == 4


@pytest.mark.slow
@pytest.mark.parametrize("epochs", [0, 2])
def test_a_backup_that_could_not_be_written_is_written_by_the_next_fit(
    tmp_path, monkeypatch, epochs
):
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
    assert_same(everything(again), wanted)
    assert sorted(os.listdir(tmp_path)) == ["run.backup", "run.backup.lock"]


def test_one_process_at_a_time_trains_with_a_file(tmp_path):
    path = tmp_path / "new" / "run.backup"
    path.parent.mkdir()

    def others(epoch, logs):
        with locking(path) as is_locked:
            assert not is_locked

    with locking(path):
        said = "Backup: `filepath` must not be in use by another process's training"
        with pytest.raises(ValueError, match=said):
            fit(seeded(), training.Backup(path), 1)
        assert not path.exists()
    fit(seeded(), training.Backup(path), 1, keras.callbacks.LambdaCallback(on_epoch_end=others))
    with locking(path) as is_locked:
        assert is_locked


def test_an_epoch_that_the_backup_does_not_go_on_with_is_refused(tmp_path):
    said = r"`initial_epoch` must be `backup.epoch`, here 2. Received: initial_epoch=0"
    with pytest.raises(ValueError, match=said):
        fit(seeded(), backup_of(tmp_path / "run.backup", 2), 4, initial_epoch=0)


def unbuilt_model():
    keras.utils.set_random_seed(SEED)
    model = keras.Sequential([keras.layers.Dense(2)])
    model.compile("adam", "mse", run_eagerly=True)
    return model


@pytest.mark.tensorflow
def test_a_model_that_is_not_built_is_refused_at_once(tmp_path):
    with pytest.raises(ValueError, match="Backup: `model` must be built before `fit`"):
        fit(unbuilt_model(), training.Backup(tmp_path / "run.backup"), 1)


@pytest.mark.skipif(
    BACKEND == "tensorflow", reason="about JAX and PyTorch, where `fit` builds a model at its start"
)
def test_a_model_that_fit_builds_goes_on_as_any_other(tmp_path):
    (model, _), (resumed, _) = whole_and_resumed(tmp_path, unbuilt_model)
    assert_same(everything(resumed), everything(model))
