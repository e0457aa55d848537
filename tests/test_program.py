"""How a program of the package starts, and what the package loads of it."""

import importlib.metadata
import io
import os
import sys

import keras
import pytest

import tfattn
from tests.helpers.processes import printed, python
from tfattn.__main__ import packages
from tfattn.exercises.__main__ import main as exercises
from tfattn.translator.__main__ import main as translator

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
    "name, program, command, said",
    [
        ("keras", "translator", "--help", ""),
        ("tfattn.translator.run", "translator", "--help", ""),
        # which the command imports when it runs
        ("sacrebleu", "translator", "score", "\nInterrupted.\n"),
        ("keras", "exercises", "list", ""),
        ("keras", "examples", "out", ""),
    ],
)
def test_an_interrupt_is_a_status_and_no_traceback(
    name, program, command, said, tmp_path, monkeypatch
):
    monkeypatch.delenv("TF_CPP_MIN_LOG_LEVEL", raising=False)
    (tmp_path / "sitecustomize.py").write_text(INTERRUPT)
    path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    arguments = ("-m", f"tfattn.{program}", command)
    done = python(*arguments, folder=tmp_path, PYTHONPATH=path, INTERRUPTED_AT=name)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", said)


def test_the_package_loads_no_program_and_no_module_without_layers():
    code = (
        "import sys, tfattn\n"
        "lazy = ('convert', 'data', 'exercises', 'interpret', 'plot', 'translator')\n"
        "print([name for name in lazy if f'tfattn.{name}' in sys.modules])\n"
        "assert {*lazy[:-1]} <= {*dir(tfattn)}\n"
        "print('tfattn.exercises.masks' in sys.modules)\n"
        "tfattn.exercises.names()\n"
        "print('tfattn.exercises.masks' in sys.modules)"
    )
    assert printed("-c", code, warm=True) == "[]\nFalse\nTrue\n"


def test_the_exercises_are_a_program(tmp_path):
    done = python("-m", "tfattn.exercises", "hint", "merge_heads", folder=tmp_path, warm=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "1/2  It inverts split_heads, last step first.\n"


@pytest.mark.parametrize("terminal", [False, True])
@pytest.mark.parametrize(
    "program, command", [(exercises, "list --language zh"), (translator, "export --to onnx")]
)
def test_output_is_utf8_in_a_file_and_fails_on_no_terminal(program, command, terminal, monkeypatch):
    output = io.TextIOWrapper(io.BytesIO(), encoding="cp1252")
    output.isatty = lambda: terminal
    monkeypatch.setattr(sys, "stdout", output)
    monkeypatch.setattr("tfattn.translator.exporting.export", lambda _: print("掩蔽 softmax"))
    assert program(command.split()) == 0
    output.flush()
    text = output.buffer.getvalue().decode("cp1252" if terminal else "utf-8")
    assert ("?? softmax" if terminal else "掩蔽 softmax") in text


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="no closed standard error")
def test_a_program_needs_no_standard_error(monkeypatch):
    monkeypatch.delenv("TF_CPP_MIN_LOG_LEVEL", raising=False)
    command = "[sys.executable, '-m', 'tfattn.exercises', 'hint', 'merge_heads']"
    code = f"import os, sys; os.close(2); os.execv(sys.executable, {command})"
    assert printed("-c", code) == "1/2  It inverts split_heads, last step first.\n"


def test_the_package_prints_its_commands_and_the_versions_of_what_it_uses(tmp_path):
    done = python("-m", "tfattn", folder=tmp_path, warm=True)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert {f"tfattn {tfattn.__version__}", f"keras {keras.__version__}"} <= {*lines}
    assert "python -m tfattn.translator" in done.stdout


def test_versions_are_of_what_users_install(monkeypatch):
    required = ["scipy>=1.10", 'tfattn[text]; extra == "marian"', 'tf2onnx>=1; extra == "export"']
    required.append('sphinx>=8.1; extra == "docs"')
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: required)
    assert packages()[-2:] == ["scipy", "tf2onnx"]
