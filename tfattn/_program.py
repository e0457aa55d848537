"""Quiet imports of the package's programs, such as `python -m tfattn.translator`, and their output.

While a program imports TensorFlow, which logs to standard error, its log is suppressed, unless
TF_CPP_MIN_LOG_LEVEL is set, and Ctrl-C ends it with the status of an interrupted program. In other
processes the import of this module has no effect.
"""

import contextlib
import io
import itertools
import os
import signal
import sys
from collections.abc import Iterator
from typing import Any

INTERRUPTED = 130
_ALARM = [signal.SIGALRM] if hasattr(signal, "SIGALRM") else []  # which Windows lacks
_AGAIN = 2.0  # seconds


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Ctrl-C in this block of a program raises `KeyboardInterrupt` at once, and again every two
    seconds until the block ends: Python drops an exception that is raised in a finalizer or in a
    callback of the garbage collection, and libraries catch others or raise their own instead.
    """
    if signal.getsignal(signal.SIGINT) is not _stop:  # another program, or one that ignores it
        yield
        return
    pressed, hook = [], sys.unraisablehook

    def interrupt(*_: object) -> None:
        pressed.append(True)
        if _ALARM:
            signal.setitimer(signal.ITIMER_REAL, _AGAIN)
        raise KeyboardInterrupt

    def show(dropped: Any) -> None:
        if not issubclass(dropped.exc_type, KeyboardInterrupt):
            hook(dropped)

    sys.unraisablehook = show
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, *_ALARM)}
    try:
        for number in before:
            signal.signal(number, interrupt)
        yield
    finally:
        if _ALARM:
            signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before.items():
            signal.signal(number, handler)
        sys.unraisablehook = hook
        if pressed:
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


_PROGRAMS = {("-m", f"tfattn{name}") for name in ("", ".translator", ".examples")}
if not _PROGRAMS.isdisjoint(itertools.pairwise(sys.orig_argv)):
    if sys.stderr is None:  # closed, as by `2>&-`
        sys.stderr = open(os.devnull, "w", encoding="utf-8")
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _stop)
    if "TF_CPP_MIN_LOG_LEVEL" not in os.environ:
        os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
        sys.stderr.flush()
        kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 2)
        try:
            import keras  # noqa: F401
        finally:  # Python prints an exception to standard error
            os.dup2(kept, 2)
            os.close(kept)
            os.close(nowhere)
