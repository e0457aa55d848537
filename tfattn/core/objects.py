"""Objects that hold tensors: split into the tensors and the rest, restored, and saved.

A function of tensors alone is traced once and called for many masks, and its arguments get
gradients in any graph. So masks, biases and calls are split, like JAX's pytrees, into the tensors
among their attributes and a structure without tensors, which can be hashed and compared.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

import keras
from keras import ops

from tfattn import _checks
from tfattn._arguments import Configurable
from tfattn._types import Tensor
from tfattn.core.scores import facts_of


class Splittable:
    """An object whose state is its attributes, which `flatten` splits."""

    # Whether its methods depend on the attributes alone; of this class, and of no subclass.
    is_pure = False

    def _state(self) -> dict[str, Any]:
        """The state by name; a class with variables returns the tensors that they hold now."""
        return vars(self)


class Rest(NamedTuple):
    """What holds no tensors, with its type, since 1 equals True and 1.0."""

    kind: type[Any]
    value: Any


class Node(NamedTuple):
    """A list, a tuple or an object, with the names of its attributes."""

    kind: type[Any]
    names: tuple[str, ...]
    children: tuple["Structure", ...]


LEAF = "the place of a tensor"
Structure = Any  # a Node, a Rest or LEAF
_BY_VALUE = (bool, int, float, str, type(None))


def flatten(tree: Any) -> tuple[list[Tensor], Structure]:
    """The tensors of an object, and its structure."""
    # A variable stays whole: where a function reads it, the streamed path has no gradient to give.
    if ops.is_tensor(tree) and not hasattr(tree, "assign"):
        return [tree], LEAF
    if isinstance(tree, Splittable) and vars(type(tree)).get("is_pure"):
        state = tree._state()
        names, values = tuple(state), tuple(state.values())
    elif isinstance(tree, list) or type(tree) is tuple or hasattr(tree, "_make"):
        names, values = (), tuple(tree)
    else:  # objects of a user's class too, whose methods may need numbers that they can read
        return [], Rest(type(tree), tree)
    # What a class says is its state may be a variable, which is read where the call begins.
    declared = bool(names) and type(tree)._state is not Splittable._state
    parts = [([x], LEAF) if declared and ops.is_tensor(x) else flatten(x) for x in values]
    tensors = [tensor for inside, _ in parts for tensor in inside]
    return tensors, Node(type(tree), names, tuple(structure for _, structure in parts))


def unflatten(structure: Structure, tensors: Iterable[Tensor]) -> Any:
    """The object restored from its `tensors`; further tensors of an iterator are not consumed."""
    tensors = iter(tensors)
    if structure is LEAF:
        return next(tensors)
    if isinstance(structure, Rest):
        return structure.value
    children = [unflatten(child, tensors) for child in structure.children]
    if not issubclass(structure.kind, Splittable):
        return getattr(structure.kind, "_make", structure.kind)(children)
    restored = object.__new__(structure.kind)
    vars(restored).update(zip(structure.names, children, strict=True))
    return restored


def is_shareable(structure: Structure) -> bool:
    """Whether objects of equal structure behave alike with the same tensors: of pure classes and
    plain values, with a pure score. An object of another class may read what changes.
    """
    if isinstance(structure, Node):
        return all(map(is_shareable, structure.children))
    if structure is LEAF or structure.kind in _BY_VALUE:
        return True
    return not isinstance(structure.value, Splittable) and facts_of(structure.value).is_pure


class GridFunction(Configurable, Splittable):
    """The base of masks and biases, which are evaluated on a `Grid`: checked, saved and split."""

    _hooks: tuple[str, ...] = ()  # attributes that describe the `on` of their class

    def __init_subclass__(cls, **options: Any):
        """Gives a subclass that defines `on` alone the default hooks, which are right for any."""
        super().__init_subclass__(**options)
        root = next(base for base in cls.__mro__ if "_hooks" in vars(base))
        for name in cls._hooks:
            first = next(base for base in cls.__mro__ if "on" in vars(base) or name in vars(base))
            if name not in vars(first):
                setattr(cls, name, vars(root)[name])

    def check(self, who: str, argument: str, shape: Sequence[int | None]) -> None:
        """Raises where arrays do not fit scores of that static shape, of rank 3 or 4, or are
        symbolic: a functional model does not find tensors inside an object.
        """
        for value in vars(self).values():
            if isinstance(value, keras.KerasTensor):
                own = "pass it to the layer's own argument `valid_lens`, `key_mask` or `bias`"
                expected = f"hold no symbolic tensor inside of an object: {own}, or `dense(T, S)`"
                _checks.fail(who, argument, expected, value)

    # NumPy would otherwise apply `&` or `+` element by element to an object array.
    __array_ufunc__ = None


Class = TypeVar("Class", bound=type[GridFunction])


def registered_in(module: str) -> Callable[[Class], Class]:
    """Class decorator: saved files name the class `tfattn>module.<class name>`, which is pure."""

    def registered(cls: Class) -> Class:
        cls.is_pure = True
        return keras.saving.register_keras_serializable("tfattn", f"{module}.{cls.__name__}")(cls)

    return registered
