"""A callback that calls others, by epochs."""

from collections.abc import Sequence
from typing import Any

import keras

from tfattn import _checks
from tfattn.training.backup import Backup

Logs = dict[str, Any] | None


class CallbackGroup(keras.callbacks.Callback):
    """Calls callbacks at the beginning and end of training and of epochs, not of batches."""

    def __init__(self, callbacks: Sequence[keras.callbacks.Callback]):
        super().__init__()
        who = type(self).__name__
        if not isinstance(callbacks, list | tuple):
            _checks.fail(who, "callbacks", "be a list of callbacks", callbacks)
        for callback in callbacks:
            if not isinstance(callback, keras.callbacks.Callback):
                _checks.fail(who, "callbacks", "hold callbacks", callback)
            if isinstance(callback, Backup):
                expected = "not hold `Backup`: pass it to `fit` itself"
                _checks.fail(who, "callbacks", expected, callback)
            # Another `save_freq` counts batches.
            if getattr(callback, "save_freq", "epoch") != "epoch":
                expected = "save by epochs, `save_freq='epoch'`"
                _checks.fail(who, "callbacks", expected, callback.save_freq)
        self.callbacks = list(callbacks)

    def set_params(self, params: dict[str, Any]) -> None:
        super().set_params(params)
        for callback in self.callbacks:
            callback.set_params(params)

    def set_model(self, model: keras.Model) -> None:
        super().set_model(model)
        for callback in self.callbacks:
            callback.set_model(model)

    def on_train_begin(self, logs: Logs = None) -> None:
        self._run("on_train_begin", logs)

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        self._run("on_epoch_begin", epoch, logs)

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        self._run("on_epoch_end", epoch, logs)

    def on_train_end(self, logs: Logs = None) -> None:
        self._run("on_train_end", logs)

    def _run(self, method: str, *arguments: Any) -> None:
        for callback in self.callbacks:
            getattr(callback, method)(*arguments)
