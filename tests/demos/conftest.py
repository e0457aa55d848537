"""The demos' own modules, as the demos import them, from their folder; and a preset of no size."""

import importlib
import sys

import pytest

from tests.demos.running import ROOT


@pytest.fixture
def demo_module(monkeypatch):
    """Function from a name to the module of that name in demos/. Benchmarks have modules of the same names."""
    names = [path.stem for path in (ROOT / "demos").glob("*.py")]
    monkeypatch.syspath_prepend(ROOT / "demos")
    for name in names:
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield importlib.import_module
    for name in names:
        sys.modules.pop(name, None)


@pytest.fixture
def plain_preset(demo_module):
    def preset(**entries):
        entries = {"subwords": 0, "tokens": 1, "epochs": 50, "peak": 1.0, "warmup": 1, "look_back": 1, **entries}
        return demo_module("course").Preset({}, **entries)

    return preset
