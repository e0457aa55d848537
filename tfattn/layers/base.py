"""Bases of layers and models: what is checked in a call, and what a file holds."""

import contextlib
import functools
import inspect
import numbers
import random
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import keras
import numpy as np

from tfattn import _checks
from tfattn._arguments import constructor_arguments
from tfattn._types import Shape
from tfattn.core.objects import GridFunction
from tfattn.core.tensors import computing_for, given_tensor, only_shapes_are_computed
from tfattn.layers.configs import Configured, copy_of, other_holders
from tfattn.layers.names import constructor_names, refuse_other_names
from tfattn.layers.tokens import whole_ids

Wrapper = tuple[Any, Callable[..., Any]]  # a layer, and a function of its `call` and arguments
WRAPPING = threading.RLock()  # the layers that are wrapped belong to all threads
_NUMBER = "number_of_weights"  # an entry of a weights file, beside the variables


class RestoredParts(Configured):
    """Mixin of layers and models that make sublayers in `build`. Their configs record frozen and
    quantized sublayers, which a constructor's arguments do not tell, and `build` restores them.
    """

    built: bool
    trainable: bool
    weights: list[Any]

    def __init_subclass__(cls, **kwargs: Any):
        super().__init_subclass__(**kwargs)
        if "build" in vars(cls):
            cls.build = _restoring(cls.build)  # type: ignore[attr-defined]

    def __init__(self, **kwargs: Any):
        # Popped, since only configs have this argument: constructors do not declare it.
        changed = kwargs.pop("changed_parts", {})
        names = constructor_names(type(self))  # type: ignore[arg-type]
        refuse_other_names(type(self).__name__, kwargs, names)
        super().__init__(**{**kwargs, "dtype": _with_named_default(kwargs.get("dtype"))})
        self._changed_parts = tuple(changed.items())
        self._made_frozen = not self.trainable  # sublayers made later are frozen too
        self._is_building = False

    def get_config(self) -> dict[str, Any]:
        changed: dict[str, Any] = dict(self._changed_parts)
        if self.built:
            for path, part in _by_path(self):
                mode = part.quantization_mode
                if mode is not None or part.trainable != self.trainable:
                    options = getattr(part, "quantization_config", None)  # Keras 3.12 has none
                    options = keras.saving.serialize_keras_object(options)
                    changed[path] = [part.trainable, mode, options]
        config = super().get_config()
        return {**config, "changed_parts": changed} if changed else config

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
        # Not for other layers, such as attention, since Keras's own layers read their files.
        if hasattr(self, "num_layers"):
            store[_NUMBER] = np.array(self._number_of_weights())

    def load_own_variables(self, store: Any) -> None:
        own = {name: store[name] for name in store.keys() if name != _NUMBER}
        super().load_own_variables(own)  # type: ignore[misc]
        # Keras ignores the weights in a file that no layer reads.
        if _NUMBER in store.keys() and self.built:
            number = int(np.asarray(store[_NUMBER]))
            if number != self._number_of_weights():
                expected = f"be {number}, as in the file, for the layer to be read whole"
                received = self._number_of_weights()
                _checks.fail(type(self).__name__, _NUMBER, expected, received)

    def _number_of_weights(self) -> int:
        """Without those of LoRA, which are added to the others in a file."""
        return sum("lora_" not in weight.name for weight in self.weights)


def _restoring(build: Callable[..., None]) -> Callable[..., None]:
    """A class's `build`, at whose end sublayers are frozen and quantized as before and as recorded.

    Keras freezes only the sublayers that a layer has when it is frozen.
    """

    @functools.wraps(build)
    def build_and_restore(layer: Any, *args: Any, **kwargs: Any) -> None:
        if layer._is_building:  # called by the `build` of a subclass
            return build(layer, *args, **kwargs)
        before = [] if layer._made_frozen else _sublayers(layer)
        layer._is_building = True
        try:
            build(layer, *args, **kwargs)
        finally:
            layer._is_building = False
        for part in _sublayers(layer):
            if not layer.trainable and part not in before:
                part.trainable = False
        changed = dict(layer._changed_parts)
        for path, part in list(_by_path(layer)) if changed else []:
            trainable, mode, options = changed.get(path, (layer.trainable, None, None))
            if part.trainable != trainable:
                part.trainable = trainable
            if mode is not None and part.quantization_mode is None:
                options = keras.saving.deserialize_keras_object(options)
                part.quantize(mode, **({} if options is None else {"config": options}))
        layer._changed_parts, layer._made_frozen = (), False

    return build_and_restore


def _with_named_default(dtype: Any) -> Any:
    """The dtype policy. A `DTypePolicyMap` gets a named default, without which Keras removes the
    names of its policies when it saves them, also those of other layers with the same policies.
    """
    policies = keras.dtype_policies.get(dtype) if isinstance(dtype, dict) else dtype
    if not isinstance(policies, keras.dtype_policies.DTypePolicyMap):
        return dtype
    named = {path: keras.dtype_policies.get(policies[path].name) for path in policies}
    return keras.dtype_policies.DTypePolicyMap(policies.default_policy.name, named)


def flat_layers(layer: Any) -> list[keras.layers.Layer]:
    """The layer and the layers in it, at all levels."""
    return layer._flatten_layers()


@contextlib.contextmanager
def wrapped(wrappers: Iterable[Wrapper]) -> Iterator[None]:
    """Has each layer call its wrapper, which receives its `call`; the first innermost."""
    before = []
    with WRAPPING:
        try:
            for layer, wrap in wrappers:
                before.append((layer.__dict__, layer.__dict__.get("call")))
                wrapper = functools.update_wrapper(functools.partial(wrap, layer.call), layer.call)
                layer.__dict__["call"] = wrapper  # not by setattr, which Keras tracks
            yield
        finally:
            for attributes, call in reversed(before):
                attributes.pop("call") if call is None else attributes.update(call=call)


def _sublayers(layer: Any) -> list[keras.layers.Layer]:
    return layer._flatten_layers(include_self=False, recursive=False)


def _by_path(layer: Any, above: str = "") -> Iterator[tuple[str, Any]]:
    """(Path, sublayer) pairs at all levels, outer layers first."""
    for part in _sublayers(layer):
        yield f"{above}{part.name}", part
        yield from _by_path(part, f"{above}{part.name}/")


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

ORDER = " (the order is query, value, key; lengths are passed as `valid_lens=`)"

_FLAGS = ("use_causal_mask", "return_attention_scores", "return_state", "training")


class CheckedCall(RestoredParts):
    """Mixin of layers and models that checks the arguments of a call by their names.

    Keras converts arguments and builds the layer before `call`, and its own errors for an invalid
    argument are unclear or missing.
    """

    # The axes of each tensor, in the order of the arguments. Each letter is a size, D, E and F
    # widths; masks may have 1 instead. Axes of other arguments are not checked.
    call_axes: dict[str, str] = {}
    takes_ids = False  # whether the first argument is token ids
    folds_axes = False  # whether tensors may have more than three axes, which `call` checks

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
                if self.folds_axes and len(getattr(value, "shape", ())) > 3:
                    axes = None
                letters = f"({', '.join(axes)})" if axes else {**_SHAPES, **_MASKS}[name]
                if name in _MASKS and isinstance(value, list | tuple | numbers.Number):
                    value = given_tensor(who, name, value, letters)
                _checks.array(who, name, value, letters, booleans=name in _MASKS)
                if name.endswith("_mask"):
                    _check_not_of_features(who, name, value, arguments)
                if axes:
                    _check_axes(who, name, value.shape, axes, sizes)
            else:
                for array in keras.tree.flatten(value):
                    if isinstance(array, np.ndarray) and array.dtype.kind in "USO":
                        received = f"{array.dtype.name}, of shape {array.shape}"
                        _checks.fail(who, name, "hold numbers", received)


def _check_not_of_features(who: str, name: str, mask: Any, arguments: dict[str, Any]) -> None:
    """Raises for a mask with an entry per feature of its tokens."""
    of_values = name == "key_mask" and arguments.get("key") is None
    tokens: Any = arguments.get("value" if of_values else name.removesuffix("_mask"))
    if len(mask.shape) >= len(getattr(tokens, "shape", ())) > 1:
        each = f"{tuple(tokens.shape[:-1])}, one entry per token"
        _checks.fail(who, name, f"have shape {each}", tuple(mask.shape))


def _check_axes(
    who: str, name: str, shape: Shape, axes: str, sizes: dict[str, tuple[str, int]]
) -> None:
    """Raises unless the static shape has these axes, with the sizes of the earlier arguments."""
    letters = f"({', '.join(axes)})"
    if len(shape) != len(axes):
        # A key of one or two axes is probably the lengths, or a mask.
        hint = ORDER if name == "key" and "T" in sizes and len(shape) < 3 else ""
        _checks.fail(who, name, f"have shape {letters}{hint}", tuple(shape))
    if name not in _MASKS and axes[-1] in "DEF" and shape[-1] == 0:
        _checks.has_width(who, name, shape)
    if keras.backend.backend() == "torch" and only_shapes_are_computed():
        return  # a placeholder has 2 for each unknown size
    for letter, size in zip(axes, shape, strict=True):
        if not isinstance(size, int) or (size == 1 and name in _MASKS):
            continue
        other_name, other = sizes.setdefault(letter, (name, size))
        if size == other:
            continue
        if letter in "DEF":
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
    and checks are those of the call; of a copy of a layer that is not built.
    """
    if not layer.built:
        state = random.getstate()  # Keras draws seeds from it for the copy
        try:
            return copy_of(layer)(*args, **kwargs)
        finally:
            random.setstate(state)
    given = dict(zip(inspect.signature(layer.call).parameters, args, strict=False)) | kwargs
    bound = {name: value for name, value in given.items() if isinstance(value, GridFunction)}
    with computing_for(given):
        if not bound:
            return keras.Operation.compute_output_spec(layer, *args, **kwargs)
        # Mask and bias objects are bound, since JAX traces every argument as an array.
        call = keras.Operation(name=layer.name)
        call.call = functools.partial(layer.call, **bound)
        return call.compute_output_spec(**{k: v for k, v in given.items() if k not in bound})
