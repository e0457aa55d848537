"""Parts that layers take as they are, and do not copy, so that two layers may share one.

Then they share its weights. But no file of theirs can say so. Each layer's config has a part of its
own, and Keras writes shared weights once, at the first layer: the others would find none. So a
layer that shares weights with another is refused when it is saved by its config. A subclassed
model, whose own code shares the part again, and `.weights.h5` are not concerned.
"""

import weakref
from typing import Any

import keras

from tfattn import _checks

__all__ = ["build_part", "check_unshared"]


def build_part(holder: keras.layers.Layer, part: keras.layers.Layer | None, *shapes: Any) -> None:
    """Builds a part, unless it is built or None, and notes on it whose it is."""
    if part is None:
        return
    if not part.built:
        part.build(*shapes)
    # Weakly: a layer that is gone holds nothing.
    vars(part).setdefault("_holders", weakref.WeakSet()).add(holder)


def check_unshared(holder: keras.layers.Layer, *arguments: str) -> None:
    """Raises where another layer has one of these parts too, and it has weights."""
    for argument in arguments:
        part = getattr(holder, argument, None)
        others = getattr(part, "_holders", ())
        others = sorted(f"`{other.name}`" for other in others if other is not holder)
        if others and part.weights:
            expected = (
                f"be this layer's alone to be saved, since it has weights, and "
                f"{' and '.join(others)} has it too: make one for each"
            )
            _checks.fail(type(holder).__name__, argument, expected, part)
