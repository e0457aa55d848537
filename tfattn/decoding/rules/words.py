"""Words as the tokens that rules take."""

from collections.abc import Iterable
from typing import Any

from tfattn import _checks

__all__ = ["tokens_of"]


def tokens_of(vocabulary: Any, words: Iterable[str]) -> list[list[int]]:
    """The tokens of words or phrases, for `RequiredTokens`, `ForbiddenTokens` and `TargetPrefix`.

    `vocabulary.encode` writes the unknown token for a word that it does not know. A rule would then
    force that token, or forbid it; so such a word is refused here. With subwords it is one way to
    write the word, the vocabulary's own, and may also begin a longer one.

    Args:
        vocabulary: such as `tfattn.data.Vocabulary`.
        words: iterable of strings.
    Returns:
        A list of ids for each word, in their order.
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
