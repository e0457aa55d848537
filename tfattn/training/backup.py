"""A run's whole state on disk, so that a killed run goes on where it was."""

import io
import json
import os
import pathlib
import zipfile
import zlib
from collections.abc import Callable

import keras
import numpy as np
from keras import ops

from tfattn import _checks
from tfattn.training.files import replacing

__all__ = ["Backup"]

# What reading raises for one flipped bit or another, or for a file of another kind.
_UNREADABLE = (
    *(OSError, EOFError, KeyError, TypeError, ValueError, RuntimeError, NotImplementedError),
    *(zipfile.BadZipFile, zlib.error),
)


class Backup(keras.callbacks.Callback):
    """Writes everything that a run needs to go on, after each epoch; the next `fit` goes on from
    there.

        backup, counter = Backup("run.backup"), data.EpochCounter()
        batches = data.token_batches(..., shuffle_seed=0, epoch_counter=counter)
        model.fit(batches, initial_epoch=backup.epoch, epochs=40, shuffle=False, callbacks=[counter,
        ..., backup])

    To resume is to run the same program again. A run killed at any moment, in the middle of an
    epoch or of a backup, begins that epoch anew and ends with the same weights as one that was
    never killed, provided that the data of epoch k are the same each time they are asked for, as
    those of `token_batches` with an `EpochCounter` are. A finished run has nothing left to do, and
    goes on where `epochs` is raised; to start anew, delete the file.

    The file holds the weights, the state of the optimizer (its averaged weights among it), the
    seeds of dropout, and the logs of every epoch, with which `fit` fills the history that it
    returns. It is written beside the old one, and then takes its place at once. Pass this callback
    last, so that the logs are complete and the epoch's best weights are on disk. What other
    callbacks remember is not kept: `BestWeights` is told by `best=backup.best("val_loss", min)`,
    `EarlyStopping` counts its patience anew. Nor is torch's own generator, from which Keras's
    dropout draws there unless its layer has a seed.

    A learning rate that is a number is part of the optimizer's state: the file's takes the place of
    the program's. A schedule is the program's. Interrupted in its first epoch, of which there is no
    file yet, a model that lives on, as in a notebook, goes on from the weights that it has.

    Where an epoch is too long to be lost, cut it up: with `steps_per_epoch=n` and a dataset of one
    order for the whole run, `batches.skip(backup.epoch * n)`.

    Args:
        filepath: where the file is, or will be.
    Attributes:
        epoch: int, the epochs done: 0 without a file. With it `fit` and its data begin.
        history: dict, name to the values of those epochs, as in `keras.callbacks.History`.
    Raises:
        ValueError: the file is damaged, or belongs to another class of optimizer, or to a model of
            other shapes; in `fit`, the model is not built, another run has written to the file
            since it was read, or `initial_epoch` is not `epoch`.
    Example:
        >>> import os, tempfile
        >>> path = os.path.join(tempfile.mkdtemp(), "run.backup")
        >>> def run(epochs):
        ...     model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        ...     model.compile("sgd", "mse")
        ...     backup = Backup(path)
        ...     print("from epoch", backup.epoch)
        ...     fitted = model.fit(np.ones((3, 1)), np.ones((3, 1)), epochs=epochs, initial_epoch=backup.epoch,
        ...                        callbacks=[backup], verbose=0, shuffle=False)
        ...     return len(fitted.history["loss"])
        >>> run(epochs=2)
        from epoch 0
        2
        >>> run(epochs=5)
        from epoch 2
        5

    Differs from `keras.callbacks.BackupAndRestore`, which leaves the seeds of dropout out, is not
    safe from a kill while it writes, and goes on in the middle of an epoch with that epoch's first
    batch.
    """

    def __init__(self, filepath: str | os.PathLike):
        super().__init__()
        self.filepath = pathlib.Path(filepath)
        self.epoch, self.history = 0, {}
        if self.filepath.exists():
            logs, _ = self._read()
            self.epoch, self.history = logs["epoch"], logs["history"]

    def best(self, name: str, better: Callable = max) -> float | None:
        """The best value of a log so far, `better` being `max` or `min`; None where there is none
        yet.
        """
        # A NaN is neither, and would never be beaten.
        return better(
            (value for value in self.history.get(name, []) if value == value), default=None
        )

    def on_train_begin(self, logs=None):
        # its variables would come into being in the first step, over those restored
        if not self.model.built:
            _checks.fail(
                "Backup", "model", "be built before `fit`, by `build` or by a call", self.model.name
            )
        if self.epoch or self.filepath.exists():
            self._restore()
            self.model.history.history.update(
                {name: list(values) for name, values in self.history.items()}
            )

    def on_epoch_begin(self, epoch, logs=None):
        if epoch != self.epoch:
            _checks.fail("Backup", "initial_epoch", f"be `backup.epoch`, here {self.epoch}", epoch)

    def on_epoch_end(self, epoch, logs=None):
        self.model.history.epoch[:] = range(epoch)  # those of an earlier life too
        history = {name: list(values) for name, values in self.history.items()}
        for name, value in (logs or {}).items():
            history.setdefault(name, []).append(np.asarray(value).tolist())
        self._write(epoch + 1, history)
        # Not before: what a full disk or an interruption leaves is the file of the last epoch.
        self.epoch, self.history = epoch + 1, history

    def _variables(self):
        optimizer = self.model.optimizer
        if not optimizer.built:
            optimizer.build(self.model.trainable_variables)
        # `variables` has the seeds, which `weights`, and with it a file of weights, has not.
        return {
            f"{owner}/{i}": variable
            for owner, variables in (
                ("model", self.model.variables),
                ("optimizer", optimizer.variables),
            )
            for i, variable in enumerate(variables)
        }

    def _optimizer(self):
        """Its class, and where it scales the loss, as Keras's mixed precision has it, that of the
        one within.
        """
        optimizer = self.model.optimizer
        return type(getattr(optimizer, "inner_optimizer", optimizer)).__name__

    def _write(self, epoch, history):
        arrays = {
            name: _plain(ops.convert_to_numpy(variable))
            for name, variable in self._variables().items()
        }
        logs = {"epoch": epoch, "history": history, "optimizer": self._optimizer()}
        arrays["logs"] = np.array(json.dumps(logs))
        self.filepath.parent.mkdir(parents=True, exist_ok=True)
        with replacing(self.filepath) as unfinished, open(unfinished, "wb") as file:
            np.savez(file, **arrays)

    def _read(self):
        # what cannot be read is not damaged: that error stays what it is
        content = self.filepath.read_bytes()
        try:
            arrays = dict(np.load(io.BytesIO(content), allow_pickle=False))
            logs = json.loads(str(arrays.pop("logs")))
            whole = {
                "epoch": int(logs["epoch"]),
                "history": dict(logs["history"]),
                "optimizer": logs["optimizer"],
            }
        except _UNREADABLE as error:
            expected = f"be a whole file that `Backup` wrote; delete it to start anew ({error})"
            _checks.fail("Backup", "filepath", expected, str(self.filepath))
        return whole, arrays

    def _restore(self):
        variables, (logs, arrays) = self._variables(), self._read()
        if logs["epoch"] != self.epoch:  # weights of one epoch under the number of another
            expected = f"be as it was read, {self.epoch} epochs; another run has written to it: begin this one anew"
            _checks.fail("Backup", "filepath", expected, f"{logs['epoch']} epochs")
        shapes = {name: tuple(variable.shape) for name, variable in variables.items()}
        # Shapes alone do not tell Adam's second moments from Adamax's norms.
        if logs["optimizer"] != self._optimizer() or shapes != {
            name: array.shape for name, array in arrays.items()
        }:
            expected = "belong to this model and optimizer; delete it to start anew"
            _checks.fail("Backup", "filepath", expected, str(self.filepath))
        for name, variable in variables.items():
            variable.assign(arrays[name])


def _plain(array):
    """bfloat16, which NumPy writes and cannot read, becomes float32."""
    return array.astype("float32") if array.dtype.kind == "V" else array
