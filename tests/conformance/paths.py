"""Which of the engine's paths the graphs of this folder hold."""

import contextlib
import functools
import unittest.mock

import tfattn
from tfattn.layers.attention import base

# A graph of unknown lengths holds both paths, and with these sizes one of them never runs. So the
# real choice is traced for one row a score, for one kernel that ends, for one block, one model and
# one mask object; the others trace the path that runs.
BOTH = {
    "Attention[dot]",
    "Attention[dot] under causal & window",
    "Attention[additive]",
    "Attention[bilinear]",
    "Attention[cosine]",
    "Attention[kernel]",
    "MultiHeadAttention",
    "NadarayaWatson[epanechnikov]",
    "TransformerDecoderBlock",
    "Transformer",
}


def paths_of(row):
    """A context in which the row's graphs hold both paths, or the one that runs."""
    if row.name in BOTH:
        return contextlib.nullcontext()
    dense = functools.partial(tfattn.attend, path="dense")
    return unittest.mock.patch.object(base, "attend", dense)
