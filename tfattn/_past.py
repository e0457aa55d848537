"""Cached keys and values in the state of a step, shared by models and searches."""

from typing import NamedTuple

from tfattn._types import Tensor


class Past(NamedTuple):
    """A tensor in a step's state with an entry for each position, such as the cached keys.

    A step writes the entry of its own position, and reads no later entry. So a search may pass only
    the first positions, up to the current position or a few more: work and memory then grow with
    the number of written positions. A step reads this number with `ops.shape`, and returns as many
    positions. The first step gets all L positions, and so does every step where XLA might compile
    the search. Entries after the written positions are not kept.

    Attributes:
        tensor: `(B, ..., L, P)`, with room for L positions.
    """

    tensor: Tensor
