"""What all vocabularies share: special ids, text of ids, and files."""

import abc
import os
import pathlib
from collections.abc import Iterable
from typing import Any, TypeVar

from tfattn import _checks
from tfattn._files import replacing
from tfattn.data.tokenizers import Tokenizer

SPECIAL_WORDS = ("<pad>", "<unk>", "<bos>", "<eos>")  # in the order of their ids

_Kind = TypeVar("_Kind", bound="BaseVocabulary")


class BaseVocabulary(abc.ABC):
    """A subclass adds `encode`, and the hooks below for text and files."""

    words: tuple[str, ...]
    padding_id, unknown_id, begin_id, end_id = range(len(SPECIAL_WORDS))

    @abc.abstractmethod
    def _text(self, ids: list[int]) -> str:
        """The text of ids without padding, begin and end tokens."""

    @abc.abstractmethod
    def _content(self) -> bytes:
        """The content of a file."""

    @classmethod
    @abc.abstractmethod
    def _settings(cls, content: bytes) -> dict[str, Any]:
        """The arguments of the class from `_content`; a tokenizer of your own is its name."""

    def __len__(self) -> int:
        return len(self.words)

    def decode(self, ids: Iterable[int]) -> str:
        """Converts ids to a sentence.

        Stops at the first end token, and skips padding and begin tokens. Inverts `encode`, except
        for white space and unknown words.

        Args:
            ids: iterable of int: a list, an array or a row of a tensor.
        Returns:
            The words, separated by single spaces or joined by the tokenizer, with "<unk>" for what
            is unknown. A `MarianVocabulary` leaves out what is unknown, and keeps all spaces.
        Raises:
            ValueError: an id lies outside the vocabulary.
        Example:
            >>> tfattn.data.Vocabulary(["a", "cat"]).decode([2, 4, 5, 3, 5, 0])
            'a cat'
        """
        who, kept = f"{type(self).__name__}.decode", []
        for index in _checks.integers(who, "ids", ids):
            if not 0 <= index < len(self):
                _checks.fail(who, "ids", f"lie in [0, {len(self)})", index)
            if index == self.end_id:
                break
            if index not in (self.padding_id, self.begin_id):
                kept.append(index)
        return self._text(kept)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Saves the vocabulary, for `load` and `load_vocabulary`.

        The file of a `Vocabulary` is JSON, and includes `Characters` and `Moses`, but only the name
        of your own tokenizer, which `load_vocabulary(path, tokenizer=...)` needs. That of a
        `SubwordVocabulary` is a sentencepiece model, that of a `MarianVocabulary` JSON.

        Args:
            path: path of the file; an existing file is replaced.
        Example:
            >>> import os, tempfile
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     path = os.path.join(folder, "words.json")
            ...     tfattn.data.Vocabulary(["a", "cat"]).save(path)
            ...     tfattn.data.Vocabulary.load(path).encode("a cat")
            [4, 5]
        """
        path = _checks.path(f"{type(self).__name__}.save", "path", path)
        with replacing(path) as unfinished:
            unfinished.write_bytes(self._content())

    @classmethod
    def load(cls: type[_Kind], path: str | os.PathLike[str]) -> _Kind:
        """Loads a vocabulary of this class from a file of `save`; see there for an example.

        Args:
            path: path of the file. `SubwordVocabulary` also reads any sentencepiece model whose
                padding, unknown, begin and end are ids 0 to 3.
        Raises:
            FileNotFoundError: the file does not exist.
            ValueError: the file has another format, or needs your own tokenizer.
            ImportError: the file contains subwords, and sentencepiece is not installed.
        """
        return cls._load(f"{cls.__name__}.load", path, None)

    @classmethod
    def _load(
        cls: type[_Kind], who: str, path: str | os.PathLike[str], tokenizer: Tokenizer | None
    ) -> _Kind:
        content = read(who, path)
        try:
            settings = cls._settings(content)
            saved = settings.get("tokenizer")
            is_name = isinstance(saved, str)
            if is_name:
                settings["tokenizer"] = tokenizer
            if tokenizer is not None if is_name else tokenizer in (None, saved):
                return cls(**settings)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            expected = f"name a file that `{cls.__name__}.save` wrote ({error})"
            _checks.fail(who, "path", expected, os.fspath(path))
        if not is_name:
            expected = f"be omitted, or equal the tokenizer in the file, {saved}"
            _checks.fail(who, "tokenizer", expected, tokenizer)
        expected = (
            f"be loaded with the vocabulary's own tokenizer, {saved}, which is not in the "
            "file: tfattn.data.load_vocabulary(path, tokenizer=...)"
        )
        _checks.fail(who, "path", expected, os.fspath(path))


def existing(who: str, argument: str, path: str | os.PathLike[str]) -> str:
    """The path of an existing file."""
    path = _checks.path(who, argument, path)
    if not os.path.isfile(path):
        _checks.fail(who, argument, "name an existing file", path, error=FileNotFoundError)
    return path


def read(who: str, path: str | os.PathLike[str]) -> bytes:
    return pathlib.Path(existing(who, "path", path)).read_bytes()
