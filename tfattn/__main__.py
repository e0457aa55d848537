"""`python -m tfattn`: the commands of the package, and the versions for a report."""

import argparse
import contextlib
import importlib.metadata
import platform
from collections.abc import Sequence

import keras

import tfattn

COMMANDS = """\
python -m tfattn.translator   train a translator, score it, translate, export it (--help)
python -m tfattn.examples     train the example of tfattn.load_example again (--help)
"""
# The backends, and what the package and its extras install.
PACKAGES = """
keras numpy tensorflow jax torch filelock scipy threadpoolctl matplotlib sacrebleu sacremoses
sentencepiece ai-edge-litert onnx onnxruntime tf2onnx ctranslate2 safetensors scikit-learn
keras-hub statsmodels transformers
"""


def versions() -> list[str]:
    """One line for each installed package, Python and the platform first."""
    lines = [
        f"tfattn {tfattn.__version__}",
        f"Python {platform.python_version()} on {platform.platform()}",
        f"backend {keras.backend.backend()}, floats {keras.config.floatx()}, "
        f"policy {keras.config.dtype_policy().name}",
    ]
    for name in PACKAGES.split():
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            lines.append(f"{name} {importlib.metadata.version(name)}")
    return lines


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints the commands and the versions; `arguments` defaults to `sys.argv[1:]`."""
    about = tfattn.__doc__.partition("\n")[0]
    parser = argparse.ArgumentParser(
        prog="python -m tfattn",
        description=f"{about} Without an argument: prints the commands, and the versions.",
        epilog=COMMANDS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.parse_args(arguments)
    print(about, COMMANDS, sep="\n\n")
    print("For a bug report:\n", *versions(), sep="\n")


if __name__ == "__main__":
    main()
