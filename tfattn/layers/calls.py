"""What a layer is called with, looked at before Keras converts it and builds."""

import functools
import inspect
import numbers
from collections.abc import Collection, Iterator
from typing import Any

import keras
import numpy as np

from tfattn import _checks
from tfattn._types import Shape
from tfattn.core.rule import Rule

__all__ = ["CheckedCall"]

# The shapes of tensors by the names that arguments of calls have in this collection.
_LETTERS = {
    "query": "(B, T, D)",
    "value": "(B, S, D)",
    "key": "(B, S, D)",
    "inputs": "(B, T, D)",
    "outputs": "(B, T, D)",
    "memory": "(B, S, D)",
    "keys": "(B, S, ...)",
    "ids": "(B, T), of integers",
}

# A list of numbers will do for these.
_MASKS = {
    "mask": "(B, T)",
    "inputs_mask": "(B, T)",
    "query_mask": "(B, T)",
    "key_mask": "(B, S)",
    "value_mask": "(B, S)",
    "memory_mask": "(B, S)",
    "attention_mask": "(T, S) or (B, T, S)",
    "memory_attention_mask": "(T, S) or (B, T, S)",
    "valid_lens": "(B,) or (B, T)",
    "bias": "(T, S) or (B, T, S)",
    "positions": "(T,) or (B, T)",
}

_FLAGS = ("use_causal_mask", "return_attention_scores", "return_state", "training")


class CheckedCall:
    """A base beside Keras's layer: a call's arguments are checked by their names.

    Keras converts what it is given, and builds, before it comes to `call`, and what is no tensor
    would fail there, if at all.
    """

    # The axes of this class's tensors, in the order of the arguments: each letter is one size,
    # and a mask may have 1 instead. Where an argument is not named its axes are not looked at.
    call_axes: dict[str, str] = {}

    def __new__(cls, *args: Any, **kwargs: Any) -> "CheckedCall":
        layer = super().__new__(cls, *args, **kwargs)
        build = layer.build

        @functools.wraps(build)
        def build_and_freeze(*args, **kwargs):
            before = () if layer._made_frozen else {id(part) for _, part in _parts(layer)}
            build(*args, **kwargs)
            layer._freeze_parts(before)

        layer.build = build_and_freeze
        return layer

    def __init__(self, **kwargs: Any):
        parts = kwargs.pop("trainable_parts", {})
        super().__init__(**{**kwargs, "dtype": _with_names(kwargs.get("dtype"))})
        # Of a config: the parts that are frozen or not, other than the layer that they are in.
        self._trainable_parts = tuple(parts.items())
        self._made_frozen = not self.trainable  # and all parts with it, whenever they are made

    def _freeze_parts(self, before: Collection[int]) -> None:
        """Freezes what is made within a frozen layer: Keras does so to what is there already."""
        for part, trainable in [(self, self.trainable), *_flags(self, self.trainable, before)]:
            if not trainable or not part.trainable:
                part.trainable = trainable
        parts = dict(_parts(self))
        for path, trainable in self._trainable_parts:
            if path in parts:
                parts[path].trainable = trainable
        self._trainable_parts, self._made_frozen = (), False

    def get_config(self) -> dict[str, Any]:
        flags = dict(self._trainable_parts)
        if not self._made_frozen:
            parts = {"": self, **dict(_parts(self))}
            for path, part in parts.items():
                above = parts[path.rpartition("/")[0]]
                if part.trainable != above.trainable:
                    flags[path] = part.trainable
        config = super().get_config()
        return {**config, "trainable_parts": flags} if flags else config

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        parameters = _parameters(type(self))
        self.check_call({**dict(zip(parameters, args, strict=False)), **kwargs})
        return super().__call__(*args, **kwargs)

    def check_call(self, arguments: dict[str, Any]) -> None:
        """Raises where an argument cannot be what its name says."""
        who, defaults = type(self).__name__, _parameters(type(self))
        sizes: dict[str, tuple[str, int]] = {}  # by letter, with the argument that had it first
        for name, value in arguments.items():
            if value is None and defaults.get(name) is None:
                continue
            if name in _FLAGS:
                _checks.flag(who, name, value)
            elif (name in _LETTERS or name in _MASKS) and not isinstance(value, Rule):
                axes = self.call_axes.get(name)
                letters = f"({', '.join(axes)})" if axes else {**_LETTERS, **_MASKS}[name]
                if name in _MASKS and isinstance(value, list | tuple | numbers.Number):
                    value = _nested(who, name, value, letters)
                _checks.array(who, name, value, letters, booleans=name in _MASKS)
                if axes:
                    _check_axes(who, name, value.shape, axes, letters, sizes)
            else:
                for array in keras.tree.flatten(value):
                    if isinstance(array, np.ndarray) and array.dtype.kind in "USO":
                        received = f"{array.dtype.name}, of shape {array.shape}"
                        _checks.fail(who, name, "hold numbers", received)


def _parts(layer: keras.layers.Layer, above: str = "") -> Iterator[tuple[str, Any]]:
    """(Path, layer) of every layer in a layer, each after the one that it is in."""
    for part in layer._flatten_layers(include_self=False, recursive=False):
        path = f"{above}/{part.name}" if above else part.name
        yield path, part
        yield from _parts(part, path)


def _flags(
    layer: keras.layers.Layer, trainable: bool, before: Collection[int]
) -> Iterator[tuple[Any, bool]]:
    """(Layer, whether it is to be trained) of every layer in a layer.

    Args:
        before: the ids of those that were there before their flags could be set.
    """
    for part in layer._flatten_layers(include_self=False, recursive=False):
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


def _nested(who: str, name: str, value: Any, letters: str) -> np.ndarray:
    try:
        return np.asarray(value)
    except ValueError:
        return _checks.fail(who, name, f"be a tensor of numbers, of shape {letters}", value)


def _check_axes(
    who: str, name: str, shape: Shape, axes: str, letters: str, sizes: dict[str, tuple[str, int]]
) -> None:
    """Raises unless the static shape has those axes, as long as those of the arguments before."""
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
def _parameters(cls: type) -> dict[str, Any]:
    """The names of a call's arguments, in order, with their defaults."""
    parameters = list(inspect.signature(cls.call).parameters.values())[1:]
    return {parameter.name: parameter.default for parameter in parameters}
