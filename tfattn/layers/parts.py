"""What layers made of other layers share: configs, copies and seeds of parts, implicit masks."""

import functools
import inspect
import random
import weakref
import zlib
from typing import Any

import keras
from keras import ops

from tfattn import _checks
from tfattn.core import symbolic
from tfattn.core.rule import Rule

__all__ = [
    "CarryMask",
    "PartsOfItsOwn",
    "Template",
    "checked_layer",
    "copy_of",
    "deserialized",
    "keras_object",
    "own_initializer",
    "padding_mask",
    "part_seed",
    "serialized",
    "spec_of_call",
]


def checked_layer(who: str, argument: str, layer: Any) -> keras.layers.Layer | None:
    """The layer itself, if it is one or None."""
    if layer is not None and not isinstance(layer, keras.layers.Layer):
        _checks.fail(who, argument, "be a layer, or None", layer)
    return layer


class PartsOfItsOwn:
    """Mixin of layers that take other layers as they are, and do not copy them.

    Layers may share a part: then they share its weights. But no file of theirs can say so. Each
    layer's config has a part of its own, and Keras writes shared weights once, at the first layer:
    the others would find none. So a layer that shares weights with another is refused when it is
    saved by its config. A subclassed model, whose own code shares the part again, and
    `.weights.h5` are not concerned.
    """

    def build_part(self, argument: str, *shapes: Any) -> None:
        """Builds the part of that name, unless it is built or None, and notes whose it is."""
        part = getattr(self, argument)
        if part is None:
            return
        if not part.built:
            part.build(*shapes)
        _HOLDERS.setdefault(part, weakref.WeakSet()).add(self)

    def get_build_config(self) -> dict | None:
        for argument in ("score", "positions", "normalizer"):
            part = getattr(self, argument, None)
            others = [] if part is None else _HOLDERS.get(part, ())
            others = [f"`{other.name}`" for other in others if other is not self]
            if others and part.weights:
                expected = (
                    f"be this layer's alone to be saved, since it has weights, and "
                    f"{' and '.join(sorted(others))} has it too: make one for each"
                )
                _checks.fail(type(self).__name__, argument, expected, part)
        return super().get_build_config()


# The layers that each part belongs to, weakly: what is gone holds nothing.
_HOLDERS: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


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


def spec_of_call(layer: keras.layers.Layer, *args: Any, **kwargs: Any) -> Any:
    """`compute_output_spec` as the call itself, traced with symbolic tensors: shapes, dtypes and
    checks cannot differ from those of a call.

    A layer that is not built has no weights to be traced with, and stays as it is: a copy is built
    and asked.
    """
    if layer.built:
        given = dict(zip(inspect.signature(layer.call).parameters, args, strict=False)) | kwargs
        rules = {name: value for name, value in given.items() if isinstance(value, Rule)}
        with symbolic.asking_for(given):
            if not rules:
                return keras.Operation.compute_output_spec(layer, *args, **kwargs)
            # JAX takes each argument that it is given for an array.
            call = staticmethod(functools.partial(layer.call, **rules))
            stand_in = type(type(layer).__name__, (), {"call": call, "name": layer.name})()
            others = {name: value for name, value in given.items() if name not in rules}
            return keras.Operation.compute_output_spec(stand_in, **others)
    state = random.getstate()  # from which Keras draws seeds: a question about shapes moves none on
    try:
        return copy_of(layer)(*args, **kwargs)
    finally:
        random.setstate(state)


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


class CarryMask(keras.layers.Layer):
    """Puts a mask on a tensor. Keras carries the first input's mask on by itself, but not one given
    as an argument.
    """

    def __init__(self, **kwargs):
        super().__init__(autocast=False, **kwargs)
        self.built = True  # it has nothing to build

    def compute_mask(self, inputs, previous_mask=None):
        return inputs[1]

    def call(self, inputs):
        return inputs[0]


def padding_mask(ids: Any) -> Any:
    """True where a token is real: `(B, T)` of ids `(B, T)`."""
    return ops.not_equal(ids, 0)
