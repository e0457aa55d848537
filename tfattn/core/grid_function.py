"""The base of masks and biases: functions that are evaluated on any rectangle of the pairs."""

import itertools
import math
import operator
from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeVar

import keras
from keras import ops

from tfattn._arguments import constructor_arguments, written
from tfattn._types import Tensor
from tfattn.core import pairs


class GridFunction:
    """An object that is evaluated on a `Grid`, checked, saved, and flattened for functions traced
    once.

    A class whose constructor has arguments needs `flatten` and, to be saved, attributes of the same
    names or a `get_config`.
    """

    # Attributes that describe the `on` of their class, such as bounds of a mask.
    _hooks: tuple[str, ...] = ()

    def __init_subclass__(cls, **options: Any):
        """Gives a subclass that defines `on` alone the default hooks, since those of the `on` that
        it replaced may be wrong for it.
        """
        super().__init_subclass__(**options)
        root = next(base for base in cls.__mro__ if "_hooks" in vars(base))
        for name in cls._hooks:
            first = next(base for base in cls.__mro__ if "on" in vars(base) or name in vars(base))
            if name not in vars(first):
                setattr(cls, name, vars(root)[name])

    def check(self, who: str, argument: str, shape: Sequence[int | None]) -> None:
        """Raises where the object's arrays do not fit scores of that static shape, `(B, T, S)` or
        `(B, H, T, S)`.
        """
        return  # AutoGraph cannot transform a function without a statement

    def flatten(self) -> tuple[tuple["Tensor | GridFunction", ...], Hashable]:
        """`(children, static)`: the tensors and grid functions inside, and a tuple of the other
        constructor arguments; see `tfattn.core.trees`.

        The method applies to its own class and to no subclass. An object whose class defines none
        is not flattened: its results are the same, but a function traced for it is not shared.
        Classes of this package that define none have this one.
        """
        values = [getattr(self, name) for name in constructor_arguments(self)]
        inside = [ops.is_tensor(value) or isinstance(value, GridFunction) for value in values]
        children = tuple(itertools.compress(values, inside))
        return children, tuple(itertools.compress(values, map(operator.not_, inside)))

    @classmethod
    def unflatten(
        cls, static: tuple[Any, ...], children: Sequence["Tensor | GridFunction"]
    ) -> "GridFunction":
        """The object restored from the result of `flatten`, or from other tensors of the same
        shapes, symbolic tensors too.

        Calls the constructor with `children`, then `static`.
        """
        return cls(*children, *static)

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments as JSON types, from attributes of the same names."""
        return {name: _plain(getattr(self, name)) for name in constructor_arguments(self)}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "GridFunction":
        """The object restored from its config."""
        return cls(**{k: keras.saving.deserialize_keras_object(v) for k, v in config.items()})

    def __repr__(self) -> str:
        name = keras.saving.get_registered_name(type(self)).rpartition(">")[2]
        return written(self, name, _shown)

    # NumPy would otherwise apply `&` or `+` element by element to an object array.
    __array_ufunc__ = None


def _plain(value: Any) -> Any:
    """An array as nested lists, and an object inside as its config."""
    if isinstance(value, GridFunction):
        return keras.saving.serialize_keras_object(value)
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return ops.convert_to_numpy(value).tolist() if hasattr(value, "shape") else value


def _shown(value: Any) -> str:
    """Dtype and shape of an array with many numbers, or none yet."""
    if not hasattr(value, "shape"):
        return repr(value)
    is_short = None not in value.shape and math.prod(value.shape) <= 12
    numbers = pairs.known(value) if is_short else None
    if numbers is None:
        return f"<{keras.backend.standardize_dtype(value.dtype)}, {tuple(value.shape)}>"
    return repr(numbers.tolist())


Class = TypeVar("Class", bound=type[GridFunction])


def registered_in(module: str) -> Callable[[Class], Class]:
    """Class decorator: saved files name the class `tfattn>module.<class name>`. Its constructor's
    arguments are all that its objects hold.
    """

    def registered(cls: Class) -> Class:
        if "flatten" not in vars(cls):
            cls.flatten = GridFunction.flatten  # type: ignore[method-assign]
        return keras.saving.register_keras_serializable("tfattn", f"{module}.{cls.__name__}")(cls)

    return registered
