"""A run that is killed and started again ends as one that nobody killed: weights, optimizer, seeds, logs, best weights."""

import io
import json
import os
import pathlib
import signal
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfattn
from tfattn import data, training

STEPS, SEED = 3, 5  # batches an epoch
IDS = 40  # of a vocabulary


# A small Transformer, trained here and in a process that is killed.


def copying_batches(counter):
    """Sentences to copy, in batches of similar length, their words cut by chance; each epoch has its own."""
    rng = np.random.default_rng(SEED)
    numbers = [" ".join(map(str, rng.integers(10, 99, size=rng.integers(3, 7)))) for _ in range(40)]
    words = data.SubwordVocabulary.from_sentences(numbers, IDS)
    dropped = data.SubwordDropout(words, rate=0.3)
    pairs = list(zip(numbers, numbers, strict=True))
    return data.token_batches(pairs, dropped, dropped, 160, shuffle_seed=SEED, epoch_counter=counter)


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
    model.compile(optimizer, tfattn.MaskedCrossentropy(0.1), jit_compile=False)
    model.build(((None, None), (None, None)))
    return model


def train_transformer(model, folder, *extra):
    counter, backup = data.EpochCounter(), training.Backup(folder / "run.backup")
    sentences = [" ".join(map(str, row)) for row in np.random.default_rng(SEED).integers(4, 13, size=(7, 5))]
    judges = [training.ValidationBleu(translate, sentences, sentences), best_weights(folder, backup)]
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


def everything(model):
    return [*model.variables, *model.optimizer.variables]


def assert_same(ours, theirs):
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(np.array(one), np.array(other))


@pytest.mark.slow
def test_a_transformer_whose_run_is_killed_in_an_epoch_ends_as_if_it_had_not_been(tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    whole.mkdir()
    model = new_transformer()
    history = train_transformer(model, whole)
    wanted = [np.array(variable) for variable in everything(model)]

    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run([sys.executable, __file__, str(killed)], env=environment, capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr[-3000:]
    assert training.Backup(killed / "run.backup").epoch == 2
    for variable in everything(model):  # whatever the file leaves out is now wrong
        variable.assign(keras.ops.zeros_like(variable))
    resumed = train_transformer(model, killed)

    assert_same(everything(model), wanted)
    assert resumed == history
    kept, wanted = (keras.models.load_model(folder / "best.keras", compile=False) for folder in (killed, whole))
    assert_same(kept.weights, wanted.weights)


# The same with a model of a few weights, stopped between two epochs or in the middle of a backup.


def small_batches(first_epoch=0, last_epoch=9):
    def stream():
        for epoch in range(first_epoch, last_epoch):
            rng = np.random.default_rng([SEED, epoch])
            for _ in range(STEPS):
                yield rng.normal(size=(11, 3)).astype("float32"), rng.normal(size=(11, 2)).astype("float32")

    signature = (tf.TensorSpec((11, 3), tf.float32), tf.TensorSpec((11, 2), tf.float32))
    return tf.data.Dataset.from_generator(stream, output_signature=signature)


def small_model(optimizer="adam", dtype=None):
    layers = [keras.layers.Dropout(0.3), keras.layers.Dense(2, dtype=dtype)]
    model = keras.Sequential([keras.Input((3,)), *layers])
    model.compile(optimizer, "mse", run_eagerly=True)
    return model


def fit(model, backup, epochs, *judges, **arguments):
    data = arguments.pop("data", small_batches(backup.epoch))
    arguments = {"initial_epoch": backup.epoch, "steps_per_epoch": STEPS, "verbose": 0, "shuffle": False, **arguments}
    return model.fit(data, epochs=epochs, callbacks=[*judges, backup], **arguments)


def whole_and_resumed(tmp_path, new_model, *new_judges):
    """(model, history) of a run of four epochs, and of one stopped after two and taken up by another model."""

    def stop(epoch, logs):
        if epoch == 2:
            raise KeyboardInterrupt

    model = new_model()
    whole = fit(model, training.Backup(tmp_path / "whole"), 4, *[judge() for judge in new_judges])
    stopper = keras.callbacks.LambdaCallback(on_epoch_begin=stop)
    with pytest.raises(KeyboardInterrupt):
        fit(new_model(), training.Backup(tmp_path / "cut"), 4, *[judge() for judge in new_judges], stopper)
    resumed = new_model()
    history = fit(resumed, training.Backup(tmp_path / "cut"), 4, *[judge() for judge in new_judges])
    return (model, whole), (resumed, history)


OPTIMIZERS = {
    "adam": lambda: keras.optimizers.Adam(training.TransformerSchedule(width=5, warmup_steps=7)),
    # Three batches an epoch, so that half an update is left over at its end.
    "accumulated": lambda: keras.optimizers.Adam(0.01, gradient_accumulation_steps=2, use_ema=True, clipnorm=1.0),
    "scaled": lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.01, use_ema=True)),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_weights_optimizer_and_seeds_go_on_bit_for_bit(tmp_path, name):
    (model, whole), (resumed, history) = whole_and_resumed(tmp_path, lambda: seeded(OPTIMIZERS[name]()))
    assert_same(everything(resumed), everything(model))
    assert any(variable.path.endswith("seed_generator_state") for variable in everything(model))
    assert history.history == whole.history


def seeded(optimizer, dtype=None):
    keras.utils.set_random_seed(SEED)
    return small_model(optimizer, dtype)


def test_weights_in_bfloat16_go_on_bit_for_bit(tmp_path):
    (model, _), (resumed, _) = whole_and_resumed(tmp_path, lambda: seeded("adam", "bfloat16"))
    assert model.weights[0].dtype == "bfloat16"
    assert_same(everything(resumed), everything(model))


def test_a_rate_that_was_lowered_stays_lowered(tmp_path):
    lower = lambda: keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate / 2)  # noqa: E731
    (model, _), (resumed, _) = whole_and_resumed(tmp_path, lambda: seeded(keras.optimizers.SGD(0.16)), lower)
    np.testing.assert_allclose(resumed.optimizer.learning_rate, 0.01)
    assert_same(everything(resumed), everything(model))


class Killed(BaseException):
    pass


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


def test_the_history_of_a_resumed_run_is_that_of_all_its_lives(tmp_path):
    def unsure():
        return keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: logs.update(sure=[epoch, 0.5]))

    (_, whole), (_, history) = whole_and_resumed(tmp_path, lambda: seeded("adam"), unsure)
    assert history.history == whole.history
    assert history.history["sure"] == [[0, 0.5], [1, 0.5], [2, 0.5], [3, 0.5]]
    assert history.epoch == whole.epoch == [0, 1, 2, 3]
    assert training.Backup(tmp_path / "cut").history == whole.history


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


def test_a_finished_run_has_nothing_to_do_and_keeps_its_history(tmp_path):
    path = tmp_path / "run.backup"
    model, again = seeded("adam"), seeded("adam")
    history = fit(model, training.Backup(path), 3).history
    assert fit(again, training.Backup(path), 3).history == history
    assert_same(again.weights, model.weights)


def test_one_object_serves_two_fits(tmp_path):
    (model, _), _ = whole_and_resumed(tmp_path, lambda: seeded("adam"))
    backup, twice = training.Backup(tmp_path / "twice"), seeded("adam")
    fit(twice, backup, 2)
    fit(twice, backup, 4)
    assert_same(everything(twice), everything(model))


def test_an_epoch_cut_up_by_steps_goes_on_with_the_next_batch(tmp_path):
    whole, cut = seeded("adam"), seeded("adam")
    fit(whole, training.Backup(tmp_path / "whole"), 10, data=small_batches(), steps_per_epoch=2)
    for epochs in (3, 10):
        backup = training.Backup(tmp_path / "cut")
        fit(cut, backup, epochs, data=small_batches().skip(2 * backup.epoch), steps_per_epoch=2)
    assert_same(everything(cut), everything(whole))


def test_a_resumed_run_keeps_the_best_weights_of_its_earlier_life(tmp_path):
    path, best = tmp_path / "run.backup", {}

    def run(epochs, bleu):
        backup, model = training.Backup(path), seeded("adam")
        score = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: logs.update(val_bleu=bleu[epoch]))
        keep = keras.callbacks.LambdaCallback(
            on_epoch_end=lambda epoch, logs: best.update({epoch: model.get_weights()})
        )
        fit(model, backup, epochs, score, best_weights(tmp_path, backup), keep)
        return keras.models.load_model(tmp_path / "best.keras").get_weights()

    def assert_kept(weights, epoch):
        assert all(np.array_equal(one, other) for one, other in zip(weights, best[epoch], strict=True))

    assert_kept(run(2, [3.0, 7.0]), 1)
    assert_kept(run(4, [None, None, 5.0, 6.0]), 1)
    assert_kept(run(5, [None] * 4 + [8.0]), 4)
    backup = training.Backup(path)
    assert backup.best("val_bleu") == 8.0 and backup.best("val_bleu", min) == 3.0
    assert backup.best("val_loss") is None


def array_file():
    file = io.BytesIO()
    np.save(file, np.ones(3))
    return file.getvalue()


def logs_alone(logs):
    file = io.BytesIO()
    np.savez(file, logs=np.array(json.dumps(logs)))
    return file.getvalue()


DAMAGES = {
    "end": lambda b: b[:-100],
    "half": lambda b: b[: len(b) // 2],
    "empty": lambda b: b"",
    "text": lambda b: b"hello",
    "array": lambda b: array_file(),
    "no epoch": lambda b: logs_alone({"history": {}}),
    "no logs": lambda b: logs_alone([3]),
    "said to be encrypted": lambda b: b.replace(b"PK\1\2\x2d\3\x2d\0\0", b"PK\1\2\x2d\3\x2d\0\1"),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_file_is_refused_with_a_sentence(tmp_path, damage):
    path = tmp_path / "run.backup"
    fit(seeded("adam"), training.Backup(path), 1)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ValueError, match="Backup: `filepath` must be a whole file that `Backup` wrote; delete it to"):
        training.Backup(path)


def test_a_file_that_may_not_be_opened_is_not_called_damaged(tmp_path):
    (tmp_path / "run.backup").mkdir()
    with pytest.raises(IsADirectoryError):
        training.Backup(tmp_path / "run.backup")


def test_another_file_of_numpys_is_refused(tmp_path):
    np.savez(tmp_path / "other.npz", weights=np.ones(3))
    with pytest.raises(ValueError, match="must be a whole file that `Backup` wrote"):
        training.Backup(tmp_path / "other.npz")


@pytest.mark.parametrize("other", [lambda: small_model("sgd"), lambda: small_model("adamax"), lambda: wider_model()])
def test_the_backup_of_another_model_or_optimizer_is_refused(tmp_path, other):
    path = tmp_path / "run.backup"
    fit(seeded("adam"), training.Backup(path), 1)
    with pytest.raises(ValueError, match="Backup: `filepath` must belong to this model and optimizer"):
        fit(other(), training.Backup(path), 2)


def test_the_optimizer_within_one_that_scales_is_told_apart_too(tmp_path):
    path, scaled = tmp_path / "run.backup", keras.optimizers.LossScaleOptimizer
    fit(seeded(scaled(keras.optimizers.Adam())), training.Backup(path), 1)
    with pytest.raises(ValueError, match="Backup: `filepath` must belong to this model and optimizer"):
        fit(seeded(scaled(keras.optimizers.Adamax())), training.Backup(path), 2)


@pytest.mark.parametrize("epochs", [0, 2])
def test_a_file_that_another_run_has_written_to_since_is_refused(tmp_path, epochs):
    path = tmp_path / "run.backup"
    if epochs:
        fit(seeded("adam"), training.Backup(path), epochs)
    stale = training.Backup(path)
    fit(seeded("adam"), training.Backup(path), 3)
    said = f"Backup: `filepath` must be as it was read, {epochs} epochs.*Received: filepath='3 ep"
    with pytest.raises(ValueError, match=said):
        fit(seeded("adam"), stale, 5)
    assert training.Backup(path).epoch == 3


@pytest.mark.parametrize("epochs", [0, 2])
def test_a_backup_that_could_not_be_written_is_written_by_the_next_fit(tmp_path, monkeypatch, epochs):
    (model, whole), _ = whole_and_resumed(tmp_path, lambda: seeded("adam"))
    backup, resumed = training.Backup(tmp_path / "run.backup"), seeded("adam")
    if epochs:
        fit(resumed, backup, epochs)

    def full(file, **arrays):
        raise OSError("No space left on device")

    with monkeypatch.context() as patches:
        patches.setattr(np, "savez", full)
        with pytest.raises(OSError, match="No space left"):
            fit(seeded("adam"), backup, 4)
    assert backup.epoch == epochs
    again = seeded("adam")
    assert fit(again, backup, 4).history == whole.history
    assert_same(everything(again), everything(model))


def wider_model():
    model = keras.Sequential([keras.Input((5,)), keras.layers.Dropout(0.3), keras.layers.Dense(2)])
    model.compile("adam", "mse", run_eagerly=True)
    return model


def test_an_epoch_that_the_backup_does_not_go_on_with_is_refused(tmp_path):
    path = tmp_path / "run.backup"
    fit(seeded("adam"), training.Backup(path), 2)
    with pytest.raises(ValueError, match=r"`initial_epoch` must be `backup.epoch`, here 2. Received: initial_epoch=0"):
        fit(seeded("adam"), training.Backup(path), 4, initial_epoch=0)


def test_a_model_that_is_not_built_is_refused_at_once(tmp_path):
    model = keras.Sequential([keras.layers.Dense(2)])
    model.compile("adam", "mse")
    with pytest.raises(ValueError, match="Backup: `model` must be built before `fit`"):
        fit(model, training.Backup(tmp_path / "run.backup"), 1)


if __name__ == "__main__":
    train_transformer(new_transformer(), pathlib.Path(sys.argv[1]), Murder())
