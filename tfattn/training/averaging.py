"""Averaged weights for validation and for saving."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from tfattn import _checks
from tfattn.training.backup import Backup, inner_optimizer, to_numpy

Logs = dict[str, Any] | None


class AveragedWeights(keras.callbacks.Callback):
    """Validates with averaged weights, which other callbacks see too at the end of each epoch.

    The optimizer keeps the average over its updates:

        average ← ema_momentum · average + (1 − ema_momentum) · weights

    so that `ema_momentum=0.999` averages over about a thousand updates (with
    `gradient_accumulation_steps=N`, over a thousand batches). Training continues with the weights
    themselves, bit for bit, also in another `fit` with this callback after an interruption during
    validation (unless other weights were loaded in between). At the end of `fit` the model has the
    average, as always in Keras.

    Args:
        callbacks: list of callbacks that use the averaged weights, in this order, such as
            `ValidationBleu` before `BestWeights`. They are called at the beginning and end of
            training and of epochs, not of batches. Defaults to none. `Backup` needs the weights
            themselves: pass it to `fit`.
    Raises:
        ValueError: `callbacks` contains a `Backup`; in `fit` and `evaluate`, the optimizer does not
            have `use_ema=True`; in `evaluate`, the average does not exist yet.
    Example:
        >>> dense = keras.layers.Dense(1, kernel_initializer="zeros")
        >>> model, x = keras.Sequential([keras.Input((1,)), dense]), np.ones((3, 1))
        >>> model.compile(keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.9), "mse")
        >>> show = lambda epoch, logs: print(epoch, round(dense.get_weights()[0].item(), 3))
        >>> show = keras.callbacks.LambdaCallback(on_epoch_end=show)
        >>> history = model.fit(
        ...     x, x, epochs=2, callbacks=[AveragedWeights([show]), show], verbose=0
        ... )
        0 0.2
        0 0.2
        1 0.212
        1 0.32

    Source: Polyak and Juditsky 1992. Differs from `keras.callbacks.SwapEMAWeights`, which rounds
    the weights at each swap, and leaves the wrong ones in the model if training stops early.
    """

    def __init__(self, callbacks: Sequence[keras.callbacks.Callback] = ()):
        super().__init__()
        for callback in callbacks:
            if isinstance(callback, Backup):
                expected = "not hold `Backup`: pass it to `fit` itself"
                _checks.fail("AveragedWeights", "callbacks", expected, callback)
        self.callbacks = list(callbacks)
        # (model, weights, average) while the model has the average
        self._swapped: tuple[keras.Model, list[np.ndarray], list[np.ndarray]] | None = None

    def set_params(self, params: dict[str, Any]) -> None:
        super().set_params(params)
        self._call("set_params", params)

    def set_model(self, model: keras.Model) -> None:
        super().set_model(model)
        self._call("set_model", model)

    def on_train_begin(self, logs: Logs = None) -> None:
        self._recover_weights()
        self._call("on_train_begin", logs)

    def on_train_end(self, logs: Logs = None) -> None:
        self._call("on_train_end", logs)

    def on_test_begin(self, logs: Logs = None) -> None:
        self._swap_in_average()

    def on_test_end(self, logs: Logs = None) -> None:
        self._swap_in_weights()

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        self._call("on_epoch_begin", epoch, logs)

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        self._swap_in_average()
        try:
            self._call("on_epoch_end", epoch, logs)
        finally:
            self._swap_in_weights()

    def _call(self, method: str, *arguments: Any) -> None:
        for callback in self.callbacks:
            getattr(callback, method)(*arguments)

    def _swap_in_average(self) -> None:
        self._recover_weights()
        optimizer = inner_optimizer(self.model)
        if int(ops.convert_to_numpy(optimizer.iterations)) == 0:
            expected = "have an average, which exists after the first update"
            _checks.fail("AveragedWeights", "optimizer", expected, optimizer.name)
        weights = _to_arrays(self.model)
        optimizer.finalize_variable_values(self.model.trainable_variables)
        # Copied: a training step on JAX donates its inputs, and must not get one array twice.
        average = _to_arrays(self.model)
        self.model.set_weights(average)
        self._swapped = self.model, weights, average

    def _swap_in_weights(self) -> None:
        if self._swapped is not None:
            self.model.set_weights(self._swapped[1])
            self._swapped = None

    def _recover_weights(self) -> None:
        """Restores the weights after an interruption if this model still has the average."""
        optimizer = inner_optimizer(self.model)
        if not getattr(optimizer, "use_ema", False):
            _checks.fail("AveragedWeights", "optimizer", "have `use_ema=True`", optimizer.name)
        if self._swapped is not None and self._swapped[0] is self.model:
            pairs = zip(_to_arrays(self.model), self._swapped[2], strict=True)
            if all(np.array_equal(*pair, equal_nan=True) for pair in pairs):
                self._swap_in_weights()
        self._swapped = None


def _to_arrays(model: keras.Model) -> list[np.ndarray]:
    return [np.array(to_numpy(weight)) for weight in model.weights]
