"""Keras's quantization: of models, of their files, and of their copies."""

import gc

import keras
import numpy as np
import pytest

import tfattn
from tests.helpers.processes import printed
from tests.helpers.tensors import BACKEND
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
def test_words_are_scored_by_the_vectors_that_they_are_looked_up_as(kind, mode):
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
    "CausalLM": (lambda: tfattn.CausalLM(V, tie_embeddings=False, **STACK), INPUTS[0]),
    "Transformer": (lambda: small(Transformer, True), INPUTS),
    "BahdanauSeq2Seq": (lambda: small(BahdanauSeq2Seq, False), INPUTS),
}
CASES = [("layers", "int8"), ("layers", "int4")]
CASES += [(name, "int8") for name in FILES if name != "layers"]
# Loads every file of the working directory.
READ = """
import gc, pathlib, keras, numpy as np, tfattn
from tests.helpers.tensors import numpy
gc.freeze()  # Keras runs the garbage collector for each layer that it quantizes
outputs = {}
for path in pathlib.Path().glob("*.keras"):
    inputs = list(np.load(path.with_suffix(".npz")).values())
    found = keras.models.load_model(path)(inputs[0] if len(inputs) == 1 else inputs)
    for i, output in enumerate(found if isinstance(found, list) else [found]):
        outputs[f"{path.stem} {i}"] = numpy(output)
if pathlib.Path("exported").exists():
    import tensorflow as tf
    served = tf.saved_model.load("exported")
    inputs = tuple(x.astype("int32") for x in np.load("Transformer int8.npz").values())
    outputs["served"] = served.serve(inputs)
np.savez("outputs", **outputs)
"""


def arrays(outputs):
    return [np.asarray(x) for x in (outputs if isinstance(outputs, list) else [outputs])]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Quantized models, their outputs before saving, their folder, outputs in a new process."""
    folder, models, expected = tmp_path_factory.mktemp("quantized"), {}, {}
    for case in CASES:
        make, inputs = FILES[case[0]]
        model, path = make(), str(folder / " ".join(case))
        before = arrays(model(inputs))
        model.quantize(case[1])
        models[case], expected[case] = model, arrays(model(inputs))
        if case[1] == "int8":
            for one, other in zip(expected[case], before, strict=True):
                assert 0 < np.abs(one - other).max() < 0.05 * np.abs(other).max()
        np.savez(f"{path}.npz", *(inputs if isinstance(inputs, list) else [inputs]))
        model.save(f"{path}.keras")
        model.save_weights(f"{path}.weights.h5")
        if case == ("Transformer", "int8") and BACKEND == "tensorflow":
            model.export(folder / "exported", verbose=False)
    printed("-c", READ, folder=folder, warm=True)
    gc.freeze()  # as in READ
    with np.load(folder / "outputs.npz") as outputs:
        return models, expected, folder, dict(outputs)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=" ".join)
def test_a_quantized_model_comes_back_from_its_files(case, files):
    _, expected, folder, found = files
    for i, wanted in enumerate(expected[case]):
        np.testing.assert_array_equal(found[f"{' '.join(case)} {i}"], wanted)
    make, inputs = FILES[case[0]]
    model = make()  # loading the weights quantizes it
    model(inputs)
    for _ in range(2):
        model.load_weights(folder / f"{' '.join(case)}.weights.h5")
        for one, other in zip(arrays(model(inputs)), expected[case], strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=" ".join)
def test_a_quantized_model_is_copied_with_its_weights(case, files):
    models, expected, *_ = files
    model, inputs = models[case], FILES[case[0]][1]
    if case[0] == "layers":
        copy = keras.models.clone_model(model)
    else:
        copy = type(model).from_config(model.get_config())
        copy(inputs)
    assert [w.dtype for w in copy.weights] == [w.dtype for w in model.weights]
    copy.set_weights(model.get_weights())
    for one, other in zip(arrays(copy(inputs)), expected[case], strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.tensorflow
@pytest.mark.slow
def test_a_quantized_model_is_exported(files):
    _, expected, _, found = files
    [wanted] = expected["Transformer", "int8"]
    np.testing.assert_allclose(found["served"], wanted, rtol=1e-5, atol=1e-5)


def test_one_quantized_map_alone_is_copied():
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
def test_what_is_not_quantized_says_nothing_of_its_parts(tmp_path):
    h5py = pytest.importorskip("h5py")
    layer = tfattn.MultiHeadAttention(2, 3)
    tokens = keras.Input((None, 6))
    keras.Model(tokens, layer(tokens, tokens)).save_weights(tmp_path / "plain.weights.h5")
    with h5py.File(tmp_path / "plain.weights.h5") as file:
        names = []
        file.visit(names.append)
    assert names and not any("quantized" in name for name in names)
    assert "quantized_parts" not in layer.get_config()
