"""Configs, copies and seeds of layers that other layers are made of."""

import zlib
from typing import Any

import keras

from tfattn import _checks

__all__ = [
    "Template",
    "checked_layer",
    "copy_of",
    "deserialized",
    "keras_object",
    "own_initializer",
    "part_seed",
    "serialized",
]


def checked_layer(who: str, argument: str, layer: Any) -> keras.layers.Layer | None:
    """The layer itself, if it is one or None."""
    if layer is not None and not isinstance(layer, keras.layers.Layer):
        _checks.fail(who, argument, "be a layer, or None", layer)
    return layer


def keras_object(who: str, argument: str, value: Any) -> Any:
    """What Keras makes of a name, a config or an object: an initializer, regularizer, constraint or
    activation, by the last word of the argument. None is Keras's default, or none.
    """
    kind = f"{argument.rpartition('_')[2]}s"
    expected = f"be one of `keras.{kind}`, its name, or a function"
    try:
        found = getattr(keras, kind).get(value)
    except (ValueError, TypeError, KeyError, AttributeError):
        _checks.fail(who, argument, expected, value)
    if found is not None and not callable(found):
        _checks.fail(who, argument, expected, value)
    return found


def serialized(layer: keras.layers.Layer | None) -> dict | None:
    """A part's config without the shapes that it was built for: the copy is built by the layer that
    takes it.
    """
    if layer is None:
        return None
    config = keras.saving.serialize_keras_object(layer)
    config.pop("build_config", None)
    return config


def deserialized(config: dict, *names: str) -> dict:
    """`config` with the parts of those names made from their configs, where they are there."""
    parts = {
        name: keras.saving.deserialize_keras_object(config[name])
        for name in names
        if name in config
    }
    return {**config, **parts}


def copy_of(layer: keras.layers.Layer | None, **changes: Any) -> keras.layers.Layer | None:
    """A new layer from the same config, with weights of its own; None for None.

    Args:
        layer: any layer, or None. It stays as it is.
        **changes: entries of the config that are others in the copy, such as `name`, `dtype` and
            `seed`. One that the layer's config does not have is left out: a norm has no seed.
    Example:
        >>> attention = MultiHeadAttention(num_heads=2, key_dim=3, dropout=0.1)
        >>> copy_of(attention, name="block_3", seed=7).seed
        7
    """
    if layer is None:
        return None
    config = layer.get_config()
    changes = {name: value for name, value in changes.items() if name in config}
    return type(layer).from_config({**config, **changes})


class Template:
    """A layer, or None, to make copies of.

    An attribute that is a layer is a part in Keras's eyes, which asks for its weights. A template
    has none and never will, so it is held in here.
    """

    def __init__(self, layer: keras.layers.Layer | None):
        self.layer = copy_of(layer)

    def copy(self, **changes: Any) -> keras.layers.Layer | None:
        return copy_of(self.layer, **changes)


def own_initializer(initializer: Any) -> Any:
    """A copy for one weight: Keras's initializers give the same numbers each time that one object
    is asked.
    """
    if not isinstance(initializer, keras.initializers.Initializer):
        return initializer
    return type(initializer).from_config(initializer.get_config())


def part_seed(seed: int | None, name: str) -> int | None:
    """A seed for the part of that name: with one seed for all, every part would drop the same
    features.
    """
    return None if seed is None else zlib.crc32(f"{seed}/{name}".encode()) >> 1
