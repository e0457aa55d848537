"""Which of the engine's paths the graphs of this folder hold."""

import contextlib

from tests.helpers import paths

# Both for one row a score, for one kernel that ends, for one block, one model and one mask object;
# the others trace the path that runs, see `tests.helpers.paths`.
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
    """A context in which the row's graphs hold both paths, or the one that runs."""
    return contextlib.nullcontext() if row.name in BOTH else paths.dense()
