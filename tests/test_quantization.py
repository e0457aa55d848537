"""Keras's quantisation: of models, and of their files."""

import functools
import gc

import keras
import numpy as np
import pytest

import tfattn
from tests.processes import printed
from tests.tensors import BACKEND
from tfattn import BahdanauSeq2Seq, Transformer

V = 13
SMALL = {
    Transformer: {"num_layers": 1, "width": 8, "num_heads": 2, "hidden_dim": 16},
    BahdanauSeq2Seq: {"width": 8, "units": 6},
}
INPUTS = [np.arange(1, 11).reshape(2, 5), np.arange(3, 11).reshape(2, 4)]


def small(kind, share_embeddings=True):
    keras.utils.set_random_seed(1)
    model = kind(V, share_embeddings=share_embeddings, **SMALL[kind])
    model(INPUTS)
    return model


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["int8", "int4"])
@pytest.mark.parametrize("kind", SMALL)
def test_words_are_scored_by_the_vectors_that_they_are_looked_up_as(kind, mode):
    quantized, plain = small(kind), small(kind)
    embedding = quantized.decoder.embedding
    before = np.asarray(embedding.embeddings)
    embedding.quantize(mode)
    looked_up = np.asarray(embedding(np.arange(V)))
    assert 0 < np.abs(looked_up - before).max() < 0.2 * np.abs(before).max()
    plain.decoder.embedding.embeddings.assign(looked_up)
    np.testing.assert_allclose(quantized(INPUTS), plain(INPUTS), rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("share_embeddings", [False, True])
def test_a_quantised_transformer_says_nearly_the_same(share_embeddings):
    model = small(Transformer, share_embeddings)
    before = np.asarray(model(INPUTS))
    # Keras says so of each layer that stays as it is, of its own Dropout too.
    with pytest.warns(UserWarning, match="does not have a `quantize` method"):
        model.quantize("int8")
    after = np.asarray(model(INPUTS))
    assert 0 < np.abs(after - before).max() < 0.05 * np.abs(before).max()


def around(layer):
    """A functional model around a layer of one input."""
    tokens = keras.Input((None, 6))
    return keras.Model(tokens, layer(tokens))


def block_of_parts():
    """A block with parts passed in, one of them quantised though it is no layer of this package."""
    block = tfattn.TransformerEncoderBlock(
        attention=tfattn.MultiHeadAttention(2, 3, num_key_value_heads=1),
        feed_forward=keras.layers.Dense(6),
    )
    return around(block)


TOKENS = np.random.default_rng(5).normal(size=(2, 7, 6)).astype("float32")
STACK = SMALL[Transformer]
FILES = {
    "PositionwiseFeedForward": (lambda: around(tfattn.PositionwiseFeedForward(7)), TOKENS),
    "GatedFeedForward": (lambda: around(tfattn.GatedFeedForward(7)), TOKENS),
    "TransformerEncoderBlock": (lambda: around(tfattn.TransformerEncoderBlock(2, 7)), TOKENS),
    "block of parts": (block_of_parts, TOKENS),
    "CausalLM": (lambda: tfattn.CausalLM(V, tie_embeddings=False, **STACK), INPUTS[0]),
    "Transformer": (functools.partial(small, Transformer, False), INPUTS),
    "Transformer, shared": (functools.partial(small, Transformer), INPUTS),
    "BahdanauSeq2Seq": (functools.partial(small, BahdanauSeq2Seq, False), INPUTS),
    "BahdanauSeq2Seq, shared": (functools.partial(small, BahdanauSeq2Seq), INPUTS),
}
CASES = [(name, "int8") for name in FILES]
CASES += [(name, "int4") for name in ("PositionwiseFeedForward", "Transformer, shared")]
LOADED = """
import gc, pathlib, keras, numpy as np, tfattn
from tests.tensors import numpy
gc.freeze()  # Keras collects for each layer that it quantises
outputs = {}
for path in pathlib.Path().glob("*.keras"):
    inputs = list(np.load(path.with_suffix(".npz")).values())
    model = keras.models.load_model(path)
    outputs[path.stem] = numpy(model(inputs[0] if len(inputs) == 1 else inputs))
np.savez("outputs", **outputs)
"""
SERVED = """
import numpy as np, tensorflow as tf
served = tf.saved_model.load("exported")
inputs = tuple(x.astype("int32") for x in np.load("Transformer, shared int8.npz").values())
np.save("served", served.serve(inputs))
"""


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """What each model gave before it was saved, what it gives in a new process, and the folder."""
    folder, expected = tmp_path_factory.mktemp("quantised"), {}
    for name, mode in CASES:
        make, inputs = FILES[name]
        model = make()
        model(inputs)
        model.quantize(mode)
        name = f"{name} {mode}"
        expected[name] = np.asarray(model(inputs))
        np.savez(folder / f"{name}.npz", *(inputs if isinstance(inputs, list) else [inputs]))
        model.save(folder / f"{name}.keras")
        model.save_weights(folder / f"{name}.weights.h5")
        if name == "Transformer, shared int8" and BACKEND == "tensorflow":
            model.export(folder / "exported", verbose=False)
    printed("-c", LOADED, folder=folder)
    gc.freeze()  # as in LOADED
    with np.load(folder / "outputs.npz") as outputs:
        return expected, dict(outputs), folder


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*does not have a `quantize` method")
@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
@pytest.mark.parametrize(("name", "mode"), CASES)
def test_a_quantised_model_comes_back_from_its_files(name, mode, files):
    expected, found, folder = files
    make, inputs = FILES[name]
    wanted = expected[f"{name} {mode}"]
    np.testing.assert_array_equal(found[f"{name} {mode}"], wanted)
    plain, quantised = make(), make()
    for model in (plain, quantised):  # the weights alone quantise what is not
        model(inputs)
    quantised.quantize(mode)
    for model in (plain, quantised):
        model.load_weights(folder / f"{name} {mode}.weights.h5")
        np.testing.assert_array_equal(model(inputs), wanted)


@pytest.mark.tensorflow
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*does not have a `quantize` method")
@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
def test_a_quantised_model_is_exported(files):
    expected, _, folder = files
    printed("-c", SERVED, folder=folder)
    wanted = expected["Transformer, shared int8"]
    np.testing.assert_allclose(np.load(folder / "served.npy"), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
def test_a_file_of_parts_that_are_not_quantised_says_nothing_of_them(tmp_path):
    h5py = pytest.importorskip("h5py")
    around(tfattn.PositionwiseFeedForward(7)).save_weights(tmp_path / "plain.weights.h5")
    with h5py.File(tmp_path / "plain.weights.h5") as file:
        names = []
        file.visit(names.append)
    assert names and not any("quantized" in name for name in names)


@pytest.mark.slow(keep=1)
@pytest.mark.filterwarnings("ignore:.*does not have a `quantize` method")
@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
@pytest.mark.parametrize(("name", "mode"), [*CASES, ("MultiHeadAttention", "int8")])
def test_a_quantised_model_is_copied_with_its_weights(name, mode):
    attention = (lambda: around_attention(tfattn.MultiHeadAttention(2, 3)), TOKENS)
    make, inputs = {**FILES, "MultiHeadAttention": attention}[name]
    model = make()
    model(inputs)
    model.quantize(mode)
    if type(model).__name__ == "Functional":
        copy = keras.models.clone_model(model)
    else:
        copy = type(model).from_config(model.get_config())
        copy(inputs)
    assert [w.dtype for w in copy.weights] == [w.dtype for w in model.weights]
    copy.set_weights(model.get_weights())
    np.testing.assert_array_equal(copy(inputs), model(inputs))


def around_attention(layer):
    tokens = keras.Input((None, 6))
    return keras.Model(tokens, layer(tokens, tokens))


def test_one_quantised_map_alone_is_copied():
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


def test_a_config_of_parts_that_are_not_quantised_says_nothing_of_them():
    layer = tfattn.MultiHeadAttention(2, 3)
    layer(TOKENS, TOKENS)
    assert "quantized_parts" not in layer.get_config()
