"""Beams that may go on, and the choice among their candidates."""

from typing import NamedTuple

from keras import ops

from tfattn._types import Tensor
from tfattn.decoding.best import top_k

__all__ = ["NO_SCORE", "Beams", "going_on", "in_turns"]

NO_SCORE = float("-inf")  # of a beam or a hypothesis that does not exist


class Beams(NamedTuple):
    """What candidates are made of, `(R,)`."""

    sums: Tensor
    lengths: Tensor  # with the next token
    ended: Tensor
    limits: Tensor
    at_end: Tensor | None  # what rules add to the score of one that ends

    def of(self, here: slice, width: int) -> "Beams":
        """Some beams of each sentence, out of `width`."""

        def some(tensor):
            return ops.reshape(ops.reshape(tensor, (-1, width))[:, here], (-1,))

        return Beams(*(None if tensor is None else some(tensor) for tensor in self))


def going_on(gains: Tensor, ended: Tensor) -> Tensor:
    """`gains` `(R, N)`, but what has ended goes on as itself, and as nothing else."""
    as_itself = ops.where(ops.arange(ops.shape(gains)[1]) == 0, 0.0, NO_SCORE)
    return ops.where(ended[:, None], as_itself, gains)


def in_turns(scores: Tensor, group: Tensor, groups: int, count: int) -> Tensor:
    """Places `(B, count)` of candidates `(B, M)`: the best of each group, then the second best of
    each, and so on. The first turn begins with the highest group; every other one, and a single
    place, with the best score.

    Args:
        group: int32 `(B, M)`, below `groups`.
    """
    number = ops.shape(scores)[1]
    scores, order = top_k(scores, number)  # the best first
    is_of = ops.one_hot(ops.take_along_axis(group, order, axis=1), groups, dtype="int32")
    turn = ops.sum(is_of * ops.cumsum(is_of, axis=1), axis=-1)  # (B, M)
    # What comes first has the least; groups in the first turn have less than any second one has.
    if count > 1:
        of_group = ops.take_along_axis(group, order, axis=1)
        turn = ops.where(turn == 1, 1 - ops.cast(of_group, turn.dtype), turn)
    turn = ops.where(scores == NO_SCORE, number + 1, turn)
    first = top_k(-ops.cast(turn, "float32"), count)[1]
    return ops.cast(ops.take_along_axis(order, first, axis=1), "int32")
