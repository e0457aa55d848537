"""Python in a process of its own, with the tfattn that this one has.

A warm process is a fork of one that has imported keras and tfattn and has computed nothing: it
spares the seconds of the imports, and shares no layer, weight or file with the test. Only on
TensorFlow: other backends may start threads when they are imported.
"""

import atexit
import contextlib
import functools
import gc
import json
import os
import pathlib
import runpy
import signal
import subprocess
import sys
import tempfile
import types

import keras

STREAMS = ("stdin", "stdout", "stderr")
TEXT = {"encoding": "utf-8", "errors": "surrogateescape"}  # a broken byte of the text stays one


def python(*arguments, folder=None, text=None, warm=False, **environment):
    """The finished process of `python ARGUMENTS`, started in `folder`.

    Args:
        text: its standard input, empty by default.   environment: adds to this process's own.
        warm: whether it may be a fork. Not for what an import reads, such as KERAS_BACKEND, or what
            `python -m tfattn...` does while it imports.
    """
    arguments = [*map(str, arguments)]
    variables = {**_environment(), **environment}
    if warm and keras.backend.backend() == "tensorflow" and hasattr(os, "fork"):
        return _fork(arguments, str(folder or os.getcwd()), text or "", variables)
    command, pipes = [sys.executable, *arguments], dict.fromkeys(STREAMS, subprocess.PIPE)
    with _heeding_interrupts():
        process = subprocess.Popen(command, cwd=folder, env=variables, **pipes, **TEXT)
    outputs = process.communicate(text or "")
    return subprocess.CompletedProcess(command, process.returncode, *outputs)


@contextlib.contextmanager
def _heeding_interrupts():
    """What is started here heeds Ctrl-C, which this process may ignore, as background jobs do."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def printed(*arguments, **options):
    """What it prints, where it ends well."""
    done = python(*arguments, **options)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@contextlib.contextmanager
def locking(path):
    """Another process that locks the file, killed at the end; gives whether it could."""
    command = [sys.executable, "-c", LOCKING, f"{path}.lock"]
    with subprocess.Popen(command, **dict.fromkeys(STREAMS, subprocess.PIPE)) as process:
        try:
            yield process.stdout.readline() == b"locked\n"
        finally:
            process.kill()


LOCKING = """
import sys, filelock
lock = filelock.FileLock(sys.argv[1], timeout=0)
lock.acquire()
print("locked", flush=True)
sys.stdin.read()
"""


def _environment():
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


def _fork(arguments, folder, text, variables):
    server = _server()
    sys.audit("tests.warm_fork")  # for the count of `started.py`
    with tempfile.TemporaryDirectory() as streams:
        stdin, stdout, stderr = (pathlib.Path(streams, name) for name in STREAMS)
        stdin.write_text(text, **TEXT)
        print(json.dumps([arguments, folder, variables, streams]), file=server.stdin, flush=True)
        status = int(server.stdout.readline())
        outputs = stdout.read_text(**TEXT), stderr.read_text(**TEXT)
    return subprocess.CompletedProcess(arguments, status, *outputs)


@functools.cache
def _server():
    """The process that forks, one for all tests of this process."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "encoding": "utf-8"}
    command = [sys.executable, "-m", "tests.helpers.processes"]
    with _heeding_interrupts():
        server = subprocess.Popen(command, env=_environment(), **pipes)
    atexit.register(server.communicate)  # which ends it
    return server


def _serve():
    """Answers each request with the status of a fork. Returns in the fork, with the request."""
    import pytest  # noqa: F401

    import tfattn  # noqa: F401

    gc.freeze()
    with os.fdopen(os.dup(0), encoding="utf-8") as requests:  # `sys.stdin` is left to the forks
        for request in requests:
            child = os.fork()
            if not child:
                return json.loads(request)
            _, status = os.waitpid(child, 0)
            print(os.waitstatus_to_exitcode(status), flush=True)
    sys.exit()


def _become(arguments, folder, variables, streams):
    """Makes this process what `python ARGUMENTS` would be."""
    for number, name in enumerate(STREAMS):
        file = os.open(pathlib.Path(streams, name), os.O_RDWR | os.O_CREAT)
        os.dup2(file, number)
        os.close(file)
    os.environ.clear()
    os.environ.update(variables)
    os.chdir(folder)
    kind, *rest = arguments
    if kind == "-m":
        sys.argv, sys.path[0] = rest, folder
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif kind == "-c":
        sys.argv, sys.path[0] = [kind, *rest[1:]], ""
        sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(rest[0], "<string>", "exec"), vars(sys.modules["__main__"]))
    else:
        sys.argv, sys.path[0] = arguments, str(pathlib.Path(kind).parent)
        runpy.run_path(kind, run_name="__main__")


if __name__ == "__main__":
    _become(*_serve())
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # taking down what the server has imported would take a second
