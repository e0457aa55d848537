"""Configs, copies, seeds and holders of sublayers."""

import weakref
import zlib
from typing import Any, TypeVar

import keras

from tfattn import _checks
from tfattn._arguments import constructor_arguments

Made = TypeVar("Made", bound="Configured")


def checked_layer(
    who: str,
    argument: str,
    layer: Any,
    kind: type = keras.layers.Layer,
    expected: str = "be a layer, or None",
) -> Any:
    """`layer`, if it is a layer of this kind or None."""
    if layer is not None and not isinstance(layer, kind):
        _checks.fail(who, argument, expected, layer)
    return layer


def serialized(layer: keras.layers.Layer | None) -> dict[str, Any] | None:
    """A sublayer's config, without its build config: the outer layer builds the copy."""
    if layer is None:
        return None
    config = keras.saving.serialize_keras_object(layer)
    config.pop("build_config", None)
    return config


class Configured:
    """Mixin of layers and models whose constructor arguments are attributes of the same names.

    Configs are made from the attributes; only other arguments need a `get_config`. A layer that was
    passed in may be in a `LayerTemplate` instead, with a `_` before its name. The last word of a
    name is the kind of a Keras object.
    """

    def get_config(self) -> dict[str, Any]:
        found = {name: self._argument(name) for name in constructor_arguments(self)}
        return {**found, **super().get_config()}  # type: ignore[misc]

    @classmethod
    def from_config(cls: type[Made], config: dict[str, Any]) -> Made:
        made = {
            name: keras.saving.deserialize_keras_object(value)
            for name, value in config.items()
            if isinstance(value, dict) and "class_name" in value and name != "dtype"
        }
        return cls(**{**config, **made})

    def _part_options(self, name: str) -> dict[str, Any]:
        """The name, seed and dtype of a sublayer, which dropouts of one seed need to differ."""
        layer: Any = self
        return {"name": name, "seed": part_seed(layer.seed, name), "dtype": layer.dtype_policy}

    def _argument(self, name: str) -> Any:
        """The entry of an argument in the config."""
        template = getattr(self, f"_{name}", None)
        value = template.layer if isinstance(template, LayerTemplate) else getattr(self, name)
        kind = name.rpartition("_")[2]
        if kind in _KINDS:
            return getattr(keras, f"{kind}s").serialize(value)
        if isinstance(value, type):
            return keras.saving.get_registered_name(value)
        return serialized(value) if hasattr(value, "get_config") else value


_KINDS = ("activation", "constraint", "initializer", "regularizer")


def copy_of(layer: keras.layers.Layer | None, **changes: Any) -> Any:
    """A new layer from the same config, with its own weights; None for None. Changes of entries
    that the config does not have are ignored: a norm has no seed.
    """
    if layer is None:
        return None
    config = unshared_config(layer)
    changes = {name: value for name, value in changes.items() if name in config}
    return type(layer).from_config({**config, **changes})


def unshared_config(part: Any) -> Any:
    """The config of a layer, from which a copy shares no part with the layer or another copy.

    While a model is loaded, Keras marks a part that it serializes a second time, and gives each
    config with that mark the first part again, with its weights.
    """
    value = part.get_config() if hasattr(part, "get_config") else part
    if isinstance(value, dict):
        return {k: unshared_config(v) for k, v in value.items() if k != "shared_object_id"}
    return type(value)(map(unshared_config, value)) if type(value) in (list, tuple) else value


class LayerTemplate:
    """Holds a layer, or None, to make copies of; Keras would track it in an attribute."""

    def __init__(self, layer: keras.layers.Layer | None):
        self.layer = copy_of(layer)

    def copy(self, **changes: Any) -> Any:
        return copy_of(self.layer, **changes)


def copy_initializer(initializer: Any) -> Any:
    """A copy for one weight: a Keras initializer returns the same numbers in every call."""
    if not isinstance(initializer, keras.initializers.Initializer):
        return initializer
    return type(initializer).from_config(unshared_config(initializer))


def part_seed(seed: int | None, name: str) -> int | None:
    """A seed for the sublayer `name`: with one seed, sublayers would drop the same features."""
    return None if seed is None else zlib.crc32(f"{seed}/{name}".encode()) >> 1


def build_part(holder: keras.layers.Layer, part: keras.layers.Layer | None, *shapes: Any) -> None:
    """Builds a sublayer that was passed in, unless it is built or None, and records who holds it.

    Layers of a subclassed model may share such a part. A config cannot express this: Keras saves
    shared weights once, with the first layer, so `get_build_config` refuses it.
    """
    if part is None:
        return
    if not part.built:
        part.build(*shapes)
    if not hasattr(part, "_holders"):
        part._holders = weakref.WeakSet()  # a deleted layer no longer shares the sublayer
    part._holders.add(holder)


def other_holders(part: Any, holder: Any) -> list[str]:
    """The names of other layers that hold a sublayer of `holder`."""
    holders = getattr(part, "_holders", ())
    others = [f"`{other.name}`" for other in holders if other is not holder]
    return sorted(others) if holder in holders else []
