"""Masks as objects: which query may attend to which key.

True means *may attend*. A mask object is a rule over positions and not a matrix, so that the engine
can ask it about any rectangle of the T × S square of pairs, and never needs the whole square at
once. Masks join with `&`, `|` and `~`:

    >>> from tfattn import masks
    >>> local = masks.causal() & masks.window(2)
    >>> print(local.dense(3, 3).numpy().astype(int))
    [[1 0 0]
     [1 1 0]
     [0 1 1]]

The next mask is a class with one method, `on(grid)`, in a file of its own here. Positions count
tokens from 0. With fewer queries than keys the queries are the last ones: query T−1 stands at key
position S−1, as decoding needs.
"""

from tfattn.core.masks.base import Mask
from tfattn.core.masks.causal import causal
from tfattn.core.masks.explicit import explicit
from tfattn.core.masks.grid import Grid
from tfattn.core.masks.joins import every
from tfattn.core.masks.padding import padding
from tfattn.core.masks.prefix import prefix
from tfattn.core.masks.segments import segments
from tfattn.core.masks.window import window

__all__ = [
    "Grid",
    "Mask",
    "causal",
    "every",
    "explicit",
    "padding",
    "prefix",
    "segments",
    "window",
]
