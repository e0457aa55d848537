"""The averaged weights in place of the last ones, where a model is judged and kept."""

import keras
import numpy as np
from keras import ops

from tfattn import _checks
from tfattn.training.backup import Backup

__all__ = ["AveragedWeights"]


class AveragedWeights(keras.callbacks.Callback):
    """Validates with the averaged weights, and shows them to the callbacks in it at the end of an
    epoch.

    The average is the optimizer's own, over the updates:

        average ← ema_momentum · average + (1 − ema_momentum) · weights

    so that `ema_momentum=0.999` looks back over about a thousand updates. Training itself goes on
    from the weights as they were, to the last bit, also in another `fit` with this callback after
    one that was interrupted while it judged, unless other weights were put in since; at its end
    `fit` leaves the average in the model, as Keras always does.

    With `gradient_accumulation_steps=N` Keras takes the average at each batch, N times an update:
    the same look back then needs the N-th root of the momentum.

    Args:
        callbacks: list of callbacks that judge or keep the averaged weights, in the order that each
            needs, such as `ValidationBleu` before `ModelCheckpoint`. They hear of the beginning and
            end of training and of epochs, and not of batches. `Backup` stays outside: it keeps the
            weights that training goes on from.
    Raises:
        ValueError: `callbacks` is no list, or holds a `Backup` or what saves by batches; in `fit`
            and `evaluate`, the optimizer keeps no average; in `evaluate`, it has none yet.
    Example:
        >>> model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, kernel_initializer="zeros")])
        >>> model.compile(keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.9), "mse")
        >>> show = keras.callbacks.LambdaCallback(
        ...     on_epoch_end=lambda epoch, logs: print(f"{float(model.layers[-1].kernel[0, 0]):.3f}")
        ... )
        >>> fitted = model.fit(np.ones((3, 1)), np.ones((3, 1)), epochs=2, callbacks=[AveragedWeights([show]), show],
        ...                    verbose=0)
        0.200
        0.200
        0.212
        0.320

    Source: Polyak and Juditsky 1992; the exponential form as in `keras.optimizers.Optimizer`.
    Differs from `keras.callbacks.SwapEMAWeights`, which rounds the weights at each exchange, leaves
    the wrong ones in the model where training is stopped early, and tells the order of callbacks
    only.
    """

    def __init__(self, callbacks=()):
        super().__init__()
        if not isinstance(callbacks, list | tuple):
            _checks.fail("AveragedWeights", "callbacks", "be a list of callbacks", callbacks)
        self.callbacks = list(callbacks)
        for callback in self.callbacks:
            if isinstance(callback, Backup):
                _checks.fail(
                    "AveragedWeights",
                    "callbacks",
                    "not hold `Backup`: pass it to `fit` beside this",
                    callback,
                )
            # counted in batches, of which it would never hear
            if getattr(callback, "save_freq", "epoch") != "epoch":
                _checks.fail(
                    "AveragedWeights",
                    "callbacks",
                    "save by epochs, `save_freq='epoch'`",
                    callback.save_freq,
                )
        # while an average is in a model: the model, its weights of training, and that average
        self._replaced = None

    def set_params(self, params):
        super().set_params(params)
        for callback in self.callbacks:
            callback.set_params(params)

    def set_model(self, model):
        super().set_model(model)
        for callback in self.callbacks:
            callback.set_model(model)

    def on_train_begin(self, logs=None):
        self._check_optimizer()
        self._recover()
        for callback in self.callbacks:
            callback.on_train_begin(logs)

    def on_epoch_begin(self, epoch, logs=None):
        for callback in self.callbacks:
            callback.on_epoch_begin(epoch, logs)

    def on_test_begin(self, logs=None):
        self._check_optimizer()
        self._put_average()

    def on_test_end(self, logs=None):
        self._put_weights()

    def on_epoch_end(self, epoch, logs=None):
        self._put_average()
        try:
            for callback in self.callbacks:
                callback.on_epoch_end(epoch, logs)
        finally:
            self._put_weights()

    def on_train_end(self, logs=None):
        for callback in self.callbacks:
            callback.on_train_end(logs)

    def _check_optimizer(self):
        optimizer = _unscaled(self.model.optimizer)
        if not getattr(optimizer, "use_ema", False):
            _checks.fail(
                "AveragedWeights", "optimizer", "keep an average: `use_ema=True`", optimizer.name
            )

    def _recover(self):
        """Puts weights back where judging was interrupted, unless it was in another model or others
        were put in since.
        """
        if self._replaced is not None and self._replaced[0] is self.model:
            pairs = zip(_arrays(self.model.trainable_variables), self._replaced[2], strict=True)
            if all(np.array_equal(*pair, equal_nan=True) for pair in pairs):
                self._put_weights()
        self._replaced = None

    def _put_average(self):
        self._recover()
        variables, optimizer = self.model.trainable_variables, self.model.optimizer
        if int(ops.convert_to_numpy(_unscaled(optimizer).iterations)) == 0:
            _checks.fail(
                "AveragedWeights",
                "optimizer",
                "have an average, which begins with `fit`",
                optimizer.name,
            )
        weights = _arrays(variables)
        optimizer.finalize_variable_values(variables)
        # Copied, for JAX would otherwise have one array in the model and in the optimizer, and give
        # it away in a step.
        average = _arrays(variables)
        _assign(variables, average)
        self._replaced = self.model, weights, average

    def _put_weights(self):
        if self._replaced is not None:
            _, weights, _ = self._replaced
            _assign(self.model.trainable_variables, weights)
            self._replaced = None


def _unscaled(optimizer):
    """The optimizer itself where a `LossScaleOptimizer` stands around it."""
    return getattr(optimizer, "inner_optimizer", optimizer)


def _arrays(variables):
    return [np.array(ops.convert_to_numpy(variable)) for variable in variables]


def _assign(variables, arrays):
    for variable, array in zip(variables, arrays, strict=True):
        variable.assign(array)
