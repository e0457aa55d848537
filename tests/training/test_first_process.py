"""Callbacks that one process runs for all. With several processes: `tests/distributed`."""

import keras
import numpy as np
import pytest

import tfattn
from tests.helpers.small_training import HELD_OUT, Weights, assert_equal, fit, listening, new_model
from tfattn import training
from tfattn.training import processes


@pytest.mark.slow
def test_first_process_alone_runs_its_callbacks_like_others():
    heard_inside, heard_outside, seen, direct, model = [], [], Weights(), Weights(), new_model()
    inside, outside = listening(heard_inside), listening(heard_outside)
    told = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: logs.update(mine=2.0 * epoch)
    )
    once = training.FirstProcess([seen, told, inside])
    within = training.AveragedWeights([once, direct, outside])
    history = fit(model, [within], epochs=2, validation_data=HELD_OUT)
    assert heard_inside == heard_outside and len(heard_inside) == 6
    assert inside.params == outside.params and inside.model is outside.model is model
    assert history.history["mine"] == [0.0, 2.0]
    for ours, theirs in zip(seen.epochs, direct.epochs, strict=True):
        assert_equal(ours, theirs)


@pytest.mark.parametrize("who", [training.FirstProcess, training.AveragedWeights])
def test_first_process_callbacks_of_batches_and_backups_are_refused(who):
    for callback, said in (
        (training.Backup("run.backup"), "not hold `Backup`: pass it to `fit` itself"),
        (
            keras.callbacks.ModelCheckpoint("a.keras", save_freq=5),
            "save by epochs, `save_freq='epoch'`",
        ),
    ):
        with pytest.raises(ValueError, match=f"{who.__name__}: `callbacks` must {said}. Received"):
            who([callback])


@pytest.mark.slow
def test_first_process_model_of_other_weights_than_its_config_is_refused():
    sizes = {"num_layers": 1, "width": 8, "num_heads": 2, "hidden_dim": 16}
    model = tfattn.CausalLM(11, **sizes)
    model(np.array([[3, 4]]))
    once = training.FirstProcess([])
    once.set_model(model)
    model.history = None
    once._make_copy()
    layers = (x for x in model._flatten_layers() if isinstance(x, keras.layers.EinsumDense))
    next(layers).enable_lora(2)
    expected = "have only the weights of its config, without LoRA or quantization"
    with pytest.raises(ValueError, match=f"^FirstProcess: `model` must {expected}. Received"):
        once._make_copy()


@pytest.fixture
def sent(monkeypatch):
    """What the first of two processes sends to the other, array by array."""
    multihost_utils = pytest.importorskip("jax.experimental.multihost_utils")
    arrays = []

    def broadcast(array):
        arrays.append(np.asarray(array))
        return array

    monkeypatch.setattr(multihost_utils, "broadcast_one_to_all", broadcast)
    monkeypatch.setattr(processes, "count", lambda: 2)
    monkeypatch.setattr(processes, "_is_first", lambda: True)
    return arrays


def as_another_process(sent, monkeypatch):
    """What is still to come of what the first process sent: from now on this is another one."""
    arrays = iter(list(sent))
    multihost_utils = pytest.importorskip("jax.experimental.multihost_utils")

    def received(array):
        theirs = next(arrays)
        assert array.shape == theirs.shape and array.dtype == theirs.dtype
        return theirs

    monkeypatch.setattr(multihost_utils, "broadcast_one_to_all", received)
    monkeypatch.setattr(processes, "_is_first", lambda: False)
    return arrays


@pytest.mark.parametrize("result", [None, {"loss": [0.1, float("inf")], "é\udc80": np.float32(2)}])
def test_by_first_computes_in_the_first_process_alone(result, sent, monkeypatch):
    assert processes.on_primary("me", lambda: result) == result
    arrays = as_another_process(sent, monkeypatch)
    assert processes.on_primary("me", lambda: _raise(AssertionError)) == result
    assert next(arrays, None) is None


def test_array_of_first_is_sent_in_the_dtype_of_its_variable(sent, monkeypatch):
    variable, array = keras.Variable(np.zeros((2, 3))), np.arange(6.0).reshape(2, 3)
    np.testing.assert_array_equal(processes.array_of_first(array, variable), array)
    arrays = as_another_process(sent, monkeypatch)
    np.testing.assert_array_equal(processes.array_of_first(None, variable), array)
    assert next(arrays, None) is None


def test_by_first_error_is_raised_in_all_processes(sent, monkeypatch, tmp_path):
    failing = dict.fromkeys(("on_train_begin", "on_epoch_begin", "on_train_end"), lambda *_: 1 / 0)
    once = training.FirstProcess([keras.callbacks.LambdaCallback(**failing)])
    for call in (once.on_train_begin, lambda: once.on_epoch_begin(0), once.on_train_end):
        with pytest.raises(RuntimeError, match="^FirstProcess: the first process failed with Zero"):
            call()
    with pytest.raises(RuntimeError, match="^Backup: the first process failed with IsADirectoryE"):
        training.Backup(tmp_path)
    with pytest.raises(RuntimeError, match="failed with ValueError"):
        processes.on_primary("me", lambda: object())  # which JSON cannot hold
    sent.clear()
    full = OSError(28, "No space left on device")
    said = r"^Backup: the first process failed with OSError: \[Errno 28\] No space left on device$"
    with pytest.raises(RuntimeError, match=said) as raised:
        processes.on_primary("Backup", lambda: _raise(full))
    assert raised.value.__cause__ is full
    arrays = as_another_process(sent, monkeypatch)
    with pytest.raises(RuntimeError, match=said):
        processes.on_primary("Backup", lambda: _raise(AssertionError))
    assert next(arrays, None) is None


def _raise(error):
    raise error
