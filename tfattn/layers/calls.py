"""Checks of call arguments, before Keras converts them and builds the layer."""

import functools
import inspect
import numbers
from typing import Any

import keras
import numpy as np

from tfattn import _checks
from tfattn._arguments import refuse_other_names
from tfattn._types import Shape
from tfattn.core.grid_function import GridFunction
from tfattn.layers.configs import Configured
from tfattn.layers.restored import RestoredParts
from tfattn.layers.tables import whole_ids

# Shapes of call arguments, for messages.
_SHAPES = {
    "query": "(B, T, D)",
    "value": "(B, S, D)",
    "key": "(B, S, D)",
    "inputs": "(B, T, D)",
    "outputs": "(B, T, D)",
    "memory": "(B, S, D)",
    "keys": "(B, S, ...)",
    "ids": "(B, T), of integers",
}

# Arguments that may also be nested lists of numbers.
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


class CheckedCall(RestoredParts, Configured):
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
        if unknown and not _takes_any_name(type(self)):  # type: ignore[arg-type]
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
        who, defaults = type(self).__name__, _parameters(type(self))  # type: ignore[arg-type]
        sizes: dict[str, tuple[str, int]] = {}  # by letter, with the first argument that has it
        for name, value in arguments.items():
            if value is None and defaults.get(name) is None:
                continue
            if name in _FLAGS:
                _checks.flag(who, name, value)
            elif (name in _SHAPES or name in _MASKS) and not isinstance(value, GridFunction):
                axes = self.call_axes.get(name)
                letters = f"({', '.join(axes)})" if axes else {**_SHAPES, **_MASKS}[name]
                if name in _MASKS and isinstance(value, list | tuple | numbers.Number):
                    value = _nested(who, name, value, letters)
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


def _nested(who: str, name: str, value: Any, letters: str) -> np.ndarray:
    try:
        return np.asarray(value)
    except ValueError:
        return _checks.fail(who, name, f"be a tensor of numbers, of shape {letters}", value)


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
def _parameters(cls: type[Any]) -> dict[str, Any]:
    """The names of a call's arguments, in order, with their defaults."""
    parameters = list(inspect.signature(cls.call).parameters.values())[1:]
    return {parameter.name: parameter.default for parameter in parameters}


@functools.cache
def _takes_any_name(cls: type[Any]) -> bool:
    """Whether a subclass's `call` has `**options`."""
    parameters = inspect.signature(cls.call).parameters.values()
    return any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
