"""How the training of each model that translates begins."""

import keras
import numpy as np
import pytest

import tfattn

pytestmark = pytest.mark.usefixtures("dense_path")

IDS = np.random.default_rng(1).integers(1, 11, (4, 5))
LAYERS = {"num_layers": 1, "width": 8, "seed": 1}
SIZES = {
    "Transformer": {"num_heads": 2, "hidden_dim": 8, **LAYERS},
    "BahdanauSeq2Seq": {"units": 8, **LAYERS},
}


@pytest.fixture(params=SIZES)
def public(request):
    """(class, its sizes)."""
    return getattr(tfattn, request.param), SIZES[request.param]


def compiled(model, optimizer="adam"):
    model.compile(
        optimizer, tfattn.MaskedCrossentropy(), metrics=[tfattn.MaskedAccuracy()], jit_compile=False
    )
    return model


@pytest.mark.slow
def test_a_training_step_is_traced_once(public):
    traces = []

    class Counting(public[0]):
        def train_step(self, data):
            traces.append(None)
            return super().train_step(data)

    model = compiled(Counting(11, 13, **public[1]))
    model.fit((IDS, IDS), IDS, batch_size=2, epochs=2, verbose=0)
    assert len(traces) == 1
    assert int(model.optimizer.iterations) == 4
    # and what the optimizer knows stays with it
    model.fit((IDS, IDS), IDS, batch_size=2, verbose=0)
    assert int(model.optimizer.iterations) == 6


@pytest.mark.slow
def test_frozen_weights_stay_as_they_are(public):
    model = public[0](11, 13, **public[1])
    model.build(((None, None), (None, None)))
    model.encoder.trainable = False
    compiled(model, keras.optimizers.SGD(0.1, momentum=0.9))
    before = [weight.numpy() for weight in model.weights]
    model.fit((IDS, IDS), IDS, verbose=0)
    moved = [
        not np.array_equal(weight.numpy(), old)
        for weight, old in zip(model.weights, before, strict=True)
    ]
    frozen = {id(weight) for weight in model.encoder.weights}
    assert not any(
        it for it, weight in zip(moved, model.weights, strict=True) if id(weight) in frozen
    )
    assert any(moved)
    # Iterations, the rate, and one momentum for each weight that learns.
    assert len(model.optimizer.variables) == 2 + len(model.trainable_variables)


@pytest.mark.slow
def test_a_subclass_may_build_layers_of_its_own_in_its_call(public):
    class Longer(public[0]):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.extra = keras.layers.Dense(13)

        def call(self, inputs, training=None):
            return self.extra(super().call(inputs, training=training))

    model = compiled(Longer(11, 13, **public[1]))
    model.fit((IDS, IDS), IDS, verbose=0)
    before = model.extra.kernel.numpy()
    model.fit((IDS, IDS), IDS, verbose=0)
    assert not np.array_equal(model.extra.kernel.numpy(), before)


@pytest.mark.slow(keep=1)
def test_without_a_step_no_average_is_taken_for_weights(public):
    model = public[0](11, 13, **public[1])
    model.build(((None, None), (None, None)))
    before = [weight.numpy() for weight in model.weights]
    compiled(model, keras.optimizers.Adam(use_ema=True))
    with pytest.raises(AttributeError):  # Keras's, whose optimizer has no variables yet
        model.fit((IDS, IDS), IDS, epochs=2, initial_epoch=2, verbose=0)
    for weight, old in zip(model.weights, before, strict=True):
        np.testing.assert_array_equal(weight.numpy(), old)
