"""A vocabulary of whole words: sentences to integer ids and back."""

import collections
import json
import os
from collections.abc import Iterable, Sequence

from tfattn import _checks
from tfattn._files import replacing
from tfattn.data import tokenizers
from tfattn.data.tokenizers import Tokenizer

__all__ = ["Vocabulary"]

_SPECIAL_WORDS = ("<pad>", "<unk>", "<bos>", "<eos>")  # a word's place is its id


# What to do about text that white space does not split.
_UNSPACED = (
    "have spaces between words, or the vocabulary a tokenizer: Vocabulary.from_sentences(..., "
    "tokenizer=tfattn.data.Characters()), or tokenizer=str.split where spaces are right. A "
    "SubwordVocabulary needs none"
)


class Vocabulary:
    """Whole words as integer ids; they are separated by white space, or by a tokenizer.

    Ids 0 to 3 are padding, the unknown word, begin and end; the words follow. If the text itself
    has a word "<eos>", it is an unknown word.

    Wherever the package takes a vocabulary, you can pass one of your own. It needs `encode`,
    `decode`, `len`, `save` and `load`, and the four ids `padding_id` (always 0), `unknown_id`,
    `begin_id` and `end_id`.

    Args:
        words: Sequence of different words, without white space, and none like "<eos>" or the other
            special words. The first gets id 4. See also `from_sentences`.
        tokenizer: Called with a sentence, returns a list of its words, such as `Characters()`,
            `Moses("en")` or a function of your own. Its method `join` makes a sentence of words;
            without one, spaces are put between them. The words may hold white space then.
            Defaults to None: white space separates words.

    Attributes:
        words: Tuple of str, every entry in the order of the ids, so that `words[i]` is how id `i`
            is written, special ones included.

    Raises:
        ValueError: `words` is a single string, or holds a word twice or one that is not allowed;
            `tokenizer` returns no list of strings.

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

    def __init__(self, words: Sequence[str], tokenizer: Tokenizer | None = None):
        self.words = (*_SPECIAL_WORDS, *_checks.strings("Vocabulary", "words", words))
        self.tokenizer = tokenizers.checked("Vocabulary", tokenizer)
        for word in self.words[len(_SPECIAL_WORDS) :]:
            whole = word.split() == [word] if tokenizer is None else word
            if not whole or word in _SPECIAL_WORDS:
                _checks.fail("Vocabulary", "words", "hold ordinary words only", word)
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
    ) -> "Vocabulary":
        """Collects the words of some sentences, the most frequent first.

        Words of equal count stand in the order of their characters, so the same sentences in any
        order give the same ids.

        Args:
            sentences: Iterable of str.
            min_count: Positive int; words that occur less often are left out, and so are unknown.
                Defaults to 1.
            max_size: Int above 4, the greatest `len` of the result, its four special entries
                included. Defaults to None, which sets no bound.
            tokenizer: As in `Vocabulary`.

        Returns:
            A `Vocabulary`.

        Raises:
            ValueError: `sentences` is a single string; `min_count` or `max_size` is out of range;
                without a `tokenizer`, most sentences of a script without spaces between words, such
                as Chinese, have none. `tokenizer=str.split` takes them all the same.

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
        return cls(kept, tokenizer)

    def __len__(self) -> int:
        return len(self.words)

    def encode(self, sentence: str) -> list[int]:
        """The ids of a sentence's words, without begin or end.

        Where a model wants them, put them around it:
        `[vocabulary.begin_id, *vocabulary.encode(sentence), vocabulary.end_id]`.

        Args:
            sentence: Str; white space or the tokenizer separates its words.

        Returns:
            A list of int, one per word; `unknown_id` for a word not in the vocabulary, but nothing
            for a tokenizer's word of white space alone that is not in it.

        Raises:
            ValueError: there is no tokenizer, no word of a script without spaces, such as Chinese,
                is known, and an unknown one is rather a whole sentence of it.

        Example:
            >>> Vocabulary(["a", "cat"]).encode("a cat <eos>")
            [4, 5, 1]
        """
        who = "Vocabulary.encode"
        sentence = _checks.string(who, "sentence", sentence)
        words = tokenizers.split(who, self.tokenizer, sentence)
        if self.tokenizer is not None:
            # White space was in none of the sentences then, as in Chinese ones: it only separates.
            words = [
                word
                for word in words
                if word in self._ids or not (word.isspace() or word == tokenizers.SPACE)
            ]
        ids = (self._ids.get(word, self.unknown_id) for word in words)
        # `_ids` has the special entries too, which text must not reach.
        ids = [index if index >= len(_SPECIAL_WORDS) else self.unknown_id for index in ids]
        if self.tokenizer is None and self.unknown_id in ids:
            unknown, known = [], []
            for word, index in zip(words, ids, strict=True):
                (unknown if index == self.unknown_id else known).append(word)
            if tokenizers.is_whole_sentence(unknown, known):
                _checks.fail(who, "sentence", _UNSPACED, sentence)
        return ids

    def decode(self, ids: Iterable[int]) -> str:
        """The sentence that some ids stand for.

        Reads up to the first end, and leaves out padding and begin.

        Args:
            ids: Iterable of int: a list, an array or a row of a tensor.

        Returns:
            The words, separated by single spaces or joined by the tokenizer; an unknown one reads
            "<unk>".

        Raises:
            ValueError: an id lies outside the vocabulary.

        Example:
            >>> Vocabulary(["a", "cat"]).decode([2, 4, 5, 3, 5, 0])
            'a cat'
        """
        words = []
        for index in _checks.integers("Vocabulary.decode", "ids", ids):
            if not 0 <= index < len(self.words):
                expected = f"lie in [0, {len(self.words)})"
                _checks.fail("Vocabulary.decode", "ids", expected, index)
            if index == self.end_id:
                break
            if index not in (self.padding_id, self.begin_id):
                words.append(self.words[index])
        return tokenizers.join(self.tokenizer, words)

    def save(self, path: str | os.PathLike) -> None:
        """Writes the vocabulary to a JSON file that `load` reads.

        `Characters` and `Moses` are part of the file. Of a tokenizer of your own the file keeps the
        name alone: `load_vocabulary(path, tokenizer=...)` must be given it.

        Args:
            path: Where to write; a file that is there is replaced.

        Example:
            >>> import os, tempfile
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     path = os.path.join(folder, "words.json")
            ...     Vocabulary(["a", "cat"]).save(path)
            ...     Vocabulary.load(path).encode("a cat")
            [4, 5]
        """
        path = _checks.path("Vocabulary.save", "path", path)
        content = {"words": self.words[len(_SPECIAL_WORDS) :]}
        if self.tokenizer is not None:
            content["tokenizer"] = tokenizers.to_json(self.tokenizer)
        # Half a surrogate pair has no UTF-8: it becomes an escape, which JSON has too.
        text = json.dumps(content, ensure_ascii=False) + "\n"
        with replacing(path) as unfinished:
            unfinished.write_bytes(text.encode("utf-8", "backslashreplace"))

    @classmethod
    def load(cls, path: str | os.PathLike) -> "Vocabulary":
        """Reads a vocabulary that `save` wrote; see there for an example.

        Args:
            path: The file.

        Returns:
            A `Vocabulary` with the same ids, and the tokenizer that it had.

        Raises:
            FileNotFoundError: there is no such file.
            ValueError: the file holds something else, or needs a tokenizer of your own: see
                `load_vocabulary`.
        """
        expected = "name a file that `Vocabulary.save` wrote"
        return cls(*read_words("Vocabulary.load", path, None, expected))


def read_words(
    who: str, path: str | os.PathLike, tokenizer: Tokenizer | None, expected: str
) -> tuple[list, Tokenizer | None]:
    """The words of a JSON file, and their tokenizer; `expected` says what a file must be."""
    path = _checks.path(who, "path", path)
    if not os.path.isfile(path):
        _checks.fail(who, "path", "name an existing file", path, error=FileNotFoundError)
    with open(path, encoding="utf-8") as file:
        try:
            content = json.load(file)
            words, saved = content["words"], content.get("tokenizer")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            # Not JSON, of another shape, or nested without end.
            words, saved = None, None
    if not isinstance(words, list):
        _checks.fail(who, "path", expected, path)
    try:
        return words, tokenizers.from_json(who, path, saved, tokenizer)
    except TypeError:
        return _checks.fail(who, "path", expected, path)
