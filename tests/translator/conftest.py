"""Fixtures: a small preset, a command that fails, and the folder of a finished run."""

import contextlib
import io
import shutil
from typing import NamedTuple

import pytest

from tests.helpers import paths
from tests.translator.command import SMALL, TOY, status, translator
from tfattn.translator.folder import Folder
from tfattn.translator.presets import PRESETS, Phase, Preset


@pytest.fixture
def new_preset():
    def new(**entries):
        phases = (Phase("plain", 50, peak=1.0),)
        defaults = {"subwords": 0, "tokens": 1, "phases": phases, "warmup": 1, "ema_window": 1}
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


class Trained(NamedTuple):
    """A folder with `out`, the folder of a run of one epoch, and the run's output."""

    folder: object
    output: str

    @property
    def out(self):
        return self.folder / "here" / "and" / "there"


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    folder, output = tmp_path_factory.mktemp("trained"), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(output):
        patch.setitem(PRESETS["bahdanau"], "toy", SMALL)
        patch.chdir(folder)
        with paths.dense():
            translator("train", *TOY, "--epochs", 1)
    return Trained(folder, output.getvalue())


@pytest.fixture(scope="session")
def loaded(trained):
    """Model and vocabularies of that run; tests share the compiled functions."""
    return Folder(trained.out).load_model()


@pytest.fixture
def folder(trained, tmp_path, monkeypatch):
    """A copy of the folder of a run of one epoch."""
    monkeypatch.setitem(PRESETS["bahdanau"], "toy", SMALL)
    return shutil.copytree(trained.folder, tmp_path / "copy")


@pytest.fixture
def out(folder, loaded, monkeypatch):
    """The run in such a copy, with its model already loaded; the copy is the working directory."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(Folder, "load_model", lambda folder, *_: loaded)
    return folder / "here" / "and" / "there"
