"""Demos, run as scripts in this process: another one would take most of its time to import
TensorFlow.
"""

import contextlib
import io
import json
import runpy
import sys
from pathlib import Path

import pytest

DEMOS = Path(__file__).parents[2] / "demos"


def run(name, *arguments, folder):
    """(what a demo prints that is started in `folder`, its variables at the end)."""
    output = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(output):
        patch.chdir(folder)
        patch.setattr(sys, "argv", [f"{name}.py", *map(str, arguments)])
        variables = runpy.run_path(str(DEMOS / f"{name}.py"), run_name="__main__")
    return output.getvalue(), variables


def result(output):
    """The numbers of a demo's last line."""
    label, _, numbers = output.strip().splitlines()[-1].partition(" ")
    assert label == "result:"
    return json.loads(numbers)
