"""What becomes of the layers inside a layer after it was made: frozen or not, quantized, of which
dtypes. Files and configs say it.
"""

import functools
import json
from collections.abc import Collection, Iterator
from typing import Any

import keras
import numpy as np

__all__ = ["RestoredParts"]

# Among the variables of a layer, which Keras numbers.
_NOTE = "quantized_parts"


class RestoredParts:
    """Mixin of layers and models that make layers in `build`: a config says which of them are
    frozen and which are quantized, and what is made from it has them so.

    Keras makes a layer again from the arguments of its constructor, which do not know what became
    of its parts. Where they were quantized it then finds variables in a file, or in a list of
    weights, that the layer lacks.
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> "RestoredParts":
        layer = super().__new__(cls, *args, **kwargs)
        build = layer.build

        @functools.wraps(build)
        def build_and_restore(*args, **kwargs):
            before = () if layer._made_frozen else {id(part) for _, part in _paths(layer)}
            build(*args, **kwargs)
            layer._freeze_parts(before)
            _quantize(_inside(layer, recursive=True), layer._quantized_parts)
            layer._quantized_parts = ()

        layer.build = build_and_restore
        return layer

    def __init__(self, **kwargs: Any):
        # Configs alone have these: a layer without a constructor of its own has no such arguments.
        trainable_parts = kwargs.pop("trainable_parts", {})
        quantized_parts = kwargs.pop(_NOTE, [])
        super().__init__(**{**kwargs, "dtype": _with_names(kwargs.get("dtype"))})
        # The parts that are frozen or not, other than the layer that they are in.
        self._trainable_parts = tuple(trainable_parts.items())
        self._made_frozen = not self.trainable  # and all parts with it, whenever they are made
        self._quantized_parts = tuple(quantized_parts)

    def get_config(self) -> dict[str, Any]:
        config, flags = super().get_config(), dict(self._trainable_parts)
        if not self._made_frozen:
            parts = {"": self, **dict(_paths(self))}
            for path, part in parts.items():
                above = parts[path.rpartition("/")[0]]
                if part.trainable != above.trainable:
                    flags[path] = part.trainable
        # With the parts of parts, whose own configs are no part of this one.
        noted = list(self._quantized_parts) or _notes(_inside(self, recursive=True))
        changed = {"trainable_parts": flags, _NOTE: noted}
        return {**config, **{name: parts for name, parts in changed.items() if parts}}

    def save_own_variables(self, store: Any) -> None:
        super().save_own_variables(store)
        noted = _notes(_inside(self))
        if noted:
            store[_NOTE] = np.frombuffer(json.dumps(noted).encode(), "uint8")

    def load_own_variables(self, store: Any) -> None:
        if _NOTE in store.keys():
            _quantize(_inside(self), json.loads(bytes(np.asarray(store[_NOTE]))))
            store = {name: store[name] for name in store.keys() if name != _NOTE}
        super().load_own_variables(store)

    def _freeze_parts(self, before: Collection[int]) -> None:
        """Freezes what is made within a frozen layer: Keras does so to what is there already."""
        for part, trainable in [(self, self.trainable), *_flags(self, self.trainable, before)]:
            if not trainable or not part.trainable:
                part.trainable = trainable
        parts = dict(_paths(self))
        for path, trainable in self._trainable_parts:
            if path in parts:
                parts[path].trainable = trainable
        self._trainable_parts, self._made_frozen = (), False


def _inside(layer: keras.layers.Layer, recursive: bool = False) -> list[keras.layers.Layer]:
    """The layers inside a layer, in the order in which they are made."""
    # Keras has no public name for it, but for models.
    return layer._flatten_layers(include_self=False, recursive=recursive)


def _paths(layer: keras.layers.Layer, above: str = "") -> Iterator[tuple[str, Any]]:
    """(Path, layer) of every layer in a layer, each after the one that it is in."""
    for part in _inside(layer):
        path = f"{above}/{part.name}" if above else part.name
        yield path, part
        yield from _paths(part, path)


def _flags(
    layer: keras.layers.Layer, trainable: bool, before: Collection[int]
) -> Iterator[tuple[Any, bool]]:
    """(Layer, whether it is to be trained) of every layer in a layer.

    Args:
        before: the ids of those that were there before their flags could be set.
    """
    for part in _inside(layer):
        wanted = part.trainable and (trainable or id(part) in before)
        yield part, wanted
        yield from _flags(part, wanted, before)


def _with_names(dtype: Any) -> Any:
    """The dtype policy, a `DTypePolicyMap` as one whose default has a name.

    Where a map has none, Keras takes the names from the policies in it when it writes them, and a
    file gives all maps of heads the default.
    """
    policies = keras.dtype_policies.get(dtype) if isinstance(dtype, dict) else dtype
    if not isinstance(policies, keras.dtype_policies.DTypePolicyMap):
        return dtype
    # Copies: the policies of another layer's map lose their names when that layer is saved.
    named = {path: keras.dtype_policies.get(policies[path].name) for path in policies}
    return keras.dtype_policies.DTypePolicyMap(policies.default_policy.name, named)


def _notes(parts: list[keras.layers.Layer]) -> list[dict[str, Any]]:
    """The place, mode and configuration of each part that is quantized, plain enough for JSON."""
    noted = []
    for place, part in enumerate(parts):
        if part.quantization_mode is not None:
            config = getattr(part, "quantization_config", None)  # Keras 3.12 has none
            config = keras.saving.serialize_keras_object(config)
            noted.append({"place": place, "mode": part.quantization_mode, "config": config})
    return noted


def _quantize(parts: list[keras.layers.Layer], noted: list[dict[str, Any]]) -> None:
    for note in noted:
        part = parts[note["place"]]
        if part.quantization_mode is None:
            config = keras.saving.deserialize_keras_object(note["config"])
            options = {} if config is None else {"config": config}
            part.quantize(note["mode"], **options)
