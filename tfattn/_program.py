"""Quiet imports and the output of the package's programs, such as `python -m tfattn.translator`.

TensorFlow logs to standard error while it is imported, and a program writes only its own messages
there. Ctrl-C during the imports ends it with the status of an interrupted program. If
TF_CPP_MIN_LOG_LEVEL is set, logs are not suppressed. In other processes the import
of this module has no effect.
"""

import io
import itertools
import os
import signal
import sys

INTERRUPTED = 130
_SETTING = "TF_CPP_MIN_LOG_LEVEL"
_is_interrupted = False  # since the last `restore_interrupts` or `check_interrupt`


def restore_interrupts() -> None:
    """Restores `KeyboardInterrupt` for Ctrl-C."""
    global _is_interrupted
    _is_interrupted = False
    if signal.getsignal(signal.SIGINT) is _stop:
        signal.signal(signal.SIGINT, _interrupt)


def check_interrupt() -> None:
    """Raises `KeyboardInterrupt` after Ctrl-C, since Python drops an exception that is raised in a
    callback of the garbage collection or in a finalizer. Long work calls it between its steps.
    """
    global _is_interrupted
    if _is_interrupted:
        _is_interrupted = False
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


_PROGRAMS = {("-m", f"tfattn{name}") for name in ("", ".translator", ".exercises", ".examples")}
if not _PROGRAMS.isdisjoint(itertools.pairwise(sys.orig_argv)):
    if sys.stderr is None:  # closed, as by `2>&-`
        sys.stderr = open(os.devnull, "w", encoding="utf-8")
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _stop)
    if _SETTING not in os.environ:
        os.environ[_SETTING] = "3"
        _import_keras()
