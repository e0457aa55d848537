"""What the saving tests run in a new process: loads everything in a folder, and writes down what
comes out.

python -m tests.conformance.fresh_process FOLDER
"""

import json
import pathlib
import sys

import keras
import numpy as np

import tfattn  # noqa: F401  (what a user imports before loading; no custom_objects are given anywhere)


def from_keras_file(folder, inputs):
    return keras.models.load_model(folder / "model.keras")(inputs)


def from_weights(folder, inputs):
    from tests.conformance.paths import paths_of
    from tests.conformance.table import SAVED, Regressor

    row = SAVED[int(folder.name)]
    if row is Regressor:
        model = row.fitted(seed=5)
    else:
        keras.utils.set_random_seed(5)  # other weights than the saved ones
        with paths_of(row):
            model = row.model(row.make())
    model.load_weights(folder / "model.weights.h5")
    return model(inputs)


def from_export(folder, inputs):
    import tensorflow as tf

    loaded = tf.saved_model.load(str(folder / "export"))  # its variables live as long as it does
    return loaded.serve(inputs)


def numpy(tensor):
    return tensor if isinstance(tensor, np.ndarray) else keras.ops.convert_to_numpy(tensor)


ROADS = {"keras": from_keras_file, "weights": from_weights, "export": from_export}
SAVED_AS = {"keras": "model.keras", "weights": "model.weights.h5", "export": "export"}


def main(root):
    outputs, errors = {}, {}
    for folder in sorted(path.parent for path in root.glob("*/inputs.npz")):
        with np.load(folder / "inputs.npz") as saved:
            inputs = [keras.ops.convert_to_tensor(saved[name]) for name in saved.files]
        inputs = inputs[0] if len(inputs) == 1 else inputs
        for road, load in ROADS.items():
            if not (folder / SAVED_AS[road]).exists():
                continue
            try:
                outputs[f"{folder.name}/{road}"] = numpy(load(folder, inputs))
            except Exception as error:  # one row's failure is reported by that row's test
                errors[f"{folder.name}/{road}"] = f"{type(error).__name__}: {error}"
    np.savez(root / "outputs.npz", **outputs)
    (root / "errors.json").write_text(json.dumps(errors))


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
