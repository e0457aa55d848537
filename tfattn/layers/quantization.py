"""Files and copies of layers whose parts are quantised."""

import functools
import json
from typing import Any

import keras
import numpy as np

__all__ = ["QuantizedParts"]

# Among the variables of a layer, which Keras numbers.
_NOTE = "quantized_parts"


class QuantizedParts:
    """Mixin of layers and models that make parts themselves: a file and a config say which of them
    were quantised, and what is made from them is quantised first.

    Keras makes a layer again from the arguments of its constructor, which do not know what became
    of its parts, and then finds variables in the file, or in a list of weights, that the layer
    lacks.
    """

    def __init__(self, quantized_parts: list | None = None, **kwargs: Any):
        super().__init__(**kwargs)
        if quantized_parts:
            build = self.build

            @functools.wraps(build)
            def build_and_quantize(*shapes: Any, **named: Any) -> None:
                build(*shapes, **named)
                _quantize(self._parts(recursive=True), quantized_parts)

            self.build = build_and_quantize

    def get_config(self) -> dict[str, Any]:
        # With the parts of parts, whose own configs are no part of this one.
        noted = _notes(self._parts(recursive=True))
        return {**super().get_config(), **({_NOTE: noted} if noted else {})}

    def save_own_variables(self, store: Any) -> None:
        super().save_own_variables(store)
        noted = _notes(self._parts())
        if noted:
            store[_NOTE] = np.frombuffer(json.dumps(noted).encode(), "uint8")

    def load_own_variables(self, store: Any) -> None:
        if _NOTE in store.keys():
            _quantize(self._parts(), json.loads(bytes(np.asarray(store[_NOTE]))))
            store = {name: store[name] for name in store.keys() if name != _NOTE}
        super().load_own_variables(store)

    def _parts(self, recursive: bool = False) -> list[keras.layers.Layer]:
        """The layers inside that can be quantised, in the order in which they are made."""
        inside = self._flatten_layers(include_self=False, recursive=recursive)
        return [layer for layer in inside if hasattr(layer, "quantize")]


def _notes(parts: list[keras.layers.Layer]) -> list[dict[str, Any]]:
    """The place, mode and configuration of each part that is quantised, plain enough for JSON."""
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
