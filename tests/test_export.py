"""Every public layer and model in ONNX and LiteRT files, which know nothing of this package.

`tests/conformance/test_saving.py` has `.keras`, `.weights.h5` and SavedModel. A file has several
layers, the outputs of one functional model, for lengths that are not known. LiteRT files have
nothing but builtin operations.
"""

import functools
import importlib.util
import re
import warnings
from collections.abc import Callable
from typing import NamedTuple

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfattn
from tests.conformance.table import ROWS, SAVED
from tests.helpers.processes import printed
from tfattn import masks

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:In the future `np.object`:FutureWarning"),  # Keras's
]

SUFFIXES = {"onnx": ".onnx", "litert": ".tflite"}
BUILTIN = {"target_spec": {"supported_ops": [tf.lite.OpsSet.TFLITE_BUILTINS]}}
SIZES = {"B": 3, "T": 11, "S": 17}  # others than those that the layers were built with
DRAW = np.random.default_rng(1)
IDS = DRAW.integers(0, 11, size=(3, 13)).astype("int32")


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


def row_of(name):
    return next(row for row in SAVED if row.name == name)


def of_row(name, known="") -> Part:
    """A row of the conformance table. `known` are the letters of sizes that LiteRT has to know."""
    row = row_of(name)
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


HEADS = tfattn.MultiHeadAttention
JOINED = masks.chunks(3) | ~masks.window(1) & (masks.prefix(2) | masks.causal() & masks.window(4))
# The parts of each file, by names of parts or of rows of the conformance table: every class of the
# table stands in one of them, or in a model of `OWN`. Converters take more than twice as long for
# twice as many layers.
FILES = {
    "scores": {
        "-inf as a bias": hidden_scores,
        "AdditiveAttention": None,
        "BilinearAttention": None,
        "Attention[cosine]": None,
        "Attention[soft cap]": None,
        "Attention[kernel]": None,
        "NadarayaWatson[epanechnikov]": None,  # of compact support: a query may see no key
        "AttentionPooling": None,
    },
    "heads": {
        "MultiHeadAttention[grouped]": None,
        "MultiHeadAttention[relative]": None,
        "MultiHeadAttention[sinks]": None,
        "MultiHeadAttention[sparsemax]": None,
        "MultiHeadAttention[top k]": None,
        "TransformerEncoderBlock[pre-norm]": None,  # the heads of an additive score have five axes
    },
    "masks": {
        # A transpose of one head is where ONNX's converter goes wrong.
        "one head": lambda: on_itself(HEADS(1, 5), use_causal_mask=True),
        "masks": lambda: on_itself(HEADS(3, 5), attention_mask=JOINED),
        "over images": over_images,
        "sliding window, gate": lambda: on_itself(HEADS(2, 5, sliding_window=3, use_gate=True)),
        "padded": padded,
        "causal, 2048 tokens": lambda: on_itself(HEADS(1, 5), length=2048, use_causal_mask=True),
    },
    "layers": {
        "LearnedPositionalEncoding": None,
        "PositionwiseFeedForward": None,
        "int8": quantized,
        # LiteRT has loops over time where the batch is known, as of Keras's own layers; and where
        # what the loop puts out is, which for a decoder has a weight for each token of the source.
        "BahdanauSeq2Seq": lambda: of_row("BahdanauSeq2Seq", "BS"),
    },
}
# Parts that one of the formats lacks, with a piece of its error: `docs/save-export-serve.md` says
# so too.
CANNOT = {
    # GELU as it is defined, which Keras writes with an operation that ONNX's converter lacks.
    ("PositionwiseFeedForward", "onnx"): "Erfc",
    # Keras's products of int8; LiteRT quantizes by itself.
    ("int8", "litert"): "BatchMatMulV3",
}


@functools.cache
def part(name) -> Part:
    keras.utils.set_random_seed(1)
    [make] = (parts[name] for parts in FILES.values() if name in parts)
    return make() if make else of_row(name)


@functools.cache
def functional(*names):
    """A functional model with these parts as its outputs, their arrays, its outputs of these, and
    its signature in a LiteRT file.
    """
    inputs, outputs, arrays, signature = [], [], [], []
    for name in names:
        each = part(name)
        symbols = [
            keras.Input(shape[1:], dtype=str(array.dtype), name=f"input_{len(inputs) + i}")
            for i, (shape, array) in enumerate(zip(each.shapes, each.arrays, strict=True))
        ]
        for symbol, shape in zip(symbols, each.known or each.shapes, strict=True):
            signature.append(keras.InputSpec(symbol.dtype, shape, name=symbol.name))
        inputs += symbols
        outputs.append(each.call(*symbols))
        arrays += each.arrays
    model = keras.Model(inputs, outputs)
    return model, arrays, keras.tree.map_structure(np.asarray, model(arrays)), [signature]


def written(model, path, reader, signature=None):
    """The path, with the model in it."""
    options = {"input_signature": signature, **(BUILTIN if reader == "litert" else {})}
    model.export(path, format=reader, verbose=False, **options)
    return path


def run(path, arrays):
    """What a file gives, by its own runtime."""
    if not path.suffix:
        served = tf.saved_model.load(path)  # holds the variables
        return keras.tree.flatten(served.serve(arrays if len(arrays) > 1 else arrays[0]))
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


def alone(row, known):
    """A plain model of a row, its arrays and signature; all sizes are known, or none."""
    layer, arrays = row.new(), row.arrays(seed=1, sizes=SIZES)
    symbols = row.symbols()
    specs = [
        keras.InputSpec(symbol.dtype, (array if known else symbol).shape, name=symbol.name)
        for array, symbol in zip(arrays, symbols, strict=True)
    ]
    model = keras.Model(symbols[0] if len(symbols) == 1 else symbols, row.call(layer, symbols))
    model(arrays if len(arrays) > 1 else arrays[0])
    return model, arrays, specs if len(specs) == 1 else [specs]


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


@pytest.mark.parametrize("file", FILES)
def test_export_of_layers_computes_the_same(file, reader, tmp_path):
    names = [name for name in FILES[file] if (name, reader) not in CANNOT]
    model, arrays, expected, signature = functional(*names)
    signature = signature if reader == "litert" else None
    path = written(model, tmp_path / f"layers{SUFFIXES[reader]}", reader, signature)
    for name, one, other in zip(names, run(path, arrays), expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5, err_msg=name)


def transformer():
    row = row_of("Transformer")
    return row.new(), row.arrays(seed=1, sizes=SIZES)


def language_model():
    """Of rotated heads, gated networks and other norms."""
    block = tfattn.TransformerEncoderBlock(
        attention=HEADS(2, 4, positions=tfattn.RotaryPositions()),
        feed_forward=tfattn.GatedFeedForward(7),
        norm=keras.layers.RMSNormalization(),
        norm_first=True,
    )
    positions = keras.layers.Identity()
    model = tfattn.CausalLM(11, num_layers=2, width=6, block=block, positions=positions)
    model.build_for_any()
    return model, [IDS]


OWN = (language_model, transformer)


@pytest.mark.parametrize("make", OWN)
def test_export_of_a_model_serves_any_lengths(make, reader, tmp_path):
    model, arrays = make()
    path = tmp_path / f"model{SUFFIXES[reader]}"
    [found] = run(written(model, path, reader), arrays)
    wanted = model(arrays[0] if len(arrays) == 1 else arrays)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("name", "reader"), CANNOT)
def test_export_of_what_a_format_lacks_is_an_error(name, reader, tmp_path):
    pytest.importorskip("tf2onnx")
    model, arrays, *_ = functional(name)
    with pytest.raises(Exception, match=CANNOT[name, reader]):
        run(written(model, tmp_path / f"model{SUFFIXES[reader]}", reader), arrays)


RECURRENT = r"Recurrent|Bahdanau"
# Rows that a format lacks, as expressions of names: `CANNOT` has the errors, and
# `docs/save-export-serve.md` the reasons.
LACKS = {
    ("onnx", False): r"^PositionwiseFeedForward$",
    ("onnx", True): r"^PositionwiseFeedForward$",
    ("litert", False): RECURRENT,
    ("litert", True): "^$",
    ("tf_saved_model", False): "^$",
    ("tf_saved_model", True): "^$",
}


@pytest.mark.nightly
@pytest.mark.parametrize(("format", "known"), LACKS)
def test_export_of_each_row_alone_computes_the_same(format, known, tmp_path):
    pytest.importorskip("tf2onnx")
    differences = {}
    for index, row in enumerate(ROWS):
        model, arrays, signature = alone(row, known)
        expected = np.asarray(model(arrays if len(arrays) > 1 else arrays[0]))
        path = tmp_path / f"{index}{SUFFIXES.get(format, '')}"
        try:
            [found] = run(written(model, path, format, signature), arrays)
            differences[row.name] = np.max(np.abs(found - expected))
        except Exception as error:
            differences[row.name] = f"{type(error).__name__}: {str(error)[:200]}"
        print(format, "known" if known else "unknown", row.name, differences[row.name], sep=" | ")
    wrong = {name for name, each in differences.items() if not isinstance(each, float | np.number)}
    wrong |= {name for name in differences.keys() - wrong if not differences[name] < 2e-5}
    assert wrong == {name for name in differences if re.search(LACKS[format, known], name)}


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


@pytest.mark.nightly
def test_export_on_jax_serves_any_shape(tmp_path):
    pytest.importorskip("jax")
    assert printed("-c", ON_JAX, folder=tmp_path, KERAS_BACKEND="jax").split()[-1] == "jax"


def test_export_covers_every_class_of_the_table():
    models = [make()[0] for make in OWN] + [functional(*names)[0] for names in FILES.values()]
    exported = {type(layer) for model in models for layer in model._flatten_layers()}
    assert {row.cls for row in ROWS} <= exported
