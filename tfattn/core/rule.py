"""The base of masks and biases: rules that are evaluated on any rectangle of the pairs."""

from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeVar

import keras

from tfattn._types import Tensor


class Rule:
    """An object that is evaluated, checked, saved, and flattened for functions traced once.

    If the constructor has arguments, the class has `get_config`, and `flatten`.
    """

    def check(self, who: str, argument: str, shape: Sequence[int | None]) -> None:
        """Raises where the rule's arrays do not fit scores of that static shape, `(B, T, S)` or
        `(B, H, T, S)`.
        """

    def flatten(self) -> tuple[tuple["Tensor | Rule", ...], Hashable]:
        """`(children, static)`: the tensors and rules inside, and a tuple of the other constructor
        arguments; see `tfattn.core.trees`.

        The method applies to its own class and to no subclass. An object whose class defines none
        is not flattened: its results are as exact, but a function traced for it is not shared.
        """
        raise NotImplementedError

    @classmethod
    def unflatten(cls, static: Hashable, children: Sequence["Tensor | Rule"]) -> "Rule":
        """The object restored from the result of `flatten`, or from other tensors of the same
        shapes, symbolic tensors too.

        Calls the constructor with `children`, then `static`.
        """
        return cls(*children, *static)

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments, plain enough for JSON."""
        return {}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "Rule":
        """The object restored from its config."""
        return cls(**{k: keras.saving.deserialize_keras_object(v) for k, v in config.items()})

    # NumPy would otherwise apply `&` or `+` element by element to an object array.
    __array_ufunc__ = None


Class = TypeVar("Class", bound=type[Rule])


def registered_in(module: str) -> Callable[[Class], Class]:
    """Class decorator: saved files name the class `tfattn>module.<class name>`."""

    def registered(cls: Class) -> Class:
        return keras.saving.register_keras_serializable("tfattn", f"{module}.{cls.__name__}")(cls)

    return registered
