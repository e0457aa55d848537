"""Shapes that are asked for before there are numbers."""

from collections.abc import Sequence

import keras

__all__ = ["known_sizes", "sizes_are_made_up"]


def sizes_are_made_up() -> bool:
    """Whether the tensors of this call are stand-ins, whose unknown sizes are numbers all the same.

    So Keras finds shapes on PyTorch, which has no unknown sizes: it calls a layer with tensors of
    some length in a `keras.SymbolicScope`, and compares what two lengths give.
    """
    if keras.backend.backend() != "torch":
        return False
    scope = keras.SymbolicScope()
    with scope:  # it notes the one around it
        return scope.original_scope is not None


def known_sizes(shape: Sequence[int | None]) -> tuple[int | None, ...]:
    """A shape `(B, T, S)` or `(B, H, T, S)` of scores, without what may be made up."""
    if not sizes_are_made_up():
        return tuple(shape)
    heads = shape[1:2] if len(shape) == 4 else ()
    return (None, *heads, None, None)
