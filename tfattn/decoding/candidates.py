"""Beams that may go on, and the choice among their candidates."""

from typing import NamedTuple

from keras import ops

from tfattn._types import Tensor
from tfattn.decoding.best import top_k

__all__ = ["NO_SCORE", "Beams", "going_on", "in_turns", "with_proposed"]

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


def with_proposed(
    gains: Tensor, tokens: Tensor, logits: Tensor, ids: Tensor, meant: Tensor
) -> tuple[Tensor, Tensor]:
    """Gains and candidates `(R, N + C)`: those of `(R, N)`, and `ids` `(R, C)` beside them.

    The gain is -inf for those that are not `meant`, or among the candidates already.
    """
    size = ops.shape(logits)[1]
    for number in range(ids.shape[1]):
        token = ids[:, number, None]  # (R, 1)
        there = ops.logical_and(tokens == token, gains > NO_SCORE)
        new = ops.logical_and(meant[:, number, None], token < size)
        new = ops.logical_and(new, ops.logical_not(ops.any(there, axis=1, keepdims=True)))
        inside = ops.where(new, token, 0)
        gain = ops.where(new, ops.take_along_axis(logits, inside, axis=1), NO_SCORE)
        gains = ops.concatenate([gains, gain], axis=1)
        tokens = ops.concatenate([tokens, token], axis=1)
    return gains, tokens


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
