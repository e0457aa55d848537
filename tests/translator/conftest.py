"""Fixtures: a small preset, a command that fails, and one that the parser refuses."""

import pytest

from tests.translator.command import status
from tfattn.translator.presets import Preset


@pytest.fixture
def new_preset():
    def new(**entries):
        defaults = {"subwords": 0, "tokens": 1, "epochs": 50, "peak": 1.0}
        defaults |= {"warmup": 1, "ema_window": 1}
        return Preset(entries.pop("sizes", {}), **{**defaults, **entries})

    return new


@pytest.fixture
def refused(monkeypatch, capsys):
    """Function from arguments to the one-line error of a command that exits with status 1."""

    def of(*arguments, folder):
        monkeypatch.chdir(folder)
        capsys.readouterr()
        assert status(*arguments) == 1
        shown = capsys.readouterr()
        *notes, error, rest = shown.err.split("\n")
        assert rest == "" and all(note.startswith("note: ") for note in notes)
        assert error.startswith("error: ") and "Epoch" not in shown.out
        return error

    return of


@pytest.fixture
def ended(monkeypatch):
    """Function from arguments to the exit status of the parser."""

    def of(*arguments, folder):
        monkeypatch.chdir(folder)
        with pytest.raises(SystemExit) as end:
            status(*arguments)
        return end.value.code

    return of
