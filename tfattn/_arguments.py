"""The arguments of constructors, in configs and reprs."""

import contextlib
import inspect
import math
from typing import Any

import keras
from keras import ops

from tfattn import _checks

_PASSED_ON = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def constructor_arguments(instance: object) -> list[str]:
    """The arguments of an object's constructor, and of those that get its other arguments, except
    Keras's. Raises for one that is no attribute, unless a `get_config` adds it.
    """
    names, added = [], False
    for base in type(instance).__mro__[:-1]:  # without `object`
        added = added or "get_config" in vars(base)
        if "__init__" not in vars(base):
            continue
        if base.__module__.partition(".")[0] == "keras":
            break
        parameters = list(inspect.signature(base.__init__).parameters.values())[1:]  # type: ignore[misc]
        own = [each.name for each in parameters if each.kind not in _PASSED_ON]
        for name in own:
            if not hasattr(instance, name) and not added:
                expected = "be kept as an attribute of its name, or `get_config` be overridden"
                _checks.fail(type(instance).__name__, name, expected, "no attribute")
        names += [name for name in own if hasattr(instance, name)]
        if len(own) == len(parameters):
            break
    return names


class Configurable:
    """An object whose constructor's arguments are attributes of the same names."""

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments, as JSON types."""
        return {name: _plain(self._argument(name)) for name in constructor_arguments(self)}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Any:
        """The object restored from its config."""
        return cls(**{k: keras.saving.deserialize_keras_object(v) for k, v in config.items()})

    def _argument(self, name: str) -> Any:
        """The argument as a constructor takes it; a class may keep it in another form."""
        return getattr(self, name)

    def __repr__(self) -> str:
        """The code that makes the object, with the arguments that differ from their defaults; of a
        long array its dtype and shape.
        """
        shown: list[str] = []
        parameters = inspect.signature(type(self)).parameters
        for place, (name, parameter) in enumerate(parameters.items()):
            value, default = getattr(self, name, parameter.default), parameter.default
            if parameter.kind in _PASSED_ON or value is default:
                continue
            if type(value) is not type(default) or value != default:
                written = _shown(value, self._argument(name))
                by_name = place or parameter.kind is parameter.KEYWORD_ONLY
                shown.append(f"{name}={written}" if by_name else written)
        name = keras.saving.get_registered_name(type(self)).rpartition(">")[2]
        return f"{name}({', '.join(shown)})"


def _plain(value: Any) -> Any:
    """Arrays of floats as Keras saves them, with their dtype; other arrays and tuples as lists."""
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if hasattr(value, "shape"):  # variables too
        value = ops.convert_to_numpy(value)
        if "float" not in value.dtype.name:
            return value.tolist()  # which Keras would walk number by number
    return keras.saving.serialize_keras_object(value)


def _shown(value: Any, written: Any) -> str:
    """`written`, or dtype and shape of an array with many numbers, or none yet."""
    if not hasattr(value, "shape"):
        return repr(written)
    if None not in value.shape and math.prod(value.shape) <= 12:
        with contextlib.suppress(Exception):  # of each backend its own, for a tensor of a graph
            is_list = isinstance(written, list)
            return repr(written if is_list else ops.convert_to_numpy(written).tolist())
    return f"<{keras.backend.standardize_dtype(value.dtype)}, {tuple(value.shape)}>"
