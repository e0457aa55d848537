"""Tokens that a text must contain somewhere."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from tfattn import _checks
from tfattn._types import Tensor
from tfattn.decoding.arguments import Ids
from tfattn.decoding.rules.base import (
    NO_TOKEN,
    Rule,
    check_ids_below,
    checked_phrases,
    counted,
    padded,
)

__all__ = ["RequiredTokens"]


@keras.saving.register_keras_serializable("tfattn")
class RequiredTokens(Rule):
    """The result contains given sequences of tokens, in any order and anywhere.

    A row may not end before it has all of them, and takes no token after which the missing ones,
    first the one of which it has most, no longer fit before the end token. So every row has all of
    them if it has room for them one after the other and for the end token, and if neither the step
    nor another rule forbids one of their tokens. Nothing else leads a row to them: made for beams,
    of which some have them early. Greedy search and sampling go on until there is no more room.

    They are sequences of tokens, not words: one way to write a word in subwords, and also the
    beginning of a longer word.

    Beams that have different numbers of these tokens are kept side by side: of the places, each
    number gets as many as the others, as far as it has beams, and the best that has ended gets one
    of its own. Where there are fewer places than numbers, the greatest numbers get them. The first
    token of a sequence that is missing, and the next token of one that is begun, is a candidate
    however low its score is; not so with `DiverseBeams`, whose groups choose by their ranks alone.

    Args:
        tokens: ids or sequences of ids, such as `tfattn.rules.tokens_of(vocabulary, words)`, for
            every sentence. With `per_sentence`, such a list for each sentence, which may be empty;
            in `translate`, one for each of `sentences`.
        per_sentence: whether `tokens` has a list for each sentence.
    Raises:
        ValueError: `tokens` holds no ids; in a search, an id is not in the vocabulary, or is the
            begin, the end or the padding token; the sequences and the end token are more than the
            `max_length` of their row; or there are not as many lists as sentences.
    Example: a step that counts up to the end token.
        >>> def step(tokens, position, state):
        ...     last = keras.ops.take(tokens, position, axis=1)[:, None]
        ...     return -abs(keras.ops.arange(11.0) - keras.ops.cast(last, "float32") - 1), state
        >>> rules = [tfattn.rules.RequiredTokens([[9, 4]])]
        >>> found = BeamSearch(rules=rules)(step, (), 1, 7, end_id=6)
        >>> print(np.asarray(found.tokens))
        [[[3 4 5 9 4 5 6]]]

    Source: the places of beams after Post and Vilar 2018, arXiv:1804.06609; differs from it in that
    places go round in turns.
    """

    tensors = ("tokens",)
    lowers_only = True

    def __init__(self, tokens: Sequence, per_sentence: bool = False):
        who = "RequiredTokens"
        self.per_row = _checks.boolean(who, "per_sentence", per_sentence)
        if not per_sentence:
            rows = [checked_phrases(who, "tokens", tokens)]
        elif isinstance(tokens, str | bytes | dict) or not np.iterable(tokens) or not len(tokens):
            _checks.fail(who, "tokens", "hold a list for each sentence", tokens)
        else:
            rows = [checked_phrases(who, "tokens", row) if _some(row) else [] for row in tokens]
        count = max(1, *map(len, rows))
        width = max((len(phrase) for row in rows for phrase in row), default=1)
        # (B, C, P), or (C, P) for every sentence
        table = np.stack([padded(row + [[]] * (count - len(row)), width) for row in rows])
        self.tokens = table if per_sentence else table[0]
        self.count, self.width = count, width

    @property
    def per_sentence(self) -> bool:
        return self.per_row

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        rows = config["tokens"] if self.per_row else [config["tokens"]]
        rows = [[phrase for phrase in row if phrase] for row in rows]
        return config | {"tokens": rows if self.per_row else rows[0]}

    @property
    def levels(self) -> int:
        """Beams with each number of required tokens are kept side by side."""
        return self.count * self.width + 1

    def start(self, tokens: Tensor, limits: Tensor) -> dict[str, Tensor]:
        """The phrases `(B, C, P)` of each row, which of them are met `(B, C)`, and its limit."""
        shape = (ops.shape(tokens)[0], self.count, self.width)
        phrases = ops.broadcast_to(self.tokens, shape)
        return {"phrases": phrases, "met": phrases[:, :, 0] == NO_TOKEN, "limits": limits}

    def adjust(
        self, logits: Tensor, tokens: Tensor, position: Tensor, state: dict[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        phrases, lengths = state["phrases"], _lengths(state["phrases"])
        is_whole = _ends_with(tokens, position, phrases, self.width) == lengths[..., None]
        state = {**state, "met": ops.logical_or(state["met"], ops.any(is_whole, axis=-1))}
        required = ops.sum(lengths, axis=1, keepdims=True)  # (R, 1)
        room = (state["limits"] - position - 2)[:, None]  # after the token, before the end token
        already = _sum_where(state["met"], lengths)
        # Any token may break off what is begun. Which do not, and what is left then?
        size = ops.shape(logits)[1]
        of_phrases = ops.reshape(phrases, (-1, self.count * self.width))
        fit = required - self.level(of_phrases, tokens, position, state) <= room
        allowed = ops.logical_or(required - already <= room, counted(of_phrases, fit, size) > 0)
        too_soon = ops.arange(size, dtype="int32") == self.end_id
        allowed = ops.logical_and(allowed, ops.logical_not(too_soon))
        allowed = ops.logical_or(allowed, ops.all(state["met"], axis=1, keepdims=True))
        return ops.where(allowed, logits, -float("inf")), state

    def proposed(
        self, tokens: Tensor, position: Tensor, state: dict[str, Tensor]
    ) -> tuple[Tensor, Tensor]:
        """The next token of each phrase, and whether the phrase is missing."""
        phrases = state["phrases"]
        begun = ops.max(_ends_with(tokens, position, phrases, self.width - 1), axis=-1)
        ids = ops.take_along_axis(phrases, begun[..., None], axis=2)[..., 0]
        return ids, ops.logical_not(state["met"])

    def level(
        self, candidates: Tensor, tokens: Tensor, position: Tensor, state: dict[str, Tensor]
    ) -> Tensor:
        """How many required tokens a row has with each of the candidates `(R, N)`, int32: those of
        phrases that it has, and those of the missing one of which it has most.
        """
        phrases, met = state["phrases"], state["met"]
        begun = _ends_with(tokens, position, phrases, self.width - 1)  # (R, C, P)
        # Any beginning of a phrase at the row's end may go on, not the longest alone.
        may_go_on = ops.logical_or(begun > 0, ops.arange(self.width, dtype="int32") == 0)
        next_ones = ops.where(may_go_on, phrases, NO_TOKEN - 1)
        goes_on = candidates[:, :, None, None] == next_ones[:, None]  # (R, N, C, P)
        has = ops.where(goes_on, ops.arange(1, self.width + 1, dtype="int32"), 0)
        has = ops.where(met[:, None], 0, ops.max(has, axis=-1))  # (R, N, C)
        lengths = _lengths(phrases)
        whole = has == lengths[:, None]
        most = ops.max(ops.where(whole, 0, has), axis=-1)
        return _sum_where(met, lengths) + _sum_where(whole, has)[..., 0] + most

    def room(self, ids: Ids) -> tuple[int | np.ndarray, str]:
        special = np.isin(self.tokens, ids)
        if np.any(special):
            expected = "hold neither the begin, the end nor the padding token"
            _checks.fail("RequiredTokens", "tokens", expected, int(self.tokens[special][0]))
        needed = np.sum(self.tokens != NO_TOKEN, axis=(-2, -1))
        # A sentence without such tokens needs no more room than any other.
        needed = np.where(needed > 0, needed + 1, 0)
        return needed, "the tokens of RequiredTokens and the end token"

    def check_vocabulary(self, size: int) -> None:
        check_ids_below("RequiredTokens", "tokens", self.tokens, size)


def _ends_with(tokens: Tensor, position: Tensor, phrases: Tensor, most: int) -> Tensor:
    """int32 `(R, C, 1 + most)`: 0, 1 and so on where a row ends with so many of the first tokens of
    a phrase of `(R, C, P)`, else 0.
    """
    found = [ops.zeros_like(phrases[:, :, 0])]
    for count in range(1, most + 1):
        place = position + ops.arange(1 - count, 1, dtype="int32")  # (count,)
        last = ops.take(tokens, ops.maximum(place, 0), axis=1)  # (R, count)
        last = ops.where(place >= 1, last, NO_TOKEN - 1)
        same = ops.all(phrases[:, :, :count] == last[:, None], axis=-1)  # (R, C)
        found.append(ops.where(same, count, 0))
    return ops.stack(found, axis=-1)


def _sum_where(condition: Tensor, numbers: Tensor) -> Tensor:
    return ops.sum(ops.where(condition, numbers, 0), axis=-1, keepdims=True)


def _lengths(phrases: Tensor) -> Tensor:
    return ops.sum(ops.cast(phrases != NO_TOKEN, "int32"), axis=-1)


def _some(row: Any) -> bool:
    """Whether a sentence has phrases, or something that is none and is refused by name."""
    return not (isinstance(row, list | tuple) and not row)
