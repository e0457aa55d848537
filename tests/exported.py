"""What `tests/test_export.py` runs in a new process: computes with every ONNX and LiteRT file of a
folder, without this package and without Keras, and writes down what comes out.

python -m tests.exported FOLDER
"""

import importlib.util
import json
import pathlib
import sys
import warnings

import numpy as np


def onnx(path, inputs):
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return session.run(None, inputs)


def litert(path, inputs):
    runner = _interpreter()(str(path)).get_signature_runner("serving_default")
    return list(runner(**inputs).values())


def _interpreter():
    if importlib.util.find_spec("ai_edge_litert"):
        from ai_edge_litert.interpreter import Interpreter

        return Interpreter
    import tensorflow as tf  # its own copy, which is to go

    warnings.simplefilter("ignore", UserWarning)
    return tf.lite.Interpreter


READERS = {"onnx": onnx, "litert": litert}
SUFFIXES = {"onnx": ".onnx", "litert": ".tflite"}


def main(root):
    outputs, errors = {}, {}
    for folder in sorted(path for path in root.iterdir() if path.is_dir()):
        with np.load(folder / "inputs.npz") as saved:
            inputs = dict(saved)
        for reader, read in READERS.items():
            path = folder / f"model{SUFFIXES[reader]}"
            if not path.exists():
                continue
            key = f"{folder.name}/{reader}"
            try:
                [outputs[key]] = read(path, inputs)
            except Exception as error:  # reported by that file's test
                errors[key] = f"{type(error).__name__}: {error}"
    assert "tfattn" not in sys.modules and "keras" not in sys.modules
    np.savez(root / "outputs.npz", **outputs)
    (root / "errors.json").write_text(json.dumps(errors))


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
