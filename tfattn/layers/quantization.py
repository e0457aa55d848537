"""Files of layers whose parts are quantised."""

import json
from typing import Any

import keras
import numpy as np

__all__ = ["QuantizedParts"]

# Among the variables of a layer, which Keras numbers.
_NOTE = "quantized_parts"


class QuantizedParts:
    """Mixin of layers and models that make parts themselves: a file says which of them were
    quantised, and loading it quantises these first.

    Keras makes a layer again from the arguments of its constructor, which do not know what became
    of its parts, and then finds variables in the file that the layer lacks.
    """

    def save_own_variables(self, store: Any) -> None:
        super().save_own_variables(store)
        parts = {}
        for place, part in enumerate(self._parts()):
            if part.quantization_mode is not None:
                config = getattr(part, "quantization_config", None)  # Keras 3.12 has none
                config = keras.saving.serialize_keras_object(config)
                parts[place] = {"mode": part.quantization_mode, "config": config}
        if parts:
            store[_NOTE] = np.frombuffer(json.dumps(parts).encode(), "uint8")

    def load_own_variables(self, store: Any) -> None:
        if _NOTE in store.keys():
            parts = self._parts()
            for place, note in json.loads(bytes(np.asarray(store[_NOTE]))).items():
                if parts[int(place)].quantization_mode is None:
                    config = keras.saving.deserialize_keras_object(note["config"])
                    options = {} if config is None else {"config": config}
                    parts[int(place)].quantize(note["mode"], **options)
            store = {name: store[name] for name in store.keys() if name != _NOTE}
        super().load_own_variables(store)

    def _parts(self):
        """The layers directly inside that can be quantised, in the order in which they are made."""
        inside = self._flatten_layers(include_self=False, recursive=False)
        return [layer for layer in inside if hasattr(layer, "quantize")]
