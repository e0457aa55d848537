"""The launcher of `examples/distributed`, and what tests of several processes need."""

import importlib.util
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
