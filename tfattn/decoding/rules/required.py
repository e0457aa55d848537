"""Tokens that a text must contain somewhere."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from keras import ops

from tfattn import _checks
from tfattn._types import Tensor
from tfattn.decoding.arguments import Ids
from tfattn.decoding.rules.base import NO_TOKEN, Rule, check_ids_below, checked_phrases, padded

__all__ = ["RequiredTokens"]


class RequiredTokens(Rule):
    """The result contains given sequences of tokens, in any order and anywhere.

    A row may not end before it has all of them. When no more room is left than the missing ones and
    the end token take, each token must go on with one of them. So every row has all of them if it
    has room for them one after the other and for the end token, and if neither the step nor another
    rule forbids one of their tokens.

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
        >>> found = beam_search(step, (), 1, 7, end_id=6, rules=rules)
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
    def kinds(self) -> int:
        """Beams with each number of required tokens are kept side by side."""
        return self.count * self.width + 1

    @property
    def more(self) -> int:
        return self.count

    def start(self, tokens: Tensor, limits: Tensor) -> dict[str, Tensor]:
        """The phrases `(B, C, P)` of each row, which of them are met `(B, C)`, and its limit."""
        shape = (ops.shape(tokens)[0], self.count, self.width)
        phrases = ops.broadcast_to(self.tokens, shape)
        return {"phrases": phrases, "met": phrases[:, :, 0] == NO_TOKEN, "limits": limits}

    def adjust(
        self, logits: Tensor, tokens: Tensor, position: Tensor, state: dict[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        begun, complete = self._begun(tokens, position, state)
        met = ops.logical_or(state["met"], complete)
        state = {**state, "met": met}
        ids, wanted = self.wanted(tokens, position, state)
        token = ops.arange(ops.shape(logits)[1], dtype="int32")
        missing = ops.any(ops.logical_not(met), axis=1, keepdims=True)  # (R, 1)
        too_soon = ops.logical_and(missing, token == self.end_id)
        # Any token might break off what is begun, and everything missing would need its full room.
        lengths = ops.where(met, 0, _lengths(state["phrases"]))  # (R, C)
        room = state["limits"] - position - 1  # (R,), without the place of the end token
        no_room = ops.logical_and(missing[:, 0], room - 1 < ops.sum(lengths, axis=1))
        # Of those that are begun, the one that has the most goes on.
        furthest = ops.max(ops.where(met, -1, begun), axis=1, keepdims=True)
        wanted = ops.logical_and(wanted, begun == furthest)
        others = ops.ones_like(logits, dtype="bool")
        for number in range(self.count):
            is_it = ops.logical_and(token == ids[:, number, None], wanted[:, number, None])
            others = ops.logical_and(others, ops.logical_not(is_it))
        forbidden = ops.logical_or(too_soon, ops.logical_and(no_room[:, None], others))
        return ops.where(forbidden, -float("inf"), logits), state

    def wanted(
        self, tokens: Tensor, position: Tensor, state: dict[str, Tensor]
    ) -> tuple[Tensor, Tensor]:
        """The next token of each phrase, int32 `(R, C)`, and whether the phrase is missing."""
        begun, _ = self._begun(tokens, position, state)
        ids = ops.take_along_axis(state["phrases"], begun[..., None], axis=2)[..., 0]
        return ids, ops.logical_not(state["met"])

    def tokens_met(
        self, candidates: Tensor, tokens: Tensor, position: Tensor, state: dict[str, Tensor]
    ) -> Tensor:
        """How many required tokens a row has with each of the candidates `(R, N)`, int32."""
        begun, _ = self._begun(tokens, position, state)
        ids, missing = self.wanted(tokens, position, state)
        lengths = _lengths(state["phrases"])
        already = ops.sum(ops.where(missing, 0, lengths), axis=1, keepdims=True)  # (R, 1)
        first = state["phrases"][:, :, 0]
        going_on = candidates[:, :, None] == ids[:, None]  # (R, N, C)
        beginning = ops.cast(candidates[:, :, None] == first[:, None], "int32")
        has = ops.where(going_on, begun[:, None] + 1, beginning)
        return already + ops.max(ops.where(missing[:, None], has, 0), axis=-1)

    def more_candidates(
        self,
        gains: Tensor,
        candidates: Tensor,
        logits: Tensor,
        tokens: Tensor,
        position: Tensor,
        state: dict[str, Tensor],
    ) -> tuple[Tensor, Tensor]:
        """Gains and candidates `(R, N + C)`: the next token of each phrase that is missing beside
        those of `(R, N)`, with a gain of -inf where there is none, or where it is there already.
        """
        ids, missing = self.wanted(tokens, position, state)
        size = ops.shape(logits)[1]
        for number in range(self.count):
            token = ids[:, number, None]  # (R, 1)
            twice = ops.any(candidates == token, axis=1, keepdims=True)
            new = ops.logical_and(missing[:, number, None], ops.logical_not(twice))
            new = ops.logical_and(new, token < size)
            inside = ops.where(new, token, 0)
            gain = ops.where(new, ops.take_along_axis(logits, inside, axis=1), -float("inf"))
            gains = ops.concatenate([gains, gain], axis=1)
            candidates = ops.concatenate([candidates, token], axis=1)
        return gains, candidates

    def _begun(
        self, tokens: Tensor, position: Tensor, state: dict[str, Tensor]
    ) -> tuple[Tensor, Tensor]:
        """How many of its first tokens each phrase has at the end of a row, int32 `(R, C)` and less
        than all; and whether the row ends with all of it.
        """
        phrases = state["phrases"]
        lengths = _lengths(phrases)
        begun, complete = ops.zeros_like(lengths), ops.zeros_like(lengths, dtype="bool")
        for count in range(1, self.width + 1):
            place = position + ops.arange(1 - count, 1, dtype="int32")  # (count,)
            last = ops.take(tokens, ops.maximum(place, 0), axis=1)  # (R, count)
            last = ops.where(place >= 1, last, NO_TOKEN - 1)
            same = ops.all(phrases[:, :, :count] == last[:, None], axis=-1)  # (R, C)
            begun = ops.where(ops.logical_and(same, lengths > count), count, begun)
            complete = ops.where(ops.logical_and(same, lengths == count), True, complete)
        return begun, complete

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


def _lengths(phrases: Tensor) -> Tensor:
    return ops.sum(ops.cast(phrases != NO_TOKEN, "int32"), axis=-1)


def _some(row: Any) -> bool:
    """Whether a sentence has phrases, or something that is none and is refused by name."""
    return not (isinstance(row, list | tuple) and not row)
