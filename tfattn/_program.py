"""Quiet imports of the package's programs, such as `python -m tfattn.translator`.

While a program imports TensorFlow, which logs to standard error, its log is suppressed, unless
TF_CPP_MIN_LOG_LEVEL is set, and Ctrl-C ends it with the status of an interrupted program. In other
processes the import of this module has no effect.
"""

import itertools
import os
import signal
import sys

INTERRUPTED = 130


def stop(*_: object) -> None:
    """Ends the process at once, as an interrupted program."""
    os._exit(INTERRUPTED)  # importing C++ code would convert an exception


_PROGRAMS = {("-m", f"tfattn{name}") for name in ("", ".translator", ".examples")}
if not _PROGRAMS.isdisjoint(itertools.pairwise(sys.orig_argv)):
    if sys.stderr is None:  # closed, as by `2>&-`
        sys.stderr = open(os.devnull, "w", encoding="utf-8")
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, stop)
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
