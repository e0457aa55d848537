"""How the training of each model of token ids begins."""

import keras
import numpy as np
import pytest

import tfattn
from tests.helpers.tensors import BACKEND, numpy

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("dense_path")]

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
# (class, sizes of the vocabularies, options, what it is fitted to)
CASES = {
    "CausalLM": (tfattn.CausalLM, (13,), {"num_heads": 2, "hidden_dim": 8}, IDS),
    "Transformer of parts": (tfattn.Transformer, (11, 13), PARTS, (IDS, IDS)),
    "BahdanauSeq2Seq": (tfattn.BahdanauSeq2Seq, (11, 13), {"units": 8}, (IDS, IDS)),
}


def made(name, optimizer="adam", base=None):
    """(a compiled model, a function that fits it)."""
    cls, vocabularies, options, inputs = CASES[name]
    model = (base(cls) if base else cls)(*vocabularies, **LAYERS, **options)
    model.compile(
        optimizer, tfattn.MaskedCrossentropy(), metrics=[tfattn.MaskedAccuracy()], jit_compile=False
    )
    return model, lambda **options: model.fit(inputs, IDS, verbose=0, **options)


@pytest.mark.tensorflow
@pytest.mark.parametrize("name", CASES)
def test_a_training_step_is_traced_once(name):
    traces = []

    def counting(cls):
        class Counting(cls):
            def train_step(self, data):
                traces.append(None)
                return super().train_step(data)

        return Counting

    model, fit = made(name, base=counting)
    fit(batch_size=2, epochs=2)
    assert len(traces) == 1
    assert int(model.optimizer.iterations) == 4
    # The optimizer keeps its state.
    fit(batch_size=2)
    assert int(model.optimizer.iterations) == 6


@pytest.mark.parametrize("name", ["CausalLM", "Transformer of parts"])
def test_frozen_weights_stay_as_they_are(name):
    model, fit = made(name, keras.optimizers.SGD(0.1, momentum=0.9))
    model.build_for_any()
    part = model.encoder if hasattr(model, "encoder") else model.decoder.embedding
    part.trainable = False
    before = [numpy(weight) for weight in model.weights]
    fit()
    frozen = {id(weight) for weight in part.weights}
    moved = {
        id(weight)
        for weight, old in zip(model.weights, before, strict=True)
        if not np.array_equal(numpy(weight), old)
    }
    assert moved and not moved & frozen
    # Iterations, learning rate, and a momentum for each trainable weight.
    assert len(model.optimizer.variables) == 2 + len(model.trainable_variables)


def test_a_subclass_may_build_layers_of_its_own_in_its_call():
    def longer(cls):
        class Longer(cls):
            def __init__(self, *args, **kwargs):
                super().__init__(*args, **kwargs)
                self.extra = keras.layers.Dense(13)

            def call(self, inputs, training=None):
                return self.extra(super().call(inputs, training=training))

        return Longer

    model, fit = made("CausalLM", base=longer)
    fit()
    before = numpy(model.extra.kernel)
    fit()
    assert not np.array_equal(numpy(model.extra.kernel), before)


@pytest.mark.skipif(
    BACKEND != "tensorflow",
    reason="about an error of Keras's on TensorFlow: elsewhere it has any model's average be zeros",
)
def test_without_a_step_no_average_is_taken_for_weights():
    model, fit = made("CausalLM", keras.optimizers.Adam(use_ema=True))
    model.build_for_any()
    before = [numpy(weight) for weight in model.weights]
    with pytest.raises(AttributeError):  # Keras's, whose optimizer has no variables yet
        fit(epochs=2, initial_epoch=2)
    for weight, old in zip(model.weights, before, strict=True):
        np.testing.assert_array_equal(numpy(weight), old)
