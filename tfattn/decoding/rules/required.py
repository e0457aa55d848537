"""Required tokens and phrases, anywhere in the result."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from tfattn import _checks
from tfattn._types import Tensor
from tfattn.decoding.arguments import Ids
from tfattn.decoding.configurable import NO_TOKEN
from tfattn.decoding.rules.base import (
    Rule,
    check_ids_below,
    checked_phrases,
    padded,
    token_mask,
)


@keras.saving.register_keras_serializable("tfattn")
class RequiredTokens(Rule):
    """The result contains given sequences of tokens, in any order and anywhere.

    A row cannot end before it contains all sequences. A token is forbidden if the missing
    sequences, the most complete first, would no longer fit before the end token. So every row
    contains all sequences if `max_length` has room for them and for the end token, and if neither
    the step nor another rule forbids one of their tokens. The rule is made for beams, which can
    include sequences early; greedy search and sampling postpone them until no more room is left.

    The sequences are tokens, not words: a word has one segmentation into subwords here, and may
    also match the beginning of a longer word.

    Beam search divides its beams equally among levels, the numbers of required tokens that beams
    contain, and keeps one more for the best ended beam; with fewer beams than levels, the highest
    levels come first. The first token of a missing sequence and the next
    token of a begun sequence are candidates whatever their scores, except with `DiverseBeams`,
    whose groups choose by rank only.

    Args:
        tokens: ids or sequences of ids, such as `tfattn.rules.tokens_of(vocabulary, words)`, for
            every sentence. With `per_sentence`, such a list for each sentence, which may be empty;
            in `translate`, one for each of `sentences`.
        per_sentence: whether `tokens` has a list for each sentence.
    Raises:
        ValueError: `tokens` contains no ids; in a search, an id is not in the vocabulary, or is the
            begin, the end or the padding token; the sequences and the end token are longer than the
            `max_length` of their row; or the number of lists differs from the number of sentences.
    Example: a step that counts up to the end token.
        >>> def step(tokens, position, state):
        ...     last = keras.ops.take(tokens, position, axis=1)[:, None]
        ...     return -abs(keras.ops.arange(11.0) - keras.ops.cast(last, "float32") - 1), state
        >>> rules = [tfattn.rules.RequiredTokens([[9, 4]])]
        >>> found = BeamSearch(rules=rules)(step, (), 1, 7, end_id=6)
        >>> print(np.asarray(found.tokens))
        [[[3 4 5 9 4 5 6]]]

    Source: the allocation of beams after Post and Vilar 2018, arXiv:1804.06609; differs from it in
    that the allocation is round-robin.
    """

    tensors = ("tokens",)
    lowers_only = True

    def __init__(self, tokens: Sequence[Any], per_sentence: bool = False):
        who = "RequiredTokens"
        self.per_row = _checks.boolean(who, "per_sentence", per_sentence)
        if not per_sentence:
            rows = [checked_phrases(who, "tokens", tokens)]
        elif isinstance(tokens, str | bytes | dict) or not np.iterable(tokens) or not len(tokens):
            _checks.fail(who, "tokens", "hold a list for each sentence", tokens)
        else:
            rows = [
                checked_phrases(who, "tokens", row) if _is_nonempty(row) else [] for row in tokens
            ]
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
    def levels(self) -> int:  # type: ignore[override]
        """One level for each number of required tokens."""
        return self.count * self.width + 1

    def start(self, tokens: Tensor, limits: Tensor) -> dict[str, Tensor]:
        """The phrases `(B, C, P)` of each row, whether each is met `(B, C)`, and the limits."""
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
        num_met = _sum_where(state["met"], lengths)
        # A token is allowed if all missing phrases fit after it, even when it interrupts a begun
        # phrase; or if it continues a phrase and the rest fits.
        size = ops.shape(logits)[1]
        ids = ops.reshape(phrases, (-1, self.count * self.width))
        fit = required - self.level(ids, tokens, position, state) <= room
        allowed = ops.logical_or(required - num_met <= room, token_mask(ids, fit, size))
        is_end = ops.arange(size, dtype="int32") == self.end_id
        allowed = ops.logical_and(allowed, ops.logical_not(is_end))
        allowed = ops.logical_or(allowed, ops.all(state["met"], axis=1, keepdims=True))
        return ops.where(allowed, logits, -float("inf")), state

    def proposed(
        self, tokens: Tensor, position: Tensor, state: dict[str, Tensor]
    ) -> tuple[Tensor, Tensor]:
        """The next token of each phrase, as a candidate while the phrase is missing."""
        phrases = state["phrases"]
        begun = ops.max(_ends_with(tokens, position, phrases, self.width - 1), axis=-1)
        ids = ops.take_along_axis(phrases, begun[..., None], axis=2)[..., 0]
        return ids, ops.logical_not(state["met"])

    def level(
        self, candidates: Tensor, tokens: Tensor, position: Tensor, state: dict[str, Tensor]
    ) -> Tensor:
        """The number of required tokens of a row with each candidate `(R, N)`, int32: the tokens of
        complete phrases and of the most complete missing phrase.
        """
        phrases, met = state["phrases"], state["met"]
        begun = _ends_with(tokens, position, phrases, self.width - 1)  # (R, C, P)
        # Any prefix of a phrase at the row's end may continue, not only the longest.
        may_continue = ops.logical_or(begun > 0, ops.arange(self.width, dtype="int32") == 0)
        next_tokens = ops.where(may_continue, phrases, NO_TOKEN - 1)
        continues = candidates[:, :, None, None] == next_tokens[:, None]  # (R, N, C, P)
        counts = ops.where(continues, ops.arange(1, self.width + 1, dtype="int32"), 0)
        counts = ops.where(met[:, None], 0, ops.max(counts, axis=-1))  # (R, N, C)
        lengths = _lengths(phrases)
        whole = counts == lengths[:, None]
        longest = ops.max(ops.where(whole, 0, counts), axis=-1)
        return _sum_where(met, lengths) + _sum_where(whole, counts)[..., 0] + longest

    def room(self, ids: Ids) -> tuple[int | np.ndarray, str]:
        special = np.isin(self.tokens, ids)
        if np.any(special):
            expected = "hold neither the begin, the end nor the padding token"
            _checks.fail("RequiredTokens", "tokens", expected, int(self.tokens[special][0]))
        needed = np.sum(self.tokens != NO_TOKEN, axis=(-2, -1))
        # A sentence without required tokens needs no end token either.
        needed = np.where(needed > 0, needed + 1, 0)
        return needed, "the tokens of RequiredTokens and the end token"

    def check_vocabulary(self, size: int) -> None:
        check_ids_below("RequiredTokens", "tokens", self.tokens, size)


def _ends_with(tokens: Tensor, position: Tensor, phrases: Tensor, max_count: int) -> Tensor:
    """int32 `(R, C, 1 + max_count)`: entry n is n if the row ends with the first n tokens
    of a phrase of `phrases`, else 0.
    """
    found = [ops.zeros_like(phrases[:, :, 0])]
    for count in range(1, max_count + 1):
        positions = position + ops.arange(1 - count, 1, dtype="int32")  # (count,)
        last = ops.take(tokens, ops.maximum(positions, 0), axis=1)  # (R, count)
        last = ops.where(positions >= 1, last, NO_TOKEN - 1)
        same = ops.all(phrases[:, :, :count] == last[:, None], axis=-1)  # (R, C)
        found.append(count * ops.cast(same, "int32"))
    return ops.stack(found, axis=-1)


def _sum_where(condition: Tensor, numbers: Tensor) -> Tensor:
    return ops.sum(ops.where(condition, numbers, 0), axis=-1, keepdims=True)


def _lengths(phrases: Tensor) -> Tensor:
    return ops.sum(ops.cast(phrases != NO_TOKEN, "int32"), axis=-1)


def _is_nonempty(row: Any) -> bool:
    """Whether a sentence has phrases, or an invalid value to be refused."""
    return not (isinstance(row, list | tuple) and not row)
