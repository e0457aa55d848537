"""Sublayers passed in and not copied, so that two layers may share a sublayer and its weights.

A saved model cannot express sharing: each layer's config contains the sublayer, and Keras saves
shared weights once, with the first layer, so the others cannot be loaded. So saving such a layer by
its config raises an error. Subclassed models, whose own code shares the sublayer again, and
`.weights.h5` files are not affected.
"""

import weakref
from typing import Any

import keras

from tfattn import _checks


def build_part(holder: keras.layers.Layer, part: keras.layers.Layer | None, *shapes: Any) -> None:
    """Builds a sublayer, unless it is built or None, and records `holder` on it."""
    if part is None:
        return
    if not part.built:
        part.build(*shapes)
    # Weak references: a deleted layer no longer shares the sublayer.
    vars(part).setdefault("_holders", weakref.WeakSet()).add(holder)


def check_unshared(holder: keras.layers.Layer, *arguments: str) -> None:
    """Raises if one of these sublayers has weights and another layer shares it."""
    for argument in arguments:
        part = getattr(holder, argument, None)
        others = getattr(part, "_holders", ())
        others = sorted(f"`{other.name}`" for other in others if other is not holder)
        if others and getattr(part, "weights", None):
            others = " and ".join(others)
            expected = f"not be shared with {others} in a model that is saved: create one per layer"
            _checks.fail(type(holder).__name__, argument, expected, part)
