"""Program of the saving tests for a new process: loads all models in a folder, writes outputs.

python -m tests.conformance.fresh_process FOLDER
"""

import functools
import json
import pathlib
import sys

import keras
import numpy as np

import tfattn  # noqa: F401  (what a user imports before loading; no custom_objects are given anywhere)


def from_keras_file(folder, inputs, name="model.keras"):
    return keras.models.load_model(folder / name)(inputs)


def from_weights(folder, inputs):
    from tests.conformance.test_saving import GROUPS

    model = GROUPS[folder.name](seed=5)[0]  # other weights than the saved ones
    model(inputs)  # which marks it as built
    model.load_weights(folder / "model.weights.h5")
    return model(inputs)


def from_export(folder, inputs):
    import tensorflow as tf

    loaded = tf.saved_model.load(str(folder / "export"))  # holds the variables
    return loaded.serve(inputs)


FORMATS = {
    "keras": ("model.keras", from_keras_file),
    "again": ("again.keras", functools.partial(from_keras_file, name="again.keras")),
    "weights": ("model.weights.h5", from_weights),
    "export": ("export", from_export),
}


def main(root):
    from tests.conformance.test_saving import traced

    outputs, errors = {}, {}
    for folder in sorted(path.parent for path in root.glob("*/inputs.npz")):
        with np.load(folder / "inputs.npz") as saved:
            inputs = [keras.ops.convert_to_tensor(x) for x in saved.values()]
        inputs = inputs[0] if len(inputs) == 1 else inputs
        for name, (file, load) in FORMATS.items():
            if not (folder / file).exists():
                continue
            try:
                with traced(folder.name):
                    results = load(folder, inputs)
            except Exception as error:  # so that the other formats are tested too
                errors[f"{folder.name}/{name}"] = f"{type(error).__name__}: {error}"
                continue
            for i, result in enumerate(keras.tree.flatten(results)):
                outputs[f"{folder.name}/{name}/{i}"] = np.asarray(
                    keras.ops.convert_to_numpy(result)
                )
    np.savez(root / "outputs.npz", **outputs)
    (root / "errors.json").write_text(json.dumps(errors))


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
