"""Forbidden tokens and phrases."""

from collections.abc import Sequence

import keras
from keras import ops

from tfattn._types import Tensor
from tfattn.decoding.configurable import NO_TOKEN
from tfattn.decoding.rules.base import (
    Rule,
    check_ids_below,
    checked_phrases,
    padded,
    token_mask,
)


@keras.saving.register_keras_serializable("tfattn")
class ForbiddenTokens(Rule):
    """Forbids tokens, and sequences of tokens.

    The last token of a sequence is forbidden directly after all its other tokens. The begin token
    is part of no sequence.

    Args:
        tokens: ids, or sequences of ids, such as `tfattn.rules.tokens_of(vocabulary, words)`.
    Raises:
        ValueError: `tokens` contains no ids; in a search, an id is not in the vocabulary.
    Example: a step that counts up; 4, and 6 after 5, are forbidden.
        >>> def step(tokens, position, state):
        ...     last = keras.ops.take(tokens, position, axis=1)[:, None]
        ...     return -abs(keras.ops.arange(9.0) - keras.ops.cast(last, "float32") - 1), state
        >>> rules = [tfattn.rules.ForbiddenTokens([4, [5, 6]])]
        >>> print(np.asarray(GreedySearch(rules=rules)(step, (), 1, 5, end_id=8)))
        [[3 3 3 3 3]]
    """

    tensors = ("tokens",)
    lowers_only = True

    def __init__(self, tokens: Sequence[int | Sequence[int]]):
        phrases = checked_phrases("ForbiddenTokens", "tokens", tokens)
        self.tokens = padded(phrases, max(map(len, phrases)), left=True)  # (N, P)

    def adjust(
        self, logits: Tensor, tokens: Tensor, position: Tensor, state: tuple[()]
    ) -> tuple[Tensor, tuple[()]]:
        rows, (count, width) = ops.shape(tokens)[0], ops.shape(self.tokens)
        positions = position + ops.arange(width - 1, dtype="int32") - (width - 2)  # (P - 1,)
        before = ops.take(tokens, ops.maximum(positions, 0), axis=1)  # (R, P - 1)
        before = ops.where(positions >= 1, before, NO_TOKEN - 1)
        wanted = self.tokens[None, :, :-1]  # (1, N, P - 1)
        same = ops.logical_or(wanted == NO_TOKEN, wanted == before[:, None])
        ids = ops.broadcast_to(self.tokens[:, -1], (rows, count))
        forbidden = token_mask(ids, ops.all(same, axis=-1), ops.shape(logits)[1])
        return ops.where(forbidden, -float("inf"), logits), state

    def check_vocabulary(self, size: int) -> None:
        check_ids_below("ForbiddenTokens", "tokens", self.tokens, size)
