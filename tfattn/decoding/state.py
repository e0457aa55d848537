"""A step's state, split into changing tensors, constants and other leaves."""

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from tfattn import _checks
from tfattn._past import Past
from tfattn._types import Tensor


def take_rows(tensor: Tensor, rows: Tensor | None) -> Tensor:
    """Some rows of a tensor; the tensor itself if `rows` is None or it is a scalar."""
    return tensor if rows is None or len(tensor.shape) == 0 else ops.take(tensor, rows, axis=0)


class StateLayout:
    """The paths of changing tensors and constants in a state, known from the first step.

    A constant is a tensor that the step returns as the same object at the same path. `is_past`
    tells of each changing tensor whether it is the tensor of a `Past`.
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
        """(Changing tensors, constants) of the state after that step."""
        changing = [self._leaves[path] for path in self._changing]
        return changing, [self._leaves[path] for path in self._constant]

    def join(self, changing: Sequence[Tensor], constants: Sequence[Tensor]) -> Any:
        """The state with these tensors."""
        paths = [*self._changing, *self._constant]
        tensors = dict(zip(paths, [*changing, *constants], strict=True))
        leaves = [tensors.get(path, leaf) for path, leaf in self._leaves.items()]
        return keras.tree.pack_sequence_as(self._after, leaves)

    def past_lengths(self, state: Any) -> list[int | Tensor | None]:
        """The length of each `Past` among the changing tensors of a state; None for others."""
        leaves = dict(keras.tree.flatten_with_path(state))
        return [
            ops.shape(leaves[path])[-2] if past else None
            for path, past in zip(self._changing, self.is_past, strict=True)
        ]

    def changed(self, before: Any, after: Any) -> list[Tensor]:
        """The changing tensors after a later step, from the states before and after it; raises if
        structure, shapes, dtypes or constants differ from the first step.
        """
        before, after = (dict(keras.tree.flatten_with_path(state)) for state in (before, after))
        if after.keys() != self._leaves.keys():
            _checks.fail("step", "state", "keep its structure from step to step", list(after))
        for path, leaf in after.items():
            if path in self._changing:
                _check_alike(self._leaves[path], leaf)
            elif leaf is not before[path] and (path in self._constant or leaf != before[path]):
                expected = "change only in the tensors that the first step changed"
                _checks.fail("step", "state", expected, leaf)
        return [after[path] for path in self._changing]


def paths_of_pasts(who: str, state: Any) -> set[tuple[Any, ...]]:
    """The paths of the leaves that are the tensor of a `Past`."""
    mark: Any = object()

    def marked(part: Any) -> Past | None:
        if not isinstance(part, Past):
            return None  # `traverse` descends into it
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
