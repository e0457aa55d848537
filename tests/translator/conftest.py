"""A preset of no size, a call of the command line that ends, and a folder that a run left."""

import contextlib
import io
from typing import NamedTuple

import pytest

from tests.translator.command import TOY, translator
from tfattn.translator.presets import Preset


@pytest.fixture
def new_preset():
    def new(**entries):
        entries = {
            **{"subwords": 0, "tokens": 1, "epochs": 50, "peak": 1.0, "warmup": 1, "ema_window": 1},
            **entries,
        }
        return Preset(entries.pop("sizes", {}), **entries)

    return new


@pytest.fixture
def ended(monkeypatch):
    """Function from arguments to what ends the command before it trains or translates. A text is
    the last line of a process's standard error, and makes its status 1.
    """

    def of(*arguments, folder):
        monkeypatch.chdir(folder)
        with pytest.raises(SystemExit) as end:
            translator(*arguments)
        return end.value.code

    return of


class Trained(NamedTuple):
    """A folder in which `out` is that of a run of one epoch, and what it has printed."""

    folder: object
    output: str


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    folder, output = tmp_path_factory.mktemp("trained"), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(output):
        patch.chdir(folder)
        translator(*TOY, "--epochs", 1)
    return Trained(folder, output.getvalue())
