"""Saved layers and models are restored in a fresh process without custom_objects: `.keras`,
`.weights.h5`, `export`.

The rows are outputs of two models, to save time: the first has one row per class and the mask
objects, and is exported too. `fresh_process` loads the files.
"""

import contextlib
import json

import keras
import numpy as np
import pytest

from tests.conformance.fresh_process import FORMATS
from tests.conformance.table import ALL, ROWS, SAVED, Regressor, first_of_each_class
from tests.helpers import paths
from tests.helpers.processes import printed
from tests.helpers.tensors import BACKEND, numpy

# Keras 3.15 reads variables of every saved model in a way deprecated in NumPy 2.4.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

OF_A_CLASS = [row for row in ROWS if row in first_of_each_class()]
OF_A_CLASS += [row for row in SAVED if row not in ALL]
# Graphs with both paths: a layer alone, and a layer with a mask object.
BOTH_PATHS = {"MultiHeadAttention", "Attention[dot] under causal & window"}
OTHERS = [row for row in ROWS if row not in OF_A_CLASS]


def of_rows(rows, seed):
    """(a functional model with each row's output, its inputs)."""
    symbols, outputs, arrays = [], [], []
    for row in rows:
        layer = row.new(seed)
        inputs = [
            keras.Input(tokens.shape({}), dtype=tokens.dtype, name=f"input_{len(symbols) + i:03}")
            for i, tokens in enumerate(row.inputs)
        ]
        with contextlib.nullcontext() if row.name in BOTH_PATHS else paths.dense():
            outputs.append(row.call(layer, inputs))
        symbols += inputs
        arrays += row.arrays(seed=1)
    return keras.Model(symbols, outputs), arrays


def regressor(seed):
    return Regressor.fitted(seed), [Regressor.points()]


GROUPS = {
    "classes": lambda seed=0: of_rows(OF_A_CLASS, seed),
    "others": lambda seed=0: of_rows(OTHERS, seed),
    "regressor": lambda seed=0: regressor(seed),
}
NAMES = {
    "classes": [row.name for row in OF_A_CLASS],
    "others": [row.name for row in OTHERS],
    "regressor": [Regressor.name],
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Outputs of each model before saving and in a new process, and the errors there."""
    root = tmp_path_factory.mktemp("saved")
    expected = {}
    for name, group in GROUPS.items():
        folder = root / name
        folder.mkdir()
        model, inputs = group()
        np.savez(folder / "inputs.npz", *inputs)
        tensors = [keras.ops.convert_to_tensor(x) for x in inputs]
        tensors = tensors[0] if len(tensors) == 1 else tensors
        expected[name] = [numpy(x) for x in keras.tree.flatten(model(tensors))]
        model.save(folder / "model.keras")
        if name != "others":
            model.save_weights(folder / "model.weights.h5")
            if BACKEND == "tensorflow":
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
        for group in GROUPS
        for file in FORMATS
        if group != "others" or file == "keras"
    ],
)
def test_fresh_process_computes_the_same_bits(group, file, saved):
    expected, outputs, errors = saved
    assert f"{group}/{file}" not in errors, errors[f"{group}/{file}"]
    for i, (row, eager) in enumerate(zip(NAMES[group], expected[group], strict=True)):
        output = outputs[f"{group}/{file}/{i}"]
        assert output.dtype == eager.dtype, row
        if file == "export":  # a graph, whose optimizer fuses operations
            np.testing.assert_allclose(output, eager, rtol=1e-5, atol=1e-5, err_msg=row)
        else:
            np.testing.assert_array_equal(output, eager, err_msg=row)
