"""Averaged weights for validation and for saving."""

from collections.abc import Sequence

import keras
import numpy as np
from keras import ops

from tfattn import _checks
from tfattn.training import processes
from tfattn.training.backup import inner_optimizer
from tfattn.training.first_process import CallbackGroup, Logs


class AveragedWeights(CallbackGroup):
    """Validates with averaged weights, which other callbacks see too at the end of each epoch.

    The optimizer keeps the average over its updates:

        average ← ema_momentum · average + (1 − ema_momentum) · weights

    so that `ema_momentum=0.999` averages over about a thousand updates. Training continues with the
    weights themselves, bit for bit, also in another `fit` with this callback after an interruption
    during validation (unless other weights were loaded in between). At the end of `fit` the model
    has the average, as always in Keras.

    With `gradient_accumulation_steps=N` Keras updates the average at each batch, N times per
    update; take the N-th root of the momentum to average over the same number of updates.

    Args:
        callbacks: list of callbacks that use the averaged weights, in this order, such as
            `ValidationBleu` before `ModelCheckpoint`. They are called at the beginning and end of
            training and of epochs, not of batches. `Backup` must not be among them: it needs the
            weights for the rest of the training. Defaults to none.
    Raises:
        ValueError: `callbacks` is not a list, or contains a `Backup` or a callback that saves by
            batches; in `fit` and `evaluate`, the optimizer does not have `use_ema=True`; in
            `evaluate`, the average does not exist yet.
    Example:
        >>> dense = keras.layers.Dense(1, kernel_initializer="zeros")
        >>> model = keras.Sequential([keras.Input((1,)), dense])
        >>> model.compile(keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.9), "mse")
        >>> show = keras.callbacks.LambdaCallback(
        ...     on_epoch_end=lambda epoch, logs: print(dense.get_weights()[0].round(3))
        ... )
        >>> x, callbacks = np.ones((3, 1)), [AveragedWeights([show]), show]
        >>> history = model.fit(x, x, epochs=2, callbacks=callbacks, verbose=0)
        [[0.2]]
        [[0.2]]
        [[0.212]]
        [[0.32]]

    Source: Polyak and Juditsky 1992; the exponential form as in `keras.optimizers.Optimizer`.
    Differs from `keras.callbacks.SwapEMAWeights`, which rounds the weights at each swap, leaves the
    wrong weights in the model if training stops early, and depends on the order of callbacks.
    """

    def __init__(self, callbacks: Sequence[keras.callbacks.Callback] = ()):
        super().__init__(callbacks)
        # (model, weights, average) while the model has the average
        self._swapped: tuple[keras.Model, list[np.ndarray], list[np.ndarray]] | None = None

    def on_train_begin(self, logs: Logs = None) -> None:
        self._check_optimizer()
        self._recover_weights()
        super().on_train_begin(logs)

    def on_test_begin(self, logs: Logs = None) -> None:
        self._check_optimizer()
        self._swap_in_average()

    def on_test_end(self, logs: Logs = None) -> None:
        self._swap_in_weights()

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        self._swap_in_average()
        try:
            super().on_epoch_end(epoch, logs)
        finally:
            self._swap_in_weights()

    def _check_optimizer(self) -> None:
        optimizer = inner_optimizer(self.model)
        if not getattr(optimizer, "use_ema", False):
            expected = "keep an average: `use_ema=True`"
            _checks.fail("AveragedWeights", "optimizer", expected, optimizer.name)

    def _swap_in_average(self) -> None:
        self._recover_weights()
        variables, optimizer = self.model.trainable_variables, self.model.optimizer
        if int(ops.convert_to_numpy(inner_optimizer(self.model).iterations)) == 0:
            expected = "have an average, which exists after the first update"
            _checks.fail("AveragedWeights", "optimizer", expected, optimizer.name)
        weights = _to_arrays(variables)
        optimizer.finalize_variable_values(variables)
        # Copied: a training step on JAX donates its inputs, and must not get one array twice.
        average = _to_arrays(variables)
        for variable, array in zip(variables, average, strict=True):
            variable.assign(array)
        self._swapped = self.model, weights, average

    def _swap_in_weights(self) -> None:
        if self._swapped is not None:
            _, weights, _ = self._swapped
            for variable, array in zip(self.model.trainable_variables, weights, strict=True):
                variable.assign(array)
            self._swapped = None

    def _recover_weights(self) -> None:
        """Restores the weights after an interruption if this model still has the average."""
        if self._swapped is not None and self._swapped[0] is self.model:
            pairs = zip(_to_arrays(self.model.trainable_variables), self._swapped[2], strict=True)
            if all(np.array_equal(*pair, equal_nan=True) for pair in pairs):
                self._swap_in_weights()
        self._swapped = None


def _to_arrays(variables: Sequence[keras.Variable]) -> list[np.ndarray]:
    return [np.array(processes.to_numpy(variable)) for variable in variables]
