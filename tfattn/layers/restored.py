"""Saves what constructor arguments do not cover: frozen and quantized sublayers, dtypes, and the
number of weights.
"""

import functools
import json
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import keras
import numpy as np

from tfattn import _checks
from tfattn._arguments import constructor_names, refuse_other_names

# Entries of a weights file, beside the variables, whose names are numbers.
_ENTRY = "quantized_parts"
_NUMBER = "number_of_weights"


class RestoredParts:
    """Mixin of layers and models that make sublayers in `build`. Their configs record frozen and
    quantized sublayers, and `from_config` restores them.

    Keras restores a layer from its constructor's arguments, which do not contain later changes of
    sublayers. Without them, the weights of a quantized sublayer do not fit the restored layer.
    """

    build: Callable[..., None]
    built: bool
    trainable: bool
    weights: list[Any]

    def __new__(cls, *args: Any, **kwargs: Any) -> "RestoredParts":
        layer = super().__new__(cls, *args, **kwargs)
        build = layer.build

        @functools.wraps(build)
        def build_and_restore(*args: Any, **kwargs: Any) -> None:
            before = () if layer._made_frozen else {id(part) for _, part in _by_path(layer)}
            build(*args, **kwargs)
            layer._freeze_parts(before)
            _quantize(_sublayers(layer, recursive=True), layer._quantized_parts)
            layer._quantized_parts = ()

        layer.build = build_and_restore
        return layer

    def __init__(self, **kwargs: Any):
        # Popped, since only configs have these arguments: constructors do not declare them.
        trainable_parts = kwargs.pop("trainable_parts", {})
        quantized_parts = kwargs.pop(_ENTRY, [])
        names = constructor_names(type(self))  # type: ignore[arg-type]
        refuse_other_names(type(self).__name__, kwargs, names)
        super().__init__(**{**kwargs, "dtype": _with_named_default(kwargs.get("dtype"))})
        # From a config: sublayers whose flag differs from the flag of the layer around them.
        self._trainable_parts = tuple(trainable_parts.items())
        self._made_frozen = not self.trainable  # sublayers made later are frozen too
        self._quantized_parts = tuple(quantized_parts)
        self._number_in_config: int | None = None

    def get_config(self) -> dict[str, Any]:
        config, flags = super().get_config(), dict(self._trainable_parts)  # type: ignore[misc]
        if not self._made_frozen:
            parts = {"": self, **dict(_by_path(self))}
            for path, part in parts.items():
                above = parts[path.rpartition("/")[0]]
                if part.trainable != above.trainable:
                    flags[path] = part.trainable
        # All levels of sublayers, since their own configs are not in this config.
        records = list(self._quantized_parts) or _records(_sublayers(self, recursive=True))
        changed = {"trainable_parts": flags, _ENTRY: records}
        return {**config, **{name: parts for name, parts in changed.items() if parts}}

    def save_own_variables(self, store: Any) -> None:
        super().save_own_variables(store)  # type: ignore[misc]
        records = _records(_sublayers(self))
        if records:
            store[_ENTRY] = np.frombuffer(json.dumps(records).encode(), "uint8")
        # Not for other layers, such as attention, since Keras's own layers read their files.
        if hasattr(self, "num_layers") and not self._has_other_weights():
            store[_NUMBER] = np.array(len(self.weights))

    def load_own_variables(self, store: Any) -> None:
        if _ENTRY in store.keys():
            _quantize(_sublayers(self), json.loads(bytes(np.asarray(store[_ENTRY]))))
        own = {name: store[name] for name in store.keys() if name not in (_ENTRY, _NUMBER)}
        super().load_own_variables(own)  # type: ignore[misc]
        numbers = [self._number_in_config] if self._number_in_config is not None else []
        numbers += [int(np.asarray(store[_NUMBER]))] if _NUMBER in store.keys() else []
        for number in numbers:
            self._check_number(number)
        self._number_in_config = None

    def get_build_config(self) -> dict[str, Any] | None:
        config = super().get_build_config()  # type: ignore[misc]
        if not config or self._has_other_weights():
            return config
        return {**config, _NUMBER: len(self.weights)}

    def build_from_config(self, config: dict[str, Any]) -> None:
        config = dict(config or {})
        # Compared when weights are read: a subclass may have sublayers that its first call builds.
        self._number_in_config = config.pop(_NUMBER, None)
        super().build_from_config(config)  # type: ignore[misc]

    def _has_other_weights(self) -> bool:
        """Whether quantization or LoRA changed the number of weights."""
        return any(
            part.quantization_mode is not None or getattr(part, "lora_enabled", False)
            for part in _sublayers(self, recursive=True)
        )

    def _check_number(self, number: int) -> None:
        """Raises if a file has another number of weights: Keras ignores those without a layer."""
        if self.built and number != len(self.weights) and not self._has_other_weights():
            expected = f"be {number}, as in the file, for the layer to be read whole"
            _checks.fail(type(self).__name__, _NUMBER, expected, len(self.weights))

    def _freeze_parts(self, before: Collection[int]) -> None:
        """Freezes new sublayers of a frozen layer; Keras freezes only existing sublayers.

        Args:
            before: ids of the sublayers that existed before `build`.
        """
        for part, trainable in [
            (self, self.trainable),
            *_flags(self, self.trainable, before),
        ]:
            if not trainable or not part.trainable:
                part.trainable = trainable
        parts = dict(_by_path(self))
        for path, trainable in self._trainable_parts:
            if path in parts:
                parts[path].trainable = trainable
        self._trainable_parts, self._made_frozen = (), False


def _sublayers(layer: keras.layers.Layer, recursive: bool = False) -> list[keras.layers.Layer]:
    """The sublayers, in the order of their creation."""
    # Only models have a public method for this.
    return layer._flatten_layers(include_self=False, recursive=recursive)


def _by_path(layer: keras.layers.Layer, above: str = "") -> Iterator[tuple[str, Any]]:
    """(Path, sublayer) pairs at all levels, outer layers first."""
    for part in _sublayers(layer):
        path = f"{above}/{part.name}" if above else part.name
        yield path, part
        yield from _by_path(part, path)


def _flags(
    layer: keras.layers.Layer, trainable: bool, before: Collection[int]
) -> Iterator[tuple[Any, bool]]:
    """(Sublayer, its `trainable` flag) pairs at all levels; see `_freeze_parts` for `before`."""
    for part in _sublayers(layer):
        flag = part.trainable and (trainable or id(part) in before)
        yield part, flag
        yield from _flags(part, flag, before)


def _with_named_default(dtype: Any) -> Any:
    """The dtype policy; a `DTypePolicyMap` gets a named default policy.

    When Keras saves a map without a named default, it removes the names of the policies in the map,
    and the loaded projections of the heads all have the default policy.
    """
    policies = keras.dtype_policies.get(dtype) if isinstance(dtype, dict) else dtype
    if not isinstance(policies, keras.dtype_policies.DTypePolicyMap):
        return dtype
    # Copies, since saving another layer with the same policies may remove their names.
    named = {path: keras.dtype_policies.get(policies[path].name) for path in policies}
    return keras.dtype_policies.DTypePolicyMap(policies.default_policy.name, named)


def _records(parts: list[keras.layers.Layer]) -> list[dict[str, Any]]:
    """Index, mode and configuration of each quantized sublayer, as JSON types."""
    records = []
    for place, part in enumerate(parts):
        if part.quantization_mode is not None:
            config = getattr(part, "quantization_config", None)  # Keras 3.12 has none
            config = keras.saving.serialize_keras_object(config)
            records.append({"place": place, "mode": part.quantization_mode, "config": config})
    return records


def _quantize(parts: list[keras.layers.Layer], records: Sequence[dict[str, Any]]) -> None:
    for record in records:
        part = parts[record["place"]]
        if part.quantization_mode is None:
            config = keras.saving.deserialize_keras_object(record["config"])
            options = {} if config is None else {"config": config}
            part.quantize(record["mode"], **options)
