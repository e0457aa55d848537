"""What models and searches share without knowing each other: the past in the state of a step."""

from typing import NamedTuple

from tfattn._types import Tensor

__all__ = ["Past"]


class Past(NamedTuple):
    """A tensor in a step's state with an entry for each position, such as the keys so far.

    A step writes the entry of its position, and reads none after it. So a search may hand it fewer
    positions than there is room for, as long as its own is among them: work and memory then grow
    with what is written. A step asks with `ops.shape` how many there are, and hands back as many.
    The first step gets all of them, and so does every step where XLA might compile the search.
    What stood after the written positions is not kept.

    Attributes:
        tensor: `(B, ..., L, P)`, with room for L positions.
    """

    tensor: Tensor
