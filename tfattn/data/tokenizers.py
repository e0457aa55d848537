"""Tokenizers, from a sentence to words and back.

A tokenizer is a function from a sentence to a list of words. Its optional method `join` is the
inverse; without it, words are joined by spaces.
"""

import dataclasses
import functools
import re
from collections.abc import Callable, Iterable
from typing import Any

from tfattn import _checks, _optional

Tokenizer = Callable[[str], list[str]]

SPACE = "▁"  # sentencepiece's symbol for a space

# Languages that are written without spaces between words.
_UNSPACED_LANGUAGES = (
    *("zh", "ja", "th", "lo", "km", "my", "bo"),
    *("zho", "chi", "cmn", "yue", "wuu", "nan", "hak", "lzh"),
    *("jpn", "tha", "lao", "khm", "mya", "bur", "bod", "tib"),
)
# Their scripts: Thai and Lao, Tibetan, Burmese, Khmer, Hiragana and Katakana, Chinese characters.
_UNSPACED = re.compile(
    "[\u0e00-\u0eff\u0f00-\u0fff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff"
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"
)
_SENTENCE_LETTERS = 4  # this many letters without a space are more likely a sentence than a word
_WORD_LETTERS = 8  # above the average length of words in any language
_STRAY = 0.01  # tolerated fraction of lines in another language


@dataclasses.dataclass(frozen=True)
class Characters:
    """Splits text into characters, for Chinese, Japanese, Thai and other scripts without spaces.

    White space becomes the word "▁"; the character "▁" in a text is read as "_".

    Example:
        >>> characters = Characters()
        >>> characters("我爱 Keras")
        ['我', '爱', '▁', 'K', 'e', 'r', 'a', 's']
        >>> characters.join(characters("我爱 Keras"))
        '我爱 Keras'
    """

    def __call__(self, sentence: str) -> list[str]:
        """The characters of a sentence, as a list."""
        sentence = _checks.string("Characters", "sentence", sentence)
        return list(" ".join(sentence.replace(SPACE, "_").split()).replace(" ", SPACE))

    def join(self, words: Iterable[str]) -> str:
        """The sentence of these characters."""
        joined = "".join(_checks.strings("Characters.join", "words", words))
        return " ".join(joined.replace(SPACE, " ").split())


@dataclasses.dataclass(frozen=True)
class Moses:
    """The Moses tokenizer and detokenizer, by sacremoses.

    Punctuation is normalized and separated, and characters such as "&" and "'" are escaped, as in
    many public parallel corpora. `join` detokenizes.

    Args:
        language: str, a language code such as "en" or "de". Languages unknown to sacremoses are
            tokenized like English.
        lowercase: whether to convert the text to lower case. `join` then capitalizes only the first
            letter of a sentence.
    Raises:
        ValueError: `language` is not a language code, or the code of a language without spaces,
            which needs `Characters` or a `SubwordVocabulary`; `lowercase` is not True or False.
        ImportError: sacremoses is not installed.
    Example:
        >>> moses = Moses("en", lowercase=True)
        >>> moses("A man, in the kid's hat.")
        ['a', 'man', ',', 'in', 'the', 'kid', '&apos;s', 'hat', '.']
        >>> moses.join(moses("A man, in the kid's hat."))
        "A man, in the kid's hat."

    Source: Koehn et al. 2007, "Moses: Open Source Toolkit for Statistical Machine Translation".
    """

    language: str
    lowercase: bool = False

    def __post_init__(self) -> None:
        language = self.language
        if not isinstance(language, str) or not re.fullmatch("[a-z]{2,3}", language):
            _checks.fail("Moses", "language", 'be a language code such as "en"', language)
        if language in _UNSPACED_LANGUAGES:
            expected = "be a language with spaces; else use Characters() or a SubwordVocabulary"
            _checks.fail("Moses", "language", expected, language)
        _checks.boolean("Moses", "lowercase", self.lowercase)
        _tools(language)

    def __call__(self, sentence: str) -> list[str]:
        """The words of a text, as a list."""
        text = _checks.string("Moses", "sentence", sentence)
        normalizer, tokenizer, _, _ = _tools(self.language)
        # Lower case comes first, as in the scripts of public corpora.
        text = normalizer.normalize(text.lower() if self.lowercase else text)
        return tokenizer.tokenize(text, escape=True)

    def join(self, words: Iterable[str]) -> str:
        """The text of these words."""
        words = _checks.strings("Moses.join", "words", words)
        _, _, detokenizer, detruecaser = _tools(self.language)
        if self.lowercase and words:
            words = detruecaser.detruecase(" ".join(words))
        return detokenizer.detokenize(words)


@functools.cache
def _tools(language: str) -> tuple[Any, ...]:
    sacremoses = _optional.find("sacremoses", "text", "Moses")
    return (
        sacremoses.MosesPunctNormalizer(language),
        sacremoses.MosesTokenizer(language),
        sacremoses.MosesDetokenizer(language),
        sacremoses.MosesDetruecaser(),
    )


def checked(who: str, tokenizer: Tokenizer | None) -> Tokenizer | None:
    """Checks a tokenizer by a trial call; None is valid too."""
    if tokenizer is None:
        return None
    if not callable(tokenizer) or isinstance(tokenizer, type):
        expected = "be a function from a sentence to its words, such as Characters(), or None"
        _checks.fail(who, "tokenizer", expected, tokenizer)
    split(who, tokenizer, "a b")
    return tokenizer


def split(who: str, tokenizer: Tokenizer | None, sentence: str) -> list[str]:
    """The words of a sentence."""
    if tokenizer is None:
        return sentence.split()
    words = tokenizer(sentence)
    if not isinstance(words, list | tuple) or not all(isinstance(word, str) for word in words):
        _checks.fail(who, "tokenizer", "return a list of strings", words)
    return [word for word in words if word]


def to_json(tokenizer: Any) -> dict[str, Any] | str:
    """The settings of a tokenizer of this package, or the name of any other."""
    kind = type(tokenizer)
    if kind in _KINDS.values():
        return {"name": kind.__name__, **dataclasses.asdict(tokenizer)}
    if tokenizer is str.split:
        return {"name": "str.split"}
    named = tokenizer if hasattr(tokenizer, "__qualname__") else kind
    return f"{named.__module__}.{named.__qualname__}"


def from_json(saved: Any) -> Tokenizer | str | None:
    """The inverse of `to_json`, except for a name; raises an error for any other value."""
    if saved is None or isinstance(saved, str):
        return saved
    settings = dict(saved)
    name = settings.pop("name")
    return str.split if name == "str.split" else _KINDS[name](**settings)


_KINDS: dict[str, type[Any]] = {kind.__name__: kind for kind in (Characters, Moses)}


def lacks_spaces(sentences: Iterable[str]) -> str | None:
    """A sentence without spaces between words, if most sentences of such scripts have none."""
    found, with_spaces, count = [], 0, 0
    for count, sentence in enumerate(sentences, 1):  # noqa: B007
        words, letters = len(sentence.split()), len(_UNSPACED.findall(sentence))
        if letters and letters >= (_SENTENCE_LETTERS if words == 1 else _WORD_LETTERS * words):
            found.append(sentence)
        elif letters:
            with_spaces += 1
    # A corpus may contain a few lines of another language.
    return found[0] if len(found) > max(with_spaces, _STRAY * count) else None
