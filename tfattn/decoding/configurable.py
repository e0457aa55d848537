"""Objects with options: their configs, and their part in a compiled search."""

from collections.abc import Hashable
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

from tfattn._arguments import constructor_arguments
from tfattn._types import Tensor

NO_TOKEN = -1  # fills a table of ids


class Configurable:
    """An object with options, such as a search or a rule, that a compiled loop reads: see `Rule`
    for its attributes.
    """

    tensors: tuple[str, ...] = ()
    not_compiled: tuple[str, ...] = ()  # names of attributes that the loop never reads

    def arrays(self) -> dict[str, Tensor]:
        """The attributes of `tensors` as tensors, without those that are None."""
        values = {name: getattr(self, name) for name in self.tensors}
        return {
            name: ops.convert_to_tensor(value, dtype=_DTYPES.get(type(value)))
            for name, value in values.items()
            if value is not None
        }

    def get_config(self) -> dict[str, Any]:
        names = constructor_arguments(self)
        config = {name: _without_arrays(getattr(self, name)) for name in names}
        return keras.saving.serialize_keras_object(config)

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "Configurable":
        return cls(**keras.saving.deserialize_keras_object(config))

    def __repr__(self) -> str:
        values = ((name, getattr(self, name)) for name in constructor_arguments(self))
        shown = ", ".join(
            f"{name}={np.array2string(x, separator=', ') if isinstance(x, np.ndarray) else repr(x)}"
            for name, x in values
        )
        return f"{type(self).__name__}({' '.join(shown.split())})"


_DTYPES = {float: "float32", int: "int32"}  # for Python's numbers


class Form(NamedTuple):
    """An object without its tensors, as a key of compiled functions."""

    kind: type
    others: tuple[tuple[str, Hashable], ...]
    types: tuple[Any, ...]  # types of `others`, since 1 equals True and 1.0

    @classmethod
    def of(cls, given: Configurable) -> "Form":
        others = {
            name: value
            for name, value in sorted(vars(given).items())
            if name not in given.not_compiled and (value is None or name not in given.tensors)
        }
        return cls(type(given), tuple(others.items()), _types_in(tuple(others.values())))

    def filled(self, tensors: dict[str, Tensor], **others: Any) -> Any:
        """The object with these tensors, and with attributes that only a run has."""
        filled: Any = object.__new__(self.kind)
        vars(filled).update(self.others, **tensors, **others)
        return filled


def _types_in(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """The type of each value, or the types within a tuple."""
    return tuple([type(v) if type(v) is not tuple else _types_in(v) for v in values])


def _without_arrays(value: Any) -> Any:
    """Arrays and tuples as lists, without `NO_TOKEN`."""
    if isinstance(value, np.ndarray) and value.ndim > 1:
        return [_without_arrays(row) for row in value]
    if isinstance(value, np.ndarray | np.generic):
        numbers: Any = value
        return (numbers[numbers != NO_TOKEN] if value.ndim else numbers).tolist()
    return list(value) if isinstance(value, tuple) else value
