"""Translation as a stream: pieces of text as soon as they are final."""

import os
from collections.abc import Iterator
from typing import Any

import numpy as np

from tfattn import _checks
from tfattn.decoding.search import Search
from tfattn.decoding.translation import (
    check_parts,
    checked_search,
    encoded,
    encoded_rows,
    limits_of,
    padded,
    special_ids,
)

_CUT = "\N{REPLACEMENT CHARACTER}"  # decoded from a character with missing bytes


def translate_stream(
    model: Any,
    sentence: str,
    source_vocabulary: Any,
    target_vocabulary: Any,
    search: Search | None = None,
    max_length: int | None = None,
) -> Iterator[str]:
    """The translation of one sentence, piece by piece, each as soon as it is final.

    Args:
        model, source_vocabulary, target_vocabulary, max_length: see `translate`.
        sentence: a string.
        search: see `translate`. Its rules are for this sentence.
    Returns:
        An iterator of strings; joined, they are the translation that `translate` returns.
    Raises:
        ValueError: as in `translate`; or a tokenizer's `join` changes the beginning of a text when
            further words follow.
    Example:
        >>> words = tfattn.data.Vocabulary(["a", "bird", "sings"])
        >>> model = Transformer(len(words), num_layers=1, width=8, num_heads=2, hidden_dim=16)
        >>> pieces = translate_stream(model, "a bird sings", words, words, max_length=5)
        >>> "".join(pieces) == translate(model, ["a bird sings"], words, words, max_length=5)[0]
        True
    """
    who = "translate_stream"
    _checks.string(who, "sentence", sentence)
    check_parts(who, model, source_vocabulary, target_vocabulary)
    if max_length is not None:
        _checks.positive_int(who, "max_length", max_length)
    search = checked_search(who, search, 1, model)
    longest = getattr(model, "max_source_length", None)
    (ids,) = encoded_rows(
        who, "source_vocabulary", source_vocabulary, [sentence], longest, "sentence"
    )
    if not ids:
        return iter(())
    source = padded([[*ids, source_vocabulary.end_id]], 1, longest)
    limits = max_length or limits_of(model, source)
    state = encoded(model, source, int(np.max(limits)), search.rules)
    tokens = search.stream(model.step, state, limits, **special_ids(target_vocabulary))
    return _pieces(tokens, target_vocabulary)


def _pieces(tokens: Iterator[int], vocabulary: Any) -> Iterator[str]:
    """The text in pieces that the next token leaves unchanged.

    A token may change the end of the preceding text: it completes a character with missing bytes,
    or the tokenizer joins the two. A vocabulary's `changing_end` counts the characters that later
    tokens may change.
    """
    known, given, before = [], "", ""
    held_back = getattr(vocabulary, "changing_end", 0)
    for token in tokens:
        known.append(token)
        text = vocabulary.decode(np.array(known))
        settled = before[: max(len(before) - held_back, 0)]
        final = os.path.commonprefix([settled, text]).rstrip(_CUT)
        if len(final) > len(given):
            yield _rest(final, given)
            given = final
        before = text
    if rest := _rest(before, given):
        yield rest


def _rest(text: str, given: str) -> str:
    if not text.startswith(given):
        expected = (
            "keep the text of the first tokens when tokens follow, except for its end, which the "
            "next token may change (`translate` accepts any vocabulary)"
        )
        _checks.fail("translate_stream", "target_vocabulary", expected, f"{text!r} after {given!r}")
    return text[len(given) :]
