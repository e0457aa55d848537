"""Vocabularies for the page, which segments sentences as in Python."""

import contextlib
from typing import Any

from tfattn import data
from tfattn.convert import weights
from tfattn.data.subwords import keeps_text


def to_json(who: str, name: str, vocabulary: Any) -> dict[str, Any]:
    """A vocabulary for `vocabulary.js`; raises for a segmentation that it does not have."""
    weights.check_type(who, name, vocabulary, (data.Vocabulary, data.SubwordVocabulary))
    if isinstance(vocabulary, data.SubwordVocabulary):
        reason = "the page splits sentences as the vocabularies of `from_sentences` do"
        weights.refuse(who, name, not _splits_as_the_page(vocabulary), reason)
        reason = "the page keeps no symbols whole"
        weights.refuse(who, f"symbols of {name}", bool(vocabulary.symbols), reason)
        kind = "subwords"
    else:
        tokenizer = vocabulary.tokenizer
        kind = "characters" if isinstance(tokenizer, data.Characters) else "words"
        other = kind == "words" and tokenizer not in (None, str.split)
        reason = "the page has white space and Characters() as tokenizers"
        weights.refuse(who, f"tokenizer of {name}", other, reason)
    return {
        "kind": kind,
        "words": vocabulary.words,
        "normalization": vocabulary.normalization,
        "skipsSpace": getattr(vocabulary, "tokenizer", None) is not None,
    }


def _splits_as_the_page(vocabulary: data.SubwordVocabulary) -> bool:
    with contextlib.suppress(ValueError):
        data.SubwordDropout(vocabulary)  # refuses other algorithms and other white space
        return keeps_text(vocabulary)
    return False
