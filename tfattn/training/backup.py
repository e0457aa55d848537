"""A backup of the state of a training run, to resume it after an interruption."""

import contextlib
import copy
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
from keras import ops

from tfattn import _checks
from tfattn._files import replacing

# What a damaged file, one of another format, or one of a missing class leads to.
UNREADABLE = (
    *(OSError, EOFError, KeyError, TypeError, ValueError, NotImplementedError),
    *(zipfile.BadZipFile, zlib.error),
)


def lock(filepath: str | os.PathLike[str]) -> filelock.BaseFileLock:
    """Locks the file by one next to it until the process ends; raises `filelock.Timeout`."""
    # A singleton per process, so that an interrupted `fit` does not block later calls.
    options: dict[str, Any] = {"thread_local": False, "is_singleton": True}
    found = filelock.FileLock(f"{os.path.realpath(filepath)}.lock", timeout=0, **options)
    with contextlib.suppress(NotImplementedError):  # some cluster file systems have no locks
        found.acquire()
    return found


def inner_optimizer(model: keras.Model) -> keras.optimizers.Optimizer:
    """The optimizer that updates weights, possibly within a `LossScaleOptimizer`."""
    return getattr(model.optimizer, "inner_optimizer", model.optimizer)


def job() -> tuple[int, int]:
    """The number of this process and the size of its job, which Keras supports on JAX only."""
    if keras.backend.backend() != "jax" or keras.distribution.distribution() is None:
        return 0, 1
    import jax

    return jax.process_index(), jax.process_count()


def to_numpy(variable: keras.Variable) -> np.ndarray:
    """The full value of a variable that may be sharded. Every process must call this."""
    value = ops.convert_to_tensor(variable)
    if job()[1] > 1 and not value.is_fully_addressable:
        from jax.experimental import multihost_utils

        return np.asarray(multihost_utils.process_allgather(value, tiled=True))
    return ops.convert_to_numpy(variable)


class NotFiniteError(ValueError):
    """The training loss is NaN or infinite."""


class Backup(keras.callbacks.Callback):
    """Writes the state of a run after each epoch; the next `fit` resumes from it.

        backup, counter = Backup("run.backup"), data.EpochCounter()
        batches = data.token_batches(..., shuffle_seed=0, epoch_counter=counter)
        options = {"initial_epoch": backup.epoch, "epochs": 40, "shuffle": False}
        model.fit(batches, callbacks=[counter, ..., backup], **options)

    To resume, run the same program again. A run that was killed, even while it wrote a backup,
    repeats the unfinished epoch and ends with the same weights as an uninterrupted run, if the data
    of an epoch are the same each time they are read, as with `token_batches` and an `EpochCounter`.
    To continue a completed run, increase `epochs`. To start again, delete the file.

    The file contains the weights, the state of the optimizer with its averaged weights, the seeds
    of dropout (but not the generator of torch), and the logs of every epoch, so that `fit` returns
    the full history. It is replaced atomically. A lock, a file with the ending ".lock", keeps other
    processes from training with it until `fit` ends or, after an interruption, the process. Pass
    this callback last, so that the logs are complete and the best weights of the epoch are on disk.
    The state of other callbacks is not saved: pass `best=backup.best("val_loss", min)` to
    `BestWeights`. A number as learning rate is restored, a schedule is the program's. If the loss
    becomes NaN or infinite, `fit` ends at that batch, and the file keeps the previous epoch.

    Under a `keras.distribution` each process makes a `Backup`, once the distribution is set. The
    first one writes the file, and all read it from a common disk. A resumed run may have more.

    Args:
        filepath: path of the file, read if it exists.
    Attributes:
        epoch: int, the number of completed epochs; 0 without a file. Pass it as `initial_epoch`.
        history: dict from name to the values of those epochs, as in `keras.callbacks.History`.
    Raises:
        ValueError: the file is damaged, or was written with another class of optimizer or other
            shapes; in `fit`, another process trains with the file or has written to it,
            `initial_epoch` is not `epoch`, the loss is NaN or infinite, or on TensorFlow the model
            is not built (elsewhere `fit` builds it).
    Example:
        >>> import os, tempfile
        >>> path, x = os.path.join(tempfile.mkdtemp(), "run.backup"), np.ones((3, 1))
        >>> for epochs in (2, 5):
        ...     model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        ...     model.compile("sgd", "mse")
        ...     backup = Backup(path)
        ...     options = {"initial_epoch": backup.epoch, "epochs": epochs, "verbose": 0}
        ...     print(backup.epoch, len(model.fit(x, x, callbacks=[backup], **options).epoch))
        0 2
        2 5

    Differs from `keras.callbacks.BackupAndRestore`, which does not save the seeds of dropout, and
    can be damaged by a kill while it writes.
    """

    def __init__(self, filepath: str | os.PathLike[str]):
        super().__init__()
        self.filepath = pathlib.Path(_checks.path("Backup", "filepath", filepath))
        self._lock: filelock.BaseFileLock | None = None
        logs, _ = self._read()
        self.epoch, self.history = logs["epoch"], logs["history"]
        if job()[1] > 1:
            from jax.experimental import multihost_utils

            message = f"Backup: not all processes read the same file {filepath}"
            multihost_utils.assert_equal(self.epoch, message)

    def best(self, name: str, better: Callable[..., Any] = max) -> float | None:
        """The best value so far of the log `name`, or None; `better` is `max` or `min`."""
        # `max` and `min` may return a leading NaN.
        return better((x for x in self.history.get(name, []) if x == x), default=None)

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        if not self.model.built:  # the first step would overwrite the restored weights
            _checks.fail("Backup", "model", "be built before `fit`, as by a call", self.model.name)
        if job()[0] == 0:
            self._lock_file()
        variables = self._variables()
        for name, array in self._arrays_of(variables).items():
            variables[name].assign(array)
        self.model.history.history.update(copy.deepcopy(self.history))

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
        history = copy.deepcopy(self.history)
        for name, value in (logs or {}).items():
            history.setdefault(name, []).append(np.asarray(value).tolist())
        arrays: dict[str, Any] = {}
        for name, variable in self._variables().items():
            array = to_numpy(variable)
            # NumPy can write bfloat16, but not read it.
            arrays[name] = array.astype("float32") if array.dtype.kind == "V" else array
        optimizer = type(inner_optimizer(self.model)).__name__
        content = {"epoch": epoch + 1, "history": history, "optimizer": optimizer}
        arrays["logs"] = np.array(json.dumps(content))
        if job()[0] == 0:
            with replacing(self.filepath) as unfinished, open(unfinished, "wb") as file:
                np.savez(file, **arrays)
        # Last: after a full disk or an interruption, the file has the previous epoch.
        self.epoch, self.history = epoch + 1, history

    def _lock_file(self) -> None:
        os.makedirs(os.path.realpath(self.filepath.parent), exist_ok=True)
        try:
            self._lock = self._lock or lock(self.filepath)
        except filelock.Timeout:
            _checks.fail("Backup", "filepath", "not be used by another process", str(self.filepath))

    def _variables(self) -> dict[str, keras.Variable]:
        optimizer = self.model.optimizer
        if not optimizer.built:
            optimizer.build(self.model.trainable_variables)
        # Unlike `weights`, `variables` includes the seeds.
        owners = {"model": self.model.variables, "optimizer": optimizer.variables}
        return {f"{name}/{i}": x for name, owned in owners.items() for i, x in enumerate(owned)}

    def _read(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """The logs and arrays of the file; without a file, of no epoch."""
        if not self.filepath.exists():
            return {"epoch": 0, "history": {}}, {}
        with open(self.filepath, "rb") as file:
            try:
                arrays = dict(np.load(file, allow_pickle=False))
                logs = json.loads(str(arrays.pop("logs")))
                kept = {name: logs[name] for name in ("epoch", "history", "optimizer")}
                return {**kept, "epoch": int(kept["epoch"])}, arrays
            except (*UNREADABLE, RuntimeError) as error:
                expected = f"be an intact file of `Backup`; delete it to start again ({error})"
                _checks.fail("Backup", "filepath", expected, str(self.filepath))

    def _arrays_of(self, variables: dict[str, keras.Variable]) -> dict[str, np.ndarray]:
        """The arrays of the file, which must fit the variables."""
        logs, arrays = self._read()
        if logs["epoch"] != self.epoch:  # `fit` would assign these weights to another epoch
            expected = f"still have {self.epoch} epochs; another run has changed it: start again"
            _checks.fail("Backup", "filepath", expected, f"{logs['epoch']} epochs")
        shapes = {name: tuple(variable.shape) for name, variable in variables.items()}
        found = {name: array.shape for name, array in arrays.items()}
        # Adam's second moments and Adamax's norms have the same shapes.
        optimizer = type(inner_optimizer(self.model)).__name__
        if arrays and (shapes != found or logs["optimizer"] != optimizer):
            expected = "belong to this model and optimizer; delete it to start again"
            _checks.fail("Backup", "filepath", expected, str(self.filepath))
        return arrays
