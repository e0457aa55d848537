"""Every public layer and model as an ONNX and as a LiteRT file, computed without this package.

`tests/conformance/test_saving.py` has `.keras`, `.weights.h5` and SavedModel. Files are written
here, for lengths that are not known, and read by one new process, see `tests.exported`. LiteRT
files have nothing but builtin operations.
"""

import contextlib
import importlib.util
import json
import pathlib
from collections.abc import Callable
from typing import NamedTuple

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfattn
from tests.conformance.table import ROWS, SAVED, Regressor, first_of_each_class
from tests.exported import SUFFIXES
from tests.processes import printed
from tfattn import masks, scalings

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:In the future `np.object`:FutureWarning"),  # Keras's
]

HERE = {
    "onnx": all(map(importlib.util.find_spec, ("onnxruntime", "tf2onnx"))),
    "litert": True,  # TensorFlow writes it, and reads it where nothing better is installed
}
BUILTIN = {"target_spec": {"supported_ops": [tf.lite.OpsSet.TFLITE_BUILTINS]}}
SIZES = {"B": 3, "T": 11, "S": 17}  # others than those that the layers were built with


class File(NamedTuple):
    """A model to export: its arrays by the names of its inputs, and what it is exported with."""

    model: keras.Model
    inputs: dict
    scope: contextlib.AbstractContextManager = contextlib.nullcontext()
    signature: list | None = None  # of a LiteRT file


def of_row(name, known="") -> Callable[[], File]:
    """A row of the conformance table: a layer in a functional model and a scope; a model alone.

    `known` are the letters of the sizes that a LiteRT file is made for; it takes any others.
    """

    def file():
        row = next(row for row in SAVED if row.name == name)
        if row is Regressor:
            return File(row.fitted(), {"args_0": row.points()})
        layer, arrays = row.new(), row.arrays(seed=1, sizes=SIZES)
        sizes = {letter: SIZES[letter] for letter in known}
        model, scope = layer, contextlib.nullcontext()
        symbols, narrow = row.symbols(), row.symbols(sizes, batch=sizes.get("B"))
        names = [x.name for x in symbols]
        if row.kind == "model":
            names = ["source", "target_in"] if row.pair else ["ids"]
        else:
            scope = tfattn.path("dense")
            model = keras.Model(symbols if len(names) > 1 else symbols[0], row.call(layer, symbols))
        specs = [
            keras.InputSpec(x.dtype, x.shape, name=n) for x, n in zip(narrow, names, strict=True)
        ]
        several = tuple(specs) if row.kind == "model" else specs
        signature = [several if len(specs) > 1 else specs[0]] if known else None
        return File(model, dict(zip(names, arrays, strict=True)), scope, signature)

    return file


def around(*layers, length=None, **options):
    """A functional model that calls an attention layer on itself, as everyone writes it."""

    def file():
        keras.utils.set_random_seed(1)
        tokens = keras.Input((length, 10), name="tokens")
        x = tokens
        for layer in layers:
            x = layer(x, x, **options)
        array = np.random.default_rng(1).normal(size=(1, length or 19, 10)).astype("float32")
        return File(keras.Model(tokens, x), {"tokens": array}, tfattn.path("dense"))

    return file


def over_images():
    """Attention over the two axes of an image, of unknown sizes."""
    image = keras.Input((None, None, 6), name="image")
    x = tfattn.MultiHeadAttention(2, 3, attention_axes=(1, 2))(image, image)
    array = np.random.default_rng(1).normal(size=(2, 3, 5, 6)).astype("float32")
    return File(keras.Model(image, x), {"image": array}, tfattn.path("dense"))


def padded():
    """Ids with padding, whose mask Keras carries into the attention."""
    ids = keras.Input((None,), dtype="int32", name="ids")
    x = keras.layers.Embedding(11, 6, mask_zero=True)(ids)
    x = tfattn.MultiHeadAttention(2, 3)(x, x, use_causal_mask=True)
    array = np.array([[3, 5, 7, 0, 0], [2, 4, 6, 8, 10]], "int32")
    return File(keras.Model(ids, x), {"ids": array}, tfattn.path("dense"))


def hidden_scores():
    """A bias of −inf, which is a mask."""
    tokens, bias = keras.Input((None, 5), name="tokens"), keras.Input((None, None), name="bias")
    x = tfattn.DotProductAttention()(tokens, tokens, bias=bias)
    draw = np.random.default_rng(2)
    arrays = {
        "tokens": draw.normal(size=(2, 7, 5)).astype("float32"),
        "bias": np.where(draw.random((2, 7, 7)) < 0.4, -np.inf, 0.0).astype("float32"),
    }
    return File(keras.Model([tokens, bias], x), arrays, tfattn.path("dense"))


def rotating(scaling=None):
    """A language model whose heads are rotated, of unknown length."""

    def file():
        keras.utils.set_random_seed(1)
        positions = tfattn.RotaryPositions(scaling=scaling)
        attention = tfattn.MultiHeadAttention(2, 4, positions=positions)
        block = tfattn.TransformerEncoderBlock(attention=attention, hidden_dim=7)
        sizes = {"num_layers": 2, "width": 6}
        model = tfattn.CausalLM(11, block=block, positions=keras.layers.Identity(), **sizes)
        model.build_for_any()
        ids = np.random.default_rng(1).integers(0, 11, size=(3, 13)).astype("int32")
        return File(model, {"ids": ids})

    return file


def quantised():
    """Dense parts in int8; ids in, so that nothing is rounded at the door."""
    ids = keras.Input((None,), dtype="int32", name="ids")
    x = keras.layers.Embedding(11, 6)(ids)
    forward = tfattn.PositionwiseFeedForward(7)
    model = keras.Model(ids, tfattn.DotProductAttention()(forward(x), x))
    for layer in (forward.inner, forward.outer):
        layer.quantize("int8")
    array = np.array([[3, 5, 7, 1], [2, 4, 6, 8]], "int32")
    return File(model, {"ids": array}, tfattn.path("dense"))


# LiteRT has loops over time where the batch is known, as of Keras's own layers; and where what the
# loop puts out is, which for a decoder has a weight for each token of the source.
KNOWN = {"RecurrentEncoder": "B", "RecurrentDecoder": "BS", "BahdanauSeq2Seq": "BS"}
NAMES = [row.name for row in first_of_each_class()] + [
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
FILES = {
    **{name: of_row(name, KNOWN.get(name, "")) for name in NAMES},
    "causal": around(tfattn.MultiHeadAttention(2, 5), use_causal_mask=True),
    # A transpose of one head is where ONNX's converter goes wrong.
    "one head": around(tfattn.MultiHeadAttention(1, 5), use_causal_mask=True),
    "one head of keys": around(tfattn.MultiHeadAttention(2, 5, num_key_value_heads=1)),
    "masks": around(
        tfattn.MultiHeadAttention(3, 5),
        attention_mask=masks.per_head(
            [
                masks.chunks(3) | masks.chunk_ends(3),
                masks.strided(2) & ~masks.window(1),
                masks.prefix(2) | masks.causal() & masks.window(4),
            ]
        ),
    ),
    "over images": over_images,
    "rotary model": rotating(),
    "rotary model, yarn": rotating(scalings.yarn(3.0, 5)),
    "rotary model, dynamic": rotating(scalings.dynamic(2.0, 5)),
    "sliding window": around(tfattn.MultiHeadAttention(2, 5, sliding_window=3)),
    "padded": padded,
    "causal, 2048 tokens": around(
        tfattn.MultiHeadAttention(1, 5), length=2048, use_causal_mask=True
    ),
    "-inf as a bias": hidden_scores,
    "int8": quantised,
}
# What a format cannot carry, with a piece of its error: `docs/save-export-serve.md` says so too.
CANNOT = {
    # GELU as it is defined, which Keras writes with an operation that ONNX's converter lacks.
    ("PositionwiseFeedForward", "onnx"): "Erfc",
    ("NadarayaWatsonRegressor", "litert"): "float64",
    # Keras's products of int8; LiteRT quantises by itself.
    ("int8", "litert"): "BatchMatMulV3",
}
CASES = [(name, reader) for name in FILES for reader in SUFFIXES]


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """By name: what each model gives here; by name and format: what its file gives in a new
    process, or the error on the way.
    """
    root, expected, found = tmp_path_factory.mktemp("exported"), {}, {}
    for number, (name, make) in enumerate(FILES.items()):
        folder = root / f"{number:02}"
        folder.mkdir()
        file = make()
        np.savez(folder / "inputs.npz", **file.inputs)
        arrays = list(file.inputs.values())
        expected[name] = np.asarray(file.model(arrays[0] if len(arrays) == 1 else arrays))
        for reader, suffix in SUFFIXES.items():
            litert = reader == "litert"
            try:
                with file.scope:
                    file.model.export(
                        folder / f"model{suffix}",
                        format=reader,
                        verbose=False,
                        **({**BUILTIN, "input_signature": file.signature} if litert else {}),
                    )
            except Exception as error:  # reported by that file's test
                found[name, reader] = f"{type(error).__name__}: {error}"
    printed("-m", "tests.exported", root, folder=pathlib.Path(__file__).parents[1])
    with np.load(root / "outputs.npz") as outputs:
        here = {**json.loads((root / "errors.json").read_text()), **outputs}
    for number, name in enumerate(FILES):
        for reader in SUFFIXES:
            found.setdefault((name, reader), here.get(f"{number:02}/{reader}"))
    return expected, found


@pytest.mark.parametrize(("name", "reader"), CASES, ids=map(" ".join, CASES))
def test_a_file_gives_what_the_model_gives(name, reader, exported):
    if not HERE[reader]:
        pytest.importorskip("onnxruntime")
        pytest.importorskip("tf2onnx")
    expected, found = exported
    if (name, reader) in CANNOT:
        assert CANNOT[name, reader] in str(found[name, reader])
        return
    assert not isinstance(found[name, reader], str), found[name, reader]
    np.testing.assert_allclose(found[name, reader], expected[name], rtol=1e-5, atol=1e-5)


def test_every_class_of_the_table_is_exported():
    names = {row.name for row in SAVED if row.name in FILES}
    assert {row.cls for row in ROWS} <= {row.cls for row in SAVED if row.name in names}
