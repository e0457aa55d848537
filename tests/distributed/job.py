"""The launcher of `examples/distributed`, for programs of tests, and what tests of them need."""

import importlib.util
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "distributed"

_spec = importlib.util.spec_from_file_location("launch", EXAMPLES / "launch.py")
launching = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(launching)


def needs(*packages):
    """A mark; the packages are not imported, for that takes seconds."""
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    return pytest.mark.skipif(bool(missing), reason=f"needs {', '.join(missing)}")


def launch(program, *arguments, processes):
    """Runs a program in so many processes; each finds `HOST:PORT N K` after its arguments."""
    address = launching.free_address()
    command = [sys.executable, program, *map(str, arguments), address, str(processes)]
    return launching.launch({i: [*command, str(i)] for i in range(processes)}, processes, "")
