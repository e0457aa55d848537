"""Demos run as a reader runs them: in a process of their own, from a folder of the reader's."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run(name, *arguments, folder, text=None):
    """The finished process of a demo of this checkout; `text` is its standard input."""
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    command = [sys.executable, str(ROOT / "demos" / f"{name}.py"), *map(str, arguments)]
    # What stands for a broken byte in the text becomes that byte.
    coding = {"encoding": "utf-8", "errors": "surrogateescape"}
    return subprocess.run(
        command, cwd=folder, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, input=text, **coding
    )


def printed(name, *arguments, folder):
    """What a demo prints that ends well."""
    done = run(name, *arguments, folder=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


def result(output):
    """The numbers of a demo's last line."""
    label, _, numbers = last_line(output).partition(" ")
    assert label == "result:"
    return json.loads(numbers)


def last_line(output):
    return output.strip().splitlines()[-1]
