"""Quiet imports and the output of the package's programs, such as `python -m tfattn.translator`.

TensorFlow logs to standard error while it is imported, and a program writes only its own messages
there. Ctrl-C during the imports ends it with the status of an interrupted program. If
TF_CPP_MIN_LOG_LEVEL is set, logs are not suppressed. In other processes the import
of this module has no effect.
"""

import _thread
import contextlib
import io
import itertools
import os
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Any

INTERRUPTED = 130
_SETTING = "TF_CPP_MIN_LOG_LEVEL"
_is_interrupted = False  # in the block of `interruptible`
_AGAIN = 2.0  # seconds


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Ctrl-C in this block of a program raises `KeyboardInterrupt` at once, and again every two
    seconds until the block ends: Python drops an exception that is raised in a finalizer or in a
    callback of the garbage collection, and libraries catch others or raise their own instead.
    """
    global _is_interrupted
    before = signal.getsignal(signal.SIGINT)
    if before is not _stop:  # another program, or one that ignores Ctrl-C
        yield
        return
    _is_interrupted, ended, hook = False, threading.Event(), sys.unraisablehook

    def insist() -> None:
        while not ended.wait(_AGAIN):
            if _is_interrupted:
                _thread.interrupt_main()

    def show(dropped: Any) -> None:
        if not issubclass(dropped.exc_type, KeyboardInterrupt):
            hook(dropped)

    sys.unraisablehook = show
    threading.Thread(target=insist, daemon=True).start()
    try:
        signal.signal(signal.SIGINT, _interrupt)
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        ended.set()
        sys.unraisablehook = hook
        if _is_interrupted:
            raise KeyboardInterrupt


def _interrupt(*_: object) -> None:
    global _is_interrupted
    _is_interrupted = True
    raise KeyboardInterrupt


def write_utf8() -> None:
    """Writes standard output in UTF-8, whatever the locale, if it is a file or a pipe; a terminal
    shows "?" for characters that its encoding lacks.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):  # not in a notebook
        encoding = None if sys.stdout.isatty() else "utf-8"
        sys.stdout.reconfigure(encoding=encoding, errors="replace")


def _stop(*_: object) -> None:
    os._exit(INTERRUPTED)  # importing C++ code would convert an exception


def _import_keras() -> None:
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        import keras  # noqa: F401
    finally:  # Python prints an exception to standard error
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


_PROGRAMS = {("-m", f"tfattn{name}") for name in ("", ".translator", ".examples")}
if not _PROGRAMS.isdisjoint(itertools.pairwise(sys.orig_argv)):
    if sys.stderr is None:  # closed, as by `2>&-`
        sys.stderr = open(os.devnull, "w", encoding="utf-8")
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _stop)
    if _SETTING not in os.environ:
        os.environ[_SETTING] = "3"
        _import_keras()
