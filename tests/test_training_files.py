"""Files that are replaced at once, and the weights of the best epoch that are kept so."""

import keras
import numpy as np
import pytest

from tests.small_training import HELD_OUT, Weights, assert_equal, fit, new_model
from tfattn import training
from tfattn.training.files import replacing


def test_what_could_not_be_written_whole_leaves_the_old_file(tmp_path):
    path = tmp_path / "file.txt"
    with replacing(path) as beside:
        beside.write_text("old")
    with pytest.raises(OSError, match="full"), replacing(path) as beside:
        beside.write_text("ne")
        raise OSError("full")
    assert path.read_text() == "old" and [each.name for each in tmp_path.iterdir()] == [path.name]
    with replacing(path) as beside:
        assert beside.suffix == path.suffix and beside.parent == path.parent
        beside.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new" and [each.name for each in tmp_path.iterdir()] == [path.name]


def test_a_file_of_which_nothing_was_written_leaves_the_old_one(tmp_path):
    path = tmp_path / "file.txt"
    path.write_text("old")
    with pytest.raises(FileNotFoundError, match=r"unfinished\.file\.txt"), replacing(path):
        pass
    assert path.read_text() == "old"


def kept_of(values, path, **options):
    """What the file holds after each of some epochs, each of which has its value as weights."""
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    keep, found = training.BestWeights(path, "val_bleu", **options), []
    keep.set_model(model)
    for value in values:
        model.set_weights([np.full_like(weights, value) for weights in model.get_weights()])
        keep.on_epoch_end(0, {"val_bleu": value})
        model.load_weights(path)
        found.append(float(model.get_weights()[1][0]))
    return found, keep.best


def test_the_weights_of_the_best_epoch_are_kept(tmp_path):
    path = tmp_path / "best.weights.h5"
    found, best = kept_of([3.0, 2.0, 5.0, 5.0, 4.0], path, better=max)
    assert found == [3.0, 3.0, 5.0, 5.0, 5.0] and best == 5.0
    found, best = kept_of([4.0, 5.0, 6.0], path, better=max, best=5.0)  # the run's next life
    assert found == [5.0, 5.0, 6.0] and best == 6.0
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


def test_the_least_is_best_unless_told_otherwise(tmp_path):
    found, best = kept_of([3.0, 4.0, 2.0, 2.5], tmp_path / "best.weights.h5")
    assert found == [3.0, 3.0, 2.0, 2.0] and best == 2.0


@pytest.mark.parametrize("better", [min, max])
def test_a_nan_is_kept_only_until_there_is_a_number(tmp_path, better):
    nan = float("nan")
    found, best = kept_of([nan, nan, 3.0, nan], tmp_path / "best.weights.h5", better=better)
    np.testing.assert_array_equal(found, [nan, nan, 3.0, 3.0])
    assert best == 3.0


def test_within_averaged_weights_it_keeps_the_average(tmp_path):
    path, seen = tmp_path / "best.weights.h5", Weights()
    keep, model = training.BestWeights(path), new_model()
    judge = training.AveragedWeights([keep, seen])
    history = fit(model, [judge], epochs=4, validation_data=HELD_OUT).history
    assert keep.best == min(history["val_loss"])
    model.load_weights(path)
    assert_equal(model.get_weights(), seen.epochs[int(np.argmin(history["val_loss"]))])


@pytest.mark.parametrize(
    "arguments, message",
    [
        (("best.h5",), r"BestWeights: `filepath` must end with \"\.weights\.h5\"\. Received"),
        (("a.weights.h5", "loss", "max"), "BestWeights: `better` must be `min` or `max`"),
    ],
)
def test_bad_arguments_are_refused_at_once(arguments, message):
    with pytest.raises(ValueError, match=message):
        training.BestWeights(*arguments)


def test_a_log_that_is_not_there_is_named(tmp_path):
    keep = training.BestWeights(tmp_path / "best.weights.h5", "val_blue")
    with pytest.raises(
        ValueError, match=r"BestWeights: `monitor` must be one of \['loss'\]. Received: monitor='va"
    ):
        fit(new_model(), [keep])
