"""How a program of the package starts, and what the package loads of it."""

import os
import sys

import pytest

from tests.helpers.processes import printed, python

# Python runs this at its start: Ctrl-C comes when a module is imported.
INTERRUPT = """
import os, signal, sys

class Interrupt:
    def find_spec(name, *_):
        if name == os.environ["INTERRUPTED_AT"]:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupt)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, command, said",
    [
        ("keras", "--help", ""),
        ("tfattn.translator.run", "--help", ""),
        ("sacrebleu", "score", "\nInterrupted.\n"),  # which the command imports when it runs
    ],
)
def test_an_interrupt_is_a_status_and_no_traceback(name, command, said, tmp_path, monkeypatch):
    monkeypatch.delenv("TF_CPP_MIN_LOG_LEVEL", raising=False)
    (tmp_path / "sitecustomize.py").write_text(INTERRUPT)
    path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    arguments = ("-m", "tfattn.translator", command)
    done = python(*arguments, folder=tmp_path, PYTHONPATH=path, INTERRUPTED_AT=name)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", said)


def test_the_package_loads_no_program():
    code = "import sys, tfattn; print([name for name in sys.modules if 'translator' in name])"
    assert printed("-c", code, warm=True) == "[]\n"
