"""A step's state in its parts: tensors that a step changes, tensors that it leaves alone, and what
is no tensor.
"""

import keras
from keras import ops

from tfattn import _checks
from tfattn._past import Past

__all__ = ["StateParts", "paths_of_pasts", "taken"]


def taken(tensor, rows):
    """Some rows of a tensor; a scalar has none and stays, and without `rows` everything does."""
    return tensor if rows is None or len(tensor.shape) == 0 else ops.take(tensor, rows, axis=0)


class StateParts:
    """The parts of a state, told from what one step did to it.

    A constant is a tensor that the step handed back as it got it, the very same object in the same
    place. `past` says of each tensor that changes whether it is that of a `Past`.

    Args:
        before: the state that a step was given.
        after: the state that it returned; the ones of later steps are like it.
    """

    def __init__(self, before, after):
        given = dict(keras.tree.flatten_with_path(before))
        self._after = after
        self._leaves = dict(keras.tree.flatten_with_path(after))
        tensors = [path for path, leaf in self._leaves.items() if ops.is_tensor(leaf)]
        self._constant = [path for path in tensors if given.get(path) is self._leaves[path]]
        self._changing = [path for path in tensors if path not in self._constant]
        pasts = paths_of_pasts("step", after)
        self.past = [path in pasts for path in self._changing]

    def split(self):
        """(changing tensors, constants) of the state after that step."""
        return [self._leaves[path] for path in self._changing], [
            self._leaves[path] for path in self._constant
        ]

    def joined(self, changing, constants):
        """The state that has these tensors in their places."""
        tensors = dict(
            zip([*self._changing, *self._constant], [*changing, *constants], strict=True)
        )
        leaves = [tensors.get(path, leaf) for path, leaf in self._leaves.items()]
        return keras.tree.pack_sequence_as(self._after, leaves)

    def changed(self, before, after):
        """The changing tensors after a later step, from the states before and after it.

        Raises:
            ValueError: the state is no longer what it was after the first step.
        """
        before, after = (dict(keras.tree.flatten_with_path(state)) for state in (before, after))
        if after.keys() != self._leaves.keys():
            _fail("keep its structure from step to step", list(after))
        for path, leaf in after.items():
            if path in self._changing:
                _check_like(self._leaves[path], leaf)
            elif leaf is not before[path] and (path in self._constant or leaf != before[path]):
                _fail(
                    "change a leaf in its first step too if it does later, and only tensors", leaf
                )
        return [after[path] for path in self._changing]


def paths_of_pasts(who, state):
    """The paths of a state's leaves that are the tensor of a `Past`; `who` speaks of one that holds
    something else.
    """
    mark = object()

    def marked(part):
        if not isinstance(part, Past):
            return None  # and `traverse` goes on into it
        shape = getattr(part.tensor, "shape", ())
        if len(shape) < 3:
            expected = "have a `Past` of one tensor of rank 3 or more, (B, ..., L, P)"
            _checks.fail(who, "state", expected, tuple(shape) or part.tensor)
        return Past(mark)

    leaves = keras.tree.flatten_with_path(keras.tree.traverse(marked, state))
    return {path for path, leaf in leaves if leaf is mark}


def _check_like(first, later):
    shapes = zip(first.shape[1:], later.shape[1:], strict=False)  # less the rows, which come and go
    differ = any(None not in sizes and sizes[0] != sizes[1] for sizes in shapes)
    if len(first.shape) != len(later.shape) or differ or first.dtype != later.dtype:
        shape, dtype = _described(first)
        _fail(
            f"keep the shape and dtype of a tensor from step to step, here {shape} {dtype}",
            _described(later),
        )


def _described(tensor):
    return tuple(tensor.shape), keras.backend.standardize_dtype(tensor.dtype)


def _fail(expected, received):
    _checks.fail("step", "state", expected, received)
