"""Callbacks: averaged weights against a recomputation in NumPy, BLEU among the logs."""

import sys

import keras
import numpy as np
import pytest

from tfattn import training

MOMENTUM = 0.9
RNG = np.random.default_rng(7)
X, Y = RNG.normal(size=(15, 3)).astype("float32"), RNG.normal(size=(15, 2)).astype("float32")
HELD_OUT = RNG.normal(size=(7, 3)).astype("float32"), RNG.normal(size=(7, 2)).astype("float32")


def new_model(optimizer=None, **arguments):
    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    if optimizer is None:
        optimizer = keras.optimizers.Adam(0.1, use_ema=True, ema_momentum=MOMENTUM, **arguments)
    model.compile(optimizer, "mse", jit_compile=False)
    return model


def fit(model, callbacks, epochs=3, **arguments):
    """Three batches an epoch."""
    return model.fit(X, Y, batch_size=5, epochs=epochs, shuffle=False, verbose=0, callbacks=callbacks, **arguments)


class Weights(keras.callbacks.Callback):
    """What the model's weights are after each batch, and at the end of each epoch."""

    def __init__(self):
        super().__init__()
        self.batches, self.epochs = [], []

    def on_train_batch_end(self, batch, logs=None):
        self.batches.append(self.model.get_weights())

    def on_epoch_end(self, epoch, logs=None):
        self.epochs.append(self.model.get_weights())


def averages(batches, warm_up=1):
    """The average after each batch, in float64; the first batches, up to the first update's end, stand alone."""
    found = []
    for i, weights in enumerate(batches):
        weights = [np.float64(w) for w in weights]
        if i >= warm_up:
            weights = [MOMENTUM * a + (1 - MOMENTUM) * w for a, w in zip(found[-1], weights, strict=True)]
        found.append(weights)
    return found


def assert_close(ours, theirs):
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def assert_equal(ours, theirs):
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(one, other)


# Averaged weights.


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


def test_the_callbacks_in_it_hear_of_training_and_epochs_as_others_do():
    def listening(heard):
        def hear(name):
            return lambda *arguments: heard.append((name, *arguments[:1]) if "epoch" in name else name)

        names = ("on_train_begin", "on_epoch_begin", "on_epoch_end", "on_train_end")
        return keras.callbacks.LambdaCallback(**{name: hear(name) for name in names})

    heard_inside, heard_outside = [], []
    inside, outside = listening(heard_inside), listening(heard_outside)
    fit(new_model(), [training.AveragedWeights([inside]), outside], epochs=2)
    assert heard_inside == heard_outside and len(heard_inside) == 6
    assert inside.params == outside.params and inside.model is outside.model


def test_it_finds_the_average_of_a_scaled_optimizer():
    inner = keras.optimizers.Adam(0.1, use_ema=True, ema_momentum=MOMENTUM)
    seen, after = Weights(), Weights()
    fit(new_model(keras.optimizers.LossScaleOptimizer(inner)), [training.AveragedWeights([seen]), after])
    assert_close(seen.epochs[2], averages(after.batches)[8])


def test_validation_measures_the_average():
    after, model = Weights(), new_model()
    history = fit(model, [training.AveragedWeights(), after], validation_data=HELD_OUT).history
    x, y = HELD_OUT
    wanted = [((x @ kernel + bias - y) ** 2).mean() for kernel, bias in averages(after.batches)[2::3]]
    np.testing.assert_allclose(history["val_loss"], wanted, rtol=1e-5)


def test_validating_and_keeping_the_average_leaves_training_as_it_was_to_the_last_bit(tmp_path):
    plain, judged = new_model(), new_model()
    fit(plain, [])
    keep = keras.callbacks.ModelCheckpoint(tmp_path / "best.keras", save_best_only=True)
    fit(judged, [training.AveragedWeights([keep])], validation_data=HELD_OUT)
    for one, other in zip(judged.optimizer.variables, plain.optimizer.variables, strict=True):
        np.testing.assert_array_equal(one, other)


def test_the_checkpoint_in_it_keeps_the_averaged_weights_of_the_best_epoch(tmp_path):
    seen = Weights()
    keep = keras.callbacks.ModelCheckpoint(tmp_path / "best.keras", save_best_only=True)
    history = fit(new_model(), [training.AveragedWeights([keep, seen])], epochs=7, validation_data=HELD_OUT).history
    best = int(np.argmin(history["val_loss"]))
    assert_equal(keras.models.load_model(tmp_path / "best.keras").get_weights(), seen.epochs[best])


def test_stopped_early_a_model_is_left_with_its_average():
    seen, model = Weights(), new_model()
    stop = keras.callbacks.EarlyStopping(monitor="loss", mode="max", patience=2)
    history = fit(model, [training.AveragedWeights([stop, seen])], epochs=9).history
    assert len(history["loss"]) == len(seen.epochs) == 3
    assert_equal(model.get_weights(), seen.epochs[-1])


def test_the_best_average_is_put_back_where_stopping_asks_for_it():
    seen, model = Weights(), new_model()
    stop = keras.callbacks.EarlyStopping(monitor="loss", mode="max", patience=2, restore_best_weights=True)
    fit(model, [training.AveragedWeights([stop, seen])], epochs=9)
    assert_equal(model.get_weights(), seen.epochs[0])


def test_an_error_in_a_callback_leaves_the_weights_of_training_in_the_model():
    def fail(epoch, logs):
        raise KeyError("nothing")

    after, model = Weights(), new_model()
    with pytest.raises(KeyError, match="nothing"):
        fit(model, [after, training.AveragedWeights([keras.callbacks.LambdaCallback(on_epoch_end=fail)])])
    assert_equal(model.get_weights(), after.batches[-1])


def test_training_goes_on_from_its_own_weights_after_an_interrupted_validation():
    def stop(batch, logs):
        if len(seen.batches) == 6:
            raise KeyboardInterrupt

    seen, model = Weights(), new_model()
    averaged = training.AveragedWeights()
    with pytest.raises(KeyboardInterrupt):
        fit(model, [seen, averaged, keras.callbacks.LambdaCallback(on_test_batch_end=stop)], validation_data=HELD_OUT)
    begun = []
    note = keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, logs: begun.append(model.get_weights()))
    fit(model, [averaged, note], epochs=1)
    assert_equal(begun[0], seen.batches[-1])


@pytest.mark.parametrize("other", [False, True])
def test_weights_that_were_put_in_since_an_interruption_stay(other):
    def stop(batch, logs):
        raise KeyboardInterrupt

    model, averaged = new_model(), training.AveragedWeights()
    with pytest.raises(KeyboardInterrupt):
        fit(model, [averaged, keras.callbacks.LambdaCallback(on_test_batch_end=stop)], validation_data=HELD_OUT)
    weights = model.get_weights()
    if other:  # which begins with the very average
        model = new_model()
    else:
        weights = [each + 1 for each in weights]
    model.set_weights(weights)
    begun = []
    note = keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, logs: begun.append(model.get_weights()))
    fit(model, [averaged, note], epochs=1)
    assert_equal(begun[0], weights)


def test_another_model_is_judged_by_its_own_average_after_an_interruption():
    def stop(batch, logs):
        raise KeyboardInterrupt

    stopper, averaged = keras.callbacks.LambdaCallback(on_test_batch_end=stop), training.AveragedWeights()
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
        (lambda path: [keras.callbacks.ModelCheckpoint(path, save_freq=2)], "save by epochs, `save_freq='epoch'`"),
    ],
)
def test_callbacks_that_do_not_belong_in_it_are_refused(tmp_path, callbacks, said):
    with pytest.raises(ValueError, match=f"AveragedWeights: `callbacks` must {said}"):
        training.AveragedWeights(callbacks(tmp_path / "run.keras"))


def test_before_training_there_is_no_average_to_judge():
    with pytest.raises(ValueError, match="AveragedWeights: `optimizer` must have an average, which begins with `fit`"):
        new_model().evaluate(*HELD_OUT, callbacks=[training.AveragedWeights()], verbose=0)
    model = new_model()
    model.optimizer.build(model.trainable_variables)  # its averages are zeros
    with pytest.raises(ValueError, match="AveragedWeights: `optimizer` must have an average, which begins with `fit`"):
        model.evaluate(*HELD_OUT, callbacks=[training.AveragedWeights()], verbose=0)


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


# BLEU.

REFERENCES = ["a small cat sleeps on the mat", "two dogs run in the snow"]


def scripted(*shares):
    """A translator that gets the first words right, as many as the next share says; it keeps what it was asked."""
    asked, shares = [], iter(shares)

    def translate(model, sources):
        asked.append((model, sources))
        share = next(shares)
        words = [reference.split() for reference in REFERENCES]
        return [" ".join(row[: round(share * len(row))] + ["x"] * round((1 - share) * len(row))) for row in words]

    return translate, asked


def bleu(*shares):
    translate, _ = scripted(*shares)
    return [training.corpus_bleu(translate(None, REFERENCES), REFERENCES) for _ in shares]


def test_bleu_joins_the_logs_of_each_epoch():
    translate, asked = scripted(0.6, 1.0, 0.8)
    model = new_model("sgd")
    history = fit(model, [training.ValidationBleu(translate, ["ein", "zwei"], REFERENCES)]).history
    assert history["val_bleu"] == bleu(0.6, 1.0, 0.8)
    assert history["val_bleu"][1] == 100.0 and 0 < history["val_bleu"][0] < history["val_bleu"][2] < 100
    assert asked == [(model, ["ein", "zwei"])] * 3


def test_the_callbacks_behind_it_monitor_bleu(tmp_path):
    translate, _ = scripted(0.6, 1.0, 0.8, 0.8, 0.8)
    seen = Weights()
    keep = keras.callbacks.ModelCheckpoint(tmp_path / "{epoch}.keras", "val_bleu", mode="max", save_best_only=True)
    stop = keras.callbacks.EarlyStopping("val_bleu", mode="max", patience=3)
    scored = training.ValidationBleu(translate, REFERENCES, REFERENCES)
    history = fit(new_model("sgd"), [scored, keep, stop, seen], epochs=9).history
    assert len(history["val_bleu"]) == 5
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1.keras", "2.keras"]
    assert_equal(keras.models.load_model(tmp_path / "2.keras").get_weights(), seen.epochs[1])


def test_between_two_translations_the_last_value_stands_and_the_last_epoch_is_judged():
    translate, asked = scripted(0.6, 0.8, 1.0, 0.4)
    scored = training.ValidationBleu(translate, REFERENCES, REFERENCES, every=3, name="bleu")
    history = fit(new_model("sgd"), [scored], epochs=8).history
    first, second, third, last = bleu(0.6, 0.8, 1.0, 0.4)
    assert history["bleu"] == [first, first, second, second, second, third, third, last]
    assert len(asked) == 4


@pytest.mark.parametrize("verbose", [1, 2])
def test_the_progress_bar_shows_bleu_at_the_end_of_its_line(capsys, verbose):
    translate, _ = scripted(1.0)
    scored = training.ValidationBleu(translate, REFERENCES, REFERENCES)
    new_model("sgd").fit(X, Y, callbacks=[scored], verbose=verbose)
    assert capsys.readouterr().out.strip().endswith("val_bleu: 100.0000")


def test_one_translation_a_reference_is_wanted():
    scored = training.ValidationBleu(lambda model, sources: sources[:1], REFERENCES, REFERENCES)
    with pytest.raises(
        ValueError,
        match="corpus_bleu: `hypotheses` must hold a sentence for each of the 2 references. Received: hypotheses=1",
    ):
        fit(new_model("sgd"), [scored])


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"translate": "no"}, "ValidationBleu: `translate` must be callable. Received: translate='no'"),
        (
            {"references": ["one"]},
            "ValidationBleu: `references` must hold a sentence for each of the 2 sources. Received: references=1",
        ),
        ({"sources": [], "references": []}, "ValidationBleu: `sources` must hold at least one sentence"),
        (
            {"references": "ab"},
            "ValidationBleu: `references` must be a collection of strings. Received: references='ab'",
        ),
        ({"references": ["one", 2]}, "ValidationBleu: `references` must hold strings. Received: references=2"),
        ({"every": 0}, "ValidationBleu: `every` must be a positive integer. Received: every=0"),
    ],
)
def test_bad_arguments_are_refused_at_once(arguments, message):
    arguments = {"translate": print, "sources": REFERENCES, "references": REFERENCES, **arguments}
    with pytest.raises(ValueError, match=message):
        training.ValidationBleu(**arguments)


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("wrong", ["a b c d", [b"a b c d"], None])
def test_bleu_is_of_collections_of_strings(side, wrong):
    sides = [["a b c d"], ["a b c d"]]
    sides[side] = wrong
    with pytest.raises(ValueError, match=f"corpus_bleu: `{('hypotheses', 'references')[side]}` must (be|hold)"):
        training.corpus_bleu(*sides)


def test_no_sentence_has_no_bleu():
    with pytest.raises(ValueError, match="corpus_bleu: `references` must hold at least one sentence"):
        training.corpus_bleu([], [])


def test_a_missing_sacrebleu_is_missed_before_training(monkeypatch):
    monkeypatch.setitem(sys.modules, "sacrebleu", None)
    with pytest.raises(ImportError, match=r'ValidationBleu needs sacrebleu: pip install "tfattn\[text\]"'):
        training.ValidationBleu(print, REFERENCES, REFERENCES)
