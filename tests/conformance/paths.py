"""The engine's paths in the graphs of these tests."""

import contextlib

from tests.helpers import paths

# Rows whose graphs have both paths: one per score, a kernel of compact support, a block, a model
# and a mask object. Other graphs have the path that runs, see `tests.helpers.paths`.
BOTH = {
    "Attention[dot]",
    "Attention[dot] under causal & window",
    "Attention[additive]",
    "Attention[bilinear]",
    "Attention[cosine]",
    "Attention[kernel]",
    "Attention[sink]",
    "MultiHeadAttention",
    "NadarayaWatson[epanechnikov]",
    "TransformerDecoderBlock",
    "Transformer",
}


def paths_of(row):
    """A context in which the row's graphs have both paths, or only the path that runs."""
    return contextlib.nullcontext() if row.name in BOTH else paths.dense()
