"""Words cut into other parts each time that they are read."""

import itertools
from collections.abc import Iterable

import numpy as np

from tfattn import _checks
from tfattn.data.subwords import SPACE, SubwordVocabulary, made_by_byte_pairs, plain_text

__all__ = ["SubwordDropout"]

# what a normaliser changes, and words
_PROBES = ["", "a b a b", "in the house", "ﬁne ｌｏｗ Ａ²", "e\u0301 …"]

_NONE = np.iinfo(np.int32).max  # the rank of two parts that do not join


class SubwordDropout:
    """Passes over a join of subwords now and then: BPE dropout, which `token_batches` draws anew
    for each epoch.

    A small corpus shows many of its subwords a few times only, and a word always in the same parts.
    Cut in many ways, each word also trains the parts that it shares with others. Rows become
    longer, and training takes more epochs.

    It stands where its vocabulary stands, with the same ids: `encode`, `decode`, `words` and `len`
    are the vocabulary's own, without dropout, as evaluation and translation want them.

    Args:
        vocabulary: `SubwordVocabulary`, whose ids these are.
        rate: Number in [0, 1), the probability of passing over a join at each step in which it
            could be made; 0 gives what the vocabulary's `encode` gives.

    Raises:
        ValueError: `vocabulary` is something else, or a model of another make than `from_sentences`
            gives: not of byte pairs, or of text that is not taken as it is; `rate` is not in [0,
            1).

    Example:
        >>> words = SubwordVocabulary.from_sentences(["low lower lowest", "new newer newest"], size=100)
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
        self.words, self.encode, self.decode = (
            vocabulary.words,
            vocabulary.encode,
            vocabulary.decode,
        )
        self._ids = {
            part: index for index, part in enumerate(vocabulary.words) if index > vocabulary.end_id
        }
        self._pairs, self._joined = self._joins()
        whole_words = not any(SPACE in part[1:] for part in self._ids)
        plain = [vocabulary.encode(text) for text in _PROBES]
        if not (
            whole_words and made_by_byte_pairs(vocabulary) and self._drawn(_PROBES, 0.0, 0) == plain
        ):
            _checks.fail(
                who,
                "vocabulary",
                "be of byte pairs, joined within words of a text as it is",
                vocabulary,
            )

    def __len__(self) -> int:
        return len(self.words)

    def draw(self, sentences: Iterable[str], seed: int) -> list[list[int]]:
        """The ids of some sentences' parts, without begin or end, each word cut as chance has it.

        Args:
            sentences: Iterable of str.
            seed: Int of at least 0. The same sentences and seed give the same ids.

        Returns:
            A list of lists of int; each decodes to what the ids of the vocabulary's `encode` decode
            to.

        Raises:
            ValueError: `sentences` is a single string, or holds something else; `seed` is no such
                int.
        """
        who = "SubwordDropout.draw"
        sentences = _checks.strings(who, "sentences", sentences)
        return self._drawn(sentences, self.rate, _checks.non_negative_int(who, "seed", seed))

    def _drawn(self, sentences, rate, seed):
        generator = np.random.default_rng(seed)
        lines = [plain_text(sentence).split() for sentence in sentences]
        kinds = {}  # each word's number
        words = np.array(
            [kinds.setdefault(word, len(kinds)) for line in lines for word in line], dtype=np.int64
        )
        letters = [
            [self._ids.get(letter, self.unknown_id) for letter in SPACE + word] for word in kinds
        ]
        sizes = np.array([len(ids) for ids in letters], dtype=np.int64)
        numbers, cut = np.zeros(len(words), dtype=np.int64), []
        for size in np.unique(sizes):  # words of one length side by side
            alike = np.flatnonzero(sizes == size)
            rows = np.flatnonzero(sizes[words] == size)
            table = np.array([letters[kind] for kind in alike], dtype=np.int32)
            parts = self._cut(table[np.searchsorted(alike, words[rows])], rate, generator)
            real = self._real(parts)
            numbers[rows] = real.sum(axis=1)
            cut.append((rows, parts, real))
        starts = np.concatenate([[0], np.cumsum(numbers)])
        flat = np.empty(starts[-1], dtype=np.int32)
        for rows, parts, real in cut:
            flat[(starts[rows][:, None] + np.cumsum(real, axis=1) - 1)[real]] = parts[real]
        ends = starts[np.cumsum([0, *map(len, lines)])].tolist()
        return [flat[start:end].tolist() for start, end in itertools.pairwise(ends)]

    def _joins(self):
        """(pairs, joined): which two parts make a third, a pair as the number
        `left · len(vocabulary) + right`, in order.
        """
        size = len(self)
        joins = sorted(
            (self._ids[part[:i]] * size + self._ids[part[i:]], index)
            for part, index in self._ids.items()
            for i in range(1, len(part))
            if part[:i] in self._ids and part[i:] in self._ids
        )
        pairs, joined = zip(*joins, strict=True) if joins else ((-1,), (_NONE,))
        return np.array(pairs, dtype=np.int64), np.array(joined, dtype=np.int32)

    def _cut(self, parts, rate, generator):
        """Words as rows of letters `(N, L)`, their parts joined until chance or the vocabulary
        knows no more; -1 fills up.
        """
        done = np.full_like(parts, -1)
        rows = np.arange(len(parts))  # of the words that still change
        while len(rows):
            pairs = parts[:, :-1].astype(np.int64) * len(self) + parts[:, 1:]
            pairs[parts[:, 1:] < 0] = -1
            places = np.minimum(np.searchsorted(self._pairs, pairs), len(self._pairs) - 1)
            # The lower the id, the sooner two parts join: the order in which they were learnt.
            joined = np.where(self._pairs[places] == pairs, self._joined[places], _NONE)
            joined[generator.random(joined.shape, dtype=np.float32) < rate] = _NONE
            # a word of one part has no pair
            joined = np.pad(joined, [(0, 0), (0, 1)], constant_values=_NONE)
            first = joined.argmin(axis=1)[:, None]
            least = np.take_along_axis(joined, first, axis=1)
            stays = least[:, 0] == _NONE
            done[rows[stays], : parts.shape[1]] = parts[stays]
            parts, first, least, rows = parts[~stays], first[~stays], least[~stays], rows[~stays]
            np.put_along_axis(parts, first, least, axis=1)
            columns = np.arange(parts.shape[1] - 1)
            # what follows moves up
            parts = np.take_along_axis(parts, columns + (columns > first), axis=1)
        return done

    def _real(self, parts):
        """Which of the parts `(words, L)` stand for themselves: no filling, and of a run of the
        unknown the first alone.
        """
        unknown = parts == self.unknown_id
        unknown[:, 1:] &= unknown[:, :-1]
        unknown[:, :1] = False
        return (parts >= 0) & ~unknown
