"""Text in, text out: translations by a model and a search, also as a stream, and the probability
of given ones.
"""

import copy
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

from tfattn import _checks
from tfattn.decoding.compiling import compiled, without_gradients
from tfattn.decoding.sampling import Sampling
from tfattn.decoding.search import GreedySearch, Search

_LENGTH_MULTIPLE = 8  # lengths are rounded up to multiples, so that few shapes are compiled
_CUT = "\N{REPLACEMENT CHARACTER}"  # decoded from a character with missing bytes


def translate(
    model: Any,
    sentences: Iterable[str],
    source_vocabulary: Any,
    target_vocabulary: Any,
    search: Search | None = None,
    batch_size: int = 64,
    max_length: int | None = None,
    progress: bool = False,
) -> list[str]:
    """Translates sentences, in batches of similar lengths.

    The longest sentences come first, so that a lack of memory shows at once. Lengths are padded to
    a multiple of 8, and a batch has `batch_size` rows or a power of two, so that few shapes are
    compiled. Padded by itself, the shortest sentence of a batch has at least half the length of the
    longest.

    Args:
        model: has `step`, and `encode(source, max_length)` from integers `(B, S)` to the state of
            a step; such as `Transformer`. `max_source_length` and `max_target_length`, if it has
            them, bound both sides.
        sentences: iterable of strings that the source vocabulary can encode.
        source_vocabulary, target_vocabulary: such as `tfattn.data.Vocabulary`.
        search: `GreedySearch`, `BeamSearch`, `Sampling`, or another `tfattn.decoding.Search`; for
            example `BeamSearch(num_beams=5, rules=[...])`, where rules with a row for each sentence
            are in the order of `sentences`. `Sampling` seeds all batches once.
            Defaults to `GreedySearch()`.
        batch_size: positive int, the most sentences at a time.
        max_length: positive int, the most tokens to write for a sentence, the end token included.
            Defaults to 1.5 · n + 8, where n is the number of tokens of that sentence with its end
            token; n and the sum are rounded up to multiples of 8.
        progress: whether to show a progress bar.
    Returns:
        A list of strings, in the order of `sentences`; "" for an empty one. A `UserWarning` names
        the words that the source vocabulary lacks.
    Raises:
        ValueError: `search` is not a search, or its rules leave a sentence no token to write; an
            argument is of another kind; a vocabulary has another size than the model's; a sentence
            is too long for the model (checked before the first translation).
    Example:
        >>> words = tfattn.data.Vocabulary(["a", "bird", "sings"])
        >>> model = Transformer(len(words), num_layers=1, width=8, num_heads=2, hidden_dim=16)
        >>> sentences = ["a bird sings", "", "a bird"]
        >>> translations = translate(model, sentences, words, words, max_length=5)
        >>> len(translations), translations[1]
        (3, '')
    """
    vocabularies = source_vocabulary, target_vocabulary
    found = _hypotheses(
        "translate", model, sentences, *vocabularies, search, batch_size, max_length, progress
    )
    return ["" if each is None else target_vocabulary.decode(each[0][0]) for each in found]


class ScoredText(NamedTuple):
    """A translation with its score by the search."""

    text: str
    score: float


def translate_n_best(
    model: Any,
    sentences: Iterable[str],
    source_vocabulary: Any,
    target_vocabulary: Any,
    search: Search,
    batch_size: int = 64,
    max_length: int | None = None,
    progress: bool = False,
) -> list[list[ScoredText]]:
    """The best translations of each sentence with their scores, the best first.

    Args:
        model, sentences, source_vocabulary, target_vocabulary, batch_size, max_length, progress:
            see `translate`.
        search: a search with beams, such as `BeamSearch(num_beams=5, num_results=3)`.
    Returns:
        A list for each sentence, of at most `num_results` pairs `(text, score)`: fewer where the
        search found fewer; `[("", 0.0)]` for an empty sentence.
    Raises:
        ValueError: `search` has no beams or returns no scores; or as in `translate`.
    Example:
        >>> words = tfattn.data.Vocabulary(["a", "bird", "sings"])
        >>> model = Transformer(len(words), num_layers=1, width=8, num_heads=2, hidden_dim=16)
        >>> beams = tfattn.BeamSearch(num_beams=3, num_results=2)
        >>> (best, second), = tfattn.decoding.translate_n_best(
        ...     model, ["a bird"], words, words, beams, max_length=5
        ... )
        >>> best.score >= second.score
        True
    """
    who, vocabularies = "translate_n_best", (source_vocabulary, target_vocabulary)
    if not getattr(search, "num_results", 0):
        _checks.fail(who, "search", "have beams, such as `BeamSearch(num_results=3)`", search)
    found = _hypotheses(
        who, model, sentences, *vocabularies, search, batch_size, max_length, progress
    )
    return [
        [ScoredText("", 0.0)]
        if each is None
        else [
            ScoredText(target_vocabulary.decode(tokens), float(score))
            for tokens, score in zip(*each, strict=True)
            if score > -np.inf
        ]
        for each in found
    ]


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
    search = _checked_search(who, search, 1, max_length)
    longest = getattr(model, "max_source_length", None)
    (ids,) = encoded_rows(
        who, "source_vocabulary", source_vocabulary, [sentence], longest, "sentence"
    )
    if not ids:
        return iter(())
    source = padded([[*ids, source_vocabulary.end_id]], 1, longest)
    most = max_length or limits([len(ids) + 1], getattr(model, "max_target_length", None))
    state = encoded(model, source, int(np.max(most)))
    tokens = search.stream(model.step, state, most, **special_ids(target_vocabulary))
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


def log_probabilities(
    model: Any,
    pairs: Iterable[tuple[str, str]],
    source_vocabulary: Any,
    target_vocabulary: Any,
    batch_size: int = 64,
) -> np.ndarray:
    """The log-probability of each target sentence given its source sentence.

        log p(target | source) = Σ log p(token | the tokens before it, source)

    The end token counts as a token of the target.

    Args:
        model: see `translate`; `model((source, target_in))` returns logits `(B, T, V)`.
        pairs: iterable of pairs (source, target) of strings.
        source_vocabulary, target_vocabulary: see `translate`.
        batch_size: positive int, the most pairs at a time.
    Returns:
        float32 `(N,)`, in the order of `pairs`. Unknown words are warned of, as in `translate`.
    Raises:
        ValueError: a vocabulary has another size than the model's; `batch_size` is not a positive
            int; `pairs` contains anything but pairs of strings; a sentence is too long for the
            model.
    Example:
        >>> words = tfattn.data.Vocabulary(["a", "bird", "sings"])
        >>> model = Transformer(len(words), num_layers=1, width=8, num_heads=2, hidden_dim=16)
        >>> pairs = [("a bird", "a bird sings"), ("a bird", "")]
        >>> print(tfattn.decoding.log_probabilities(model, pairs, words, words) < 0)
        [ True  True]
    """
    who = "log_probabilities"
    check_parts(who, model, source_vocabulary, target_vocabulary)
    _checks.positive_int(who, "batch_size", batch_size)
    pairs = _checks.pairs(who, "pairs", pairs)
    sides = []
    vocabularies = source_vocabulary, target_vocabulary
    for i, (side, vocabulary) in enumerate(zip(("source", "target"), vocabularies, strict=True)):
        sentences = [pair[i] for pair in pairs]
        longest = getattr(model, f"max_{side}_length", None)
        argument = f"{side}_vocabulary"
        ids = encoded_rows(who, argument, vocabulary, sentences, longest, "pairs[{}]")
        sides.append(([[*row, vocabulary.end_id] for row in ids], longest))
    (sources, source_positions), (targets, target_positions) = sides
    found = np.zeros(len(pairs), "float32")
    longer = [max(map(len, rows)) for rows in zip(sources, targets, strict=True)]
    for batch in batches(longer, batch_size):
        source = padded([sources[i] for i in batch], batch_size, source_positions)
        target = padded([targets[i] for i in batch], batch_size, target_positions)
        begin = np.full_like(target[:, :1], target_vocabulary.begin_id)
        inputs = source, np.concatenate([begin, target[:, :-1]], axis=1)
        logits = without_gradients(model)(inputs, training=False)
        log_p = ops.log_softmax(ops.cast(logits, "float32"), axis=-1)  # (B, T, V)
        log_p = ops.take_along_axis(log_p, target[..., None], axis=-1)[..., 0]
        sums = np.sum(np.where(target != 0, ops.convert_to_numpy(log_p), 0.0), axis=1)
        found[batch] = sums[: len(batch)]
    return found


def _hypotheses(
    who: str,
    model: Any,
    sentences: Iterable[str],
    source_vocabulary: Any,
    target_vocabulary: Any,
    search: Search | None,
    batch_size: int,
    max_length: int | None,
    progress: bool,
) -> list[tuple[np.ndarray, Any] | None]:
    """(Tokens `(N, L)`, scores `(N,)` of beams or None) of each sentence; None if it is empty."""
    check_parts(who, model, source_vocabulary, target_vocabulary)
    sentences = _checks.strings(who, "sentences", sentences)
    search = _checked_search(who, search, len(sentences), max_length)
    _checks.positive_int(who, "batch_size", batch_size)
    _checks.boolean(who, "progress", progress)
    place, longest = "sentences[{}]", getattr(model, "max_source_length", None)
    sources = encoded_rows(
        who, "source_vocabulary", source_vocabulary, sentences, longest, place, stacklevel=4
    )
    most = limits([len(ids) + 1 for ids in sources], getattr(model, "max_target_length", None))
    hypotheses: list[tuple[np.ndarray, Any] | None] = [None] * len(sentences)
    bar = keras.utils.Progbar(len(sentences), unit_name="sentence", verbose=int(progress))
    done = sources.count([])
    for batch in batches([len(ids) for ids in sources], batch_size):
        rows = [[*sources[i], source_vocabulary.end_id] for i in batch]
        ids = padded(rows, batch_size, longest)
        indices = [*batch, *[batch[-1]] * (len(ids) - len(batch))]
        max_lengths = max_length or most[indices]
        state = encoded(model, ids, int(np.max(max_lengths)))
        of_batch, special = search.of_sentences(indices), special_ids(target_vocabulary)
        found = of_batch(model.step, state, len(ids), max_lengths, **special)
        for i, each in zip(batch, _by_sentence(found), strict=False):
            hypotheses[i] = each
        done += len(batch)
        bar.update(done)
    return hypotheses


def encoded_rows(
    who: str,
    argument: str,
    vocabulary: Any,
    sentences: Sequence[str],
    longest: int | None,
    place: str,
    stacklevel: int = 3,
) -> list[list[int]]:
    """The ids of sentences by the vocabulary of this argument; `place` names a sentence, with "{}"
    for its index. Raises for a sentence that is longer than the model's positions, and warns once
    of unknown words.
    """
    rows = [vocabulary.encode(sentence) for sentence in sentences]
    unknown = {}
    for i, (sentence, ids) in enumerate(zip(sentences, rows, strict=True)):
        if longest is not None and len(ids) >= longest:  # the end token needs one more position
            expected = f"{longest - 1} tokens, as far as the model's positions reach"
            begin = sentence if len(sentence) < 60 else f"{sentence[:57]}..."
            expected = f"have at most {expected}, not {len(ids)}"
            _checks.fail(who, place.format(i), expected, begin)
        if words := unknown_words(vocabulary, sentence, ids):
            unknown[place.format(i)] = words
    if unknown:
        hint = ". A `SubwordVocabulary` reads words in parts; `Moses` tokenizes plain text"
        hint = hint if getattr(vocabulary, "tokenizer", "") is None else ""
        message = f"{who}: `{argument}` lacks words, which are read as unknown: {listed(unknown)}"
        warnings.warn(message + hint, stacklevel=stacklevel)
    return rows


def unknown_words(vocabulary: Any, sentence: str, ids: Sequence[int]) -> list[str]:
    """The distinct words of a sentence that a vocabulary reads as unknown, from its `ids`, without
    the unknown token itself: words by its `tokenizer`, else by spaces.
    """
    unknown = getattr(vocabulary, "unknown_id", None)
    if unknown not in ids:
        return []
    words = (getattr(vocabulary, "tokenizer", None) or str.split)(sentence)
    words = [word for word in words if word.strip(" \u2581")]  # no marks of spaces

    def is_unknown(word: str) -> bool:
        try:
            return unknown in vocabulary.encode(word)
        except ValueError:  # no word of it is known
            return True

    if hasattr(vocabulary, "tokenizer") and len(words) == len(ids):  # an id for each word
        found = [word for word, i in zip(words, ids, strict=True) if i == unknown]
    else:
        found = list(filter(is_unknown, words))
    return [word for word in dict.fromkeys(found or [sentence]) if word != "<unk>"]


def listed(unknown: Mapping[str, Sequence[str]]) -> str:
    """Unknown words with the place of their sentence; of the first ten sentences."""
    shown = [
        ", ".join(repr(word if len(word) <= 40 else f"{word[:37]}...") for word in words[:10])
        + f"{', ...' * (len(words) > 10)} ({place})"
        for place, words in list(unknown.items())[:10]
    ]
    more = len(unknown) - len(shown)
    return "; ".join(shown) + f"; and words of {more} more" * (more > 0)


def _by_sentence(found: Any) -> Iterator[tuple[np.ndarray, Any]]:
    """Tokens `(N, L)` and scores `(N,)` or None of each sentence, from the results of a search."""
    tokens = ops.convert_to_numpy(found[0] if isinstance(found, tuple) else found)
    if tokens.ndim == 2:  # one result for each sentence
        return ((row[None], None) for row in tokens)
    return zip(tokens, ops.convert_to_numpy(found.scores), strict=True)


def encoded(model: Any, ids: np.ndarray, max_length: int) -> Any:
    """`model.encode`, compiled where all weights can be built before: in a tenth of the time."""
    if _can_be_built(model):
        model.build_for_any()
        return compiled(_encode, model.encode, max_length)(ops.convert_to_tensor(ids))
    return without_gradients(model.encode)(ids, max_length)


def _can_be_built(model: Any) -> bool:
    """Whether the model, and each of an ensemble, has `build_for_any`."""
    return hasattr(model, "build_for_any") and all(map(_can_be_built, getattr(model, "models", ())))


def _encode(encode: Callable[..., Any], max_length: int, ids: Any) -> Any:
    return encode(ids, max_length=max_length)


def special_ids(vocabulary: Any) -> dict[str, Any]:
    return {name: getattr(vocabulary, name) for name in ("begin_id", "end_id", "padding_id")}


def _checked_search(who: str, search: Any, count: int, max_length: int | None) -> Search:
    """A copy with one seed for all batches, whose rules fit `count` rows; None is greedy search."""
    search = GreedySearch() if search is None else copy.copy(search)
    if not isinstance(search, Search):
        _checks.fail(who, "search", "be a search, such as `GreedySearch()`", search)
    for rule in search.rules:
        if rule.num_rows not in (None, count):
            expected = f"have rules with a row for each of the {count} sentences, or without rows"
            _checks.fail(who, "search", expected, rule)
    if max_length is not None:
        _checks.positive_int(who, "max_length", max_length)
    if isinstance(search, Sampling) and isinstance(search.seed, int):
        search.seed = keras.random.SeedGenerator(search.seed)
    return search


def check_parts(who: str, model: Any, source_vocabulary: Any, target_vocabulary: Any) -> None:
    """Raises unless the model has `encode` and `step` and the sizes of the vocabularies."""
    if not all(callable(getattr(model, name, None)) for name in ("encode", "step")):
        _checks.fail(who, "model", "have `encode` and `step`, see `tfattn.decoding`", model)
    for side, vocabulary in (("source", source_vocabulary), ("target", target_vocabulary)):
        argument = f"{side}_vocabulary"
        _checks.vocabulary(who, argument, vocabulary)
        size = getattr(model, f"{argument}_size", None)
        if size is not None and len(vocabulary) != size:
            _checks.fail(who, argument, f"have {size} entries, as in the model", len(vocabulary))


def batches(lengths: list[int], batch_size: int) -> list[list[int]]:
    """Indices of the nonempty sentences in batches, the longest first.

    Padded by itself, each sentence has at least half the length of the first in its batch.
    """
    batches: list[list[int]] = []
    for i in sorted((i for i, length in enumerate(lengths) if length), key=lambda i: -lengths[i]):
        longest = lengths[batches[-1][0]] if batches else 0
        if (
            not batches
            or len(batches[-1]) == batch_size
            or 2 * _rounded(lengths[i] + 1) < _rounded(longest + 1)
        ):
            batches.append([])
        batches[-1].append(i)
    return batches


def padded(rows: list[list[int]], batch_size: int, longest: int | None) -> np.ndarray:
    """Rows of ids as one array, padded to a common shape, but no longer than `longest`."""
    rows += [rows[-1]] * (min(batch_size, 1 << (len(rows) - 1).bit_length()) - len(rows))
    length = _rounded(max(map(len, rows)))
    length = length if longest is None else min(length, longest)
    return np.array([row + [0] * (length - len(row)) for row in rows], "int32")


def limits(lengths: Any, positions: int | None) -> np.ndarray:
    """Maximum lengths of translations, from the lengths `(B,)` of sentences with the end token;
    `positions` is the number of target positions, None for no limit.
    """
    longest = _rounded(3 * _rounded(np.asarray(lengths)) // 2 + 8)
    return longest if positions is None else np.minimum(longest, positions)


def _rounded(length: Any) -> Any:
    """An int, or an array of ints, rounded up to the next multiple."""
    return -(-length // _LENGTH_MULTIPLE) * _LENGTH_MULTIPLE
