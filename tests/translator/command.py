"""Runs commands in this process, which has already imported TensorFlow."""

import json

import h5py

from tfattn.translator.__main__ import main
from tfattn.translator.presets import Preset

# The recurrent model, with the smallest sizes, is the fastest to trace.
TOY = ("--model", "bahdanau", "--pairs", 300, "--sentences", 20, "--out", "here/and/there")
OUT = TOY[-2:]
SMALL = Preset(
    {"width": 8, "units": 8},
    subwords=0,
    tokens=768,
    epochs=5,
    peak=0.01,
    warmup=3,
    ema_window=2,
)


def status(*arguments):
    """The exit status of a command."""
    return main([str(argument) for argument in arguments])


def translator(*arguments):
    assert status(*arguments) == 0


def result(output):
    """The JSON in the last line of a run's output."""
    label, _, numbers = output.strip().splitlines()[-1].partition(" ")
    assert label == "result:"
    return json.loads(numbers)


def write_corpus(folder, pairs, parts):
    """Writes files of these parts, all with the same pairs, to `folder`."""
    for part in parts:
        for place, language in enumerate(("en", "de")):
            lines = "".join(pair[place] + "\n" for pair in pairs)
            (folder / f"{part}.{language}").write_text(lines, encoding="utf-8")


def write_weights(path):
    """Writes a file of weights without any weight."""
    h5py.File(path, "w").close()
