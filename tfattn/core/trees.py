"""Objects that hold tensors, taken apart and put together again, as JAX's pytrees are.

What is computed of tensors alone can be traced once and called for many masks, and a gradient finds
a tensor that is an argument in any graph. So a mask or a bias comes apart into its tensors and a
structure without any, which can be hashed and compared.

    >>> from tfattn import masks
    >>> from tfattn.core import trees
    >>> tensors, structure = trees.flatten(masks.padding([2, 3]) & masks.window(5))
    >>> print(len(tensors), trees.is_shareable(structure))
    1 True
    >>> print(tuple(trees.unflatten(structure, tensors).dense(1, 3).shape))
    (2, 1, 3)

A class takes part by two methods. `flatten()` gives `(children, static)`: the tensors and the
objects inside, and what else the object is made of, as something hashable. The class method
`unflatten(static, children)` makes the object again of what came out. As in JAX they speak for
their own class and no subclass, which may hold more: an object whose class defines no `flatten`
itself stays whole.
"""

from collections.abc import Hashable, Iterable
from typing import Any, NamedTuple

from keras import ops

from tfattn._types import Tensor

__all__ = ["Leaf", "Node", "Structure", "flatten", "is_shareable", "unflatten"]


class Leaf:
    """Where a tensor was: the class itself stands for it."""


class Node(NamedTuple):
    """An object that came apart."""

    kind: type
    static: Hashable
    children: tuple["Structure", ...]


Structure = Any  # a Node, Leaf, or an object that stays whole


def flatten(tree: object) -> tuple[list[Tensor], Structure]:
    """The tensors of an object, and the structure that is left of it."""
    if ops.is_tensor(tree):
        return [tree], Leaf
    # NumPy's arrays have a `flatten` too, of another kind.
    if "flatten" not in vars(type(tree)) or not hasattr(type(tree), "unflatten"):
        return [], tree
    children, static = tree.flatten()
    parts = [flatten(child) for child in children]
    tensors = [tensor for of_child, _ in parts for tensor in of_child]
    return tensors, Node(type(tree), static, tuple(structure for _, structure in parts))


def unflatten(structure: Structure, tensors: Iterable[Tensor]) -> Any:
    """The object again, of as many `tensors` as came out of it; of an iterator the others stay."""
    tensors = iter(tensors)
    if structure is Leaf:
        return next(tensors)
    if not isinstance(structure, Node):
        return structure
    children = [unflatten(child, tensors) for child in structure.children]
    return structure.kind.unflatten(structure.static, children)


def is_shareable(structure: Structure) -> bool:
    """Whether objects of equal structures do the same with the same tensors: not where one stays
    whole, since it may hold anything, nor where what is static cannot be compared by its hash.
    """
    if isinstance(structure, Node):
        try:
            hash(structure.static)
        except TypeError:
            return False
        return all(is_shareable(child) for child in structure.children)
    return structure is Leaf or structure is None
