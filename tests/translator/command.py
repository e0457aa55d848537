"""The command line in this process: another would spend its time on importing TensorFlow."""

import json

import h5py

from tfattn.translator.__main__ import main

# Of the two models that whose step takes a third of the other's time to trace.
TOY = ("--model", "bahdanau", "--pairs", 700, "--sentences", 40, "--out", "here/and/there")


def status(*arguments):
    """The status that a process of these arguments ends with."""
    return main([str(argument) for argument in arguments])


def translator(*arguments):
    assert status(*arguments) == 0


def result(output):
    """The numbers of a run's last line."""
    label, _, numbers = output.strip().splitlines()[-1].partition(" ")
    assert label == "result:"
    return json.loads(numbers)


def write_corpus(folder, pairs, parts):
    """Files of some parts, all of the same pairs, in `folder`."""
    for part in parts:
        for place, language in enumerate(("en", "de")):
            lines = "".join(pair[place] + "\n" for pair in pairs)
            (folder / f"{part}.{language}").write_text(lines, encoding="utf-8")


def write_weights(path):
    """A file of weights, of none."""
    h5py.File(path, "w").close()
