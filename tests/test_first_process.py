"""Callbacks that one process runs for all. With several processes: `tests/distributed`."""

import keras
import pytest

from tests.small_training import HELD_OUT, Weights, assert_equal, fit, new_model
from tfattn import training


def listening(heard):
    def hear(name):
        return lambda *arguments: heard.append((name, *arguments[:1]) if "epoch" in name else name)

    names = ("on_train_begin", "on_epoch_begin", "on_epoch_end", "on_train_end")
    return keras.callbacks.LambdaCallback(**{name: hear(name) for name in names})


def test_alone_its_callbacks_hear_what_others_hear_with_the_model_itself():
    heard_inside, heard_outside = [], []
    inside, outside = listening(heard_inside), listening(heard_outside)
    model = new_model()
    fit(model, [training.FirstProcess([inside]), outside], epochs=2)
    assert heard_inside == heard_outside and len(heard_inside) == 6
    assert inside.params == outside.params and inside.model is outside.model is model


def test_alone_they_see_the_average_within_averaged_weights_and_add_to_the_logs():
    seen, direct = Weights(), Weights()
    told = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: logs.update(mine=2.0 * epoch)
    )
    once = training.FirstProcess([seen, told])
    history = fit(
        new_model(),
        [training.AveragedWeights([once, direct])],
        epochs=2,
        validation_data=HELD_OUT,
    )
    assert history.history["mine"] == [0.0, 2.0]
    for ours, theirs in zip(seen.epochs, direct.epochs, strict=True):
        assert_equal(ours, theirs)


@pytest.mark.parametrize(
    ("callbacks", "expected"),
    [
        (Weights(), "be a list of callbacks"),
        ([3], "hold callbacks"),
        ([training.Backup("run.backup")], "not hold `Backup`: pass it to `fit` beside this"),
        (
            [keras.callbacks.ModelCheckpoint("a.keras", save_freq=5)],
            "save by epochs, `save_freq='epoch'`",
        ),
    ],
)
def test_what_it_cannot_run_once_is_refused(callbacks, expected):
    with pytest.raises(ValueError, match=f"FirstProcess: `callbacks` must {expected}. Received"):
        training.FirstProcess(callbacks)
