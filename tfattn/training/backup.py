"""A backup of the state of a training run, to resume it after an interruption."""

import contextlib
import json
import os
import pathlib
import zipfile
import zlib
from collections.abc import Callable
from typing import Any

import filelock
import keras
import numpy as np

from tfattn import _checks
from tfattn._files import replacing
from tfattn.training import processes

# Errors raised by reading a damaged file, a file of another format, or one of a missing class.
UNREADABLE = (
    *(OSError, EOFError, KeyError, TypeError, ValueError, NotImplementedError),
    *(zipfile.BadZipFile, zlib.error),
)


def lock(filepath: str | os.PathLike[str]) -> filelock.BaseFileLock:
    """Locks the file by a file next to it, until this process ends or has released each lock.

    Raises `filelock.Timeout` if another process has locked it.
    """
    # A singleton per process, so that an interrupted `fit` does not block later calls.
    options: dict[str, Any] = {"thread_local": False, "is_singleton": True}
    found = filelock.FileLock(f"{os.path.realpath(filepath)}.lock", timeout=0, **options)
    with contextlib.suppress(NotImplementedError):  # some cluster file systems have no locks
        found.acquire()
    return found


def inner_optimizer(model: keras.Model) -> keras.optimizers.Optimizer:
    """The optimizer that updates weights, possibly within a `LossScaleOptimizer`."""
    return getattr(model.optimizer, "inner_optimizer", model.optimizer)


class NotFiniteError(ValueError):
    """The training loss is NaN or infinite."""


class Backup(keras.callbacks.Callback):
    """Writes the state of a run after each epoch; the next `fit` resumes from it.

        backup, counter = Backup("run.backup"), data.EpochCounter()
        batches = data.token_batches(..., shuffle_seed=0, epoch_counter=counter)
        model.fit(
            batches,
            initial_epoch=backup.epoch,
            epochs=40,
            shuffle=False,
            callbacks=[counter, ..., backup],
        )

    To resume, run the same program again. A run that was killed, even while it wrote a backup,
    repeats the unfinished epoch and ends with the same weights as an uninterrupted run, if the data
    of an epoch are the same each time they are read, as with `token_batches` and an `EpochCounter`.
    To continue a completed run, increase `epochs`. To start again, delete the file.

    The file contains the weights, the state of the optimizer with its averaged weights, the seeds
    of dropout, and the logs of every epoch, so that `fit` returns the full history. The file is
    replaced atomically. A lock, a file with the ending ".lock", keeps other processes from training
    with the same file until `fit` ends or, after an interruption, the process. Pass this callback
    last, so that the logs are complete and the best weights of the epoch are on disk. The state of
    other callbacks is not saved: pass `best=backup.best("val_loss", min)` to `BestWeights`; the
    patience of `EarlyStopping` starts again. If the loss becomes NaN or infinite, `fit` ends at
    that batch, and the file keeps the previous epoch. With the torch backend, torch's own random
    generator is not saved either; give dropout layers a seed there.

    If the learning rate is a number, it is part of the optimizer's state: the number in the file
    replaces that of the program. A schedule is taken from the program. Before the end of the first
    epoch there is no file: a model that was interrupted then, for example in a notebook, continues
    from its current weights.

    Under a `keras.distribution` of several processes each makes a `Backup`, once the distribution
    is set. The first process writes and reads the file, and sends its arrays to the others, which
    need no access to the disk. If that fails, as on a full disk, all processes raise a
    RuntimeError. The number of processes may differ when the run is resumed.

    If a pass over the data takes too long for one epoch, split it. Here an epoch is n batches, on
    any backend, and a resumed run skips the batches of completed epochs:

        def rest():
            passes = itertools.chain.from_iterable(itertools.repeat(batches))
            yield from itertools.islice(passes, backup.epoch * n, None)

        model.fit(rest(), steps_per_epoch=n, initial_epoch=backup.epoch, ..., callbacks=[backup])

    The callbacks then contain no `EpochCounter`: the dataset counts its passes, which differ
    from the epochs of `fit`. With a `tf.data.Dataset`, `batches.repeat().skip(backup.epoch * n)`
    does the same.

    Args:
        filepath: path of the file, read if it exists.
    Attributes:
        epoch: int, the number of completed epochs; 0 without a file. Pass it as `initial_epoch`.
        history: dict from name to the values of those epochs, as in `keras.callbacks.History`.
    Raises:
        ValueError: the file is damaged, or was written with another class of optimizer or other
            shapes; in `fit`, another process trains with the file, another run has written to it,
            `initial_epoch` is not `epoch`, the loss is NaN or infinite, or on TensorFlow the model
            is not built (elsewhere `fit` builds it).
    Example:
        >>> import os, tempfile
        >>> path = os.path.join(tempfile.mkdtemp(), "run.backup")
        >>> def run(epochs):
        ...     model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        ...     model.compile("sgd", "mse")
        ...     backup = Backup(path)
        ...     print("from epoch", backup.epoch)
        ...     x, options = np.ones((3, 1)), {"verbose": 0, "shuffle": False}
        ...     options.update(initial_epoch=backup.epoch, epochs=epochs, callbacks=[backup])
        ...     return len(model.fit(x, x, **options).history["loss"])
        >>> run(epochs=2)
        from epoch 0
        2
        >>> run(epochs=5)
        from epoch 2
        5

    Differs from `keras.callbacks.BackupAndRestore`, which does not save the seeds of dropout, can
    be damaged by a kill while it writes, and resumes the middle of an epoch with the epoch's first
    batch.
    """

    def __init__(self, filepath: str | os.PathLike[str]):
        super().__init__()
        self.filepath = pathlib.Path(_checks.path("Backup", "filepath", filepath))
        self.epoch, self.history = 0, {}
        self._lock: filelock.BaseFileLock | None = None
        logs = processes.on_primary("Backup", lambda: self._read()[0])
        if logs:
            self.epoch, self.history = logs["epoch"], logs["history"]

    def best(self, name: str, better: Callable[..., Any] = max) -> float | None:
        """The best value so far of the log `name`, or None; `better` is `max` or `min`."""
        # `max` and `min` may return a leading NaN.
        values = [value for value in self.history.get(name, []) if value == value]
        return better(values, default=None)

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        if not self.model.built:  # the first step would overwrite the restored weights
            expected = "be built before `fit`, by `build` or by a call"
            _checks.fail("Backup", "model", expected, self.model.name)
        variables, arrays = self._variables(), {}

        def read() -> bool:
            self._lock_file()
            arrays.update(self._arrays_of(variables))
            return bool(arrays)

        if processes.on_primary("Backup", read):
            for name, variable in variables.items():
                variable.assign(processes.array_of_first(arrays.get(name), variable))
            history = {name: list(values) for name, values in self.history.items()}
            self.model.history.history.update(history)

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        if self._lock is not None:  # only the first process has a lock
            self._lock.release()
            self._lock = None

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if epoch != self.epoch:
            _checks.fail("Backup", "initial_epoch", f"be `backup.epoch`, here {self.epoch}", epoch)

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        loss = (logs or {}).get("loss", 0.0)
        if not np.isfinite(loss):
            expected = (
                f"stay finite; it is not in epoch {self.epoch + 1}, batch {batch + 1}; the file "
                f"keeps {self.epoch} epochs. Look for NaN and for ids outside the vocabulary in "
                "the data; else lower the learning rate, or clip gradients by `global_clipnorm`"
            )
            _checks.fail("Backup", "loss", expected, float(loss), NotFiniteError)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self.model.history.epoch[:] = range(epoch)  # includes epochs before the run was resumed
        history = {name: list(values) for name, values in self.history.items()}
        for name, value in (logs or {}).items():
            history.setdefault(name, []).append(np.asarray(value).tolist())
        arrays = {}
        for name, variable in self._variables().items():
            array = processes.to_numpy(variable)
            # NumPy can write bfloat16, but not read it.
            arrays[name] = array.astype("float32") if array.dtype.kind == "V" else array
        content = {
            "epoch": epoch + 1,
            "history": history,
            "optimizer": type(inner_optimizer(self.model)).__name__,
        }
        arrays["logs"] = np.array(json.dumps(content))
        processes.on_primary("Backup", lambda: self._write(arrays))
        # Last: after a full disk or an interruption, the file has the previous epoch.
        self.epoch, self.history = epoch + 1, history

    def _lock_file(self) -> None:
        os.makedirs(os.path.realpath(self.filepath.parent), exist_ok=True)
        try:
            self._lock = self._lock or lock(self.filepath)
        except filelock.Timeout:
            expected = "not be in use by another process's training"
            _checks.fail("Backup", "filepath", expected, str(self.filepath))

    def _variables(self) -> dict[str, keras.Variable]:
        optimizer = self.model.optimizer
        if not optimizer.built:
            optimizer.build(self.model.trainable_variables)
        # Unlike `weights`, `variables` includes the seeds.
        owners = {"model": self.model.variables, "optimizer": optimizer.variables}
        return {
            f"{owner}/{i}": variable
            for owner, variables in owners.items()
            for i, variable in enumerate(variables)
        }

    def _write(self, arrays: dict[str, Any]) -> None:
        with replacing(self.filepath) as unfinished, open(unfinished, "wb") as file:
            np.savez(file, **arrays)

    def _read(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """The logs and arrays of the file; both are empty before the first epoch."""
        if not self.epoch and not self.filepath.exists():
            return {}, {}
        with open(self.filepath, "rb") as file:
            try:
                arrays = dict(np.load(file, allow_pickle=False))
                logs = json.loads(str(arrays.pop("logs")))
                logs = {
                    "epoch": int(logs["epoch"]),
                    "history": dict(logs["history"]),
                    "optimizer": logs["optimizer"],
                }
            except (*UNREADABLE, RuntimeError) as error:
                expected = f"be an intact file of `Backup`; delete it to start again ({error})"
                _checks.fail("Backup", "filepath", expected, str(self.filepath))
        return logs, arrays

    def _arrays_of(self, variables: dict[str, keras.Variable]) -> dict[str, np.ndarray]:
        """The arrays of the file, which must fit the variables."""
        logs, arrays = self._read()
        if not logs:
            return {}
        if logs["epoch"] != self.epoch:  # `fit` would assign these weights to another epoch
            expected = (
                f"still have {self.epoch} epochs; another run has written to it: start this run "
                "again"
            )
            _checks.fail("Backup", "filepath", expected, f"{logs['epoch']} epochs")
        shapes = {name: tuple(variable.shape) for name, variable in variables.items()}
        found = {name: array.shape for name, array in arrays.items()}
        # Adam's second moments and Adamax's norms have the same shapes.
        if shapes != found or logs["optimizer"] != type(inner_optimizer(self.model)).__name__:
            expected = "belong to this model and optimizer; delete it to start again"
            _checks.fail("Backup", "filepath", expected, str(self.filepath))
        return arrays
