"""Files that `Backup` does not go on with and what it says; a file that could not be written."""

import errno
import io
import json
import pathlib

import keras
import numpy as np
import pytest

from tests.resuming import (
    SEED,
    assert_same,
    everything,
    fit,
    seeded,
    small_model,
    whole_and_resumed,
)
from tests.tensors import BACKEND
from tfattn import training


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


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_file_is_refused_with_a_sentence(tmp_path, damage):
    path = tmp_path / "run.backup"
    fit(seeded("adam"), training.Backup(path), 1)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(
        ValueError,
        match="Backup: `filepath` must be a whole file that `Backup` wrote; delete it to",
    ):
        training.Backup(path)


def test_a_file_that_may_not_be_opened_is_not_called_damaged(tmp_path):
    (tmp_path / "run.backup").mkdir()
    with pytest.raises(IsADirectoryError):
        training.Backup(tmp_path / "run.backup")


def test_a_disk_that_fails_is_not_called_damage(tmp_path, monkeypatch):
    path = tmp_path / "run.backup"
    fit(seeded("adam"), training.Backup(path), 1)

    def failing(*arguments):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(pathlib.Path, "read_bytes", failing)
    with pytest.raises(OSError, match="Input/output error"):
        training.Backup(path)


def test_another_file_of_numpys_is_refused(tmp_path):
    np.savez(tmp_path / "other.npz", weights=np.ones(3))
    with pytest.raises(ValueError, match="must be a whole file that `Backup` wrote"):
        training.Backup(tmp_path / "other.npz")


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize(
    "other", [lambda: small_model("sgd"), lambda: small_model("adamax"), lambda: narrower_model()]
)
def test_the_backup_of_another_model_or_optimizer_is_refused(tmp_path, other):
    path = tmp_path / "run.backup"
    fit(seeded("adam"), training.Backup(path), 1)
    with pytest.raises(
        ValueError, match="Backup: `filepath` must belong to this model and optimizer"
    ):
        fit(other(), training.Backup(path), 2)


def test_the_optimizer_within_one_that_scales_is_told_apart_too(tmp_path):
    path, scaled = tmp_path / "run.backup", keras.optimizers.LossScaleOptimizer
    fit(seeded(scaled(keras.optimizers.Adam())), training.Backup(path), 1)
    with pytest.raises(
        ValueError, match="Backup: `filepath` must belong to this model and optimizer"
    ):
        fit(seeded(scaled(keras.optimizers.Adamax())), training.Backup(path), 2)


@pytest.mark.slow(keep=1)
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


@pytest.mark.slow
@pytest.mark.parametrize("epochs", [0, 2])
def test_a_backup_that_could_not_be_written_is_written_by_the_next_fit(
    tmp_path, monkeypatch, epochs
):
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


def narrower_model():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dropout(0.3), keras.layers.Dense(1)])
    model.compile("adam", "mse", run_eagerly=True)
    return model


def test_an_epoch_that_the_backup_does_not_go_on_with_is_refused(tmp_path):
    path = tmp_path / "run.backup"
    fit(seeded("adam"), training.Backup(path), 2)
    with pytest.raises(
        ValueError,
        match=r"`initial_epoch` must be `backup.epoch`, here 2. Received: initial_epoch=0",
    ):
        fit(seeded("adam"), training.Backup(path), 4, initial_epoch=0)


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


def unbuilt_model():
    keras.utils.set_random_seed(SEED)
    model = keras.Sequential([keras.layers.Dense(2)])
    model.compile("adam", "mse", run_eagerly=True)
    return model
