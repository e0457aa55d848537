"""Masks as objects: which query may attend to which key.

True means *may attend*. A mask object is a rule over positions and not an array. The engine
evaluates it on rectangles of the T × S matrix of query–key pairs, and never needs the whole matrix
at once. Masks combine with `&` (and), `|` (or) and `~` (not):

    >>> from tfattn import masks
    >>> local = masks.causal() & masks.window(2)
    >>> print(np.asarray(local.dense(3, 3)).astype(int))
    [[1 0 0]
     [1 1 0]
     [0 1 1]]

To add a mask, write a class with one method, `on(grid)`. Positions count tokens from 0. With fewer
queries than keys, both align at the end: query T−1 has the position of key S−1, as decoding needs.
An argument of another type, rank or range than described raises a ValueError.
"""

from tfattn.core.masks.arrays import explicit, padding, positions_in_segments, segments
from tfattn.core.masks.base import Mask
from tfattn.core.masks.grid import Grid
from tfattn.core.masks.joins import all_of
from tfattn.core.masks.positions import causal, chunks, prefix, window

__all__ = [
    "Grid",
    "Mask",
    "all_of",
    "causal",
    "chunks",
    "explicit",
    "padding",
    "positions_in_segments",
    "prefix",
    "segments",
    "window",
]
