"""TensorFlow starts without a word where this process is the command-line translator.

People and programs read the standard error of `python -m tfattn.translator`, where an error is one
line. TensorFlow is imported before the command's own module runs, and writes some lines whatever
its setting is. Who has set TF_CPP_MIN_LOG_LEVEL reads all that it lets pass.

This module imports no other part of tfattn, for `tfattn` imports it first of all.
"""

import itertools
import os
import sys

_SETTING = "TF_CPP_MIN_LOG_LEVEL"


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


if _SETTING not in os.environ and ("-m", "tfattn.translator") in itertools.pairwise(sys.orig_argv):
    os.environ[_SETTING] = "3"
    _import_keras()
