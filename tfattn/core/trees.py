"""Objects that hold tensors, flattened and restored like JAX's pytrees.

A function of tensors alone is traced once and called for many masks, and its arguments get
gradients in any graph. So a mask or a bias is flattened into its tensors and a structure without
tensors, which can be hashed and compared.

    >>> from tfattn import masks
    >>> from tfattn.core import trees
    >>> tensors, structure = trees.flatten(masks.padding([2, 3]) & masks.window(5))
    >>> print(len(tensors), trees.is_shareable(structure))
    1 True
    >>> print(tuple(trees.unflatten(structure, tensors).dense(1, 3).shape))
    (2, 1, 3)

A class defines two methods. `flatten()` returns `(children, static)`: the tensors and objects
inside, and all other state as a hashable. The class method `unflatten(static, children)` restores
the object. As in JAX they apply to their own class and to no subclass, which may hold more: an
object whose class defines no `flatten` itself is not flattened.
"""

from collections.abc import Hashable, Iterable
from typing import Any, NamedTuple

from keras import ops

from tfattn._types import Tensor


class Leaf:
    """The place of a tensor; the class itself is the marker."""


class Node(NamedTuple):
    """A flattened object."""

    kind: type[Any]
    static: Hashable
    children: tuple["Structure", ...]


Structure = Any  # a Node, Leaf, or an object that is not flattened


def flatten(tree: Any) -> tuple[list[Tensor], Structure]:
    """The tensors of an object, and its structure."""
    if ops.is_tensor(tree):
        return [tree], Leaf
    # NumPy's arrays have a `flatten` with another meaning.
    if "flatten" not in vars(type(tree)) or not hasattr(type(tree), "unflatten"):
        return [], tree
    children, static = tree.flatten()
    parts = [flatten(child) for child in children]
    tensors = [tensor for of_child, _ in parts for tensor in of_child]
    return tensors, Node(type(tree), static, tuple(structure for _, structure in parts))


def unflatten(structure: Structure, tensors: Iterable[Tensor]) -> Any:
    """The object restored from its `tensors`; further tensors of an iterator are not consumed."""
    tensors = iter(tensors)
    if structure is Leaf:
        return next(tensors)
    if not isinstance(structure, Node):
        return structure
    children = [unflatten(child, tensors) for child in structure.children]
    return structure.kind.unflatten(structure.static, children)


def is_shareable(structure: Structure) -> bool:
    """Whether objects of equal structure behave alike with the same tensors: not where an object is
    not flattened, since it may hold any state, nor where `static` cannot be hashed.
    """
    if isinstance(structure, Node):
        try:
            hash(structure.static)
        except TypeError:
            return False
        return all(is_shareable(child) for child in structure.children)
    return structure is Leaf or structure is None
