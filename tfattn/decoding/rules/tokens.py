"""Rules about the tokens of a result, and words as tokens."""

from collections.abc import Iterable, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from tfattn import _checks
from tfattn._types import Tensor
from tfattn.decoding.rules.base import Rule

NO_TOKEN = -1  # fills a table of ids


class _TableRule(Rule):
    """A rule with ids, `(P,)`, or a table of them, `(N, P)`."""

    tensors = ("tokens",)
    tokens: Any

    def _argument(self, name: str) -> Any:
        if name != "tokens":
            return super()._argument(name)
        rows = [row[row != NO_TOKEN].tolist() for row in np.atleast_2d(self.tokens)]
        return rows if self.tokens.ndim > 1 else rows[0]


@keras.saving.register_keras_serializable("tfattn")
class ForbiddenTokens(_TableRule):
    """Forbids tokens, and sequences of tokens.

    The last token of a sequence is forbidden directly after all its other tokens. The begin token
    is part of no sequence.

    Args:
        tokens: ids, or sequences of ids, such as `tfattn.rules.tokens_of(vocabulary, words)`. An id
            outside of the vocabulary forbids nothing.
    Example: a step that counts up; 4, and 6 after 5, are forbidden.
        >>> def step(tokens, position, state):
        ...     last = keras.ops.take(tokens, position, axis=1)[:, None]
        ...     return -abs(keras.ops.arange(9.0) - keras.ops.cast(last, "float32") - 1), state
        >>> rules = [tfattn.rules.ForbiddenTokens([4, [5, 6]])]
        >>> print(np.asarray(GreedySearch(rules=rules)(step, (), 1, 5, end_id=8)))
        [[3 3 3 3 3]]
    """

    lowers_only = True

    def __init__(self, tokens: Sequence[int | Sequence[int]]):
        rows = [row if _is_sequence(row) else [row] for row in _entries("ForbiddenTokens", tokens)]
        self.tokens = _table("ForbiddenTokens", rows, left=True)  # (N, P)

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
        forbidden = _token_mask(ids, ops.all(same, axis=-1), ops.shape(logits)[1])
        return ops.where(forbidden, -float("inf"), logits), state


@keras.saving.register_keras_serializable("tfattn")
class MinLength(Rule):
    """Forbids the end token until some tokens are written, or `max_length` is reached.

    Args:
        length: int of at least 0, the number of tokens before the end token.
    Example: a step with the highest score for the end token, then for token 5.
        >>> scores = np.array([[0.0, 0.0, 0.0, 2.0, 0.0, 1.0]], "float32")
        >>> def step(tokens, position, state):
        ...     return keras.ops.take(scores, 0 * tokens[:, 0], axis=0), state
        >>> rules = [tfattn.rules.MinLength(2)]
        >>> print(np.asarray(GreedySearch(rules=rules)(step, (), 1, 4)))
        [[5 5 3 0]]
    """

    tensors = ("length",)
    lowers_only = True

    def __init__(self, length: int):
        self.length = _checks.non_negative_int("MinLength", "length", length)

    def adjust(
        self, logits: Tensor, tokens: Tensor, position: Tensor, state: tuple[()]
    ) -> tuple[Tensor, tuple[()]]:
        is_end = ops.arange(ops.shape(logits)[1], dtype="int32") == self.end_id
        forbidden = ops.logical_and(is_end, position < self.length)
        return ops.where(forbidden, -float("inf"), logits), state


@keras.saving.register_keras_serializable("tfattn")
class NoRepeatNgrams(Rule):
    """Forbids every token that would repeat an n-gram of `size` tokens.

    The begin token is part of no n-gram.

    Args:
        size: positive int n. 1 forbids every token that is already written.
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
        forbidden = _token_mask(tokens, same, ops.shape(logits)[1])
        return ops.where(forbidden, -float("inf"), logits), state


@keras.saving.register_keras_serializable("tfattn")
class RepetitionPenalty(Rule):
    """Makes written tokens less likely. The begin token does not count as written.

        score / penalty    where the score is positive
        score · penalty    where it is negative

    Args:
        penalty: finite number θ of at least 1. 1 changes nothing.
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
        repeated = _token_mask(tokens, written, ops.shape(logits)[1])
        less = ops.where(logits > 0, logits / self.penalty, logits * self.penalty)
        return ops.where(repeated, less, logits), state


@keras.saving.register_keras_serializable("tfattn")
class TargetPrefix(_TableRule):
    """The result begins with given tokens: all others are forbidden at these positions.

    Args:
        tokens: ids without the begin token, for every sentence; or a sequence of ids for each
            sentence, as lists, or as an array `(B, P)`. Padding and an empty sequence require
            nothing. An end token ends the result, as does `max_length`. In `translate`, one
            sequence for each of `sentences`.
        scored: whether the log-probabilities of these tokens count in the score of a beam; if not,
            each counts 0.
    Example: a step that counts up.
        >>> def step(tokens, position, state):
        ...     return keras.ops.one_hot(keras.ops.take(tokens, position, axis=1) + 1, 10), state
        >>> rules = [tfattn.rules.TargetPrefix([[5, 4], [7]])]
        >>> print(np.asarray(GreedySearch(rules=rules)(step, (), 2, 5, end_id=8)))
        [[5 4 5 6 7]
         [7 8 0 0 0]]
    """

    def __init__(self, tokens: Sequence[int] | Sequence[Sequence[int]], scored: bool = True):
        who = "TargetPrefix"
        self.scored = self.lowers_only = _checks.boolean(who, "scored", scored)
        entries = _entries(who, tokens)
        self.per_row = all(map(_is_sequence, entries))
        table = _table(who, entries if self.per_row else [entries])
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


def tokens_of(vocabulary: Any, words: Iterable[str]) -> list[list[int]]:
    """The tokens of words or phrases, for `ForbiddenTokens` and `TargetPrefix`.

    `vocabulary.encode` writes the unknown token for a word outside of the vocabulary. A rule would
    then force or forbid that token, so such a word is refused here. With subwords the tokens are
    the vocabulary's segmentation of the word, and may also begin a longer word.

    Args:
        vocabulary: such as `tfattn.data.Vocabulary`.
        words: iterable of strings.
    Returns:
        A list of ids for each word, in the order of `words`.
    Raises:
        ValueError: a word is empty, or not wholly in the vocabulary.
    Example:
        >>> words = tfattn.data.Vocabulary(["a", "bird", "sings"])
        >>> tfattn.rules.tokens_of(words, ["bird", "a bird"])
        [[5], [4, 5]]
    """
    who = "tokens_of"
    _checks.vocabulary(who, "vocabulary", vocabulary)
    found = []
    for word in _checks.strings(who, "words", words):
        tokens = [int(token) for token in vocabulary.encode(word)]
        if not tokens or getattr(vocabulary, "unknown_id", None) in tokens:
            _checks.fail(who, "words", "be in the vocabulary", word)
        found.append(tokens)
    return found


def _is_sequence(value: Any) -> bool:
    return np.iterable(value) and not isinstance(value, str | bytes)


def _entries(who: str, tokens: Any) -> list[Any]:
    """Ids, or sequences of ids: at least one."""
    entries = list(tokens) if _is_sequence(tokens) else []
    if not entries:
        _checks.fail(who, "tokens", "hold ids, or sequences of ids, at least one", tokens)
    return entries


def _table(who: str, rows: Sequence[Any], left: bool = False) -> np.ndarray:
    """int32 `(N, P)`, rows of ids padded with `NO_TOKEN`, on the right or left."""
    rows = [_checks.integers(who, "tokens", row) for row in rows]
    table = np.full((len(rows), max([1, *map(len, rows)])), NO_TOKEN, "int32")
    for line, row in zip(table, rows, strict=True):
        if min(row, default=0) < 0:
            _checks.fail(who, "tokens", "hold ids of at least 0", row)
        line[len(line) - len(row) if left else 0 :][: len(row)] = row
    return table


def _token_mask(ids: Tensor, where: Tensor, size: int | Tensor) -> Tensor:
    """bool `(R, size)`, whether each token is among the ids `(R, N)` selected by `where`."""
    rows, count = ops.shape(ids)[0], ops.shape(ids)[1]
    where = ops.logical_and(where, ops.logical_and(ids >= 0, ids < size))
    row = ops.broadcast_to(ops.arange(rows, dtype="int32")[:, None], (rows, count))
    # An id that is not selected adds 0 to token 0, so that every index is inside the table.
    indices = ops.stack([row, ops.where(where, ids, 0)], axis=-1)  # (R, N, 2)
    selected = ops.reshape(ops.cast(where, "float32"), (-1,))
    return ops.scatter(ops.reshape(indices, (-1, 2)), selected, (rows, size)) > 0
