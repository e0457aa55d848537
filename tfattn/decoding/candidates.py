"""Beams, their candidates, and the choice among candidates."""

from typing import Any, NamedTuple

from keras import ops

from tfattn._types import Tensor
from tfattn.decoding.best import top_k

NO_SCORE = float("-inf")  # marks a beam or a hypothesis that does not exist


class Beams(NamedTuple):
    """The beams that candidates extend, `(R,)`."""

    sums: Tensor
    lengths: Tensor  # with the next token
    ended: Tensor
    limits: Tensor
    at_end: Tensor | None  # the rules' addition to the score of a beam that ends

    def take(self, part: slice, width: int) -> "Beams":
        """A slice of the `width` beams of each sentence."""

        def sliced(tensor: Tensor | None) -> Any:
            if tensor is None:
                return None
            return ops.reshape(ops.reshape(tensor, (-1, width))[:, part], (-1,))

        return Beams(*map(sliced, self))


def with_proposed(
    gains: Tensor, tokens: Tensor, logits: Tensor, ids: Tensor, is_valid: Tensor
) -> tuple[Tensor, Tensor]:
    """Appends the proposed `ids` `(R, C)` to gains and candidates `(R, N)`.

    The gain is -inf for an id that is not valid, or is among the candidates already.
    """
    size = ops.shape(logits)[1]
    for number in range(ids.shape[1]):
        token = ids[:, number, None]  # (R, 1)
        is_known = ops.logical_and(tokens == token, gains > NO_SCORE)
        is_new = ops.logical_and(is_valid[:, number, None], token < size)
        is_new = ops.logical_and(is_new, ops.logical_not(ops.any(is_known, axis=1, keepdims=True)))
        inside = ops.where(is_new, token, 0)
        gain = ops.where(is_new, ops.take_along_axis(logits, inside, axis=1), NO_SCORE)
        gains = ops.concatenate([gains, gain], axis=1)
        tokens = ops.concatenate([tokens, token], axis=1)
    return gains, tokens


def keep_ended(gains: Tensor, ended: Tensor) -> Tensor:
    """`gains` `(R, N)` in which an ended beam has one candidate: itself, unchanged."""
    is_other = ops.arange(ops.shape(gains)[1], dtype="int32") > 0
    unchanged = ops.where(is_other, NO_SCORE, ops.zeros_like(gains))
    return ops.where(ended[:, None], unchanged, gains)


def round_robin(scores: Tensor, group: Tensor, groups: int, count: int) -> Tensor:
    """Indices `(B, count)` of candidates `(B, M)`: the best of each group, then the second best of
    each, and so on. The first round is sorted by group, the highest first; later rounds by
    score, and so is the first if `count` is 1.

    Args:
        group: int32 `(B, M)`, below `groups`.
    """
    number = ops.shape(scores)[1]
    scores, order = top_k(scores, number)  # the best first
    group = ops.take_along_axis(group, order, axis=1)
    in_group = ops.one_hot(group, groups, dtype="int32")
    rank = ops.sum(in_group * ops.cumsum(in_group, axis=1), axis=-1)  # (B, M), from 1
    if count > 1:  # ranks of at most 1 sort the first round by group
        rank = ops.where(rank == 1, 1 - ops.cast(group, rank.dtype), rank)
    rank = ops.where(scores == NO_SCORE, number + 1, rank)
    first = top_k(-ops.cast(rank, "float32"), count)[1]
    return ops.cast(ops.take_along_axis(order, first, axis=1), "int32")
