"""Words as token ids for rules."""

from collections.abc import Iterable
from typing import Any

from tfattn import _checks


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
