"""What models and searches agree on without knowing each other: which part of a state has an entry for each position."""

from typing import Any, NamedTuple

__all__ = ["Past"]


class Past(NamedTuple):
    """A tensor in the state of a step with an entry for each position, such as the keys of the tokens so far.

    A step writes the entry of its position, and looks at none after it. So a search may hand it fewer positions than there
    is room for, as long as its own is among them: work and memory then grow with what is written.

    Attributes:
        tensor: `(B, ..., L, P)`, L positions.
    """

    tensor: Any
