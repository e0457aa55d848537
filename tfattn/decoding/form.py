"""Objects with options in a compiled search."""

from collections.abc import Hashable
from typing import Any, NamedTuple

from keras import ops

from tfattn._arguments import Configurable
from tfattn._types import Tensor


class Compilable(Configurable):
    """A search or a rule, which a compiled loop reads: see `Rule` for its attributes."""

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


_DTYPES = {float: "float32", int: "int32"}  # for Python's numbers


class Form(NamedTuple):
    """An object without its tensors, as a key of compiled functions."""

    kind: type
    others: tuple[tuple[str, Hashable], ...]
    types: tuple[Any, ...]  # types of `others`, since 1 equals True and 1.0

    @classmethod
    def of(cls, given: Compilable) -> "Form":
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
