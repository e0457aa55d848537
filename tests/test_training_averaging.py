"""Averaged weights, against a recomputation in NumPy."""

import keras
import numpy as np
import pytest

from tests.small_training import HELD_OUT, MOMENTUM, Weights, assert_equal, fit, new_model
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


def assert_close(ours, theirs):
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("steps", [None, 2])
def test_the_callbacks_in_it_see_the_average_and_those_after_it_the_weights(steps):
    seen, after = Weights(), Weights()
    fit(new_model(gradient_accumulation_steps=steps), [training.AveragedWeights([seen]), after])
    average = averages(after.batches, warm_up=steps or 1)
    for epoch in range(3):
        assert_close(seen.epochs[epoch], average[3 * epoch + 2])
        assert_equal(after.epochs[epoch], after.batches[3 * epoch + 2])
    assert not np.allclose(seen.epochs[2][0], after.epochs[2][0], atol=1e-3)
    assert seen.batches == []


@pytest.mark.slow
def test_the_callbacks_in_it_hear_of_training_and_epochs_as_others_do():
    def listening(heard):
        def hear(name):
            return lambda *arguments: heard.append(
                (name, *arguments[:1]) if "epoch" in name else name
            )

        names = ("on_train_begin", "on_epoch_begin", "on_epoch_end", "on_train_end")
        return keras.callbacks.LambdaCallback(**{name: hear(name) for name in names})

    heard_inside, heard_outside = [], []
    inside, outside = listening(heard_inside), listening(heard_outside)
    fit(new_model(), [training.AveragedWeights([inside]), outside], epochs=2)
    assert heard_inside == heard_outside and len(heard_inside) == 6
    assert inside.params == outside.params and inside.model is outside.model


@pytest.mark.slow
def test_it_finds_the_average_of_a_scaled_optimizer():
    inner = keras.optimizers.Adam(0.1, use_ema=True, ema_momentum=MOMENTUM)
    seen, after = Weights(), Weights()
    fit(
        new_model(keras.optimizers.LossScaleOptimizer(inner)),
        [training.AveragedWeights([seen]), after],
    )
    assert_close(seen.epochs[2], averages(after.batches)[8])


@pytest.mark.slow
def test_validation_measures_the_average():
    after, model = Weights(), new_model()
    history = fit(model, [training.AveragedWeights(), after], validation_data=HELD_OUT).history
    x, y = HELD_OUT
    wanted = [
        ((x @ kernel + bias - y) ** 2).mean() for kernel, bias in averages(after.batches)[2::3]
    ]
    np.testing.assert_allclose(history["val_loss"], wanted, rtol=1e-5)


@pytest.mark.slow
def test_validating_and_keeping_the_average_leaves_training_as_it_was_to_the_last_bit(tmp_path):
    plain, judged = new_model(), new_model()
    fit(plain, [])
    keep = keras.callbacks.ModelCheckpoint(tmp_path / "best.keras", save_best_only=True)
    fit(judged, [training.AveragedWeights([keep])], validation_data=HELD_OUT)
    for one, other in zip(judged.optimizer.variables, plain.optimizer.variables, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.slow
def test_the_checkpoint_in_it_keeps_the_averaged_weights_of_the_best_epoch(tmp_path):
    seen = Weights()
    keep = keras.callbacks.ModelCheckpoint(tmp_path / "best.keras", save_best_only=True)
    history = fit(
        new_model(), [training.AveragedWeights([keep, seen])], epochs=7, validation_data=HELD_OUT
    ).history
    best = int(np.argmin(history["val_loss"]))
    assert_equal(keras.models.load_model(tmp_path / "best.keras").get_weights(), seen.epochs[best])


@pytest.mark.slow
def test_stopped_early_a_model_is_left_with_its_average():
    seen, model = Weights(), new_model()
    stop = keras.callbacks.EarlyStopping(monitor="loss", mode="max", patience=2)
    history = fit(model, [training.AveragedWeights([stop, seen])], epochs=9).history
    assert len(history["loss"]) == len(seen.epochs) == 3
    assert_equal(model.get_weights(), seen.epochs[-1])


@pytest.mark.slow
def test_the_best_average_is_put_back_where_stopping_asks_for_it():
    seen, model = Weights(), new_model()
    stop = keras.callbacks.EarlyStopping(
        monitor="loss", mode="max", patience=2, restore_best_weights=True
    )
    fit(model, [training.AveragedWeights([stop, seen])], epochs=9)
    assert_equal(model.get_weights(), seen.epochs[0])


@pytest.mark.slow
def test_an_error_in_a_callback_leaves_the_weights_of_training_in_the_model():
    def fail(epoch, logs):
        raise KeyError("nothing")

    after, model = Weights(), new_model()
    with pytest.raises(KeyError, match="nothing"):
        fit(
            model,
            [after, training.AveragedWeights([keras.callbacks.LambdaCallback(on_epoch_end=fail)])],
        )
    assert_equal(model.get_weights(), after.batches[-1])


@pytest.mark.slow
def test_training_goes_on_from_its_own_weights_after_an_interrupted_validation():
    def stop(batch, logs):
        if len(seen.batches) == 6:
            raise KeyboardInterrupt

    seen, model = Weights(), new_model()
    averaged = training.AveragedWeights()
    with pytest.raises(KeyboardInterrupt):
        fit(
            model,
            [seen, averaged, keras.callbacks.LambdaCallback(on_test_batch_end=stop)],
            validation_data=HELD_OUT,
        )
    begun = []
    note = keras.callbacks.LambdaCallback(
        on_epoch_begin=lambda epoch, logs: begun.append(model.get_weights())
    )
    fit(model, [averaged, note], epochs=1)
    assert_equal(begun[0], seen.batches[-1])


@pytest.mark.slow
@pytest.mark.parametrize("other", [False, True])
def test_weights_that_were_put_in_since_an_interruption_stay(other):
    def stop(batch, logs):
        raise KeyboardInterrupt

    model, averaged = new_model(), training.AveragedWeights()
    with pytest.raises(KeyboardInterrupt):
        fit(
            model,
            [averaged, keras.callbacks.LambdaCallback(on_test_batch_end=stop)],
            validation_data=HELD_OUT,
        )
    weights = model.get_weights()
    if other:  # which begins with the very average
        model = new_model()
    else:
        weights = [each + 1 for each in weights]
    model.set_weights(weights)
    begun = []
    note = keras.callbacks.LambdaCallback(
        on_epoch_begin=lambda epoch, logs: begun.append(model.get_weights())
    )
    fit(model, [averaged, note], epochs=1)
    assert_equal(begun[0], weights)


@pytest.mark.slow
def test_another_model_is_judged_by_its_own_average_after_an_interruption():
    def stop(batch, logs):
        raise KeyboardInterrupt

    stopper, averaged = (
        keras.callbacks.LambdaCallback(on_test_batch_end=stop),
        training.AveragedWeights(),
    )
    first, other = new_model(), new_model()
    for model in (first, other):
        fit(model, [], epochs=1)
    other.set_weights([each + 1 for each in other.get_weights()])
    weights = other.get_weights()
    with pytest.raises(KeyboardInterrupt):
        first.evaluate(*HELD_OUT, callbacks=[averaged, stopper], verbose=0)
    other.evaluate(*HELD_OUT, callbacks=[averaged], verbose=0)
    assert_equal(other.get_weights(), weights)


@pytest.mark.parametrize(
    "callbacks, said",
    [
        (lambda path: [training.Backup(path)], "not hold `Backup`: pass it to `fit` beside this"),
        (lambda path: training.Backup(path), "be a list of callbacks"),
        (
            lambda path: [keras.callbacks.ModelCheckpoint(path, save_freq=2)],
            "save by epochs, `save_freq='epoch'`",
        ),
    ],
)
def test_callbacks_that_do_not_belong_in_it_are_refused(tmp_path, callbacks, said):
    with pytest.raises(ValueError, match=f"AveragedWeights: `callbacks` must {said}"):
        training.AveragedWeights(callbacks(tmp_path / "run.keras"))


def test_before_training_there_is_no_average_to_judge():
    with pytest.raises(
        ValueError,
        match="AveragedWeights: `optimizer` must have an average, which begins with `fit`",
    ):
        new_model().evaluate(*HELD_OUT, callbacks=[training.AveragedWeights()], verbose=0)
    model = new_model()
    model.optimizer.build(model.trainable_variables)  # its averages are zeros
    with pytest.raises(
        ValueError,
        match="AveragedWeights: `optimizer` must have an average, which begins with `fit`",
    ):
        model.evaluate(*HELD_OUT, callbacks=[training.AveragedWeights()], verbose=0)


@pytest.mark.slow
def test_an_optimizer_that_keeps_no_average_is_refused():
    model, message = (
        new_model(keras.optimizers.Adam()),
        "AveragedWeights: `optimizer` must keep an average: `use_ema=True`",
    )
    with pytest.raises(ValueError, match=message):
        fit(model, [training.AveragedWeights()])
    fit(model, [])
    with pytest.raises(ValueError, match=message):
        model.evaluate(*HELD_OUT, callbacks=[training.AveragedWeights()], verbose=0)
