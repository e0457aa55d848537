"""Averaged weights, against a recomputation in NumPy."""

import keras
import numpy as np
import pytest

from tests.helpers.small_training import (
    HELD_OUT,
    MOMENTUM,
    Weights,
    assert_equal,
    fit,
    listening,
    new_model,
)
from tfattn import training


def averages(batches, warm_up=1):
    """The average after each batch, in float64; the first batches, up to the first update's end,
    stand alone.
    """
    found = []
    for i, weights in enumerate(batches):
        weights = [np.float64(w) for w in weights]
        if i >= warm_up:
            weights = [
                MOMENTUM * a + (1 - MOMENTUM) * w for a, w in zip(found[-1], weights, strict=True)
            ]
        found.append(weights)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("steps, scaled", [(2, False), (None, True)])
def test_averaged_weights_callbacks_inside_see_average_and_outside_weights(steps, scaled):
    optimizer = keras.optimizers.Adam(
        0.1, use_ema=True, ema_momentum=MOMENTUM, gradient_accumulation_steps=steps
    )
    optimizer = keras.optimizers.LossScaleOptimizer(optimizer) if scaled else optimizer
    seen, after, heard_inside, heard_outside = Weights(), Weights(), [], []
    inside, outside = listening(heard_inside), listening(heard_outside)
    fit(new_model(optimizer), [training.AveragedWeights([seen, inside]), after, outside])
    average = averages(after.batches, warm_up=steps or 1)
    for epoch in range(3):
        for one, other in zip(seen.epochs[epoch], average[3 * epoch + 2], strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
        assert_equal(after.epochs[epoch], after.batches[3 * epoch + 2])
    assert not np.allclose(seen.epochs[2][0], after.epochs[2][0], atol=1e-3)
    assert seen.batches == [] and heard_inside == heard_outside and len(heard_inside) == 8
    assert inside.params == outside.params and inside.model is outside.model


@pytest.mark.slow
def test_averaged_weights_are_validated_and_kept_and_leave_training_as_it_is(tmp_path):
    models = [new_model(run_eagerly=False) for _ in range(2)]  # as users have them
    (plain, judged), after, seen = models, Weights(), Weights()
    path, weights_path = tmp_path / "best.keras", tmp_path / "best.weights.h5"
    keep = keras.callbacks.ModelCheckpoint(path, save_best_only=True)
    keep_weights = training.BestWeights(weights_path)
    judges = training.AveragedWeights([keep, keep_weights, seen])
    history = fit(judged, [judges, after], epochs=7, validation_data=HELD_OUT).history
    x, y = HELD_OUT
    wanted = [
        ((x @ kernel + bias - y) ** 2).mean() for kernel, bias in averages(after.batches)[2::3]
    ]
    np.testing.assert_allclose(history["val_loss"], wanted, rtol=1e-5)
    best = int(np.argmin(history["val_loss"]))
    assert keep_weights.best == history["val_loss"][best]
    assert_equal(keras.models.load_model(path).get_weights(), seen.epochs[best])
    fit(plain, [], epochs=7)
    assert_equal(judged.optimizer.variables, plain.optimizer.variables)
    judged.load_weights(weights_path)
    assert_equal(judged.get_weights(), seen.epochs[best])


@pytest.mark.slow
@pytest.mark.parametrize("restored, epoch", [(False, -1), (True, 0)])
def test_averaged_weights_stopped_early_leave_the_last_average_or_the_best(restored, epoch):
    seen, model = Weights(), new_model()
    stop = keras.callbacks.EarlyStopping(
        monitor="loss", mode="max", patience=2, restore_best_weights=restored
    )
    history = fit(model, [training.AveragedWeights([stop, seen])], epochs=9).history
    assert len(history["loss"]) == len(seen.epochs) == 3
    assert_equal(model.get_weights(), seen.epochs[epoch])


@pytest.mark.slow
def test_averaged_weights_error_in_a_callback_restores_the_weights():
    def fail(epoch, logs):
        raise KeyError("nothing")

    after, model = Weights(), new_model()
    failing = training.AveragedWeights([keras.callbacks.LambdaCallback(on_epoch_end=fail)])
    with pytest.raises(KeyError, match="nothing"):
        fit(model, [after, failing])
    assert_equal(model.get_weights(), after.batches[-1])


@pytest.mark.slow
@pytest.mark.parametrize("since", ["nothing", "other weights", "another model"])
def test_averaged_weights_interrupted_in_validation_train_on_from_weights_or_later_ones(since):
    def stop(batch, logs):
        if len(seen.batches) == 6:
            raise KeyboardInterrupt

    seen, model, averaged = Weights(), new_model(), training.AveragedWeights()
    stopping = keras.callbacks.LambdaCallback(on_test_batch_end=stop)
    with pytest.raises(KeyboardInterrupt):
        fit(model, [seen, averaged, stopping], validation_data=HELD_OUT)
    wanted, average = seen.batches[-1], model.get_weights()
    if since == "other weights":
        wanted = [each + 1 for each in average]
        model.set_weights(wanted)
    elif since == "another model":  # which begins with the very average
        model, wanted = new_model(), average
        model.set_weights(wanted)
    begun = []
    note = keras.callbacks.LambdaCallback(
        on_epoch_begin=lambda epoch, logs: begun.append(model.get_weights())
    )
    fit(model, [averaged, note], epochs=1)
    assert_equal(begun[0], wanted)


@pytest.mark.slow
def test_averaged_weights_without_an_average_are_refused():
    def evaluate(model):
        model.evaluate(*HELD_OUT, callbacks=[training.AveragedWeights()], verbose=0)

    built, without = new_model(), new_model(keras.optimizers.Adam())
    built.optimizer.build(built.trainable_variables)  # its averages are zeros
    said = "AveragedWeights: `optimizer` must have an average, which exists after the first update"
    for model in (new_model(), built):
        with pytest.raises(ValueError, match=said):
            evaluate(model)
    said = "AveragedWeights: `optimizer` must have `use_ema=True`"
    with pytest.raises(ValueError, match=said):
        evaluate(without)
    with pytest.raises(ValueError, match=said):
        fit(without, [training.AveragedWeights()])
