"""A vocabulary of whole words: sentences to integer ids and back."""

import collections
import json
import os
from collections.abc import Iterable, Sequence

from tfattn import _checks

__all__ = ["Vocabulary"]

_SPECIAL_WORDS = ("<pad>", "<unk>", "<bos>", "<eos>")  # a word's place is its id


class Vocabulary:
    """Whole words, separated by white space, as integer ids.

    Ids 0 to 3 are padding, the unknown word, begin and end; the words follow. If the text itself
    has a word "<eos>", it is an unknown word.

    Wherever the package takes a vocabulary, you can pass one of your own. It needs `encode`,
    `decode`, `len`, `save` and `load`, and the four ids `padding_id` (always 0), `unknown_id`,
    `begin_id` and `end_id`.

    Args:
        words: Sequence of different words, without white space, and none like "<eos>" or the other
            special words. The first gets id 4. See also `from_sentences`.

    Attributes:
        words: Tuple of str, every entry in the order of the ids, so that `words[i]` is how id `i`
            is written, special ones included.

    Raises:
        ValueError: `words` is a single string, or holds a word twice or one that is not allowed.

    Example:
        >>> vocabulary = Vocabulary.from_sentences(["a cat sees a bird .", "a bird sings ."])
        >>> len(vocabulary)
        10
        >>> vocabulary.encode("a bird barks .")
        [4, 6, 1, 5]
        >>> vocabulary.decode([4, 6, 1, 5, vocabulary.end_id, vocabulary.padding_id])
        'a bird <unk> .'
    """

    padding_id = _SPECIAL_WORDS.index("<pad>")
    unknown_id = _SPECIAL_WORDS.index("<unk>")
    begin_id = _SPECIAL_WORDS.index("<bos>")
    end_id = _SPECIAL_WORDS.index("<eos>")

    def __init__(self, words: Sequence[str]):
        self.words = (*_SPECIAL_WORDS, *_checks.strings("Vocabulary", "words", words))
        for word in self.words[len(_SPECIAL_WORDS) :]:
            if word.split() != [word] or word in _SPECIAL_WORDS:
                _checks.fail("Vocabulary", "words", "hold ordinary words only", word)
        self._ids = {word: index for index, word in enumerate(self.words)}
        if len(self._ids) != len(self.words):
            counts = collections.Counter(self.words)
            repeated = [word for word, count in counts.items() if count > 1]
            _checks.fail("Vocabulary", "words", "hold no word twice", repeated)

    @classmethod
    def from_sentences(
        cls, sentences: Iterable[str], min_count: int = 1, max_size: int | None = None
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

        Returns:
            A `Vocabulary`.

        Raises:
            ValueError: `sentences` is a single string; `min_count` or `max_size` is out of range.

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
        counts = collections.Counter(word for sentence in sentences for word in sentence.split())
        kept = [
            word
            for word in sorted(counts, key=lambda word: (-counts[word], word))
            if counts[word] >= min_count and word not in _SPECIAL_WORDS
        ]
        return cls(kept if max_size is None else kept[: max_size - len(_SPECIAL_WORDS)])

    def __len__(self) -> int:
        return len(self.words)

    def encode(self, sentence: str) -> list[int]:
        """The ids of a sentence's words, without begin or end.

        Where a model wants them, put them around it:
        `[vocabulary.begin_id, *vocabulary.encode(sentence), vocabulary.end_id]`.

        Args:
            sentence: Str, words separated by white space.

        Returns:
            A list of int, one per word; `unknown_id` for a word not in the vocabulary.

        Example:
            >>> Vocabulary(["a", "cat"]).encode("a cat <eos>")
            [4, 5, 1]
        """
        words = _checks.string("Vocabulary.encode", "sentence", sentence).split()
        ids = (self._ids.get(word, self.unknown_id) for word in words)
        # `_ids` has the special entries too, which text must not reach.
        return [index if index >= len(_SPECIAL_WORDS) else self.unknown_id for index in ids]

    def decode(self, ids: Iterable[int]) -> str:
        """The sentence that some ids stand for.

        Reads up to the first end, and leaves out padding and begin.

        Args:
            ids: Iterable of int: a list, an array or a row of a tensor.

        Returns:
            The words, separated by single spaces; an unknown one reads "<unk>".

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
        return " ".join(words)

    def save(self, path: str | os.PathLike) -> None:
        """Writes the vocabulary to a JSON file that `load` reads.

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
        with open(path, "w", encoding="utf-8", newline="\n") as file:
            json.dump({"words": self.words[len(_SPECIAL_WORDS) :]}, file, ensure_ascii=False)
            file.write("\n")

    @classmethod
    def load(cls, path: str | os.PathLike) -> "Vocabulary":
        """Reads a vocabulary that `save` wrote; see there for an example.

        Args:
            path: The file.

        Returns:
            A `Vocabulary` with the same ids.

        Raises:
            FileNotFoundError: there is no such file.
            ValueError: the file holds something else.
        """
        path = _checks.path("Vocabulary.load", "path", path)
        if not os.path.isfile(path):
            expected = "name an existing file"
            _checks.fail("Vocabulary.load", "path", expected, str(path), error=FileNotFoundError)
        with open(path, encoding="utf-8") as file:
            try:
                words = json.load(file)["words"]
            except (ValueError, KeyError, TypeError, RecursionError):
                # Not JSON, of another shape, or nested without end.
                words = None
        if not isinstance(words, list):
            expected = "name a file that `Vocabulary.save` wrote"
            _checks.fail("Vocabulary.load", "path", expected, str(path))
        return cls(words)
