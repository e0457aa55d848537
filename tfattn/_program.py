"""While Python imports what a program of this package needs, as `python -m tfattn.translator` does,
nothing is written, and Ctrl-C ends it with the status of an interrupted program.

Python imports `tfattn` first, and with it TensorFlow, which writes some lines to standard error
whatever its setting is. People and programs read those of a program, where an error is one line.
Who has set TF_CPP_MIN_LOG_LEVEL reads all that it lets pass. In any other process nothing is done.
"""

import itertools
import os
import signal
import sys

__all__ = ["INTERRUPTED", "imports_are_done"]

INTERRUPTED = 130
_SETTING = "TF_CPP_MIN_LOG_LEVEL"


def imports_are_done() -> None:
    """From here on Ctrl-C is a `KeyboardInterrupt` again."""
    if signal.getsignal(signal.SIGINT) is _stop:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _stop(*_):
    os._exit(INTERRUPTED)  # an exception would become another one where C++ imports


def _import_keras():
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        import keras  # noqa: F401
    finally:  # an exception is shown as ever
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


if any(o == "-m" and name.startswith("tfattn.") for o, name in itertools.pairwise(sys.orig_argv)):
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _stop)
    if _SETTING not in os.environ:
        os.environ[_SETTING] = "3"
        _import_keras()
