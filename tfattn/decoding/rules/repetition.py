"""Rules against repetition."""

import keras
from keras import ops

from tfattn import _checks
from tfattn._types import Tensor
from tfattn.decoding.rules.base import Rule, token_mask


@keras.saving.register_keras_serializable("tfattn")
class RepetitionPenalty(Rule):
    """Makes written tokens less likely.

        score / penalty    where the score is positive
        score · penalty    where it is negative

    The begin token does not count as written.

    Args:
        penalty: finite number θ of at least 1. 1 changes nothing.
    Raises:
        ValueError: `penalty` is not such a number.
    Example: token 4 has the highest score at every step, and 5 nearly as much.
        >>> scores = np.array([[0.0, 0.0, 0.0, 0.0, 2.0, 1.9]], "float32")
        >>> def step(tokens, position, state):
        ...     return keras.ops.take(scores, 0 * tokens[:, 0], axis=0), state
        >>> rules = [tfattn.rules.RepetitionPenalty(1.2)]
        >>> print(np.asarray(GreedySearch(rules=rules)(step, (), 1, 4)))
        [[4 5 4 4]]

    Source: Keskar et al. 2019, arXiv:1909.05858, section 4.1; differs from it in that negative
    scores are multiplied, since division would raise them.
    """

    tensors = ("penalty",)
    lowers_only = True

    def __init__(self, penalty: float):
        penalty = _checks.positive_number("RepetitionPenalty", "penalty", penalty)
        if penalty < 1:
            _checks.fail("RepetitionPenalty", "penalty", "be at least 1", penalty)
        self.penalty = penalty

    def adjust(
        self, logits: Tensor, tokens: Tensor, position: Tensor, state: tuple[()]
    ) -> tuple[Tensor, tuple[()]]:
        positions = ops.arange(ops.shape(tokens)[1], dtype="int32")
        written = ops.logical_and(positions >= 1, positions <= position)  # not the begin token
        written = ops.broadcast_to(written, ops.shape(tokens))
        repeated = token_mask(tokens, written, ops.shape(logits)[1])
        less = ops.where(logits > 0, logits / self.penalty, logits * self.penalty)
        return ops.where(repeated, less, logits), state


@keras.saving.register_keras_serializable("tfattn")
class NoRepeatNgrams(Rule):
    """Forbids every token that would repeat an n-gram of `size` tokens.

    The begin token is part of no n-gram.

    Args:
        size: positive int n. 1 forbids every token that is already written.
    Raises:
        ValueError: `size` is not a positive int.
    Example: a step that cycles through 3 4 5.
        >>> def step(tokens, position, state):
        ...     last = keras.ops.take(tokens, position, axis=1)
        ...     return keras.ops.one_hot((last + 1) % 3 + 3, 7), state
        >>> rules = [tfattn.rules.NoRepeatNgrams(2)]
        >>> print(np.asarray(GreedySearch(rules=rules)(step, (), 1, 5, begin_id=2, end_id=6)))
        [[3 4 5 3 1]]

    Source: Paulus et al. 2018, arXiv:1705.04304, section 2.5, with n = 3.
    """

    lowers_only = True

    def __init__(self, size: int):
        self.size = _checks.positive_int("NoRepeatNgrams", "size", size)

    def adjust(
        self, logits: Tensor, tokens: Tensor, position: Tensor, state: tuple[()]
    ) -> tuple[Tensor, tuple[()]]:
        positions = ops.arange(ops.shape(tokens)[1], dtype="int32")
        # A token is forbidden at `position + 1` if it already follows the same n - 1 tokens.
        same = ops.logical_and(positions >= self.size, positions <= position)  # (L,)
        same = ops.broadcast_to(same, ops.shape(tokens))
        for back in range(1, self.size):
            before = ops.take(tokens, ops.maximum(positions - back, 0), axis=1)
            last = ops.take(tokens, ops.maximum(position + 1 - back, 0), axis=1)
            same = ops.logical_and(same, before == last[:, None])
        forbidden = token_mask(tokens, same, ops.shape(logits)[1])
        return ops.where(forbidden, -float("inf"), logits), state
