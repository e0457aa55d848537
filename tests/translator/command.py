"""The command line in this process: another would spend its time on importing TensorFlow."""

import json

import h5py

from tfattn.training.integrity import with_checksum
from tfattn.translator.__main__ import main
from tfattn.translator.presets import Preset

# Of the two models that whose step takes a third of the other's time to trace, as small as it gets.
TOY = ("--model", "bahdanau", "--pairs", 300, "--sentences", 20, "--out", "here/and/there")
OUT = TOY[-2:]
SMALL = Preset(
    {"width": 8, "units": 8}, subwords=0, tokens=768, epochs=5, peak=0.01, warmup=3, ema_window=2
)


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
    path.write_bytes(with_checksum(path.read_bytes()))
