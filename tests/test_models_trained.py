"""How `fit` and `train_on_batch` begin, for each of the models that translate."""

import keras
import numpy as np
import pytest

import tfattn

IDS = np.random.default_rng(1).integers(1, 11, (4, 5))


@pytest.fixture(params=["Transformer", "BahdanauSeq2Seq"])
def traced(request):
    """(compiled model that was never called, list that grows by each trace of its training step)."""
    traces = []

    class Counting(getattr(tfattn, request.param)):
        def train_step(self, data):
            traces.append(None)
            return super().train_step(data)

    layers = {"num_layers": 1, "width": 8}
    sizes = {"num_heads": 2, "hidden_dim": 8} if request.param == "Transformer" else {"units": 8}
    model = Counting(11, 13, **layers, **sizes, seed=1)
    model.compile("adam", tfattn.MaskedCrossentropy(), metrics=[tfattn.MaskedAccuracy()], jit_compile=False)
    return model, traces


def test_a_training_step_is_traced_once(traced):
    model, traces = traced
    model.fit((IDS, IDS), IDS, batch_size=2, epochs=2, verbose=0)
    assert len(traces) == 1
    assert int(model.optimizer.iterations) == 4
    model.fit((IDS, IDS), IDS, batch_size=2, verbose=0)  # and what the optimizer knows stays with it
    assert int(model.optimizer.iterations) == 6


def test_frozen_weights_stay_as_they_are(traced):
    model, _ = traced
    model.build(((None, None), (None, None)))
    model.encoder.trainable = False
    before = [weight.numpy() for weight in model.encoder.weights]
    model.compile(keras.optimizers.Adam(0.1), tfattn.MaskedCrossentropy(), jit_compile=False)
    model.fit((IDS, IDS), IDS, verbose=0)
    for weight, old in zip(model.encoder.weights, before, strict=True):
        np.testing.assert_array_equal(weight.numpy(), old)
