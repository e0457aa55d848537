"""`python -m tfattn`: the commands of the package, and the versions for a report."""

import argparse
import contextlib
import importlib.metadata
import platform
import re
from collections.abc import Sequence

import keras

import tfattn

COMMANDS = """\
python -m tfattn.translator   train a translator, score it, translate, export it (--help)
python -m tfattn.examples     train the example of tfattn.load_example again (--help)
"""


def versions() -> list[str]:
    """One line for each installed package, Python and the platform first."""
    lines = [
        f"tfattn {tfattn.__version__}",
        f"Python {platform.python_version()} on {platform.platform()}",
        f"backend {keras.backend.backend()}, floats {keras.config.floatx()}, "
        f"policy {keras.config.dtype_policy().name}",
    ]
    for name in packages():
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            lines.append(f"{name} {importlib.metadata.version(name)}")
    return lines


def packages() -> list[str]:
    """The backends, and what the package and its extras install."""
    try:
        required = importlib.metadata.requires("tfattn") or []
    except importlib.metadata.PackageNotFoundError:  # a clone that is not installed
        required = []
    for_users = (line for line in required if not re.search("extra == .(test|docs|release)", line))
    names = [re.split(r"[^\w-]", line)[0] for line in for_users if not line.startswith("tfattn")]
    return list(dict.fromkeys(["keras", "numpy", "tensorflow", "jax", "torch", *names]))


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints the commands and the versions; `arguments` defaults to `sys.argv[1:]`."""
    about = tfattn.__doc__.partition("\n")[0]
    parser = argparse.ArgumentParser(
        prog="python -m tfattn",
        description=f"{about} Without an argument: prints the commands, and the versions.",
        epilog=COMMANDS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _, unknown = parser.parse_known_args(arguments)
    if unknown:
        programs = ", ".join(line.split("  ")[0] for line in COMMANDS.splitlines())
        parser.error(f"unrecognized arguments: {' '.join(unknown)}; the commands are {programs}")
    print(about, COMMANDS, sep="\n\n")
    print("For a bug report:\n", *versions(), sep="\n")


if __name__ == "__main__":
    main()
