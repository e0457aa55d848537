"""Saves the weights of the best epoch, atomically."""

import io
import os
import pathlib
from collections.abc import Callable
from typing import Any

import keras

from tfattn import _checks
from tfattn._files import replacing
from tfattn.training.backup import job


class BestWeights(keras.callbacks.Callback):
    """Saves the model's weights at the end of each epoch that is better than all earlier epochs.

        backup = training.Backup("run.backup")
        keep = training.BestWeights("best.weights.h5", best=backup.best("val_loss", min))
        model.fit(..., initial_epoch=backup.epoch, callbacks=[keep, backup])
        model.load_weights("best.weights.h5")

    Inside `AveragedWeights` the callback saves the average. Of several processes, the first saves;
    each must hold the weights whole (`DataParallel`).

    Args:
        filepath: path of the file; must end with ".weights.h5".
        monitor: name of the log to compare. Defaults to "val_loss".
        better: `min` or `max`. Defaults to `min`.
        best: the best value before the run was resumed, by `Backup.best`. Defaults to None.
    Attributes:
        best: float, the best value so far; None before the first epoch.
    Raises:
        ValueError: `filepath` has another ending; in `fit`, the logs have no `monitor`.
    Example:
        >>> import os, tempfile
        >>> path = os.path.join(tempfile.mkdtemp(), "best.weights.h5")
        >>> model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        >>> model.compile("sgd", "mse")
        >>> keep, x = BestWeights(path, monitor="loss"), np.ones((3, 1))
        >>> history = model.fit(x, x, epochs=4, callbacks=[keep], verbose=0).history
        >>> keep.best == min(history["loss"]), os.path.exists(path)
        (True, True)

    Differs from `keras.callbacks.ModelCheckpoint(save_best_only=True, save_weights_only=True)`,
    which leaves an incomplete file if the process is killed while it writes.
    """

    def __init__(
        self,
        filepath: str | os.PathLike[str],
        monitor: str = "val_loss",
        better: Callable[..., Any] = min,
        best: float | None = None,
    ):
        super().__init__()
        self.filepath = pathlib.Path(_checks.path("BestWeights", "filepath", filepath))
        if not self.filepath.name.endswith(".weights.h5"):
            _checks.fail("BestWeights", "filepath", 'end with ".weights.h5"', str(filepath))
        self.monitor, self.better, self.best = monitor, better, best

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        value = (logs or {}).get(self.monitor)
        if value is None:
            _checks.fail("BestWeights", "monitor", f"be one of {sorted(logs or {})}", self.monitor)
        # A NaN is never better than a number, and any number is better than NaN.
        if self.best is None or (value == value and self.better(self.best, value) != self.best):
            if job()[0] == 0:
                file = _Memory()  # on a full disk HDF5 would crash with SIGSEGV
                self.model.save_weights(file)
                with replacing(self.filepath) as unfinished:
                    unfinished.write_bytes(file.getvalue())
            self.best = float(value)


class _Memory(io.BytesIO):
    """A file in memory, with the name that Keras requires for weights."""

    def __str__(self) -> str:
        return "memory.weights.h5"
