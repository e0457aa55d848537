"""A model of two numbers out of three, what it is trained on, and what its weights are on the way:
for callbacks. And a lock of their files.
"""

import contextlib

import filelock
import keras
import numpy as np

MOMENTUM = 0.9
RNG = np.random.default_rng(7)
X, Y = RNG.normal(size=(15, 3)).astype("float32"), RNG.normal(size=(15, 2)).astype("float32")
HELD_OUT = RNG.normal(size=(7, 3)).astype("float32"), RNG.normal(size=(7, 2)).astype("float32")


def new_model(optimizer=None, run_eagerly=True):
    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    if optimizer is None:
        optimizer = keras.optimizers.Adam(0.1, use_ema=True, ema_momentum=MOMENTUM)
    model.compile(optimizer, "mse", run_eagerly=run_eagerly, jit_compile=False)
    return model


def fit(model, callbacks, epochs=3, **arguments):
    """Three batches an epoch."""
    return model.fit(
        X,
        Y,
        batch_size=5,
        epochs=epochs,
        shuffle=False,
        verbose=0,
        callbacks=callbacks,
        **arguments,
    )


class Weights(keras.callbacks.Callback):
    """What the model's weights are after each batch, and at the end of each epoch."""

    def __init__(self):
        super().__init__()
        self.batches, self.epochs = [], []

    def on_train_batch_end(self, batch, logs=None):
        self.batches.append(self.model.get_weights())

    def on_epoch_end(self, epoch, logs=None):
        self.epochs.append(self.model.get_weights())


def listening(heard):
    """A callback that notes what it is called for."""

    def hear(name):
        return lambda *arguments: heard.append((name, *arguments[:1]) if "epoch" in name else name)

    names = ("on_train_begin", "on_epoch_begin", "on_epoch_end", "on_train_end")
    return keras.callbacks.LambdaCallback(**{name: hear(name) for name in names})


def assert_equal(ours, theirs):
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(np.array(one), np.array(other))


@contextlib.contextmanager
def locking(path):
    """Locks the file as another process does, by a lock of its own; gives whether it could."""
    lock = filelock.FileLock(f"{path}.lock", timeout=0)
    with contextlib.suppress(filelock.Timeout):
        lock.acquire()
    try:
        yield lock.is_locked
    finally:
        lock.release()
