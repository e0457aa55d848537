"""A vocabulary of words."""

import collections
import json
import os
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from tfattn import _checks
from tfattn._files import replacing
from tfattn.data import tokenizers
from tfattn.data.tokenizers import Tokenizer

_SPECIAL_WORDS = ("<pad>", "<unk>", "<bos>", "<eos>")  # in the order of their ids
FORMS = ("NFC", "NFKC")  # of Unicode

# The message for text without spaces.
_UNSPACED = (
    "have spaces between words; else pass a tokenizer to Vocabulary.from_sentences, "
    "tokenizer=tfattn.data.Characters(), or tokenizer=str.split to split at spaces anyway, or use "
    "a SubwordVocabulary"
)


class Vocabulary:
    """A vocabulary of words, which are separated by white space or by a tokenizer.

    Ids 0 to 3 are padding, the unknown word, begin and end; the words follow. A word "<eos>" in the
    text is an unknown word.

    All functions of the package also accept your own vocabulary class with `encode`, `decode`,
    `len`, `save` and `load`, and the four ids `padding_id` (always 0), `unknown_id`, `begin_id` and
    `end_id`.

    Args:
        words: sequence of distinct words, without white space and without special words such as
            "<eos>". The first word gets id 4. See also `from_sentences`.
        tokenizer: function from a sentence to a list of its words, such as `Characters()`,
            `Moses("en")` or your own function. Its optional method `join` converts words to a
            sentence; without it, words are joined by spaces. With a tokenizer, words may contain
            white space. Defaults to None: white space separates words.
        normalization: "NFC" or "NFKC", the Unicode normalization form that `encode` applies, as in
            `SubwordVocabulary.from_sentences`. Defaults to None, for sentences as they are.
    Attributes:
        words: tuple of str, all entries in the order of their ids, including special words.
    Raises:
        ValueError: `words` is a single string, or contains a repeated or invalid word; `tokenizer`
            does not return a list of strings; `normalization` is another form.
    Example:
        >>> vocabulary = Vocabulary.from_sentences(["a cat sees a bird .", "a bird sings ."])
        >>> len(vocabulary)
        10
        >>> vocabulary.encode("a bird barks .")
        [4, 6, 1, 5]
        >>> vocabulary.decode([4, 6, 1, 5, vocabulary.end_id, vocabulary.padding_id])
        'a bird <unk> .'
        >>> characters = tfattn.data.Characters()
        >>> chinese = Vocabulary.from_sentences(["我喜欢猫", "猫喜欢鱼"], tokenizer=characters)
        >>> chinese.decode(chinese.encode("我喜欢鱼"))
        '我喜欢鱼'
    """

    padding_id = _SPECIAL_WORDS.index("<pad>")
    unknown_id = _SPECIAL_WORDS.index("<unk>")
    begin_id = _SPECIAL_WORDS.index("<bos>")
    end_id = _SPECIAL_WORDS.index("<eos>")

    def __init__(
        self,
        words: Sequence[str],
        tokenizer: Tokenizer | None = None,
        normalization: str | None = None,
    ):
        self.words = (*_SPECIAL_WORDS, *_checks.strings("Vocabulary", "words", words))
        self.tokenizer = tokenizers.checked("Vocabulary", tokenizer)
        self.normalization = checked_form("Vocabulary", normalization)
        for word in self.words[len(_SPECIAL_WORDS) :]:
            whole = normalized(word, normalization).split() == [word] if tokenizer is None else word
            if not whole or word in _SPECIAL_WORDS:
                form = f", in {normalization}" if normalization else ""
                _checks.fail("Vocabulary", "words", f"hold ordinary words only{form}", word)
        self._ids = {word: index for index, word in enumerate(self.words)}
        if len(self._ids) != len(self.words):
            counts = collections.Counter(self.words)
            repeated = [word for word, count in counts.items() if count > 1]
            _checks.fail("Vocabulary", "words", "hold no word twice", repeated)

    @classmethod
    def from_sentences(
        cls,
        sentences: Iterable[str],
        min_count: int = 1,
        max_size: int | None = None,
        tokenizer: Tokenizer | None = None,
        normalization: str | None = None,
    ) -> "Vocabulary":
        """Collects the words of sentences, the most frequent first.

        Words of equal count are sorted by their characters, so that the ids do not depend on the
        order of sentences.

        Args:
            sentences: iterable of str.
            min_count: positive int; less frequent words are unknown. Defaults to 1.
            max_size: int above 4, the maximum `len` of the result, including its four special
                entries. Defaults to None, for no limit.
            tokenizer, normalization: as in `Vocabulary`.
        Returns:
            A `Vocabulary`.
        Raises:
            ValueError: `sentences` is a single string; `min_count` or `max_size` is out of range;
                `normalization` is another form; there is no `tokenizer`, and most sentences in
                scripts such as Chinese have no spaces between words. `tokenizer=str.split` accepts
                them.
        Example:
            >>> Vocabulary.from_sentences(["b a", "a c"], max_size=6).words[4:]
            ('a', 'b')
        """
        who = "Vocabulary.from_sentences"
        sentences = _checks.strings(who, "sentences", sentences)
        _checks.positive_int(who, "min_count", min_count)
        if max_size is not None:
            _checks.positive_int(who, "max_size", max_size)
            if max_size <= len(_SPECIAL_WORDS):
                _checks.fail(who, "max_size", f"exceed {len(_SPECIAL_WORDS)}", max_size)
        tokenizers.checked(who, tokenizer)
        checked_form(who, normalization)
        sentences = [normalized(sentence, normalization) for sentence in sentences]
        unspaced = tokenizers.lacks_spaces(sentences) if tokenizer is None else None
        if unspaced is not None:
            _checks.fail(who, "sentences", _UNSPACED, unspaced)
        counts = collections.Counter(
            word for sentence in sentences for word in tokenizers.split(who, tokenizer, sentence)
        )
        kept = [
            word
            for word in sorted(counts, key=lambda word: (-counts[word], word))
            if counts[word] >= min_count and word not in _SPECIAL_WORDS
        ]
        if max_size is not None:
            kept = kept[: max_size - len(_SPECIAL_WORDS)]
        return cls(kept, tokenizer, normalization)

    def __len__(self) -> int:
        return len(self.words)

    def encode(self, sentence: str) -> list[int]:
        """The ids of a sentence's words, without begin and end tokens.

        With begin and end tokens:
        `[vocabulary.begin_id, *vocabulary.encode(sentence), vocabulary.end_id]`.

        Args:
            sentence: str, words separated by white space or by the tokenizer.
        Returns:
            A list of int, one per word; `unknown_id` for a word outside the vocabulary. Unknown
            words of white space, as a tokenizer may return, are skipped.
        Raises:
            ValueError: there is no tokenizer, no word of a script without spaces, such as Chinese,
                is known, and an unknown word is more likely a sentence.
        Example:
            >>> Vocabulary(["a", "cat"]).encode("a cat <eos>")
            [4, 5, 1]
        """
        who = "Vocabulary.encode"
        sentence = _checks.string(who, "sentence", sentence)
        words = tokenizers.split(who, self.tokenizer, normalized(sentence, self.normalization))
        if self.tokenizer is not None:
            # White space without an entry, as for Chinese, only separates words.
            words = [
                word
                for word in words
                if word in self._ids or not (word.isspace() or word == tokenizers.SPACE)
            ]
        found = (self._ids.get(word, self.unknown_id) for word in words)
        # `_ids` includes the special words, which are unknown words in a text.
        ids = [index if index >= len(_SPECIAL_WORDS) else self.unknown_id for index in found]
        if self.tokenizer is None and self.unknown_id in ids:
            unknown: list[str] = []
            known: list[str] = []
            for word, index in zip(words, ids, strict=True):
                (unknown if index == self.unknown_id else known).append(word)
            if tokenizers.is_whole_sentence(unknown, known):
                _checks.fail(who, "sentence", _UNSPACED, sentence)
        return ids

    def decode(self, ids: Iterable[int]) -> str:
        """Converts ids to a sentence.

        Stops at the first end token, and skips padding and begin tokens.

        Args:
            ids: iterable of int: a list, an array or a row of a tensor.
        Returns:
            The words, separated by single spaces or joined by the tokenizer, with "<unk>" for
            unknown words.
        Raises:
            ValueError: an id lies outside the vocabulary.
        Example:
            >>> Vocabulary(["a", "cat"]).decode([2, 4, 5, 3, 5, 0])
            'a cat'
        """
        words = [self.words[index] for index in written_ids("Vocabulary.decode", self, ids)]
        return tokenizers.join(self.tokenizer, words)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Saves the vocabulary as a JSON file, for `load`.

        The file includes `Characters` and `Moses`, but only the name of your own tokenizer, which
        `load_vocabulary(path, tokenizer=...)` needs.

        Args:
            path: path of the file; an existing file is replaced.
        Example:
            >>> import os, tempfile
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     path = os.path.join(folder, "words.json")
            ...     Vocabulary(["a", "cat"]).save(path)
            ...     Vocabulary.load(path).encode("a cat")
            [4, 5]
        """
        path = _checks.path("Vocabulary.save", "path", path)
        content: dict[str, Any] = {"words": self.words[len(_SPECIAL_WORDS) :]}
        if self.tokenizer is not None:
            content["tokenizer"] = tokenizers.to_json(self.tokenizer)
        if self.normalization is not None:
            content["normalization"] = self.normalization
        # An unpaired surrogate has no UTF-8 encoding: it is written as an escape, valid in JSON.
        text = json.dumps(content, ensure_ascii=False) + "\n"
        with replacing(path) as unfinished:
            unfinished.write_bytes(text.encode("utf-8", "backslashreplace"))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Vocabulary":
        """Loads a vocabulary from a file of `save`; see there for an example.

        Args:
            path: path of the file.
        Returns:
            A `Vocabulary` with the same ids, tokenizer and normalization.
        Raises:
            FileNotFoundError: the file does not exist.
            ValueError: the file has another format, or needs your own tokenizer, as in
                `load_vocabulary`.
        """
        expected = "name a file that `Vocabulary.save` wrote"
        return cls(*read_words("Vocabulary.load", path, None, expected))


def written_ids(who: str, vocabulary: Any, ids: Iterable[int]) -> Iterator[int]:
    """The ids of a sentence up to its first end token, without padding and begin tokens."""
    for index in _checks.integers(who, "ids", ids):
        if not 0 <= index < len(vocabulary):
            _checks.fail(who, "ids", f"lie in [0, {len(vocabulary)})", index)
        if index == vocabulary.end_id:
            return
        if index not in (vocabulary.padding_id, vocabulary.begin_id):
            yield index


def checked_form(who: str, normalization: str | None) -> str | None:
    """A form of `normalized`."""
    if normalization is not None and normalization not in FORMS:
        _checks.fail(who, "normalization", 'be "NFC", "NFKC" or None', normalization)
    return normalization


def normalized(text: str, form: Any) -> str:
    """The text in a form of Unicode; as it is for None."""
    return text if form is None else unicodedata.normalize(form, text)


def read_words(
    who: str, path: str | os.PathLike[str], tokenizer: Tokenizer | None, expected: str
) -> tuple[list[Any], Tokenizer | None, str | None]:
    """The words, tokenizer and normalization of a JSON file, which `expected` describes."""
    path = _checks.path(who, "path", path)
    if not os.path.isfile(path):
        _checks.fail(who, "path", "name an existing file", path, error=FileNotFoundError)
    with open(path, encoding="utf-8") as file:
        try:
            content = json.load(file)
            words, saved = content["words"], content.get("tokenizer")
            form = content.get("normalization")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            # Not JSON, of another structure, or nested too deeply.
            words, saved, form = None, None, None
    if not isinstance(words, list):
        _checks.fail(who, "path", expected, path)
    try:
        return words, tokenizers.from_json(who, path, saved, tokenizer), form
    except TypeError:
        return _checks.fail(who, "path", expected, path)
