"""BPE dropout: random splits of words into subwords."""

import itertools
from collections.abc import Iterable

import numpy as np

from tfattn import _checks
from tfattn.data.subwords import SubwordVocabulary, is_byte_pair, plain_text, symbol_pattern
from tfattn.data.tokenizers import SPACE

# Plain words, and text that normalizers would change.
_PROBES = ["", "a b a b", "in the house", "ﬁne ｌｏｗ Ａ²", "e\u0301 …"]

_NO_MERGE = np.iinfo(np.int32).max  # the rank of a pair that cannot be merged


class SubwordDropout:
    """BPE dropout: merges of subwords are skipped at random, differently in each epoch.

    Each word thus also trains the subwords that it shares with other words, which helps in a small
    corpus. Rows become longer, and training takes more epochs.

    Pass it to `token_batches`, which calls `draw` in each epoch, in place of its vocabulary; the
    ids are the same. `encode`, `decode`, `words` and `len` are the vocabulary's, without dropout.
    Symbols of the vocabulary stay whole.

    Args:
        vocabulary: `SubwordVocabulary` of the ids.
        rate: number in [0, 1), the probability of skipping a possible merge at each step. 0 gives
            the same ids as the vocabulary's `encode`. Defaults to 0.1.
    Raises:
        ValueError: `vocabulary` is not a `SubwordVocabulary`, or its model differs from those of
            `from_sentences`: it is not a BPE model, or it normalizes text; `rate` is not in [0, 1).
    Example:
        >>> sentences = ["low lower lowest", "new newer newest"]
        >>> words = SubwordVocabulary.from_sentences(sentences, size=100)
        >>> drawn = SubwordDropout(words, rate=0.5).draw(["newest"] * 9, seed=0)
        >>> len({tuple(ids) for ids in drawn}) > 1, {words.decode(ids) for ids in drawn}
        (True, {'newest'})

    Source: Provilkov, Emelianenko, Voita 2020, arXiv:1910.13267, algorithm 1.
    """

    padding_id, unknown_id = SubwordVocabulary.padding_id, SubwordVocabulary.unknown_id
    begin_id, end_id = SubwordVocabulary.begin_id, SubwordVocabulary.end_id

    def __init__(self, vocabulary: SubwordVocabulary, rate: float = 0.1):
        who = "SubwordDropout"
        if not isinstance(vocabulary, SubwordVocabulary):
            _checks.fail(who, "vocabulary", "be a SubwordVocabulary", vocabulary)
        self.vocabulary = vocabulary
        self.rate = _checks.probability(who, "rate", rate)
        self.words = vocabulary.words
        self.encode, self.decode = vocabulary.encode, vocabulary.decode
        self._ids = {
            part: index for index, part in enumerate(vocabulary.words) if index > vocabulary.end_id
        }
        self._pairs, self._merged = self._merges()
        within_words = not any(SPACE in part[1:] for part in self._ids)
        plain = [vocabulary.encode(text) for text in _PROBES]
        if not (within_words and is_byte_pair(vocabulary) and self._draw(_PROBES, 0.0, 0) == plain):
            expected = "be a BPE model without normalization and without merges across spaces"
            _checks.fail(who, "vocabulary", expected, vocabulary)

    def __len__(self) -> int:
        return len(self.words)

    def draw(self, sentences: Iterable[str], seed: int) -> list[list[int]]:
        """The ids of sentences' subwords, with dropout, without begin and end tokens.

        Args:
            sentences: iterable of str.
            seed: int of at least 0. The same sentences and seed give the same ids.
        Returns:
            A list of lists of int; each list decodes to the same text as the ids of `encode`.
        """
        who = "SubwordDropout.draw"
        sentences = _checks.strings(who, "sentences", sentences)
        return self._draw(sentences, self.rate, _checks.non_negative_int(who, "seed", seed))

    def _draw(self, sentences: list[str], rate: float, seed: int) -> list[list[int]]:
        generator = np.random.default_rng(seed)
        symbol = symbol_pattern(self.vocabulary.symbols)
        lines = [plain_text(sentence).split() for sentence in sentences]
        numbers: dict[str, int] = {}  # of distinct words
        words = np.array(
            [numbers.setdefault(word, len(numbers)) for line in lines for word in line],
            dtype=np.int64,
        )
        letters = [
            [
                self._ids.get(letter, self.unknown_id)
                for place, part in enumerate(symbol.split(SPACE + word))
                for letter in ([part] if place % 2 else part)  # symbols have odd indices
            ]
            for word in numbers
        ]
        sizes = np.array([len(ids) for ids in letters], dtype=np.int64)
        counts, drawn = np.zeros(len(words), dtype=np.int64), []
        for size in np.unique(sizes):  # words of equal length, as rows of a matrix
            alike = np.flatnonzero(sizes == size)
            rows = np.flatnonzero(sizes[words] == size)
            table = np.array([letters[number] for number in alike], dtype=np.int32)
            parts = self._merge(table[np.searchsorted(alike, words[rows])], rate, generator)
            # Consecutive unknown characters have a single id, as in `encode`.
            repeated = np.zeros(parts.shape, dtype=bool)
            repeated[:, 1:] = (parts[:, 1:] == self.unknown_id) & (parts[:, :-1] == self.unknown_id)
            kept = (parts >= 0) & ~repeated
            counts[rows] = kept.sum(axis=1)
            drawn.append((rows, parts, kept))
        starts = np.concatenate([[0], np.cumsum(counts)])
        flat = np.empty(starts[-1], dtype=np.int32)
        for rows, parts, kept in drawn:
            flat[(starts[rows][:, None] + np.cumsum(kept, axis=1) - 1)[kept]] = parts[kept]
        ends = starts[np.cumsum([0, *map(len, lines)])].tolist()
        return [flat[start:end].tolist() for start, end in itertools.pairwise(ends)]

    def _merges(self) -> tuple[np.ndarray, np.ndarray]:
        """Pairs of subwords, and the result of merging each pair.

        A pair is the number `left · len(vocabulary) + right`; pairs are sorted.
        """
        size = len(self)
        merges = sorted(
            (self._ids[part[:i]] * size + self._ids[part[i:]], index)
            for part, index in self._ids.items()
            for i in range(1, len(part))
            if part[:i] in self._ids and part[i:] in self._ids
        )
        pairs, merged = zip(*merges, strict=True) if merges else ((-1,), (_NO_MERGE,))
        return np.array(pairs, dtype=np.int64), np.array(merged, dtype=np.int32)

    def _merge(self, parts: np.ndarray, rate: float, generator: np.random.Generator) -> np.ndarray:
        """The subwords of words `(N, L)`, given as rows of characters, padded with -1."""
        merged_parts = np.full_like(parts, -1)
        rows = np.arange(len(parts))  # words with possible merges
        while len(rows):
            pairs = parts[:, :-1].astype(np.int64) * len(self) + parts[:, 1:]
            pairs[parts[:, 1:] < 0] = -1
            places = np.minimum(np.searchsorted(self._pairs, pairs), len(self._pairs) - 1)
            # Ids are ranks, in the order in which merges were learned.
            ranks = np.where(self._pairs[places] == pairs, self._merged[places], _NO_MERGE)
            ranks[generator.random(ranks.shape, dtype=np.float32) < rate] = _NO_MERGE
            # An extra column, since a word of one subword has no pair.
            ranks = np.pad(ranks, [(0, 0), (0, 1)], constant_values=_NO_MERGE)
            first = ranks.argmin(axis=1)[:, None]
            least = np.take_along_axis(ranks, first, axis=1)
            done = least[:, 0] == _NO_MERGE
            merged_parts[rows[done], : parts.shape[1]] = parts[done]
            parts, first, least, rows = parts[~done], first[~done], least[~done], rows[~done]
            np.put_along_axis(parts, first, least, axis=1)
            columns = np.arange(parts.shape[1] - 1)  # shifts later subwords to the left
            parts = np.take_along_axis(parts, columns + (columns > first), axis=1)
        return merged_parts
