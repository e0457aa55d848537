"""Demos run as a reader runs them: in a process of their own, from a folder of the reader's."""

import json
from pathlib import Path

from tests.processes import python

ROOT = Path(__file__).parents[2]
TRANSLATORS = ["transformer_translation", "bahdanau_translation"]


def run(name, *arguments, folder, text=None):
    """The finished process of a demo of this checkout; `text` is its standard input."""
    return python(ROOT / "demos" / f"{name}.py", *arguments, folder=folder, text=text)


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
