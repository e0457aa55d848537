"""Rules that forbid tokens, and words as tokens."""

from collections.abc import Iterable, Sequence
from typing import Any

import keras
from keras import ops

from tfattn import _checks
from tfattn._types import Tensor
from tfattn.decoding.configurable import NO_TOKEN
from tfattn.decoding.rules.base import (
    Ids,
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


@keras.saving.register_keras_serializable("tfattn")
class MinLength(Rule):
    """Forbids the end token until some tokens are written.

    Args:
        length: int of at least 0, the number of tokens before the end token.
    Raises:
        ValueError: `length` is not such an int; in a search, it is more than `max_length`.
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

    def required_length(self, ids: Ids) -> tuple[int, str]:
        return self.length, "the tokens of MinLength"


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
        if not tokens:
            _checks.fail(who, "words", "hold no empty word", word)
        if getattr(vocabulary, "unknown_id", None) in tokens:
            _checks.fail(who, "words", "be in the vocabulary", word)
        found.append(tokens)
    return found
