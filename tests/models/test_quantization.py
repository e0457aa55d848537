"""Keras's quantization: of models, of their files, and of their copies."""

import gc
import pathlib
from typing import Any, NamedTuple

import keras
import numpy as np
import pytest

import tfattn
from tests.helpers.tensors import tf
from tfattn import BahdanauSeq2Seq, Transformer

pytestmark = [
    # Keras warns for each layer that it cannot quantize, its own Dropout included.
    pytest.mark.filterwarnings("ignore:.*does not have a `quantize` method"),
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
]

V = 13
STACK = {"num_layers": 1, "width": 8, "num_heads": 2, "hidden_dim": 16}
SMALL = {Transformer: STACK, BahdanauSeq2Seq: {"width": 8, "units": 6}}
INPUTS = [np.arange(1, 11).reshape(2, 5), np.arange(3, 11).reshape(2, 4)]
TOKENS = np.random.default_rng(5).normal(size=(2, 7, 6)).astype("float32")


def small(kind, share_embeddings):
    keras.utils.set_random_seed(1)
    model = kind(V, share_embeddings=share_embeddings, **SMALL[kind])
    model(INPUTS)
    return model


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "mode"), [(Transformer, "int8"), (BahdanauSeq2Seq, "int4")])
def test_quantized_embedding_scores_words_by_the_vectors_of_its_lookup(kind, mode):
    quantized, plain = small(kind, True), small(kind, True)
    embedding = quantized.decoder.embedding
    before = np.asarray(embedding.embeddings)
    embedding.quantize(mode)
    looked_up = np.asarray(embedding(np.arange(V)))
    assert 0 < np.abs(looked_up - before).max() < 0.2 * np.abs(before).max()
    plain.decoder.embedding.embeddings.assign(looked_up)
    np.testing.assert_allclose(quantized(INPUTS), plain(INPUTS), rtol=1e-5, atol=1e-5)


def layers():
    """A model with all layers that have sublayers; the last block has a quantized Keras layer."""
    keras.utils.set_random_seed(1)
    tokens = keras.Input((None, 6))
    block = tfattn.TransformerEncoderBlock(
        attention=tfattn.MultiHeadAttention(2, 3, num_key_value_heads=1),
        feed_forward=keras.layers.Dense(6),
    )
    outputs = [
        tfattn.PositionwiseFeedForward(7)(tokens),
        tfattn.GatedFeedForward(7)(tokens),
        tfattn.MultiHeadAttention(2, 3)(tokens, tokens),
        tfattn.TransformerEncoderBlock(2, 7)(tokens),
        block(tokens),
    ]
    return keras.Model(tokens, outputs)


FILES = {
    "layers": (layers, TOKENS),
    "Transformer": (lambda: small(Transformer, True), INPUTS),
    "BahdanauSeq2Seq": (lambda: small(BahdanauSeq2Seq, False), INPUTS),
}
CASES = [("layers", "int8"), ("layers", "int4")]
CASES += [(name, "int8") for name in FILES if name != "layers"]


def arrays(outputs):
    return [np.asarray(x) for x in (outputs if isinstance(outputs, list) else [outputs])]


class Quantized(NamedTuple):
    """A model with what it is called with, its outputs, and the folder of its files."""

    mode: str
    make: Any
    inputs: Any
    model: Any
    expected: list
    folder: pathlib.Path


@pytest.fixture(scope="module", params=CASES, ids=" ".join)
def quantized(request, tmp_path_factory):
    (name, mode), folder = request.param, tmp_path_factory.mktemp("quantized")
    gc.collect()
    gc.freeze()  # Keras runs the garbage collector for each layer that it quantizes
    make, inputs = FILES[name]
    model = make()
    before = arrays(model(inputs))
    model.quantize(mode)
    expected = arrays(model(inputs))
    for one, other in zip(expected, before, strict=True):
        limit = 0.05 if mode == "int8" else np.inf
        assert 0 < np.abs(one - other).max() < limit * np.abs(other).max()
    model.save(folder / "model.keras")
    model.save_weights(folder / "model.weights.h5")
    return Quantized(mode, make, inputs, model, expected, folder)


def assert_gives(model, quantized):
    for one, other in zip(arrays(model(quantized.inputs)), quantized.expected, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.slow
def test_quantized_model_comes_back_from_its_files(quantized):
    assert_gives(keras.saving.load_model(quantized.folder / "model.keras"), quantized)
    model = quantized.make()
    model(quantized.inputs)
    with pytest.raises(ValueError, match="variables|number_of_weights"):
        model.load_weights(quantized.folder / "model.weights.h5")
    model.quantize(quantized.mode)
    model.load_weights(quantized.folder / "model.weights.h5")
    assert_gives(model, quantized)


@pytest.mark.slow
def test_quantized_model_is_copied_with_its_weights(quantized):
    model = quantized.model
    if isinstance(model, Transformer | BahdanauSeq2Seq):
        copy = type(model).from_config(model.get_config())
        copy(quantized.inputs)
    else:
        copy = keras.models.clone_model(model)
    assert [w.dtype for w in copy.weights] == [w.dtype for w in model.weights]
    copy.set_weights(model.get_weights())
    assert_gives(copy, quantized)


@pytest.mark.tensorflow
@pytest.mark.slow
@pytest.mark.usefixtures("dense_path")
@pytest.mark.parametrize("quantized", [("Transformer", "int8")], indirect=True, ids=" ".join)
def test_quantized_model_is_exported(quantized, tmp_path):
    quantized.model.export(tmp_path / "exported", verbose=False)
    served = tf.saved_model.load(str(tmp_path / "exported"))
    found = served.serve(tuple(x.astype("int32") for x in quantized.inputs))
    np.testing.assert_allclose(found, quantized.expected[0], rtol=1e-5, atol=1e-5)


def test_quantized_map_is_copied_alone():
    layer = tfattn.MultiHeadAttention(2, 3)
    expected = layer(TOKENS, TOKENS)
    layer.value_dense.quantize("int8")
    copy = tfattn.MultiHeadAttention.from_config(layer.get_config())
    assert not copy.built
    copy(TOKENS, TOKENS)
    modes = [part.quantization_mode for part in (copy.query_dense, copy.value_dense)]
    assert modes == [None, "int8"]
    copy.set_weights(layer.get_weights())
    np.testing.assert_array_equal(copy(TOKENS, TOKENS), layer(TOKENS, TOKENS))
    assert 0 < np.abs(copy(TOKENS, TOKENS) - expected).max() < 0.05


@pytest.mark.slow
def test_quantized_parts_are_not_in_the_file_of_a_plain_layer(tmp_path):
    h5py = pytest.importorskip("h5py")
    layer = tfattn.MultiHeadAttention(2, 3)
    tokens = keras.Input((None, 6))
    keras.Model(tokens, layer(tokens, tokens)).save_weights(tmp_path / "plain.weights.h5")
    with h5py.File(tmp_path / "plain.weights.h5") as file:
        names = []
        file.visit(names.append)
    assert names and not any("quantized" in name for name in names)
    assert "changed_parts" not in layer.get_config()
