"""Runs of a model of a few weights, whole or taken up again, for the tests of `training.Backup`."""

import keras
import numpy as np
import pytest

from tests.tensors import BACKEND, tf
from tfattn import training

STEPS, SEED = 3, 5  # batches an epoch


def everything(model):
    return [*model.variables, *model.optimizer.variables]


def assert_same(ours, theirs):
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(np.array(one), np.array(other))


def small_batches(first_epoch=0, last_epoch=9, skip=0):
    """The batches of those epochs but for the first ones."""

    def stream():
        for epoch in range(first_epoch, last_epoch):
            rng = np.random.default_rng([SEED, epoch])
            for _ in range(STEPS):
                yield (
                    rng.normal(size=(11, 3)).astype("float32"),
                    rng.normal(size=(11, 2)).astype("float32"),
                )

    if BACKEND != "tensorflow":
        batches = stream()
        for _ in range(skip):
            next(batches)
        return batches  # of iterators `fit` takes generators alone
    signature = (tf.TensorSpec((11, 3), "float32"), tf.TensorSpec((11, 2), "float32"))
    return tf.data.Dataset.from_generator(stream, output_signature=signature).skip(skip)


def small_model(optimizer="adam", dtype=None):
    layers = [keras.layers.Dropout(0.3, seed=SEED), keras.layers.Dense(2, dtype=dtype)]
    model = keras.Sequential([keras.Input((3,)), *layers])
    model.compile(optimizer, "mse", run_eagerly=True)
    return model


def fit(model, backup, epochs, *judges, **arguments):
    data = arguments.pop("data", small_batches(backup.epoch))
    arguments = {
        "initial_epoch": backup.epoch,
        "steps_per_epoch": STEPS,
        "verbose": 0,
        "shuffle": False,
        **arguments,
    }
    return model.fit(data, epochs=epochs, callbacks=[*judges, backup], **arguments)


def whole_and_resumed(tmp_path, new_model, *new_judges):
    """(model, history) of a run of four epochs, and of one stopped after two and taken up by
    another model.
    """

    def stop(epoch, logs):
        if epoch == 2:
            raise KeyboardInterrupt

    model = new_model()
    whole = fit(model, training.Backup(tmp_path / "whole"), 4, *[judge() for judge in new_judges])
    stopper = keras.callbacks.LambdaCallback(on_epoch_begin=stop)
    with pytest.raises(KeyboardInterrupt):
        fit(
            new_model(),
            training.Backup(tmp_path / "cut"),
            4,
            *[judge() for judge in new_judges],
            stopper,
        )
    resumed = new_model()
    history = fit(resumed, training.Backup(tmp_path / "cut"), 4, *[judge() for judge in new_judges])
    return (model, whole), (resumed, history)


def seeded(optimizer, dtype=None):
    keras.utils.set_random_seed(SEED)
    return small_model(optimizer, dtype)
