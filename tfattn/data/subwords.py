"""A subword vocabulary by sentencepiece."""

import io
import os
import re
from collections.abc import Iterable, Sequence
from typing import Any

from tfattn import _checks, _optional
from tfattn.data import base, tokenizers
from tfattn.data.base import SPECIAL_WORDS, BaseVocabulary, checked_form, normalized
from tfattn.data.marian import MARIAN_FILE, MarianVocabulary, sentencepiece_processor
from tfattn.data.tokenizers import SPACE, Tokenizer
from tfattn.data.vocabulary import Vocabulary

# sentencepiece reserves two characters and rejects NUL; text gets "_" and a space instead.
_RESERVED = str.maketrans("▁▅\0", "__ ")

# From a normalization to the first line of its files; a sentencepiece model follows.
_NORMALIZED = {form: f"normalization {form}\n".encode() for form in base.FORMS}


class SubwordVocabulary(BaseVocabulary):
    """A vocabulary of subwords, by byte-pair encoding (BPE).

    Frequent words are single entries. Only characters that do not occur in the sentences of
    `from_sentences` are unknown. Methods are as in `Vocabulary`, as are the ids 0 to 3 for padding,
    unknown, begin and end. No text is encoded as id 0, 2 or 3: "<eos>" in a sentence becomes
    subwords like "<" and "eos", or unknown.

    Learn a joint vocabulary from the sentences of both languages to share the embeddings of both
    sides of a model.

    Args:
        model: bytes, a serialized sentencepiece model whose padding, unknown, begin and end are ids
            0 to 3. See also `from_sentences` and `load`.
        normalization: "NFC" or "NFKC", the Unicode normalization form that `encode` applies.
            Defaults to None, for sentences as they are.
    Attributes:
        words: tuple of str, all entries in the order of their ids. "▁" marks the beginning of a
            word.
        symbols: tuple of str, the entries that are never split; see `from_sentences`.
    Raises:
        ValueError: `model` is not such a model; `normalization` is another form.
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

    def __init__(self, model: bytes, normalization: str | None = None):
        who = "SubwordVocabulary"
        sentencepiece = _optional.find("sentencepiece", "text", who)
        processor = sentencepiece_processor(who, sentencepiece, model)
        special_ids = self.padding_id, self.unknown_id, self.begin_id, self.end_id
        ids = processor.pad_id(), processor.unk_id(), processor.bos_id(), processor.eos_id()
        if ids != special_ids:
            expected = "be a sentencepiece model whose padding, unknown, begin and end are"
            _checks.fail(who, "model", f"{expected} {special_ids}", ids)
        self._processor = processor
        self.normalization = checked_form(who, normalization)
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
        self._symbol = symbol_pattern(self.symbols)

    @classmethod
    def from_sentences(
        cls,
        sentences: Iterable[str],
        size: int,
        normalization: str | None = None,
        symbols: Sequence[str] = (),
    ) -> "SubwordVocabulary":
        """Learns a vocabulary from sentences, by merging the most frequent pairs of neighbors.

        Without `normalization` only white space is normalized. Only white space ends a subword:
        "&apos;s" or "t-shirt" may become one subword. Every character gets an id, but special words
        such as "<eos>" in the text are ignored. The same sentences give the same ids.

        Args:
            sentences: iterable of str; for a joint vocabulary, of both languages.
            size: positive int, the maximum `len` of the result, including its four special entries.
                The result is smaller if the sentences have no more pairs to merge.
            normalization: "NFC", so that a letter with an accent is the same as one character and
                as two; or "NFKC", which also reads full-width letters and ligatures as plain ones.
                It is saved with the vocabulary. Defaults to None, for sentences as they are.
            symbols: sequence of distinct str without white space, such as "<2fr>" for the language
                to translate to. Each has one id, from 4 on, anywhere in a sentence, and is
                never split, merged with its neighbors or normalized, even by `SubwordDropout`. A
                symbol adds no ids for its characters.
        Returns:
            A `SubwordVocabulary`.
        Raises:
            ValueError: `sentences` is a single string or holds no words; `size` is too small for
                the characters; `normalization` is another form; a symbol is empty, repeated or a
                special word, or contains white space, "▁" or "▅".
            ImportError: sentencepiece is not installed.
        Example:
            >>> SubwordVocabulary.from_sentences(["a b"], size=10_000).words[4:]
            ('▁a', '▁b', '▁', 'a', 'b')
            >>> vocabulary = SubwordVocabulary.from_sentences(["a b"], 9, normalization="NFKC")
            >>> vocabulary.decode(vocabulary.encode("ａ ｂ"))
            'a b'
            >>> vocabulary = SubwordVocabulary.from_sentences(["a b"], 9, symbols=["<2fr>"])
            >>> [vocabulary.words[index] for index in vocabulary.encode("<2fr> ab")]
            ['▁', '<2fr>', '▁a', 'b']
        """
        who = "SubwordVocabulary.from_sentences"
        sentences = _checks.strings(who, "sentences", sentences)
        _checks.positive_int(who, "size", size)
        checked_form(who, normalization)
        symbols = _checked_symbols(who, symbols)
        symbol = symbol_pattern(symbols)
        lines = [plain_text(sentence, normalization, symbol) for sentence in sentences]
        characters = {SPACE}.union(*(symbol.sub("", line) for line in lines)) - {" "}
        least = len(SPECIAL_WORDS) + len(symbols) + len(characters)
        if size < least:
            expected = f"be at least {least}, for each character of the sentences"
            expected += " and each symbol" if symbols else ""
            _checks.fail(who, "size", expected, size)
        try:
            return cls(_train(lines, size, "".join(sorted(characters)), symbols), normalization)
        except RuntimeError:  # sentencepiece found no words
            return _checks.fail(who, "sentences", "hold some words", lines[:3])

    def encode(self, sentence: str) -> list[int]:
        """The ids of a sentence's subwords, without begin and end tokens.

        Args:
            sentence: str, words separated by white space. The reserved characters "▁" and "▅" are
                read as "_", and NUL as a space.
        Returns:
            A list of int, with one `unknown_id` for consecutive unknown characters.
        Raises:
            ValueError: no letter of the sentence is in the vocabulary, and its script has no
                spaces, such as Chinese.
        Example:
            >>> SubwordVocabulary.from_sentences(["a b"], size=9).encode("a ab ☃")
            [4, 4, 8, 6, 1]
        """
        who = "SubwordVocabulary.encode"
        sentence = _checks.string(who, "sentence", sentence)
        sentence = plain_text(sentence, self.normalization, self._symbol)
        ids = self._processor.encode(sentence)
        if self.unknown_id in ids:
            known = [self.words[index] for index in ids if index != self.unknown_id]
            ordinary = (word for word in known if word not in self.symbols)
            if not any(map(str.isalnum, "".join(ordinary))):
                if tokenizers.is_whole_sentence(sentence.split(), ()):
                    expected = "have letters of the vocabulary"
                    _checks.fail(who, "sentence", expected, sentence)
        return ids

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
        head = _NORMALIZED.get(self.normalization or "", b"")
        return head + self._processor.serialized_model_proto()

    @classmethod
    def _settings(cls, content: bytes) -> dict[str, Any]:
        for form, head in _NORMALIZED.items():
            if content.startswith(head):
                return {"model": content.removeprefix(head), "normalization": form}
        return {"model": content}


def load_vocabulary(
    path: str | os.PathLike[str], tokenizer: Tokenizer | None = None
) -> Vocabulary | SubwordVocabulary | MarianVocabulary:
    """Loads a `Vocabulary`, `SubwordVocabulary` or `MarianVocabulary` from a file.

    Args:
        path: file of the method `save` of one of them.
        tokenizer: your own tokenizer function of a `Vocabulary`, which files do not contain.
            Defaults to None, for `Characters`, `Moses` or white space, which are recorded in the
            file.
    Returns:
        A vocabulary of the same class.
    Raises:
        FileNotFoundError: the file does not exist.
        ValueError: the file has another format, or needs another `tokenizer`.
        ImportError: the file contains subwords, and sentencepiece is not installed.
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


def plain_text(sentence: str, normalization: str | None, symbol: re.Pattern[str]) -> str:
    """The sentence with single spaces, without characters that sentencepiece rejects, and
    normalized between its symbols.
    """
    if normalization is not None:
        parts = symbol.split(sentence)  # symbols have odd indices
        parts[::2] = (normalized(part, normalization) for part in parts[::2])
        sentence = "".join(parts)
    sentence = sentence.translate(_RESERVED)
    # An unpaired surrogate, as from a terminal of another encoding, becomes "?".
    return " ".join(sentence.encode("utf-8", "replace").decode("utf-8").split())


def _checked_symbols(who: str, symbols: Sequence[str]) -> list[str]:
    symbols = _checks.strings(who, "symbols", symbols)
    for symbol in symbols:
        plain = plain_text(symbol, None, symbol_pattern(())) == symbol and len(symbol.split()) == 1
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
