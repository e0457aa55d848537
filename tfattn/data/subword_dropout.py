"""Words cut into other parts each time that they are read."""

import itertools
from collections.abc import Iterable

import numpy as np

from tfattn import _checks
from tfattn.data.subwords import SPACE, SubwordVocabulary, made_by_byte_pairs, plain_text

__all__ = ["SubwordDropout"]

_NONE = np.iinfo(np.int32).max  # the rank of two parts that do not join


class SubwordDropout:
    """A subword vocabulary that passes over a join now and then: BPE dropout, which `token_batches` draws anew each epoch.

    A small corpus shows many of its subwords a few times only, and a word always in the same parts. Cut in many ways, each
    word also trains the parts that it shares with others. Rows become longer, and training takes more epochs. For training
    alone: what is to be evaluated or translated is encoded by the vocabulary itself.

    Args:
        vocabulary: `SubwordVocabulary`, whose ids these are.
        rate: Number in [0, 1), the probability of passing over a join at each step in which it could be made; 0 gives
            what the vocabulary's `encode` gives.

    Raises:
        ValueError: `vocabulary` is something else, or not made by byte-pair encoding; `rate` is not in [0, 1).

    Example:
        >>> words = SubwordVocabulary.from_sentences(["low lower lowest", "new newer newest"], size=100)
        >>> drawn = SubwordDropout(words, rate=0.5).draw(["newest"] * 9, seed=0)
        >>> len({tuple(ids) for ids in drawn}) > 1, {words.decode(ids) for ids in drawn}
        (True, {'newest'})

    Source: Provilkov, Emelianenko, Voita 2020, arXiv:1910.13267, algorithm 1.
    """

    def __init__(self, vocabulary: SubwordVocabulary, rate: float = 0.1):
        who = "SubwordDropout"
        if not isinstance(vocabulary, SubwordVocabulary):
            _checks.fail(who, "vocabulary", "be a SubwordVocabulary", vocabulary)
        self.vocabulary = vocabulary
        self.rate = _checks.probability(who, "rate", rate)
        self.begin_id, self.end_id = vocabulary.begin_id, vocabulary.end_id
        if not made_by_byte_pairs(vocabulary):
            _checks.fail(who, "vocabulary", "be made by byte-pair encoding", vocabulary)
        self._ids = {part: index for index, part in enumerate(vocabulary.words) if index > vocabulary.end_id}
        self._pairs, self._joined = self._joins()

    def draw(self, sentences: Iterable[str], seed: int) -> list[list[int]]:
        """The ids of some sentences' parts, without begin or end, each word cut as chance has it.

        Args:
            sentences: Iterable of str.
            seed: Int of at least 0. The same sentences and seed give the same ids.

        Returns:
            A list of lists of int; each decodes to what the ids of the vocabulary's `encode` decode to.

        Raises:
            ValueError: `sentences` is a single string, or holds something else; `seed` is no such int.
        """
        who = "SubwordDropout.draw"
        lines = [plain_text(sentence).split() for sentence in _checks.strings(who, "sentences", sentences)]
        generator = np.random.default_rng(_checks.non_negative_int(who, "seed", seed))
        kinds = {}  # each word's number
        words = np.array([kinds.setdefault(word, len(kinds)) for line in lines for word in line], dtype=np.int64)
        letters = [[self._ids.get(letter, self.vocabulary.unknown_id) for letter in SPACE + word] for word in kinds]
        sizes = np.array([len(ids) for ids in letters], dtype=np.int64)[words]
        parts = np.full((len(words), sizes.max(initial=0)), -1, dtype=np.int32)
        for size in np.unique(sizes):  # words of one length side by side
            rows = np.flatnonzero(sizes == size)
            table = np.array([ids if len(ids) == size else [-1] * size for ids in letters], dtype=np.int32)
            parts[rows, :size] = self._cut(table[words[rows]], generator)
        return self._lines(parts, [len(line) for line in lines])

    def _joins(self):
        """(pairs, joined): which two parts make a third, a pair as the number `left · len(vocabulary) + right`, in order."""
        size = len(self.vocabulary)
        joins = sorted(
            (self._ids[part[:i]] * size + self._ids[part[i:]], index)
            for part, index in self._ids.items()
            for i in range(1, len(part))
            if part[:i] in self._ids and part[i:] in self._ids
        )
        pairs, joined = zip(*joins, strict=True) if joins else ((-1,), (_NONE,))
        return np.array(pairs, dtype=np.int64), np.array(joined, dtype=np.int32)

    def _cut(self, parts, generator):
        """Words as rows of letters `(N, L)`, their parts joined until chance or the vocabulary knows no more; -1 fills up."""
        done = np.full_like(parts, -1)
        rows = np.arange(len(parts))  # of the words that still change
        while len(rows):
            pairs = parts[:, :-1].astype(np.int64) * len(self.vocabulary) + parts[:, 1:]
            pairs[parts[:, 1:] < 0] = -1
            places = np.minimum(np.searchsorted(self._pairs, pairs), len(self._pairs) - 1)
            # The lower the id, the sooner two parts join: the order in which they were learnt.
            joined = np.where(self._pairs[places] == pairs, self._joined[places], _NONE)
            joined[generator.random(joined.shape, dtype=np.float32) < self.rate] = _NONE
            joined = np.pad(joined, [(0, 0), (0, 1)], constant_values=_NONE)  # a word of one part has no pair
            first = joined.argmin(axis=1)[:, None]
            least = np.take_along_axis(joined, first, axis=1)
            stays = least[:, 0] == _NONE
            done[rows[stays], : parts.shape[1]] = parts[stays]
            parts, first, least, rows = parts[~stays], first[~stays], least[~stays], rows[~stays]
            np.put_along_axis(parts, first, least, axis=1)
            columns = np.arange(parts.shape[1] - 1)
            parts = np.take_along_axis(parts, columns + (columns > first), axis=1)  # what follows moves up
        return done

    def _lines(self, parts, words_per_line):
        """The parts of all words `(words, L)` as one list for each line."""
        unknown = parts == self.vocabulary.unknown_id
        unknown[:, 1:] &= unknown[:, :-1]
        unknown[:, :1] = False  # the first of a run stays
        real = (parts >= 0) & ~unknown
        ends = np.cumsum(np.concatenate([[0], real.sum(axis=1)]))[np.cumsum([0, *words_per_line])]
        ids = parts[real].tolist()
        return [ids[start:end] for start, end in itertools.pairwise(ends.tolist())]
