"""Every layer and model survives `.keras`, `.weights.h5` and `export`, in a fresh process with no
custom_objects.

Everything is saved into one folder and loaded by one new process, see `fresh_process`.
"""

import json
import pathlib
import subprocess
import sys

import keras
import numpy as np
import pytest

from tests.conformance.fresh_process import ROADS
from tests.conformance.paths import paths_of
from tests.conformance.table import ALL, SAVED, Regressor, first_of_each_class
from tests.tensors import BACKEND, numpy, tf

# Keras 3.15 reads its own variables in a way that NumPy 2.4 is leaving behind; every saved model
# does.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

EXPORTED = {row.name for row in first_of_each_class()} | {
    row.name for row in SAVED if row not in ALL
}
CASES = [
    pytest.param(
        number,
        road,
        id=f"{row.name}-{road}",
        marks=[pytest.mark.tensorflow] if road == "export" else [],
    )
    for number, row in enumerate(SAVED)
    for road in ROADS
    if road != "export" or row.name in EXPORTED
]


def _save(row, folder):
    """Saves the row's model in all ways; what it computes now, and the errors on the way."""
    folder.mkdir()
    if row is Regressor:
        model, inputs = row.fitted(), [row.points()]
    else:
        model, inputs = row.model(row.new()), row.arrays(seed=1)
    np.savez(folder / "inputs.npz", *inputs)
    tensors = [keras.ops.convert_to_tensor(x) for x in inputs]
    tensors = tensors[0] if len(tensors) == 1 else tensors
    expected = {"eager": numpy(model(tensors))}
    model.save(folder / "model.keras")
    model.save_weights(folder / "model.weights.h5")
    if row.name in EXPORTED and BACKEND == "tensorflow":
        expected["graph"] = _graph(row, model, tensors)
        model.export(folder / "export", verbose=False)
    return expected


def _graph(row, model, tensors):
    """The model as a graph of unknown lengths, which is what an export holds: its optimiser fuses
    operations.
    """
    if row is Regressor:
        return numpy(model(tensors))
    specs = [tf.TensorSpec(symbol.shape, symbol.dtype) for symbol in model.inputs]
    return numpy(tf.function(model, input_signature=specs if len(specs) == 1 else [specs])(tensors))


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """What each case gave before it was saved, what it gives in a new process, and the errors on
    the way.
    """
    root = tmp_path_factory.mktemp("saved")
    expected, errors = {}, {}
    for number, row in enumerate(SAVED):
        try:
            with paths_of(row):
                expected[number] = _save(row, root / f"{number:02}")
        except Exception as error:  # one row's failure is reported by that row's tests
            errors[number] = error
    home = pathlib.Path(__file__).parents[2]
    subprocess.run(
        [sys.executable, "-m", "tests.conformance.fresh_process", str(root)], cwd=home, check=True
    )
    with np.load(root / "outputs.npz") as outputs:
        return expected, dict(outputs), errors, json.loads((root / "errors.json").read_text())


@pytest.mark.slow
@pytest.mark.parametrize(("number", "road"), CASES)
def test_fresh_process_computes_the_same_bits(number, road, saved):
    expected, outputs, errors, load_errors = saved
    if number in errors:
        raise errors[number]
    key = f"{number:02}/{road}"
    assert key not in load_errors, load_errors[key]
    eager = expected[number]["eager"]
    wanted = expected[number]["graph"] if road == "export" else eager
    assert outputs[key].dtype == wanted.dtype
    np.testing.assert_array_equal(outputs[key], wanted)
    np.testing.assert_allclose(outputs[key], eager, rtol=1e-5, atol=1e-5)
