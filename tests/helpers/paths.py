"""A single path of the engine, for tests of other parts.

A graph of unknown lengths holds both paths, and takes more than twice as long to trace. At the
sizes of tests the dense path runs. Both paths are in the graphs of the engine's own tests, of the
rows in `tests/conformance/paths.py`, and of a Transformer that learns to copy.
"""

import contextlib
import functools
import unittest.mock

import tfattn
from tests.helpers.tensors import BACKEND

# Parameters of a test in which both paths must agree.
PATHS = ["dense", "streamed"]


def dense():
    """A context in which layers trace the dense path alone."""
    return tfattn.attention_path("dense")


@contextlib.contextmanager
def streamed(block):
    """A context in which layers stream, in blocks of `(queries, keys)`."""
    with blocks_of(block), tfattn.attention_path("streamed"):
        yield


@contextlib.contextmanager
def blocks_of(block):
    """A context in which the streamed path has blocks of `(queries, keys)`; None for the measured
    sizes.
    """
    module = streaming()
    by_block = functools.partial(module.run, block=block)
    with unittest.mock.patch.object(module, "run", by_block):
        yield


def streaming():
    """The module whose `run` streams on this backend."""
    if BACKEND == "tensorflow":
        from tfattn.core.engine.tensorflow import run as module
    else:
        from tfattn.core.engine import scan as module
    return module
