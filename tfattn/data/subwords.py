"""A subword vocabulary by sentencepiece."""

import io
import os
import re
from collections.abc import Iterable, Sequence
from typing import Any

from tfattn import _checks, _optional
from tfattn.data import base
from tfattn.data.base import SPECIAL_WORDS, BaseVocabulary
from tfattn.data.marian import MARIAN_FILE, MarianVocabulary, sentencepiece_processor
from tfattn.data.tokenizers import SPACE, Tokenizer
from tfattn.data.vocabulary import Vocabulary

# sentencepiece reserves two characters and rejects NUL; text gets "_" and a space instead.
_RESERVED = str.maketrans("▁▅\0", "__ ")


class SubwordVocabulary(BaseVocabulary):
    """A vocabulary of subwords, by byte-pair encoding (BPE).

    Frequent words are single entries. Only characters that do not occur in the sentences of
    `from_sentences` are unknown. Methods are as in `Vocabulary`, as are the ids 0 to 3 for padding,
    unknown, begin and end. No text is encoded as id 0, 2 or 3: "<eos>" in a sentence becomes
    subwords like "<" and "eos", or unknown. A joint vocabulary of both languages shares the
    embeddings of both sides of a model.

    Args:
        model: bytes, a serialized sentencepiece model whose padding, unknown, begin and end are ids
            0 to 3. See also `from_sentences` and `load`.
    Attributes:
        words: tuple of str, all entries in the order of their ids. "▁" marks the beginning of a
            word.
        symbols: tuple of str, the entries that are never split; see `from_sentences`.
    Raises:
        ValueError: `model` is not such a model.
        ImportError: sentencepiece is not installed.
    Example:
        >>> sentences = ["low lower lowest", "new newer newest"]
        >>> vocabulary = SubwordVocabulary.from_sentences(sentences, size=100)
        >>> ids = vocabulary.encode("newest slow")
        >>> [vocabulary.words[index] for index in ids]
        ['▁newest', '▁', 's', 'low']
        >>> vocabulary.decode([*ids, vocabulary.end_id, vocabulary.padding_id])
        'newest slow'

    Source: Sennrich, Haddow, Birch 2016, arXiv:1508.07909, algorithm 1; Kudo, Richardson 2018,
    arXiv:1808.06226. Here a "▁" begins each word; in the first paper a mark ends it.
    """

    def __init__(self, model: bytes):
        who = "SubwordVocabulary"
        sentencepiece = _optional.find("sentencepiece", "text", who)
        processor = sentencepiece_processor(who, sentencepiece, model)
        special_ids = self.padding_id, self.unknown_id, self.begin_id, self.end_id
        ids = processor.pad_id(), processor.unk_id(), processor.bos_id(), processor.eos_id()
        if ids != special_ids:
            expected = "be a sentencepiece model whose padding, unknown, begin and end are"
            _checks.fail(who, "model", f"{expected} {special_ids}", ids)
        self._processor = processor
        self.words = tuple(map(processor.id_to_piece, range(processor.get_piece_size())))
        # sentencepiece's "user-defined symbols" have the score 0.0. A merge has its negated rank as
        # score, which is -0.0 for the first.
        self.symbols = tuple(
            word
            for index, word in enumerate(self.words)
            if str(processor.get_score(index)) == "0.0"
            and not (processor.is_byte(index) or processor.is_control(index))
            and index not in special_ids
        )

    @classmethod
    def from_sentences(
        cls, sentences: Iterable[str], size: int, symbols: Sequence[str] = ()
    ) -> "SubwordVocabulary":
        """Learns a vocabulary from sentences, by merging the most frequent pairs of neighbors.

        Only white space is normalized, and only white space ends a subword: "&apos;s" or "t-shirt"
        may become one subword. Every character gets an id, but special words such as "<eos>" in the
        text are ignored. The same sentences give the same ids.

        Args:
            sentences: iterable of str; for a joint vocabulary, of both languages.
            size: positive int, the maximum `len` of the result, including its four special entries.
                The result is smaller if the sentences have no more pairs to merge.
            symbols: sequence of distinct str without white space, such as "<2fr>" for the language
                to translate to. Each has one id, from 4 on, anywhere in a sentence, and is
                never split or merged with its neighbors, even by `SubwordDropout`. A symbol adds no
                ids for its characters.
        Returns:
            A `SubwordVocabulary`.
        Raises:
            ValueError: `sentences` is a single string or holds no words; `size` is too small for
                the characters; a symbol is empty, repeated or a special word, or contains white
                space, "▁" or "▅".
            ImportError: sentencepiece is not installed.
        Example:
            >>> SubwordVocabulary.from_sentences(["a b"], size=10_000).words[4:]
            ('▁a', '▁b', '▁', 'a', 'b')
            >>> vocabulary = SubwordVocabulary.from_sentences(["a b"], 9, symbols=["<2fr>"])
            >>> [vocabulary.words[index] for index in vocabulary.encode("<2fr> ab")]
            ['▁', '<2fr>', '▁a', 'b']
        """
        who = "SubwordVocabulary.from_sentences"
        sentences = _checks.strings(who, "sentences", sentences)
        _checks.positive_int(who, "size", size)
        symbols = _checked_symbols(who, symbols)
        symbol, lines = symbol_pattern(symbols), list(map(plain_text, sentences))
        characters = {SPACE}.union(*(symbol.sub("", line) for line in lines)) - {" "}
        try:
            return cls(_train(lines, size, "".join(sorted(characters)), symbols))
        except RuntimeError as error:
            argument, received = ("size", size) if any(lines) else ("sentences", lines[:3])
            return _checks.fail(who, argument, f"suffice to learn subwords ({error})", received)

    def encode(self, sentence: str) -> list[int]:
        """The ids of a sentence's subwords, without begin and end tokens.

        Args:
            sentence: str, words separated by white space. The reserved characters "▁" and "▅" are
                read as "_", and NUL as a space.
        Returns:
            A list of int, with one `unknown_id` for consecutive unknown characters.
        Example:
            >>> SubwordVocabulary.from_sentences(["a b"], size=9).encode("a ab ☃")
            [4, 4, 8, 6, 1]
        """
        sentence = _checks.string("SubwordVocabulary.encode", "sentence", sentence)
        return self._processor.encode(plain_text(sentence))

    def _text(self, ids: list[int]) -> str:
        parts = []
        for index in ids:
            word = self.words[index]
            # Models trained by sentencepiece may have byte pieces, such as "<0xE7>".
            is_byte = self._processor.is_byte(index)
            parts.append(bytes([int(word[1:-1], 16)]) if is_byte else word.encode())
        text = b"".join(parts).decode(errors="replace")
        return " ".join(text.replace(SPACE, " ").split())

    def _content(self) -> bytes:
        return self._processor.serialized_model_proto()

    @classmethod
    def _settings(cls, content: bytes) -> dict[str, Any]:
        return {"model": content}


def load_vocabulary(
    path: str | os.PathLike[str], tokenizer: Tokenizer | None = None
) -> Vocabulary | SubwordVocabulary | MarianVocabulary:
    """Loads a `Vocabulary`, `SubwordVocabulary` or `MarianVocabulary` from a file.

    Args:
        path: file of the method `save` of one of them.
        tokenizer: your own tokenizer function of a `Vocabulary`, which files do not contain.
            Defaults to None, for the tokenizer in the file.
    Raises: as in `Vocabulary.load`.
    Example:
        >>> import os, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = os.path.join(folder, "vocabulary")
        ...     Vocabulary(["a", "cat"]).save(path)
        ...     load_vocabulary(path).encode("a cat")
        [4, 5]
    """
    who = "load_vocabulary"
    content = base.read(who, path)
    kind: type[Vocabulary | SubwordVocabulary | MarianVocabulary] = SubwordVocabulary
    if content.startswith(MARIAN_FILE):
        kind = MarianVocabulary
    elif content.lstrip().startswith(b"{"):
        kind = Vocabulary
    return kind._load(who, path, tokenizer)


def is_byte_pair(vocabulary: SubwordVocabulary) -> bool:
    """Whether ids are in the order of merges, as in BPE, instead of likelihoods."""
    ids = range(len(SPECIAL_WORDS), len(vocabulary))
    merged = (index for index in ids if vocabulary.words[index] not in vocabulary.symbols)
    scores = [vocabulary._processor.get_score(index) for index in merged]
    return scores == [-float(rank) for rank in range(len(scores))]


def keeps_text(vocabulary: SubwordVocabulary) -> bool:
    """Whether the sentencepiece model normalizes nothing but white space."""
    return b"\n\x08identity" in vocabulary._processor.serialized_model_proto()  # the rule's name


def symbol_pattern(symbols: Sequence[str]) -> re.Pattern[str]:
    """A pattern of one group that matches the symbols, the longest first, as sentencepiece does."""
    longest_first = sorted(symbols, key=len, reverse=True)
    return re.compile(f"({'|'.join(map(re.escape, longest_first)) or '(?!)'})")


def plain_text(sentence: str) -> str:
    """The sentence with single spaces, without characters that sentencepiece rejects."""
    # An unpaired surrogate, as from a terminal of another encoding, becomes "?".
    text = sentence.translate(_RESERVED).encode("utf-8", "replace").decode("utf-8")
    return " ".join(text.split())


def _checked_symbols(who: str, symbols: Sequence[str]) -> list[str]:
    symbols = _checks.strings(who, "symbols", symbols)
    for symbol in symbols:
        plain = plain_text(symbol) == symbol and len(symbol.split()) == 1
        if not plain or symbol in SPECIAL_WORDS or symbols.count(symbol) > 1:
            expected = 'hold distinct words without white space, "▁" or "▅", none of them special'
            _checks.fail(who, "symbols", expected, symbol)
    return symbols


def _train(lines: list[str], size: int, characters: str, symbols: list[str]) -> bytes:
    """Trains a BPE model of sentencepiece on `lines`, with all these characters and symbols."""
    sentencepiece = _optional.find("sentencepiece", "text", "SubwordVocabulary")
    model = io.BytesIO()
    special: dict[str, Any] = {}
    for index, word in enumerate(SPECIAL_WORDS):
        special |= {f"{word[1:-1]}_id": index, f"{word[1:-1]}_piece": word}
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=model,
        model_type="bpe",
        vocab_size=size,
        hard_vocab_limit=False,  # a small corpus may have fewer subwords
        character_coverage=1.0,
        required_chars=characters,  # includes characters that occur only in special words
        user_defined_symbols=symbols,
        normalization_rule_name="identity",
        split_by_unicode_script=False,
        # In bytes, to include all lines; the minimum is 10.
        max_sentence_length=max(10, 4 * max(map(len, lines), default=1)),
        **special,
        minloglevel=2,
    )
    return model.getvalue()
