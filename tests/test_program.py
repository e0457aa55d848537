"""How a program of the package starts, and what the package loads of it."""

import configparser
import contextlib
import io
import os
import pathlib
import re
import runpy
import signal
import sys
import time

import keras
import pytest

import tfattn
from exercises.__main__ import main as exercises
from tests.helpers.processes import printed, python
from tfattn import _program
from tfattn.__main__ import PACKAGES
from tfattn.translator.__main__ import main as translator

# Python runs this at its start: Ctrl-C comes when a module is imported. A parent may have told its
# children to ignore it, as `nohup` does.
INTERRUPT = """
import os, signal, sys

signal.signal(signal.SIGINT, signal.default_int_handler)

class Interrupt:
    def find_spec(name, *_):
        if name == "tfattn.translator.run":  # TensorFlow has been imported, which no signal may end
            assert signal.getsignal(signal.SIGINT).__module__ == "tfattn._program"
        if name == os.environ["INTERRUPTED_AT"]:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupt)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, command, said",
    [
        ("keras", "--help", ""),
        # which the command imports when it runs
        ("sacrebleu", "score", "\nInterrupted.\n"),
    ],
)
def test_program_interrupted_is_status_130_and_no_traceback(
    name, command, said, tmp_path, monkeypatch
):
    monkeypatch.delenv("TF_CPP_MIN_LOG_LEVEL", raising=False)
    (tmp_path / "sitecustomize.py").write_text(INTERRUPT)
    path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    arguments = ("-m", "tfattn.translator", command)
    done = python(*arguments, folder=tmp_path, PYTHONPATH=path, INTERRUPTED_AT=name)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", said)


def test_programs_with_quiet_imports_are_all_of_the_package():
    package = pathlib.Path(tfattn.__file__).parent
    folders = (path.parent for path in package.rglob("__main__.py"))
    names = {".".join(["tfattn", *folder.relative_to(package).parts]) for folder in folders}
    assert _program._PROGRAMS == {("-m", name) for name in names}


@pytest.mark.parametrize("program, command", [(translator, "score")])
def test_command_interrupted_is_status_130(program, command, monkeypatch, capsys):
    def stop(*_):
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr("tfattn.translator.scoring.score", stop)
    monkeypatch.setattr(_program, "stop", lambda *_: pytest.fail("ended without cleaning up"))
    before = signal.signal(signal.SIGINT, _program.stop)  # as the imports of a program leave it
    try:
        assert program([command]) == 130
    finally:
        signal.signal(signal.SIGINT, before)
    assert capsys.readouterr() == ("", "\nInterrupted.\n")


class PressesLate:
    """Ctrl-C while it is freed, where Python drops the exception."""

    def __del__(self):
        signal.raise_signal(signal.SIGINT)


def drop():
    PressesLate()


def catch():
    with contextlib.suppress(BaseException):
        signal.raise_signal(signal.SIGINT)


def raise_another():
    catch()
    raise RuntimeError("as C++ makes of an exception")


def work_on(lose):
    def work(*_):
        lose()
        until = time.monotonic() + 5
        while time.monotonic() < until:
            time.sleep(0.01)
        pytest.fail("still at work")

    return work


@pytest.mark.parametrize("program, command", [(translator, "score")])
@pytest.mark.parametrize("lose", [drop, catch, raise_another])
def test_command_whose_interrupt_is_lost_is_status_130_soon(
    lose, program, command, monkeypatch, capsys
):
    monkeypatch.setattr("tfattn.translator.scoring.score", work_on(lose))
    monkeypatch.setattr("tfattn.translator.__main__._AGAIN", 0.02)
    before, hook = signal.signal(signal.SIGINT, _program.stop), sys.unraisablehook
    try:
        assert program([command]) == 130
        assert (signal.getsignal(signal.SIGINT), sys.unraisablehook) == (_program.stop, hook)
    finally:
        signal.signal(signal.SIGINT, before)
    assert "ignored" not in capsys.readouterr().err


@pytest.mark.slow
def test_package_imported_loads_no_program_and_no_module_without_layers():
    code = (
        "import sys, tfattn\n"
        "lazy = ('convert', 'data', 'interpret', 'plot', 'translator')\n"
        "print([name for name in lazy if f'tfattn.{name}' in sys.modules])\n"
        "assert {*lazy[:-1]} <= {*dir(tfattn)}"
    )
    assert printed("-c", code, warm=True) == "[]\n"


VERSIONS = f"tfattn {tfattn.__version__}\n", f"\nkeras {keras.__version__}\n"


@pytest.mark.parametrize(
    "command, shown",
    [
        ("exercises hint merge_heads", ["1/2  It inverts split_heads, last step first.\n"]),
        ("tfattn.translator --help", ["\n    translate ", "'python -m tfattn.translator COMMAND"]),
        ("tfattn", [*VERSIONS, "python -m tfattn.translator "]),
    ],
)
def test_program_run_as_module_prints_to_standard_output(command, shown, monkeypatch, capsys):
    name, *arguments = command.split()
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    monkeypatch.delitem(sys.modules, f"{name}.__main__", raising=False)
    try:
        runpy.run_module(name, run_name="__main__")
    except SystemExit as end:
        assert not end.code
    output, errors = capsys.readouterr()
    assert errors == "" and all(part in output for part in shown)


@pytest.mark.parametrize("name", ["tfattn", "tfattn.examples"])
def test_program_unknown_argument_is_refused_with_status_2(name, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [name, "unknown"])
    monkeypatch.delitem(sys.modules, f"{name}.__main__", raising=False)
    monkeypatch.setattr("tfattn.translator.__main__.main", lambda _: pytest.fail("trains"))
    with pytest.raises(SystemExit, match="2"):
        runpy.run_module(name, run_name="__main__")
    last = capsys.readouterr().err.splitlines()[-1]
    assert last == f"python -m {name}: error: unrecognized arguments: unknown"


@pytest.mark.parametrize("terminal", [False, True])
@pytest.mark.parametrize(
    "program, command", [(exercises, "list --language zh"), (translator, "export --to onnx")]
)
def test_program_output_is_utf8_in_a_file_and_fails_on_no_terminal(
    program, command, terminal, monkeypatch
):
    output = io.TextIOWrapper(io.BytesIO(), encoding="cp1252")
    output.isatty = lambda: terminal
    monkeypatch.setattr(sys, "stdout", output)
    monkeypatch.setattr("tfattn.translator.converting.export", lambda _: print("掩蔽 softmax"))
    assert program(command.split()) == 0
    output.flush()
    text = output.buffer.getvalue().decode("cp1252" if terminal else "utf-8")
    assert ("?? softmax" if terminal else "掩蔽 softmax") in text


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="no closed standard error")
def test_program_without_standard_error_runs(monkeypatch):
    monkeypatch.delenv("TF_CPP_MIN_LOG_LEVEL", raising=False)
    command = "[sys.executable, '-m', 'tfattn.translator', '--help']"
    code = f"import os, sys; os.close(2); os.execv(sys.executable, {command})"
    assert "COMMAND --help" in printed("-c", code)


def test_versions_shown_are_of_what_users_install():
    setup = configparser.ConfigParser()
    setup.read(pathlib.Path(tfattn.__file__).parents[1] / "setup.cfg")
    extras = dict(setup["options.extras_require"])
    for of_maintainers in ("test", "docs", "release"):
        del extras[of_maintainers]
    lines = "\n".join([setup["options"]["install_requires"], *extras.values()])
    names = set(re.findall(r"^([\w-]+)>", lines, flags=re.MULTILINE))
    assert "sentencepiece" in names and names <= set(PACKAGES.split())
