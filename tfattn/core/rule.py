"""What masks and biases have in common: they are rules, asked about any rectangle of the pairs."""

from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeVar

import keras

from tfattn._types import Tensor

__all__ = ["Rule", "registered_in"]


class Rule:
    """An object that is asked, checked, saved, and taken apart for functions that are traced once.

    If the constructor has arguments, the class has `get_config`, and `flatten`.
    """

    def check(self, who: str, argument: str, shape: Sequence[int | None]) -> None:
        """Raises where the rule's arrays do not fit scores of that static shape, `(B, T, S)` or
        `(B, H, T, S)`.
        """

    def flatten(self) -> tuple[tuple["Tensor | Rule", ...], Hashable]:
        """`(children, static)`: the tensors and rules inside, and a tuple of what else the object
        is made of; see `tfattn.core.trees`.

        It speaks for its own class alone, no subclass. An object whose class defines none stays
        whole: as exact, but functions that were traced for one are not called for another.
        """
        raise NotImplementedError

    @classmethod
    def unflatten(cls, static: Hashable, children: Sequence["Tensor | Rule"]) -> "Rule":
        """The object again of what `flatten` gave, or of other tensors of the same shapes, symbolic
        ones too.

        Calls the constructor with the children, and then what is static.
        """
        return cls(*children, *static)

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments, plain enough for JSON."""
        return {}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "Rule":
        """The object again of its config."""
        return cls(**{k: keras.saving.deserialize_keras_object(v) for k, v in config.items()})

    # NumPy would otherwise apply `&` or `+` element by element to an object array.
    __array_ufunc__ = None


Class = TypeVar("Class", bound=type[Rule])


def registered_in(room: str) -> Callable[[Class], Class]:
    """Class decorator: saved files name the class `tfattn>room.<class name>`."""

    def registered(cls: Class) -> Class:
        return keras.saving.register_keras_serializable("tfattn", f"{room}.{cls.__name__}")(cls)

    return registered
