"""Sentences into words and back, where white space alone does not split them.

A tokenizer is called with a sentence and returns a list of its words. Its method `join` makes a
sentence of words again; a function without one has its words joined by spaces.
"""

import dataclasses
import functools
import inspect
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tfattn import _checks, _optional

__all__ = ["Characters", "Moses"]

Tokenizer = Callable[[str], list[str]]

SPACE = "▁"  # how sentencepiece writes a space

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
_SENTENCE_LETTERS = 4  # that many letters without a space may be a word, and more likely are not
_WORD_LETTERS = 8  # no language has so many in a word on average
_STRAY = 0.01  # so many of a corpus may be of another language


@dataclasses.dataclass(frozen=True)
class Characters:
    """Each character is a word: for Chinese, Japanese, Thai and whatever has no spaces.

    A space between words is a word "▁". Other white space counts as a space, and the character "▁"
    in a text is read as "_".

    Example:
        >>> characters = Characters()
        >>> characters("我爱 Keras")
        ['我', '爱', '▁', 'K', 'e', 'r', 'a', 's']
        >>> sentences = ["我喜欢猫", "猫喜欢鱼"]
        >>> words = tfattn.data.Vocabulary.from_sentences(sentences, tokenizer=characters)
        >>> words.decode(words.encode("我喜欢鱼"))
        '我喜欢鱼'
    """

    def __call__(self, sentence: str) -> list[str]:
        """The characters of a sentence, as a list."""
        sentence = _checks.string("Characters", "sentence", sentence)
        return list(" ".join(sentence.replace(SPACE, "_").split()).replace(" ", SPACE))

    def join(self, words: Iterable[str]) -> str:
        """The sentence that has these characters."""
        joined = "".join(_checks.strings("Characters.join", "words", words))
        return " ".join(joined.replace(SPACE, " ").split())


@dataclasses.dataclass(frozen=True)
class Moses:
    """Raw text into the form of Moses and back, by sacremoses.

    Punctuation is normalized and split off, and "&", "'" and their like are escaped, as in Moses's
    `normalize-punctuation.perl` and `tokenizer.perl`. Public corpora of translations often have
    this form. `join` puts a sentence together again.

    Args:
        language: Str, its code, such as "en" or "de". One that sacremoses does not know is split
            like English.
        lowercase: Whether to write all letters small. `join` then begins a sentence with a capital
            letter. The other capitals are lost: train on text that has them, where it matters.

    Raises:
        ValueError: `language` is no code, or of a language without spaces, for which Moses is not
            made: `Characters` or a `SubwordVocabulary` is. `lowercase` is not True or False.
        ImportError: sacremoses is not installed.

    Example:
        >>> moses = Moses("en", lowercase=True)
        >>> moses("A man, in the kid's hat.")
        ['a', 'man', ',', 'in', 'the', 'kid', '&apos;s', 'hat', '.']
        >>> moses.join(moses("A man, in the kid's hat."))
        "A man, in the kid's hat."
        >>> words = tfattn.data.Vocabulary.from_sentences(["A man, in a hat."], tokenizer=moses)
        >>> words.decode(words.encode("A hat, in a man."))
        'A hat, in a man.'

    Source: Koehn et al. 2007, "Moses: Open Source Toolkit for Statistical Machine Translation".
    """

    language: str
    lowercase: bool = False

    def __post_init__(self):
        language = self.language
        if not isinstance(language, str) or not re.fullmatch("[a-z]{2,3}", language):
            _checks.fail("Moses", "language", 'be the code of a language, such as "en"', language)
        if language in _UNSPACED_LANGUAGES:
            expected = (
                "be of a language with spaces between words; for this one take Characters() or a "
                "SubwordVocabulary"
            )
            _checks.fail("Moses", "language", expected, language)
        _checks.boolean("Moses", "lowercase", self.lowercase)
        _tools(language)

    def __call__(self, sentence: str) -> list[str]:
        """The words of raw text, as a list."""
        text = _checks.string("Moses", "sentence", sentence)
        normalizer, tokenizer, _, _ = _tools(self.language)
        # Lower case comes first, as in the scripts of the corpora.
        text = normalizer.normalize(text.lower() if self.lowercase else text)
        return tokenizer.tokenize(text, escape=True)

    def join(self, words: Iterable[str]) -> str:
        """The text that has these words."""
        words = _checks.strings("Moses.join", "words", words)
        _, _, detokenizer, detruecaser = _tools(self.language)
        if self.lowercase and words:
            words = detruecaser.detruecase(" ".join(words))
        return detokenizer.detokenize(words)


@functools.cache
def _tools(language: str) -> tuple:
    sacremoses = _optional.find("sacremoses", "text", "Moses")
    return (
        sacremoses.MosesPunctNormalizer(language),
        sacremoses.MosesTokenizer(language),
        sacremoses.MosesDetokenizer(language),
        sacremoses.MosesDetruecaser(),
    )


def checked(who: str, tokenizer: Tokenizer | None) -> Tokenizer | None:
    """A tokenizer that has passed a trial, or None."""
    if tokenizer is None:
        return None
    if not callable(tokenizer) or isinstance(tokenizer, type):
        expected = "be called with a sentence and return its words, such as Characters(), or None"
        _checks.fail(who, "tokenizer", expected, tokenizer)
    if not _takes_one(tokenizer):
        _checks.fail(who, "tokenizer", "take a sentence", tokenizer)
    split(who, tokenizer, "a b")
    return tokenizer


def _takes_one(tokenizer: Tokenizer) -> bool:
    """Whether its signature takes one argument; an error of a call may be of its own body."""
    try:
        signature = inspect.signature(tokenizer)
    except (TypeError, ValueError):  # some that are written in C tell none
        return True
    try:
        signature.bind("a sentence")
    except TypeError:
        return False
    return True


def split(who: str, tokenizer: Tokenizer | None, sentence: str) -> list[str]:
    """The words of a sentence."""
    if tokenizer is None:
        return sentence.split()
    words = tokenizer(sentence)
    if not isinstance(words, list | tuple) or not all(isinstance(word, str) for word in words):
        _checks.fail(who, "tokenizer", "return a list of strings", words)
    return [word for word in words if word]


def join(tokenizer: Tokenizer | None, words: Sequence[str]) -> str:
    """The sentence of these words."""
    return getattr(tokenizer, "join", " ".join)(words)


def to_json(tokenizer: Tokenizer) -> dict[str, Any] | str:
    """What a file keeps of a tokenizer: all of one of this package, else its name alone."""
    for name, kind in _KINDS.items():
        if type(tokenizer) is kind:
            return {"name": name, **dataclasses.asdict(tokenizer)}
    if tokenizer is str.split:
        return {"name": "str.split"}
    named = tokenizer if hasattr(tokenizer, "__qualname__") else type(tokenizer)
    return f"{named.__module__}.{named.__qualname__}"


def from_json(who: str, path: str, saved: Any, given: Tokenizer | None) -> Tokenizer | None:
    """The tokenizer of the file at `path`, from what `to_json` made, and from what a caller gave.

    Raises:
        TypeError: it is nothing that `to_json` makes.
        ValueError: the caller must give another one.
    """
    if isinstance(saved, str):
        if given is None:
            expected = (
                f"be read with the function that the vocabulary was made with, {saved}, which a "
                "file cannot hold: tfattn.data.load_vocabulary(path, tokenizer=...)"
            )
            _checks.fail(who, "path", expected, path)
        return given
    found = None
    if saved is not None:
        if not isinstance(saved, dict):
            raise TypeError("a tokenizer is a dict or a name")
        settings = dict(saved)
        name = settings.pop("name", None)
        found = str.split if name == "str.split" else _KINDS.get(name, _unknown)(**settings)
    if given is not None and not (callable(given) and given == found):
        expected = f"be left out, for the file says which it is: {found}"
        _checks.fail(who, "tokenizer", expected, given)
    return found


def _unknown(**settings: Any) -> None:
    raise TypeError("a tokenizer of another version")


_KINDS = {"Characters": Characters, "Moses": Moses}


def lacks_spaces(sentences: Iterable[str]) -> str | None:
    """A sentence of a script without spaces between words, where most in such a script are like it;
    None where there are few of them.
    """
    found, with_spaces, count = [], 0, 0
    for count, sentence in enumerate(sentences, 1):  # noqa: B007
        words, letters = len(sentence.split()), len(_UNSPACED.findall(sentence))
        if letters and letters >= (_SENTENCE_LETTERS if words == 1 else _WORD_LETTERS * words):
            found.append(sentence)
        elif letters:
            with_spaces += 1
    # A line that strayed into a corpus of another language is no reason to refuse it.
    return found[0] if len(found) > max(with_spaces, _STRAY * count) else None


def is_whole_sentence(unknown: Iterable[str], known: Iterable[str]) -> bool:
    """Whether one of the unknown words is rather a sentence, of a script without spaces.

    Beside known words of such a script it is a word, however long: this text has spaces. Beside
    those of other scripts it must be longer to be a sentence.
    """
    beside = "".join(known)
    if _UNSPACED.search(beside):
        return False
    least = _WORD_LETTERS if any(map(str.isalnum, beside)) else _SENTENCE_LETTERS
    return any(len(_UNSPACED.findall(word)) >= least for word in unknown)
