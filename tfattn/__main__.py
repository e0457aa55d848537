"""`python -m tfattn`: the commands of the package, and the versions for a report."""

import importlib.metadata
import platform

import keras

import tfattn

COMMANDS = """\
python -m tfattn.translator   train a translator, score it, translate, export it (--help)
python -m tfattn.exercises    exercises that check themselves (--help)
"""
# What the package installs, then the backends, then what its extras install for users.
PACKAGES = """
    keras numpy scipy filelock threadpoolctl tensorflow jax torch
    matplotlib sacrebleu sacremoses sentencepiece ai-edge-litert onnx onnxruntime tf2onnx
    ctranslate2 safetensors scikit-learn keras-hub
""".split()


def versions() -> list[str]:
    """One line for each package, Python and the platform first."""
    lines = [
        f"tfattn {tfattn.__version__}",
        f"Python {platform.python_version()} on {platform.platform()}",
        f"backend {keras.backend.backend()}, floats {keras.config.floatx()}, "
        f"policy {keras.config.dtype_policy().name}",
    ]
    for name in PACKAGES:
        try:
            lines.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            lines.append(f"{name} is not installed")
    return lines


def main() -> None:
    """Prints both."""
    print(tfattn.__doc__.partition("\n")[0], COMMANDS, sep="\n\n")
    print("For a report:\n", *versions(), sep="\n")


if __name__ == "__main__":
    main()
