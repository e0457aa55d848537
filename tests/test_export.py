"""Every public layer and model in ONNX and LiteRT files, which know nothing of this package.

`tests/conformance/test_saving.py` has `.keras`, `.weights.h5` and SavedModel. A file has several
layers, the outputs of one functional model, for lengths that are not known. LiteRT files have
nothing but builtin operations.
"""

import functools
import importlib.util
import warnings
from collections.abc import Callable
from typing import NamedTuple

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfattn
from tests.conformance.table import ROWS, SAVED, Regressor, first_of_each_class
from tests.helpers.processes import printed
from tfattn import masks, scalings

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:In the future `np.object`:FutureWarning"),  # Keras's
]

SUFFIXES = {"onnx": ".onnx", "litert": ".tflite"}
BUILTIN = {"target_spec": {"supported_ops": [tf.lite.OpsSet.TFLITE_BUILTINS]}}
SIZES = {"B": 3, "T": 11, "S": 17}  # others than those that the layers were built with
DRAW = np.random.default_rng(1)


class Part(NamedTuple):
    """An output of a model of several layers: the call that gives it, the shapes of what is called,
    and arrays; `known` are the shapes that a LiteRT file is made for.
    """

    call: Callable
    shapes: list
    arrays: list
    known: list | None = None


def normal(*shape):
    return DRAW.normal(size=shape).astype("float32")


def of_row(name, known="") -> Part:
    """A row of the conformance table. `known` are the letters of sizes that LiteRT has to know."""
    row = next(row for row in SAVED if row.name == name)
    layer, sizes = row.new(), {letter: SIZES[letter] for letter in known}
    return Part(
        lambda *symbols: row.call(layer, symbols),
        [(None, *tokens.shape({})) for tokens in row.inputs],
        row.arrays(seed=1, sizes=SIZES),
        [(sizes.get("B"), *tokens.shape(sizes)) for tokens in row.inputs],
    )


def on_itself(layer, length=None, **options) -> Part:
    """Attention of tokens to each other, as everyone writes it."""
    shape, array = (None, length, 10), normal(1, length or 19, 10)
    return Part(lambda tokens: layer(tokens, tokens, **options), [shape], [array])


def over_images() -> Part:
    """Attention over the two axes of an image, of unknown sizes."""
    layer = tfattn.MultiHeadAttention(2, 3, attention_axes=(1, 2))
    return Part(lambda image: layer(image, image), [(None, None, None, 6)], [normal(2, 3, 5, 6)])


def padded() -> Part:
    """Ids with padding, whose mask Keras carries into the attention."""

    def call(ids):
        x = keras.layers.Embedding(11, 6, mask_zero=True)(ids)
        return tfattn.MultiHeadAttention(2, 3)(x, x, use_causal_mask=True)

    return Part(call, [(None, None)], [np.array([[3, 5, 7, 0, 0], [2, 4, 6, 8, 10]], "int32")])


def hidden_scores() -> Part:
    """A bias of −inf, which is a mask."""
    tokens, bias = normal(2, 7, 5), np.where(normal(2, 7, 7) < -0.3, -np.inf, 0.0)
    return Part(
        lambda tokens, bias: tfattn.DotProductAttention()(tokens, tokens, bias=bias),
        [(None, None, 5), (None, None, None)],
        [tokens, bias.astype("float32")],
    )


def quantized() -> Part:
    """Dense parts in int8; ids in, so that nothing is rounded at the door."""
    forward = tfattn.PositionwiseFeedForward(7)
    forward.build((None, None, 6))
    for layer in (forward.inner, forward.outer):
        layer.quantize("int8")

    def call(ids):
        x = keras.layers.Embedding(11, 6)(ids)
        return tfattn.DotProductAttention()(forward(x), x)

    return Part(call, [(None, None)], [IDS])


IDS = DRAW.integers(0, 11, size=(3, 13)).astype("int32")


def rotating(scaling=None):
    """A language model whose heads are rotated."""
    positions = tfattn.RotaryPositions(scaling=scaling)
    attention = tfattn.MultiHeadAttention(2, 4, positions=positions)
    block = tfattn.TransformerEncoderBlock(attention=attention, hidden_dim=7)
    sizes = {"num_layers": 2, "width": 6}
    model = tfattn.CausalLM(11, block=block, positions=keras.layers.Identity(), **sizes)
    model.build_for_any()
    return model


# LiteRT has loops over time where the batch is known, as of Keras's own layers; and where what the
# loop puts out is, which for a decoder has a weight for each token of the source.
KNOWN = {"RecurrentEncoder": "B", "RecurrentDecoder": "BS", "BahdanauSeq2Seq": "BS"}
ALONE = ("Transformer", "NadarayaWatsonRegressor")
NAMES = [row.name for row in first_of_each_class() if row.name not in ALONE]
NAMES += [
    "Attention[sink]",
    "MultiHeadAttention[grouped]",
    "MultiHeadAttention[rotary]",
    "MultiHeadAttention[relative]",
    "MultiHeadAttention[sinks]",
    "MultiHeadAttention[sparsemax]",
    "MultiHeadAttention[top k]",
    "MultiHeadAttention[gate]",
    "NadarayaWatson[boxcar]",
    "NadarayaWatson[epanechnikov]",
    "TransformerEncoderBlock[pre-norm]",
    "MultiHeadAttention under causal & window",
]
OF_EACH_HEAD = masks.per_head(
    [
        masks.chunks(3) | masks.chunk_ends(3),
        masks.strided(2) & ~masks.window(1),
        masks.prefix(2) | masks.causal() & masks.window(4),
    ]
)
# Parts that one of the formats lacks, with a piece of its error: `docs/save-export-serve.md` says
# so too.
CANNOT = {
    # GELU as it is defined, which Keras writes with an operation that ONNX's converter lacks.
    ("PositionwiseFeedForward", "onnx"): "Erfc",
    # Keras's products of int8; LiteRT quantizes by itself.
    ("int8", "litert"): "BatchMatMulV3",
}


@functools.cache
def parts():
    keras.utils.set_random_seed(1)
    heads = tfattn.MultiHeadAttention
    return {
        **{name: of_row(name, KNOWN.get(name, "")) for name in NAMES},
        "causal": on_itself(heads(2, 5), use_causal_mask=True),
        # A transpose of one head is where ONNX's converter goes wrong.
        "one head": on_itself(heads(1, 5), use_causal_mask=True),
        "one head of keys": on_itself(heads(2, 5, num_key_value_heads=1)),
        "masks": on_itself(heads(3, 5), attention_mask=OF_EACH_HEAD),
        "over images": over_images(),
        "rotary model": Part(rotating(), [(None, None)], [IDS]),
        "rotary model, yarn": Part(rotating(scalings.yarn(3.0, 5)), [(None, None)], [IDS]),
        "sliding window": on_itself(heads(2, 5, sliding_window=3)),
        "padded": padded(),
        "causal, 2048 tokens": on_itself(heads(1, 5), length=2048, use_causal_mask=True),
        "-inf as a bias": hidden_scores(),
        "int8": quantized(),
    }


def functional(names):
    """A functional model with these parts as its outputs, their arrays, and its signature in a
    LiteRT file.
    """
    inputs, outputs, arrays, signature = [], [], [], []
    for name in names:
        part = parts()[name]
        symbols = [
            keras.Input(shape[1:], dtype=str(array.dtype), name=f"input_{len(inputs) + i}")
            for i, (shape, array) in enumerate(zip(part.shapes, part.arrays, strict=True))
        ]
        for symbol, shape in zip(symbols, part.known or part.shapes, strict=True):
            signature.append(keras.InputSpec(symbol.dtype, shape, name=symbol.name))
        inputs += symbols
        outputs.append(part.call(*symbols))
        arrays += part.arrays
    return keras.Model(inputs, outputs), arrays, [signature]


def written(model, path, reader, signature=None):
    """The path, with the model in it."""
    options = {**BUILTIN, "input_signature": signature} if reader == "litert" else {}
    model.export(path, format=reader, verbose=False, **options)
    return path


def run(path, arrays):
    """What a file gives, by its own runtime."""
    if path.suffix == ".onnx":
        runtime = pytest.importorskip("onnxruntime")
        session = runtime.InferenceSession(path, providers=["CPUExecutionProvider"])
        names = [each.name for each in session.get_inputs()]
        return session.run(None, dict(zip(names, arrays, strict=True)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # TensorFlow's own copy is to go
        runner = _interpreter()(str(path)).get_signature_runner("serving_default")
    names = sorted(runner.get_input_details(), key=_number)
    outputs = runner(**dict(zip(names, arrays, strict=True)))
    return [outputs[name] for name in sorted(outputs, key=_number)]


def _number(name):
    """Of "input_12"; names of a model's own are in the order of its inputs."""
    return int(name.rpartition("_")[2]) if name[-1].isdigit() else 0


def _interpreter():
    if importlib.util.find_spec("ai_edge_litert") is None:
        return tf.lite.Interpreter
    from ai_edge_litert.interpreter import Interpreter

    return Interpreter


@pytest.fixture(params=SUFFIXES)
def reader(request):
    if request.param == "onnx":
        pytest.importorskip("onnxruntime")
        pytest.importorskip("tf2onnx")
    return request.param


# Converters take more than twice as long for twice as many layers.
@pytest.mark.parametrize("group", range(6))
def test_a_file_gives_what_the_model_gives(group, reader, tmp_path):
    names = [name for name in [*parts()][group::6] if (name, reader) not in CANNOT]
    model, arrays, signature = functional(names)
    expected = model(arrays)
    with tfattn.path("dense"):
        path = written(model, tmp_path / f"layers{SUFFIXES[reader]}", reader, signature)
    for name, one, other in zip(names, run(path, arrays), expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5, err_msg=name)


def regressor():
    return Regressor.fitted(), [Regressor.points()]


def transformer():
    row = next(row for row in SAVED if row.name == "Transformer")
    return row.new(), row.arrays(seed=1, sizes=SIZES)


def language_model():
    return rotating(scalings.dynamic(2.0, 5)), [IDS]


@pytest.mark.parametrize("make", [language_model, transformer, regressor])
def test_a_model_writes_its_own_file_of_any_lengths(make, reader, tmp_path):
    model, arrays = make()
    path = tmp_path / f"model{SUFFIXES[reader]}"
    if make is regressor and reader == "litert":
        with pytest.raises(Exception, match="float64"):
            run(written(model, path, reader), arrays)
        return
    [found] = run(written(model, path, reader), arrays)
    wanted = model(arrays[0] if len(arrays) == 1 else arrays)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("name", "reader"), CANNOT)
def test_what_a_format_lacks_is_an_error(name, reader, tmp_path):
    pytest.importorskip("tf2onnx")
    model, arrays, signature = functional([name])
    model(arrays)
    with tfattn.path("dense"), pytest.raises(Exception, match=CANNOT[name, reader]):
        run(written(model, tmp_path / f"model{SUFFIXES[reader]}", reader, signature), arrays)


ON_JAX = """
import keras, numpy as np, tfattn, tensorflow as tf
model = tfattn.CausalLM(11, num_layers=1, width=6, num_heads=2, hidden_dim=5)
model.build_for_any()
model.export("exported", verbose=False)
served = tf.saved_model.load("exported")
for shape in ((2, 3), (1, 300)):
    ids = np.random.default_rng(0).integers(1, 11, shape).astype("int32")
    np.testing.assert_allclose(served.serve(ids), model(ids), atol=1e-5)
print(keras.backend.backend())
"""


def test_a_saved_model_is_written_on_jax_for_any_shape(tmp_path):
    pytest.importorskip("jax")
    assert printed("-c", ON_JAX, folder=tmp_path, KERAS_BACKEND="jax").split()[-1] == "jax"


def test_every_class_of_the_table_is_exported():
    names = {*NAMES, *ALONE}
    assert {row.cls for row in ROWS} <= {row.cls for row in SAVED if row.name in names}
