"""One of the engine's paths alone, for tests of something else.

A graph of unknown lengths holds both, and takes more than twice as long to trace. At the sizes of
tests the dense one runs. Graphs that hold both are those of the engine's own tests, of the rows
that `tests/conformance/paths.py` names, and of a Transformer that learns to copy.
"""

import tfattn


def dense():
    """A context in which layers trace the dense path alone."""
    return tfattn.path("dense")
