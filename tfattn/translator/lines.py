"""Lines to translate: standard input to standard output, with a trained model."""

import itertools
import sys
from collections.abc import Callable

import keras

from tfattn.translator import report
from tfattn.translator.corpus import Words
from tfattn.translator.folder import Folder

__all__ = ["load", "translate_lines"]

AT_ONCE = 1000  # lines that are translated before the first of them is written


def load(folder: Folder) -> tuple[keras.Model, list[Words]]:
    """The model in a folder, and the vocabularies that it was trained with."""
    if not folder.model.exists():
        raise FileNotFoundError(
            f"{folder.model} is not there: train first, or name its folder with --out"
        )
    return keras.models.load_model(folder.model), folder.load_vocabularies("model")


def translate_lines(model: keras.Model, words: list[Words], search: Callable) -> None:
    """One line at a time from a terminal, a thousand at a time from a file."""
    at_once = AT_ONCE
    if sys.stdin.isatty():
        print("One sentence a line, tokens split by spaces; end with Ctrl-D.", file=sys.stderr)
        at_once = 1
    # One broken byte is no reason to lose the other lines.
    sys.stdin.reconfigure(errors="replace")
    sys.stdout.reconfigure(errors="replace")
    while lines := [line.strip() for line in itertools.islice(sys.stdin, at_once)]:
        for translated in report.translate(model, lines, words, search):
            print(translated, flush=True)
