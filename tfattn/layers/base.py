"""Bases of layers and models: what is checked in a call, and what a file holds."""

import functools
import inspect
import json
import numbers
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import numpy as np

from tfattn import _checks
from tfattn._arguments import constructor_arguments, constructor_names, refuse_other_names
from tfattn._types import Shape
from tfattn.core import symbolic
from tfattn.core.floats import given_tensor
from tfattn.core.objects import GridFunction
from tfattn.layers.configs import Configured, copy_of, other_holders
from tfattn.layers.tokens import whole_ids

# Entries of a weights file, beside the variables, whose names are numbers.
_ENTRY = "quantized_parts"
_NUMBER = "number_of_weights"


class RestoredParts(Configured):
    """Mixin of layers and models that make sublayers in `build`. Their configs record frozen and
    quantized sublayers, and `from_config` restores them.

    Keras restores a layer from its constructor's arguments, which do not contain later changes of
    sublayers. Without them, the weights of a quantized sublayer do not fit the restored layer.
    """

    built: bool
    trainable: bool
    weights: list[Any]

    def __init_subclass__(cls, **kwargs: Any):
        super().__init_subclass__(**kwargs)
        if "build" in vars(cls):
            cls.build = _restoring(cls.build)  # type: ignore[attr-defined]

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
        self._is_building = False

    def _restore(self, flags: dict[str, bool]) -> None:
        """Freezes and quantizes the sublayers after `build`; `flags` are those from before, by
        path. Keras freezes only the sublayers that a frozen layer has already.
        """
        parts = [("", self), *_by_path(self)]
        by_path = dict(parts)
        for path, part in parts:
            if not by_path[_above(path)].trainable:
                part.trainable = False
        for recorded in (flags, dict(self._trainable_parts)):
            for path, part in parts:
                if recorded.get(path, part.trainable) != part.trainable:
                    part.trainable = recorded[path]
        _quantize(_sublayers(self, recursive=True), self._quantized_parts)
        self._trainable_parts, self._made_frozen, self._quantized_parts = (), False, ()

    def get_config(self) -> dict[str, Any]:
        config, flags = super().get_config(), dict(self._trainable_parts)
        if not self._made_frozen:
            parts = {"": self, **dict(_by_path(self))}
            for path, part in parts.items():
                if part.trainable != parts[_above(path)].trainable:
                    flags[path] = part.trainable
        # All levels of sublayers, since their own configs are not in this config.
        records = list(self._quantized_parts) or _records(_sublayers(self, recursive=True))
        changed = {"trainable_parts": flags, _ENTRY: records}
        return {**config, **{name: parts for name, parts in changed.items() if parts}}

    def get_build_config(self) -> dict[str, Any] | None:
        for argument in constructor_arguments(self):
            part = getattr(self, argument)
            others = " and ".join(other_holders(part, self))
            if others and part.weights:
                expected = f"not be shared with {others} in a model that is saved: "
                _checks.fail(type(self).__name__, argument, f"{expected}create one per layer", part)
        return super().get_build_config()  # type: ignore[misc]

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
        if _NUMBER not in store.keys() or not self.built or self._has_other_weights():
            return
        # Keras ignores the weights in a file that no layer reads.
        number = int(np.asarray(store[_NUMBER]))
        if number != len(self.weights):
            expected = f"be {number}, as in the file, for the layer to be read whole"
            _checks.fail(type(self).__name__, _NUMBER, expected, len(self.weights))

    def _has_other_weights(self) -> bool:
        """Whether quantization or LoRA changed the number of weights."""
        return any(
            part.quantization_mode is not None or getattr(part, "lora_enabled", False)
            for part in _sublayers(self, recursive=True)
        )


def _restoring(build: Callable[..., None]) -> Callable[..., None]:
    """A class's `build`, which restores the sublayers at its end."""

    @functools.wraps(build)
    def build_and_restore(layer: Any, *args: Any, **kwargs: Any) -> None:
        if layer._is_building:  # called by the `build` of a subclass
            return build(layer, *args, **kwargs)
        flags = {} if layer._made_frozen else {path: x.trainable for path, x in _by_path(layer)}
        layer._is_building = True
        try:
            build(layer, *args, **kwargs)
        finally:
            layer._is_building = False
        layer._restore(flags)

    return build_and_restore


def flat_layers(layer: Any) -> list[keras.layers.Layer]:
    """The layer and the layers in it, at all levels."""
    return [layer, *_sublayers(layer, recursive=True)]


def _sublayers(layer: Any, recursive: bool = False) -> list[keras.layers.Layer]:
    """The sublayers, in the order of their creation."""
    return layer._flatten_layers(include_self=False, recursive=recursive)


def _by_path(layer: Any, above: str = "") -> Iterator[tuple[str, Any]]:
    """(Path, sublayer) pairs at all levels, outer layers first."""
    for part in _sublayers(layer):
        path = f"{above}/{part.name}" if above else part.name
        yield path, part
        yield from _by_path(part, path)


def _above(path: str) -> str:
    """The path of the layer around a sublayer; "" for the outermost layer."""
    return path.rpartition("/")[0]


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


def _by_name(names: dict[str, str]) -> dict[str, str]:
    return {name: shape for shape, listed in names.items() for name in listed.split()}


# Shapes of call arguments, for messages.
_SHAPES = _by_name(
    {
        "(B, T, D)": "query inputs outputs",
        "(B, S, D)": "value key memory",
        "(B, S, ...)": "keys",
        "(B, T), of integers": "ids",
    }
)

# Arguments that may also be nested lists of numbers.
_MASKS = _by_name(
    {
        "(B, T)": "mask inputs_mask query_mask",
        "(B, S)": "key_mask value_mask memory_mask",
        "(T, S) or (B, T, S)": "attention_mask memory_attention_mask bias",
        "(B,) or (B, T)": "valid_lens",
        "(T,) or (B, T)": "positions",
    }
)

_FLAGS = ("use_causal_mask", "return_attention_scores", "return_state", "training")


class CheckedCall(RestoredParts):
    """Mixin of layers and models that checks the arguments of a call by their names.

    Keras converts arguments and builds the layer before `call`, and its own errors for an invalid
    argument are unclear or missing.
    """

    # The axes of each tensor, in the order of the arguments. Each letter is a size; masks may
    # have 1 instead. Axes of other arguments are not checked.
    call_axes: dict[str, str] = {}
    takes_ids = False  # whether the first argument is token ids

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        parameters = _parameters(type(self))  # type: ignore[arg-type]
        unknown = {name: value for name, value in kwargs.items() if name not in parameters}
        takes_any_name = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
        if unknown and not takes_any_name:
            refuse_other_names(type(self).__name__, unknown, parameters)
        self._check_call({**dict(zip(parameters, args, strict=False)), **kwargs})
        if self.takes_ids:
            name = next(iter(parameters))
            convert = functools.partial(whole_ids, type(self).__name__, name)
            if args:
                args = keras.tree.map_structure(convert, args[0]), *args[1:]
            elif name in kwargs:
                kwargs[name] = keras.tree.map_structure(convert, kwargs[name])
        if "mask" in list(parameters)[len(args) :]:
            # Otherwise Keras records the implicit mask of one tensor as an argument of the call.
            kwargs.setdefault("mask", None)
        return super().__call__(*args, **kwargs)  # type: ignore[misc]

    def _check_call(self, arguments: dict[str, Any]) -> None:
        """Raises `ValueError` for an argument that does not fit its name."""
        who, parameters = type(self).__name__, _parameters(type(self))  # type: ignore[arg-type]
        sizes: dict[str, tuple[str, int]] = {}  # by letter, with the first argument that has it
        for name, value in arguments.items():
            if value is None and getattr(parameters.get(name), "default", None) is None:
                continue
            if name in _FLAGS:
                _checks.flag(who, name, value)
            elif (name in _SHAPES or name in _MASKS) and not isinstance(value, GridFunction):
                axes = self.call_axes.get(name)
                letters = f"({', '.join(axes)})" if axes else {**_SHAPES, **_MASKS}[name]
                if name in _MASKS and isinstance(value, list | tuple | numbers.Number):
                    value = given_tensor(who, name, value, letters)
                _checks.array(who, name, value, letters, booleans=name in _MASKS)
                tokens = _tokens_of(name, arguments)
                if len(value.shape) >= len(getattr(tokens, "shape", ())) > 1:
                    each = f"{tuple(tokens.shape[:-1])}, one entry per token"
                    _checks.fail(who, name, f"have shape {each}", tuple(value.shape))
                if axes:
                    _check_axes(who, name, value.shape, axes, letters, sizes)
            else:
                for array in keras.tree.flatten(value):
                    if isinstance(array, np.ndarray) and array.dtype.kind in "USO":
                        received = f"{array.dtype.name}, of shape {array.shape}"
                        _checks.fail(who, name, "hold numbers", received)


def _tokens_of(name: str, arguments: dict[str, Any]) -> Any:
    """The tokens that `query_mask` and others are for; None for arguments that are no such mask."""
    if name == "key_mask" and arguments.get("key") is None:
        name = "value_mask"
    return arguments.get(name.removesuffix("_mask")) if name.endswith("_mask") else None


def _check_axes(
    who: str, name: str, shape: Shape, axes: str, letters: str, sizes: dict[str, tuple[str, int]]
) -> None:
    """Raises unless the static shape has these axes, with the sizes of the earlier arguments."""
    _checks.rank(who, name, shape, (len(axes),), letters)
    if name not in _MASKS and axes[-1] in "DE":
        _checks.has_width(who, name, shape)
    for letter, size in zip(axes, shape, strict=True):
        if size is None or (size == 1 and name in _MASKS):
            continue
        other_name, other = sizes.setdefault(letter, (name, size))
        if size == other:
            continue
        if letter in "DE":
            _checks.fail(who, name, f"be as wide as `{other_name}`, {other}", size)
        else:
            expected = f"have shape {letters}, with the {letter} of `{other_name}`, {other}"
            _checks.fail(who, name, expected, tuple(shape))


@functools.cache
def _parameters(cls: type[Any]) -> dict[str, inspect.Parameter]:
    """The arguments of a call by name, in order."""
    return dict(list(inspect.signature(cls.call).parameters.items())[1:])


def spec_of_call(layer: keras.layers.Layer, *args: Any, **kwargs: Any) -> Any:
    """`compute_output_spec` by a trace of the call with symbolic tensors, so that shapes, dtypes
    and checks are those of the call.

    An unbuilt layer cannot be traced, so a copy of it is built and traced.
    """
    if not layer.built:
        state = random.getstate()  # Keras draws seeds from it for the copy
        try:
            return copy_of(layer)(*args, **kwargs)
        finally:
            random.setstate(state)
    given = dict(zip(inspect.signature(layer.call).parameters, args, strict=False)) | kwargs
    bound = {name: value for name, value in given.items() if isinstance(value, GridFunction)}
    with symbolic.computing_for(given):
        if not bound:
            return keras.Operation.compute_output_spec(layer, *args, **kwargs)
        # Mask and bias objects are bound, since JAX traces every argument as an array.
        call = keras.Operation(name=layer.name)
        call.call = functools.partial(layer.call, **bound)
        return call.compute_output_spec(**{k: v for k, v in given.items() if k not in bound})
