"""A required prefix of the result."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from tfattn import _checks
from tfattn._types import Tensor
from tfattn.decoding.configurable import NO_TOKEN
from tfattn.decoding.rules.base import Ids, Rule, check_ids_below, checked_ids, padded


@keras.saving.register_keras_serializable("tfattn")
class TargetPrefix(Rule):
    """The result begins with given tokens: all others are forbidden at these positions.

    Args:
        tokens: ids without the begin token, for every sentence; or a sequence of ids for each
            sentence, as lists, or as an array `(B, P)`. Padding and an empty sequence require
            nothing. In `translate`, one sequence for each of `sentences`.
        scored: whether the log-probabilities of these tokens count in the score of a beam; if not,
            each counts 0.
    Raises:
        ValueError: `tokens` contains no ids; `scored` is not a bool; in a search, an id is not in
            the vocabulary, the end token precedes other tokens, a sequence is longer than the
            `max_length` of its row, or the number of sequences differs from the number of
            sentences.
    Example: a step that counts up.
        >>> def step(tokens, position, state):
        ...     return keras.ops.one_hot(keras.ops.take(tokens, position, axis=1) + 1, 10), state
        >>> rules = [tfattn.rules.TargetPrefix([[5, 4], [7]])]
        >>> print(np.asarray(GreedySearch(rules=rules)(step, (), 2, 5, end_id=8)))
        [[5 4 5 6 7]
         [7 8 0 0 0]]
    """

    tensors = ("tokens",)

    def __init__(self, tokens: Sequence[int] | Sequence[Sequence[int]], scored: bool = True):
        who = "TargetPrefix"
        self.scored = self.lowers_only = _checks.boolean(who, "scored", scored)
        if isinstance(tokens, str | bytes | dict) or not np.iterable(tokens):
            _checks.fail(who, "tokens", "hold ids, or sequences of ids", tokens)
        given: list[Any] = list(tokens)
        are_rows = [np.iterable(row) and not isinstance(row, str | bytes) for row in given]
        self.per_row = bool(given) and all(are_rows)
        if self.per_row:
            rows = [checked_ids(who, "tokens", row, least=0) for row in given]
        else:
            rows = [checked_ids(who, "tokens", given)]
        table = padded(rows, max(1, *map(len, rows)))
        self.tokens = table if self.per_row else table[0]

    def start(self, tokens: Tensor, limits: Tensor) -> Tensor:
        width = ops.shape(self.tokens)[-1]
        return ops.broadcast_to(self.tokens, (ops.shape(tokens)[0], width))  # (B, P)

    def adjust(
        self, logits: Tensor, tokens: Tensor, position: Tensor, state: Tensor
    ) -> tuple[Tensor, Tensor]:
        width = ops.shape(state)[1]
        wanted = ops.take(state, ops.minimum(position, width - 1), axis=1)[:, None]  # (R, 1)
        given = ops.logical_and(wanted != NO_TOKEN, wanted != self.padding_id)
        given = ops.logical_and(given, position < width)
        others = ops.arange(ops.shape(logits)[1], dtype="int32") != wanted
        only = logits if self.scored else ops.logsumexp(logits, axis=-1, keepdims=True)
        only = ops.where(others, -float("inf"), only)
        return ops.where(given, only, logits), state

    def required_length(self, ids: Ids) -> tuple[int | np.ndarray, str]:
        # Whether each entry of the table is a required token.
        given = np.logical_and(self.tokens != NO_TOKEN, self.tokens != ids.padding_id)
        ends = np.logical_and(given, self.tokens == ids.end_id)
        after = np.cumsum(ends, axis=-1) - ends > 0
        wrong = np.any(np.logical_and(given, after), axis=-1)
        if np.any(wrong):
            expected = f"hold the end token, {ids.end_id}, only as the last token of a sequence"
            row = self.tokens[wrong][0] if self.per_row else self.tokens
            _checks.fail("TargetPrefix", "tokens", expected, row.tolist())
        lengths = np.arange(1, given.shape[-1] + 1)
        return np.max(np.where(given, lengths, 0), axis=-1), "the tokens of TargetPrefix"

    def check_vocabulary(self, size: int) -> None:
        check_ids_below("TargetPrefix", "tokens", self.tokens, size)
