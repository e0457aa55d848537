"""The demos' own modules, as the demos import them, from their folder; a demo that ends at once;
and a preset of no size.
"""

import importlib
import runpy
import sys

import pytest

from tests.demos.running import ROOT


@pytest.fixture
def demo_module(monkeypatch):
    """Function from a name to the module of that name in demos/. Benchmarks have modules of the
    same names.
    """
    names = [path.stem for path in (ROOT / "demos").glob("*.py")]
    monkeypatch.syspath_prepend(ROOT / "demos")
    for name in names:
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield importlib.import_module
    for name in names:
        sys.modules.pop(name, None)


@pytest.fixture
def ended(demo_module, monkeypatch, capsys):
    """Function from a demo and its arguments to (what ends it before it trains or translates, what
    it has printed).

    In this process: another one would take most of its time to import TensorFlow. A text that ends
    a demo is the last line of a process's standard error, and makes its status 1.
    """

    def of(name, *arguments, folder):
        monkeypatch.chdir(folder)
        monkeypatch.setattr(sys, "argv", [f"{name}.py", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            runpy.run_path(str(ROOT / "demos" / f"{name}.py"), run_name="__main__")
        return end.value.code, capsys.readouterr().out

    return of


@pytest.fixture
def plain_preset(demo_module):
    def preset(**entries):
        entries = {
            "subwords": 0,
            "tokens": 1,
            "epochs": 50,
            "peak": 1.0,
            "warmup": 1,
            "look_back": 1,
            **entries,
        }
        return demo_module("course").Preset({}, **entries)

    return preset
