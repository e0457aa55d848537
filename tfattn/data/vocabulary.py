"""A vocabulary of words."""

import collections
import json
from collections.abc import Iterable, Sequence
from typing import Any

from tfattn import _checks
from tfattn.data import tokenizers
from tfattn.data.base import SPECIAL_WORDS, BaseVocabulary
from tfattn.data.tokenizers import Tokenizer

# The message for text without spaces.
_UNSPACED = (
    "have spaces between words; else pass a tokenizer to Vocabulary.from_sentences, "
    "tokenizer=tfattn.data.Characters(), or tokenizer=str.split to split at spaces anyway, or use "
    "a SubwordVocabulary"
)


class Vocabulary(BaseVocabulary):
    """A vocabulary of words, which are separated by white space or by a tokenizer.

    Ids 0 to 3 are padding, the unknown word, begin and end; the words follow. A word "<eos>" in the
    text is an unknown word.

    All functions of the package also accept your own class with `encode`, `decode`, `len`, and the
    four ids `padding_id` (always 0), `unknown_id`, `begin_id` and `end_id`.

    Args:
        words: sequence of distinct words, without white space and without special words such as
            "<eos>". The first word gets id 4. See also `from_sentences`.
        tokenizer: function from a sentence to a list of its words, such as `Characters()`,
            `Moses("en")` or your own function. Its optional method `join` converts words to a
            sentence; without it, words are joined by spaces. With a tokenizer, words may contain
            white space. Defaults to None: white space separates words.
    Attributes:
        words: tuple of str, all entries in the order of their ids, including special words.
    Raises:
        ValueError: `words` is a single string, or contains a repeated or invalid word; `tokenizer`
            does not return a list of strings.
    Example:
        >>> vocabulary = Vocabulary.from_sentences(["a cat sees a bird .", "a bird sings ."])
        >>> len(vocabulary)
        10
        >>> vocabulary.encode("a bird barks .")
        [4, 6, 1, 5]
        >>> vocabulary.decode([4, 6, 1, 5, vocabulary.end_id, vocabulary.padding_id])
        'a bird <unk> .'
    """

    def __init__(self, words: Sequence[str], tokenizer: Tokenizer | None = None):
        words = _checks.strings("Vocabulary", "words", words)
        self.words = (*SPECIAL_WORDS, *words)
        self.tokenizer = tokenizers.checked("Vocabulary", tokenizer)
        for word in words:
            whole = word.split() == [word] if tokenizer is None else word
            if not whole or word in SPECIAL_WORDS:
                _checks.fail("Vocabulary", "words", "hold ordinary words only", word)
        # Special words are left out: in a text they are unknown words.
        self._ids = {word: index for index, word in enumerate(words, len(SPECIAL_WORDS))}
        if len(self._ids) != len(words):
            repeated = [word for word, count in collections.Counter(words).items() if count > 1]
            _checks.fail("Vocabulary", "words", "hold no word twice", repeated)

    @classmethod
    def from_sentences(
        cls,
        sentences: Iterable[str],
        min_count: int = 1,
        max_size: int | None = None,
        tokenizer: Tokenizer | None = None,
    ) -> "Vocabulary":
        """Collects the words of sentences, the most frequent first.

        Words of equal count are sorted by their characters, so that the ids do not depend on the
        order of sentences.

        Args:
            sentences: iterable of str.
            min_count: positive int; less frequent words are unknown. Defaults to 1.
            max_size: int above 4, the maximum `len` of the result, including its four special
                entries. Defaults to None, for no limit.
            tokenizer: as in `Vocabulary`.
        Returns:
            A `Vocabulary`.
        Raises:
            ValueError: `sentences` is a single string; `min_count` or `max_size` is out of range;
                there is no `tokenizer`, and most sentences in scripts such as Chinese have no
                spaces between words. `tokenizer=str.split` accepts them.
        Example:
            >>> Vocabulary.from_sentences(["b a", "a c"], max_size=6).words[4:]
            ('a', 'b')
        """
        who = "Vocabulary.from_sentences"
        sentences = _checks.strings(who, "sentences", sentences)
        _checks.positive_int(who, "min_count", min_count)
        least = len(SPECIAL_WORDS)
        if max_size is not None and _checks.positive_int(who, "max_size", max_size) <= least:
            _checks.fail(who, "max_size", f"exceed {least}", max_size)
        tokenizers.checked(who, tokenizer)
        unspaced = tokenizers.lacks_spaces(sentences) if tokenizer is None else None
        if unspaced is not None:
            _checks.fail(who, "sentences", _UNSPACED, unspaced)
        counts = collections.Counter(
            word for sentence in sentences for word in tokenizers.split(who, tokenizer, sentence)
        )
        kept = [
            word
            for word in sorted(counts, key=lambda word: (-counts[word], word))
            if counts[word] >= min_count and word not in SPECIAL_WORDS
        ]
        if max_size is not None:
            kept = kept[: max_size - len(SPECIAL_WORDS)]
        return cls(kept, tokenizer)

    def encode(self, sentence: str) -> list[int]:
        """The ids of a sentence's words, without begin and end tokens.

        With begin and end tokens:
        `[vocabulary.begin_id, *vocabulary.encode(sentence), vocabulary.end_id]`.

        Args:
            sentence: str, words separated by white space or by the tokenizer.
        Returns:
            A list of int, one per word; `unknown_id` for a word outside the vocabulary. Unknown
            words of white space, as a tokenizer may return, are skipped.
        Example:
            >>> Vocabulary(["a", "cat"]).encode("a cat <eos>")
            [4, 5, 1]
        """
        who = "Vocabulary.encode"
        sentence = _checks.string(who, "sentence", sentence)
        words = tokenizers.split(who, self.tokenizer, sentence)
        if self.tokenizer is not None:
            # White space without an entry, as for Chinese, only separates words.
            words = [
                word
                for word in words
                if word in self._ids or not (word.isspace() or word == tokenizers.SPACE)
            ]
        return [self._ids.get(word, self.unknown_id) for word in words]

    def _text(self, ids: list[int]) -> str:
        return getattr(self.tokenizer, "join", " ".join)([self.words[index] for index in ids])

    def _content(self) -> bytes:
        content: dict[str, Any] = {"words": self.words[len(SPECIAL_WORDS) :]}
        if self.tokenizer is not None:
            content["tokenizer"] = tokenizers.to_json(self.tokenizer)
        # An unpaired surrogate has no UTF-8 encoding: it is written as an escape, valid in JSON.
        return f"{json.dumps(content, ensure_ascii=False)}\n".encode("utf-8", "backslashreplace")

    @classmethod
    def _settings(cls, content: bytes) -> dict[str, Any]:
        parsed = json.loads(content)
        tokenizer = tokenizers.from_json(parsed.get("tokenizer"))
        return {"words": parsed.get("words"), "tokenizer": tokenizer}
