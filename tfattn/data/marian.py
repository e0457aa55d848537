"""The vocabulary of a published translator: subwords by sentencepiece, ids from a table."""

import base64
import contextlib
import json
import re
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from tfattn import _checks, _optional
from tfattn.data.base import BaseVocabulary
from tfattn.data.tokenizers import SPACE

MARIAN_FILE = b'{"sentencepiece"'  # how a file of `save` begins
_CODE = re.compile("(>>.*?<<)?(.*)", re.DOTALL)
# Spaces that `clean_up` removes, in this order.
_SPACED = (" .", " ?", " !", " ,", " ' ", " n't", " 'm", " 's", " 've", " 're")


class MarianVocabulary(BaseVocabulary):
    """A vocabulary of a sentencepiece model's subwords, with ids from a table.

    For Marian's translators: one table of ids for the subwords of two models, and codes such as
    ">>fra<<", which name the target language at the beginning of a sentence. Methods are as in
    `Vocabulary`. `convert.load_marian` makes both vocabularies of a folder.

    Args:
        model: bytes, a serialized sentencepiece model, which cuts sentences.
        words: sequence of distinct str in the order of their ids; padding is the first.
        unknown_id, begin_id, end_id: distinct ints, ids of special words.
        clean_up: whether `decode` removes the spaces before punctuation and English contractions.
    Attributes:
        words: tuple of str. "▁" marks the beginning of a word.
        changing_end: number of characters at the end of a text that further subwords may change.
    Raises:
        ValueError: `model` is not such a model; a word or id is repeated, or an id out of range.
        ImportError: sentencepiece is not installed.
    Example:
        >>> import pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp(), "source.spm")
        >>> tfattn.data.SubwordVocabulary.from_sentences(["a b"], size=9).save(path)
        >>> words = ["<pad>", "</s>", "<unk>", ">>fra<<", "▁b", "▁a", "<bos>"]
        >>> ids = {"unknown_id": 2, "begin_id": 6, "end_id": 1}
        >>> vocabulary = MarianVocabulary(path.read_bytes(), words, **ids)
        >>> vocabulary.encode(">>fra<< a b ☃")
        [3, 5, 4, 2, 2]
        >>> vocabulary.decode([6, 5, 4, 2, 1, 5])
        'a b'

    Source: Junczys-Dowmunt et al. 2018, arXiv:1804.00344, for Marian.
    """

    def __init__(
        self,
        model: bytes,
        words: Sequence[str],
        unknown_id: int,
        begin_id: int,
        end_id: int,
        clean_up: bool = False,
    ):
        who = type(self).__name__
        sentencepiece = _optional.find("sentencepiece", "marian", who)
        self._processor = sentencepiece_processor(who, sentencepiece, model)
        self.words = tuple(_checks.strings(who, "words", words))
        if len(set(self.words)) != len(self.words):
            _checks.fail(who, "words", "hold no word twice", self.words[:9])
        self.unknown_id, self.begin_id, self.end_id = unknown_id, begin_id, end_id
        self.clean_up = _checks.boolean(who, "clean_up", clean_up)
        self.changing_end = max(map(len, _SPACED)) - 1 if clean_up else 0
        special = [self.padding_id, unknown_id, begin_id, end_id]
        for name, index in zip(("unknown_id", "begin_id", "end_id"), special[1:], strict=True):
            _checks.positive_int(who, name, index)
            if index >= len(self.words) or special.count(index) > 1:
                _checks.fail(who, name, f"be a distinct id below {len(self.words)}", index)
        numbered = enumerate(self.words)
        self._ids = {word: index for index, word in numbered if index not in special}

    def encode(self, sentence: str) -> list[int]:
        """The ids of a sentence's code and subwords, without begin and end tokens.

        Args:
            sentence: str, not normalized: the model has its own normalization. A code is recognized
                only at the beginning.
        Returns:
            A list of int; `unknown_id` for subwords that are not in the table.
        """
        sentence = _checks.string("MarianVocabulary.encode", "sentence", sentence)
        # An unpaired surrogate, as from a terminal of another encoding, becomes "?".
        found: Any = _CODE.fullmatch(sentence.encode("utf-8", "replace").decode("utf-8"))
        code, text = found.groups()
        pieces = [] if code is None else [code]
        pieces += self._processor.encode(text, out_type=str)
        return [self._ids.get(piece, self.unknown_id) for piece in pieces]

    def _text(self, ids: list[int]) -> str:
        pieces = [self.words[index] for index in ids if index != self.unknown_id]
        # The model keeps "▁" in pieces that only the table has.
        text = self._processor.decode_pieces(pieces).replace(SPACE, " ").strip()
        for spaced in _SPACED if self.clean_up else ():
            text = text.replace(spaced, spaced.strip())
        return text

    def _content(self) -> bytes:
        model = base64.b64encode(self._processor.serialized_model_proto()).decode()
        names = ("words", "unknown_id", "begin_id", "end_id", "clean_up")
        content = {"sentencepiece": model, **{name: getattr(self, name) for name in names}}
        return f"{json.dumps(content)}\n".encode()

    @classmethod
    def _settings(cls, content: bytes) -> dict[str, Any]:
        settings = json.loads(content)
        return {"model": base64.b64decode(settings.pop("sentencepiece"), validate=True), **settings}


def sentencepiece_processor(who: str, sentencepiece: ModuleType, model: Any) -> Any:
    """sentencepiece's processor of a serialized model."""
    if isinstance(model, bytes) and model:  # sentencepiece 0.1 crashes on empty bytes
        with contextlib.suppress(RuntimeError):
            return sentencepiece.SentencePieceProcessor(model_proto=model)
    received = model[:20] if isinstance(model, bytes) else model
    return _checks.fail(who, "model", "be a sentencepiece model, as bytes", received)
