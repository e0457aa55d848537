"""One of the engine's paths alone, for tests of something else.

A graph of unknown lengths holds both, and takes more than twice as long to trace. At the sizes of
tests the dense one runs. Graphs that hold both are those of the engine's own tests, of the rows
that `tests/conformance/paths.py` names, and of a Transformer that learns to copy.
"""

import contextlib
import functools
import unittest.mock

import pytest

import tfattn

# What a test is parametrized with, where both paths must agree.
PATHS = ["dense", pytest.param("streamed", marks=pytest.mark.tensorflow)]


def dense():
    """A context in which layers trace the dense path alone."""
    return tfattn.path("dense")


@contextlib.contextmanager
def streamed(block):
    """A context in which layers go block by block, in blocks of those `(queries, keys)`."""
    from tfattn.core.paths.blockwise import attend as blockwise  # needs TensorFlow

    by_block = functools.partial(blockwise.attend, block=block)
    with unittest.mock.patch.object(blockwise, "attend", by_block), tfattn.path("streamed"):
        yield
