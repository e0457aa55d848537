"""A step's state: which of its tensors a step changes, which are constants, and what is none."""

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from tfattn import _checks
from tfattn._past import Past
from tfattn._types import Tensor

__all__ = ["StateLayout", "paths_of_pasts", "take_rows"]


def take_rows(tensor: Tensor, rows: Tensor | None) -> Tensor:
    """Some rows of a tensor: all of them without `rows`; a scalar has none and stays."""
    return tensor if rows is None or len(tensor.shape) == 0 else ops.take(tensor, rows, axis=0)


class StateLayout:
    """Where a state holds changing tensors and constants, as the first step showed it.

    A constant is a tensor that the step handed back as it got it, the very same object in the same
    place.

    Args:
        before: the state that a step was given.
        after: the state that it returned; those of later steps are like it.
    Attributes:
        is_past: bools, whether each of the changing tensors is that of a `Past`.
    """

    def __init__(self, before: Any, after: Any):
        given = dict(keras.tree.flatten_with_path(before))
        self._after = after
        self._leaves = dict(keras.tree.flatten_with_path(after))
        tensors = [path for path, leaf in self._leaves.items() if ops.is_tensor(leaf)]
        self._constant = [path for path in tensors if given.get(path) is self._leaves[path]]
        self._changing = [path for path in tensors if path not in self._constant]
        pasts = paths_of_pasts("step", after)
        self.is_past = [path in pasts for path in self._changing]

    def split(self) -> tuple[list[Tensor], list[Tensor]]:
        """(changing tensors, constants) of the state after that step."""
        changing = [self._leaves[path] for path in self._changing]
        return changing, [self._leaves[path] for path in self._constant]

    def join(self, changing: Sequence[Tensor], constants: Sequence[Tensor]) -> Any:
        """The state that has these tensors in their places."""
        paths = [*self._changing, *self._constant]
        tensors = dict(zip(paths, [*changing, *constants], strict=True))
        leaves = [tensors.get(path, leaf) for path, leaf in self._leaves.items()]
        return keras.tree.pack_sequence_as(self._after, leaves)

    def rooms(self, state: Any) -> list[int | Tensor | None]:
        """How many positions each `Past` among the changing tensors has in a state; None where it
        is none.
        """
        leaves = dict(keras.tree.flatten_with_path(state))
        return [
            ops.shape(leaves[path])[-2] if past else None
            for path, past in zip(self._changing, self.is_past, strict=True)
        ]

    def changed(self, before: Any, after: Any) -> list[Tensor]:
        """The changing tensors after a later step, from the states before and after it.

        Raises:
            ValueError: the state is no longer what it was after the first step.
        """
        before, after = (dict(keras.tree.flatten_with_path(state)) for state in (before, after))
        if after.keys() != self._leaves.keys():
            _checks.fail("step", "state", "keep its structure from step to step", list(after))
        for path, leaf in after.items():
            if path in self._changing:
                _check_alike(self._leaves[path], leaf)
            elif leaf is not before[path] and (path in self._constant or leaf != before[path]):
                expected = "change a leaf in its first step too if it does later, and only tensors"
                _checks.fail("step", "state", expected, leaf)
        return [after[path] for path in self._changing]


def paths_of_pasts(who: str, state: Any) -> set[tuple]:
    """The paths of the leaves that are the tensor of a `Past`.

    Raises:
        ValueError: a `Past` holds something else; the message begins with `who`.
    """
    mark = object()

    def marked(part):
        if not isinstance(part, Past):
            return None  # `traverse` goes on into it
        shape = getattr(part.tensor, "shape", ())
        if len(shape) < 3:
            expected = "have a `Past` of one tensor of rank 3 or more, (B, ..., L, P)"
            _checks.fail(who, "state", expected, tuple(shape) or part.tensor)
        return Past(mark)

    leaves = keras.tree.flatten_with_path(keras.tree.traverse(marked, state))
    return {path for path, leaf in leaves if leaf is mark}


def _check_alike(first: Tensor, later: Tensor) -> None:
    """Raises unless a tensor of the state has kept its shape and dtype."""
    (shape, dtype), received = (
        (tuple(tensor.shape), keras.backend.standardize_dtype(tensor.dtype))
        for tensor in (first, later)
    )
    sizes = zip(shape[1:], received[0][1:], strict=False)  # the number of rows may change
    differ = any(None not in pair and pair[0] != pair[1] for pair in sizes)
    if len(shape) != len(received[0]) or differ or dtype != received[1]:
        expected = f"keep the shape and dtype of a tensor from step to step, here {shape} {dtype}"
        _checks.fail("step", "state", expected, received)
