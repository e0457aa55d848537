"""Saved layers and models are restored in a fresh process without custom_objects: `.keras`,
`.weights.h5`, `export`.

Rows are outputs of a few models, which `fresh_process` loads all in one process.
"""

import contextlib
import json

import keras
import numpy as np
import pytest

import tfattn
from tests.conformance.fresh_process import FORMATS
from tests.conformance.table import (
    INSIDE,
    OF_A_CLASS,
    SAVED,
    Tokens,
    row_of,
)
from tests.helpers import paths
from tests.helpers.processes import printed
from tests.helpers.tensors import BACKEND, numpy

pytestmark = [
    # Keras 3.15 reads variables of every saved model in a way deprecated in NumPy 2.4.
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*does not have a `quantize` method"),
]

# Graphs with both paths: a layer alone, a layer with a mask object.
BOTH_PATHS = ["MultiHeadAttention", "Attention[dot] under causal & window"]
EXPORTED = [row for row in OF_A_CLASS if row.name not in (*INSIDE, *BOTH_PATHS)]
# What is not exported, and rows with weights, parts or options that no class's first row has.
OTHERS = [
    *(row for row in OF_A_CLASS if row not in EXPORTED and row.name not in BOTH_PATHS),
    *(row for row in SAVED if " under " in row.name and row.name not in BOTH_PATHS),
    *map(
        row_of,
        (
            "Attention[learned cosine]",
            "Attention[soft cap]",
            "Attention[sink]",
            "MultiHeadAttention[additive]",
            "MultiHeadAttention[kernel]",
            "MultiHeadAttention[rotary]",
            "MultiHeadAttention[alibi]",
            "MultiHeadAttention[sinks]",
            "MultiHeadAttention[top k]",
            "MultiHeadAttention[relative]",
            "AttentionPooling[heads]",
            "AddNorm[RMS]",
            "TransformerEncoderBlock[parts]",
            "TransformerDecoderBlock[without memory]",
            "TransformerEncoder[learned]",
            "Transformer[shared]",
            "CausalLM[not tied]",
            "RecurrentEncoder[bidirectional]",
            "RecurrentDecoder[bilinear]",
            "BahdanauSeq2Seq[shared]",
        ),
    ),
    # Every argument that comes from Keras's layer.
    row_of("MultiHeadAttention")._replace(
        name="MultiHeadAttention as in Keras",
        make=lambda **options: tfattn.MultiHeadAttention(
            2,
            5,
            value_dim=3,
            sliding_window=3,
            use_gate=True,
            flash_attention=True,
            attention_axes=(1,),
            output_shape=(3, 5),
            activity_regularizer="l2",
            **options,
        ),
        inputs=(Tokens("S", 11), Tokens("S", 11), Tokens("S", 11)),
    ),
]


def traced(group):
    """A context for graphs of the group: of the path that runs, or of both."""
    return contextlib.nullcontext() if group == "both paths" else paths.dense()


def of_rows(rows, seed):
    """(a functional model with each row's output, its inputs)."""
    symbols, outputs, arrays = [], [], []
    for row in rows:
        layer = row.new(seed)
        inputs = [
            keras.Input(tokens.shape({}), dtype=tokens.dtype, name=f"input_{len(symbols) + i:03}")
            for i, tokens in enumerate(row.inputs)
        ]
        outputs.append(row.call(layer, inputs))
        symbols += inputs
        arrays += row.arrays(seed=1)
    return keras.Model(symbols, outputs), arrays


class Rows(keras.Model):
    """Layers whose weights are in one file, without a graph."""

    def __init__(self, rows, seed):
        super().__init__()
        self.rows, self.all_layers = rows, [row.new(seed) for row in rows]

    def call(self, inputs):
        arrays = iter(inputs)
        return [
            row.call(layer, [next(arrays) for _ in row.inputs])
            for row, layer in zip(self.rows, self.all_layers, strict=True)
        ]

    def build(self, input_shape):
        """All layers are built already."""


def weights_of_rows(rows, seed):
    return Rows(rows, seed), [x for row in rows for x in row.arrays(seed=1)]


def quantized(seed):
    """Heads in int8; `layers/test_projection` has the other forms in this process."""
    keras.utils.set_random_seed(seed)
    x = keras.Input((None, 11))
    layer = tfattn.MultiHeadAttention(5, 7, use_gate=True)
    model = keras.Model(x, keras.layers.Dense(3)(layer(x, x)))
    model.quantize("int8")
    return model, row_of("MultiHeadAttention").arrays(seed=1)[:1]


@keras.saving.register_keras_serializable("test_saving")
class Scaled(keras.layers.Layer):
    """A user's part with a weight and a part of its own."""

    def __init__(self, inner, **options):
        super().__init__(**options)
        self.inner = inner

    def build(self, shape):
        self.scale = self.add_weight(shape=(), name="scale")
        self.inner.build(shape)

    def call(self, x):
        return self.scale * self.inner(x)

    def get_config(self):
        return {**super().get_config(), "inner": keras.saving.serialize_keras_object(self.inner)}

    @classmethod
    def from_config(cls, config):
        return cls(**{**config, "inner": keras.saving.deserialize_keras_object(config["inner"])})


SCORES = {
    "cosine": lambda: tfattn.CosineScore(trainable=True),
    "additive": lambda: tfattn.AdditiveScore(3),
    "kernel": lambda: tfattn.KernelScore(),
}


def of_six_layers(seed):
    """Stacks of blocks whose parts all have weights; `models/test_own_parts` has other scores."""
    ids = keras.Input((None,), dtype="int32")
    outputs = []
    for score in SCORES.values():
        positions = tfattn.RelativePositionBias(8, 12)
        parts = {"positions": positions, "normalizer": tfattn.AttentionSinks()}
        block = tfattn.TransformerEncoderBlock(
            attention=tfattn.MultiHeadAttention(2, 4, score=score(), **parts),
            feed_forward=Scaled(keras.Sequential([keras.layers.Dense(7), keras.layers.Dense(8)])),
        )
        stack = tfattn.TransformerEncoder(
            20, num_layers=6, width=8, block=block, positions=keras.layers.Identity()
        )
        outputs.append(stack(ids))
    model = keras.Model(ids, outputs)
    rng = np.random.default_rng(seed)
    model.set_weights([rng.normal(size=weight.shape) for weight in model.weights])
    return model, [np.array([[2, 4, 5, 6]])]


GROUPS = {
    "classes": lambda seed=0: of_rows(EXPORTED, seed),
    "both paths": lambda seed=0: of_rows(list(map(row_of, BOTH_PATHS)), seed),
    "others": lambda seed=0: of_rows(OTHERS, seed),
    "weights": lambda seed=0: weights_of_rows(OF_A_CLASS, seed),
    "quantized": lambda seed=0: quantized(seed),
    "six layers": lambda seed=0: of_six_layers(seed),
}
NAMES = {
    "classes": [row.name for row in EXPORTED],
    "both paths": BOTH_PATHS,
    "others": [row.name for row in OTHERS],
    "weights": [row.name for row in OF_A_CLASS],
    "quantized": ["MultiHeadAttention in int8"],
    "six layers": [f"TransformerEncoder of {name} scores" for name in SCORES],
}
FILES = {
    "classes": ["keras", "export"],
    "both paths": ["keras", "export"],
    "others": ["keras"],
    "weights": ["weights"],
    "quantized": ["keras"],
    "six layers": ["keras", "again"],  # Keras's addresses of parts depend on earlier loads
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Outputs of each model before saving and in a new process, and the errors there."""
    root = tmp_path_factory.mktemp("saved")
    expected = {}
    for name, group in GROUPS.items():
        folder = root / name
        folder.mkdir()
        with traced(name):
            model, inputs = group()
            np.savez(folder / "inputs.npz", *inputs)
            tensors = [keras.ops.convert_to_tensor(x) for x in inputs]
            tensors = tensors[0] if len(tensors) == 1 else tensors
            expected[name] = [numpy(x) for x in keras.tree.flatten(model(tensors))]
            if "keras" in FILES[name]:
                model.save(folder / "model.keras")
            if "again" in FILES[name]:
                model.save(folder / "again.keras")
            if "weights" in FILES[name]:
                model.save_weights(folder / "model.weights.h5")
            if "export" in FILES[name] and BACKEND == "tensorflow":
                model.export(folder / "export", verbose=False)
    printed("-m", "tests.conformance.fresh_process", root, warm=True)
    with np.load(root / "outputs.npz") as outputs:
        return expected, dict(outputs), json.loads((root / "errors.json").read_text())


@pytest.mark.slow
@pytest.mark.parametrize(
    "group, file",
    [
        pytest.param(
            group,
            file,
            id=f"{group}-{file}",
            marks=[pytest.mark.tensorflow] if file == "export" else [],
        )
        for group, files in FILES.items()
        for file in files
    ],
)
def test_model_loaded_in_a_fresh_process_computes_the_same_bits(group, file, saved):
    assert file in FORMATS
    expected, outputs, errors = saved
    assert f"{group}/{file}" not in errors, errors[f"{group}/{file}"]
    for i, (row, eager) in enumerate(zip(NAMES[group], expected[group], strict=True)):
        output = outputs[f"{group}/{file}/{i}"]
        assert output.dtype == eager.dtype, row
        if file == "export":  # a graph, whose optimizer fuses operations
            np.testing.assert_allclose(output, eager, rtol=1e-5, atol=1e-5, err_msg=row)
        else:
            np.testing.assert_array_equal(output, eager, err_msg=row)


@pytest.mark.nightly
def test_model_of_every_row_in_a_file_computes_the_same_bits(tmp_path):
    model, inputs = of_rows(SAVED, seed=0)
    inputs = [keras.ops.convert_to_tensor(x) for x in inputs]
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    outputs = [keras.tree.flatten(each(inputs)) for each in (model, loaded)]
    for row, eager, found in zip(SAVED, *outputs, strict=True):
        np.testing.assert_array_equal(numpy(found), numpy(eager), err_msg=row.name)


def test_saving_covers_every_class_in_every_format():
    classes = {row.cls for row in OF_A_CLASS}
    for file in ("keras", "weights"):
        saved = {name for group, files in FILES.items() if file in files for name in NAMES[group]}
        assert {row.cls for row in SAVED if row.name in saved} >= classes
