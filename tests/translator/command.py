"""The command line in this process: another would spend its time on importing TensorFlow."""

import json

from tfattn.translator.__main__ import main

# Of the two models that whose step takes a third of the other's time to trace.
TOY = ("--model", "bahdanau", "--pairs", 700, "--sentences", 40, "--out", "here/and/there")


def translator(*arguments):
    main([str(argument) for argument in arguments])


def result(output):
    """The numbers of a run's last line."""
    label, _, numbers = output.strip().splitlines()[-1].partition(" ")
    assert label == "result:"
    return json.loads(numbers)
