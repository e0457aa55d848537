"""What models and searches agree on without knowing each other: which part of a state has an entry
for each position.
"""

from typing import Any, NamedTuple

__all__ = ["Past"]


class Past(NamedTuple):
    """A tensor in the state of a step with an entry for each position, such as the keys of the
    tokens so far.

    A step writes the entry of its position, and looks at none after it. So a search may hand it
    fewer positions than there is room for, as long as its own is among them: work and memory then
    grow with what is written. How many there are, a step asks with `ops.shape`; it hands back as
    many. The first step gets all of them, and so does each one where XLA might compile the search.
    What stood after the written positions is not kept.

    Attributes:
        tensor: `(B, ..., L, P)`, with room for L positions.
    """

    tensor: Any
