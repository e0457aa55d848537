"""Callbacks that call others, by epochs: a group, and one in the first of several processes."""

from collections.abc import Sequence
from typing import Any

import keras

from tfattn import _checks
from tfattn.training import processes
from tfattn.training.backup import Backup

Logs = dict[str, Any] | None
_WHO = "FirstProcess"


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
        self._run("set_params", params)

    def set_model(self, model: keras.Model) -> None:
        super().set_model(model)
        self._run("set_model", model)

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


class FirstProcess(CallbackGroup):
    """Runs callbacks in the first process only, on a local copy of the model.

        once = training.FirstProcess([training.ValidationBleu(...), training.BestWeights(...)])
        model.fit(..., callbacks=[training.AveragedWeights([once]), backup])

    Under `keras.distribution` every process runs every callback, and all processes take part in
    each computation with the model. Translations, scores and files are needed in one process only.
    This callback copies the weights at the end of an epoch into a model without a distribution in
    the first process, and runs the callbacks on that copy. All processes receive the logs and
    `stop_training` of the copy, so that later callbacks, such as `EarlyStopping`, act equally in
    all of them. Other processes wait meanwhile; if a callback fails, all processes raise its error.

    Without a distribution the callbacks run on the model itself.

    Args:
        callbacks: list of callbacks. They are called at the beginning and end of training and of
            epochs, not of batches. The copy is not compiled. `Backup` must not be among them: it
            selects the first process itself, and all processes resume from its file.
    Raises:
        ValueError: `callbacks` is not a list, or contains a `Backup` or a callback that saves by
            batches; in `fit`, the model is not built, or has weights that are not in its config,
            such as the weights of LoRA.
        RuntimeError: with several processes, the error of the first process, in all of them.
    Example:
        >>> model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        >>> model.compile("sgd", "mse")
        >>> tell = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: print(epoch))
        >>> x = np.ones((3, 1))
        >>> history = model.fit(x, x, epochs=2, callbacks=[FirstProcess([tell])], verbose=0)
        0
        1
    """

    def __init__(self, callbacks: Sequence[keras.callbacks.Callback]):
        super().__init__(callbacks)
        self._copy: Any = None  # of a distributed model

    def set_model(self, model: keras.Model) -> None:
        if keras.distribution.distribution() is None:
            super().set_model(model)
        else:
            keras.callbacks.Callback.set_model(self, model)

    def on_train_begin(self, logs: Logs = None) -> None:
        if keras.distribution.distribution() is not None:
            processes.on_primary(_WHO, self._make_copy)
        super().on_train_begin(logs)

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        if keras.distribution.distribution() is None:
            super().on_epoch_end(epoch, logs)
            return
        arrays = [processes.to_numpy(variable) for variable in self.model.weights]

        def end() -> dict[str, Any]:
            self._copy.stop_training = False
            with processes.without_distribution():
                self._copy.set_weights(arrays)
                CallbackGroup._run(self, "on_epoch_end", epoch, logs)
            return {"logs": logs, "stop": self._copy.stop_training}

        outcome = processes.on_primary(_WHO, end)
        if logs is not None:
            logs.update(outcome["logs"])
        if outcome["stop"]:
            self.model.stop_training = True

    def _run(self, method: str, *arguments: Any) -> None:
        def run() -> None:
            with processes.without_distribution():
                CallbackGroup._run(self, method, *arguments)

        processes.on_primary(_WHO, run)

    def _make_copy(self) -> None:
        model = self.model
        if not model.built:
            expected = "be built before `fit`, by `build` or by a call"
            _checks.fail(_WHO, "model", expected, model.name)
        with processes.without_distribution():
            self._copy = type(model).from_config(model.get_config())
            if not self._copy.built:
                self._copy.build_from_config(model.get_build_config())
        shapes, own = ([w.shape for w in each.weights] for each in (self._copy, model))
        if shapes != own:
            expected = "have only the weights of its config, without LoRA or quantization"
            _checks.fail(_WHO, "model", expected, model.name)
        self._copy.history = model.history
        CallbackGroup._run(self, "set_model", self._copy)
