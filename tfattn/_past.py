"""What models and searches share: keys and values of past positions, in the state of a step."""

from typing import NamedTuple

from tfattn._types import Tensor

__all__ = ["Past"]


class Past(NamedTuple):
    """A tensor in a step's state with an entry for each position, such as the keys so far.

    A step writes the entry of its own position, and reads none after it. So a search may pass only
    the first positions, up to that one or a few more: work and memory then grow with what has been
    written. A step finds the number of positions with `ops.shape`, and returns as many. The first
    step gets all L positions. So does every step where XLA might compile the search. Entries after
    the written positions are not kept.

    Attributes:
        tensor: `(B, ..., L, P)`, with room for L positions.
    """

    tensor: Tensor
