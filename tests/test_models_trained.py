"""How the training of each model of token ids begins."""

from typing import NamedTuple

import keras
import numpy as np
import pytest

import tfattn
from tests.tensors import BACKEND, numpy

pytestmark = pytest.mark.usefixtures("dense_path")

IDS = np.random.default_rng(1).integers(1, 11, (4, 5))
LAYERS = {"num_layers": 1, "width": 8, "seed": 1}
PARTS = {
    "block": tfattn.TransformerEncoderBlock(
        attention=tfattn.MultiHeadAttention(2, 4),
        hidden_dim=8,
        norm=keras.layers.RMSNormalization(),
        norm_first=True,
    ),
    "positions": tfattn.LearnedPositionalEncoding(7),
}


class Case(NamedTuple):
    """A model, and what it is fitted to."""

    cls: type
    vocabularies: tuple
    options: dict
    inputs: object = (IDS, IDS)

    def make(self, cls=None):
        return (cls or self.cls)(*self.vocabularies, **self.options)

    def fit(self, model, **options):
        model.fit(self.inputs, IDS, verbose=0, **options)


CASES = {
    "Transformer": Case(tfattn.Transformer, (11, 13), {"num_heads": 2, "hidden_dim": 8, **LAYERS}),
    "Transformer of parts": Case(tfattn.Transformer, (11, 13), {**PARTS, **LAYERS}),
    "CausalLM": Case(tfattn.CausalLM, (13,), {"num_heads": 2, "hidden_dim": 8, **LAYERS}, IDS),
    "BahdanauSeq2Seq": Case(tfattn.BahdanauSeq2Seq, (11, 13), {"units": 8, **LAYERS}),
}


@pytest.fixture(params=CASES)
def case(request):
    return CASES[request.param]


def compiled(model, optimizer="adam"):
    model.compile(
        optimizer, tfattn.MaskedCrossentropy(), metrics=[tfattn.MaskedAccuracy()], jit_compile=False
    )
    return model


@pytest.mark.tensorflow
@pytest.mark.slow
def test_a_training_step_is_traced_once(case):
    traces = []

    class Counting(case.cls):
        def train_step(self, data):
            traces.append(None)
            return super().train_step(data)

    model = compiled(case.make(Counting))
    case.fit(model, batch_size=2, epochs=2)
    assert len(traces) == 1
    assert int(model.optimizer.iterations) == 4
    # and what the optimizer knows stays with it
    case.fit(model, batch_size=2)
    assert int(model.optimizer.iterations) == 6


@pytest.mark.slow
def test_frozen_weights_stay_as_they_are(case):
    model = case.make()
    model.build_for_any()
    part = model.encoder if hasattr(model, "encoder") else model.decoder.embedding
    part.trainable = False
    compiled(model, keras.optimizers.SGD(0.1, momentum=0.9))
    before = [numpy(weight) for weight in model.weights]
    case.fit(model)
    moved = [
        not np.array_equal(numpy(weight), old)
        for weight, old in zip(model.weights, before, strict=True)
    ]
    frozen = {id(weight) for weight in part.weights}
    assert not any(
        it for it, weight in zip(moved, model.weights, strict=True) if id(weight) in frozen
    )
    assert any(moved)
    # Iterations, the rate, and one momentum for each weight that learns.
    assert len(model.optimizer.variables) == 2 + len(model.trainable_variables)


@pytest.mark.slow
def test_a_subclass_may_build_layers_of_its_own_in_its_call(case):
    class Longer(case.cls):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.extra = keras.layers.Dense(13)

        def call(self, inputs, training=None):
            return self.extra(super().call(inputs, training=training))

    model = compiled(case.make(Longer))
    case.fit(model)
    before = numpy(model.extra.kernel)
    case.fit(model)
    assert not np.array_equal(numpy(model.extra.kernel), before)


@pytest.mark.skipif(
    BACKEND != "tensorflow",
    reason="about an error of Keras's on TensorFlow: elsewhere it has any model's average be zeros",
)
@pytest.mark.slow(keep=1)
def test_without_a_step_no_average_is_taken_for_weights(case):
    model = case.make()
    model.build_for_any()
    before = [numpy(weight) for weight in model.weights]
    compiled(model, keras.optimizers.Adam(use_ema=True))
    with pytest.raises(AttributeError):  # Keras's, whose optimizer has no variables yet
        case.fit(model, epochs=2, initial_epoch=2)
    for weight, old in zip(model.weights, before, strict=True):
        np.testing.assert_array_equal(numpy(weight), old)
