"""Words cut by chance: BPE dropout, alone and in batches."""

import collections
import itertools
import tracemalloc

import keras
import numpy as np
import pytest

from tests.helpers.batching import SPECIAL_IDS, arrays, learned_by_sentencepiece
from tfattn.data import (
    EpochCounter,
    SubwordDropout,
    SubwordVocabulary,
    token_batches,
    toy_translation,
    translation_batches,
)

PAIRS = toy_translation(307, seed=4)
SENTENCES = [sentence for pair in PAIRS for sentence in pair]
WORDS = SubwordVocabulary.from_sentences(SENTENCES, 150)
DRAWN = SubwordDropout(WORDS, rate=0.2)


def by_tokens(
    pairs=PAIRS, source=DRAWN, target=DRAWN, tokens_per_batch=256, shuffle_seed=0, **options
):
    return token_batches(
        pairs, source, target, tokens_per_batch, shuffle_seed=shuffle_seed, **options
    )


def rows(epoch):
    """(source, target) ids of each pair, marks and padding left out, sorted."""
    return sorted(
        (tuple(source[source > 3].tolist()), tuple(target[target > 3].tolist()))
        for (sources, _), targets in epoch
        for source, target in zip(sources, targets, strict=True)
    )


def texts(epoch):
    return sorted((WORDS.decode(source), WORDS.decode(target)) for source, target in rows(epoch))


def cut(word, joins, rate, generator):
    """Algorithm 1 of the paper, for one word; `joins` in the order in which they were learned."""
    parts = list(word)
    while True:
        places = [i for i in range(len(parts) - 1) if parts[i] + parts[i + 1] in joins]
        places = [i for i in places if generator.random() >= rate]
        if not places:
            return tuple(parts)
        best = min(places, key=lambda i: joins.index(parts[i] + parts[i + 1]))
        parts[best : best + 2] = [parts[best] + parts[best + 1]]


def test_subword_dropout_draws_parts_as_often_as_the_paper():
    words = SubwordVocabulary.from_sentences(["low lower lowest new newer newest"], size=30)
    joins = [part for part in words.words[4:] if len(part) > 1]
    rate, draws, generator = 0.4, 4000, np.random.default_rng(0)
    wanted = collections.Counter(cut("▁lowest", joins, rate, generator) for _ in range(draws))
    drawn = SubwordDropout(words, rate).draw(["lowest"] * draws, seed=1)
    found = collections.Counter(tuple(words.words[index] for index in ids) for ids in drawn)
    assert len(wanted) > 10
    for parts in wanted | found:  # five standard deviations of a difference of two counts
        assert abs(wanted[parts] - found[parts]) <= 5 * np.sqrt(wanted[parts] + found[parts])


ODD = ["", " ", "a", "zèbre ☃☃ ☃a☃ ", "the  black\tcat", "▁ ▅", "<eos> <pad>", "☃", "x" * 50]


def test_subword_dropout_with_a_higher_rate_draws_more_parts():
    lengths = []
    for rate in (0.0, 0.1, 0.3, 0.99):
        drawn = SubwordDropout(WORDS, rate).draw(SENTENCES, seed=1)
        assert [WORDS.decode(ids) for ids in drawn] == SENTENCES
        lengths.append(sum(map(len, drawn)))
    assert all(shorter < 0.97 * longer for shorter, longer in itertools.pairwise(lengths))
    sentences = [*SENTENCES, *ODD, "\ud800"]
    plain = [WORDS.encode(sentence) for sentence in sentences]
    assert SubwordDropout(WORDS, 0.0).draw(sentences, seed=1) == plain
    letters = SubwordVocabulary.from_sentences(["a b"], size=7)  # which has nothing to join
    assert sorted(letters.words[4:]) == ["a", "b", "▁"]
    assert SubwordDropout(letters, 0.5).draw(["ab ☃b"], seed=0) == [letters.encode("ab ☃b")]


def test_subword_dropout_of_a_seed_draws_the_same_parts_everywhere():
    first = DRAWN.draw(SENTENCES, seed=1)
    assert DRAWN.draw(SENTENCES, seed=1) == first != DRAWN.draw(SENTENCES, seed=2)
    # In every process, whatever the seed of Python's hashes.
    words = SubwordVocabulary.from_sentences(["low lower lowest new newer newest"], size=30)
    drawn = SubwordDropout(words, 0.4).draw(["newest lowest"] * 3, seed=1)
    assert [" ".join(words.words[index] for index in ids) for ids in drawn] == EXPECTED_PARTS


# By algorithm 1 for each word, whose step takes `default_rng(1).random((words yet open, places))`.
EXPECTED_PARTS = [
    "▁ n e we s t ▁lo we s t",
    "▁ne we s t ▁ l o we s t",
    "▁newest ▁lo we st",
]


@pytest.mark.slow
def test_subword_dropout_of_a_long_word_takes_little_memory():
    long = "thecatsleeps" * 200
    assert WORDS.decode(DRAWN.draw([*SENTENCES, long], seed=0)[-1]) == long
    tracemalloc.start()
    DRAWN.draw([*SENTENCES, long], seed=0)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    words = sum(len(sentence.split()) for sentence in SENTENCES)
    # bytes, of one row for each word as long as the longest
    assert most < 0.1 * words * len(long) * 4


def test_subword_dropout_can_replace_its_vocabulary():
    for name in ("padding_id", "unknown_id", "begin_id", "end_id", "words"):
        assert getattr(DRAWN, name) == getattr(WORDS, name)
    assert len(DRAWN) == len(WORDS)
    ids = DRAWN.encode(SENTENCES[0])
    assert ids == WORDS.encode(SENTENCES[0]) and DRAWN.decode(ids) == SENTENCES[0]


@pytest.mark.parametrize(
    "options",
    [
        {"model_type": "unigram"},
        {"normalization_rule_name": "nmt_nfkc"},
        {"add_dummy_prefix": False},
        {"split_by_whitespace": False},
        {"treat_whitespace_as_suffix": True},
    ],
)
def test_subword_dropout_of_other_models_is_refused(options):
    learned = {"model_type": "bpe", "normalization_rule_name": "identity", **SPECIAL_IDS, **options}
    words = SubwordVocabulary(learned_by_sentencepiece(SENTENCES, **learned))
    said = "SubwordDropout: `vocabulary` must be a BPE model without normalization"
    with pytest.raises(ValueError, match=said):
        SubwordDropout(words)


@pytest.mark.slow
def test_subword_dropout_in_batches_draws_each_epoch_anew_within_the_budget():
    dataset = by_tokens(shuffle_seed=5)
    epochs = [arrays(dataset) for _ in range(3)]
    for epoch in epochs:
        assert len(epoch) == len(dataset)
        assert texts(epoch) == sorted(PAIRS)
        sizes = [side.size for batch, _ in epoch for side in batch]
        assert max(sizes) <= 256
    assert np.mean(sizes) > 0.7 * 256  # both sides, of which one is the longer
    assert len({*rows(epochs[0])} & {*rows(epochs[1])}) < 0.2 * len(PAIRS)
    # An epoch is a function of the seed and its number.
    keras.utils.set_random_seed(99)
    counter = EpochCounter()
    counter.on_epoch_begin(1)
    resumed = by_tokens(shuffle_seed=5, epoch_counter=counter)
    for wanted in epochs[1:]:
        keras.tree.map_structure(np.testing.assert_array_equal, arrays(resumed), wanted)
    assert rows(arrays(by_tokens(shuffle_seed=6))) != rows(epochs[0])
    one = by_tokens(PAIRS[:1])
    assert len(one) == 1 and texts(arrays(one)) == texts(arrays(one)) == PAIRS[:1]


@pytest.mark.slow
@pytest.mark.parametrize("side", [0, 1])
def test_token_batches_draw_each_side_by_itself(side):
    """Two sides are drawn apart, and one of them alone."""
    pairs = [(sentence, sentence) for sentence in SENTENCES]
    found = rows(arrays(by_tokens(pairs, tokens_per_batch=2048)))
    assert sum(source == target for source, target in found) < 0.2 * len(pairs)
    found = rows(arrays(by_tokens(**{("source", "target")[1 - side]: WORDS})))
    drawn, other = ({row[place] for row in found} for place in (side, 1 - side))
    assert other == {tuple(WORDS.encode(pair[1 - side])) for pair in PAIRS}
    assert len(drawn & {tuple(WORDS.encode(pair[side])) for pair in PAIRS}) < 0.3 * len(PAIRS)


class Moody(SubwordDropout):
    """Letters in some epochs, and whole words in others."""

    def draw(self, sentences, seed):
        return SubwordDropout(self.vocabulary, 0.9 * (seed % 2)).draw(sentences, seed)


PLAIN = [(tuple(WORDS.encode(source)), tuple(WORDS.encode(target))) for source, target in PAIRS]


@pytest.mark.slow
def test_subword_dropout_epoch_of_too_many_batches_is_without_dropout():
    # Of the first epoch on: letters, words, letters, letters, words; and words, words, letters,
    # words, words.
    for seed, wanted in ((0, [False, True, False, False, True]), (9, [True] * 5)):
        dataset = by_tokens(source=Moody(WORDS), target=WORDS, shuffle_seed=seed)
        epochs = [arrays(dataset) for _ in wanted]
        assert [rows(epoch) == sorted(PLAIN) for epoch in epochs] == wanted
        assert texts(epochs[0]) == sorted(PAIRS)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"max_length": 40}, {"tokens_per_batch": 40}])
def test_subword_dropout_of_pairs_too_long_is_without_dropout(options):
    assert max(len(row) for pair in PLAIN for row in pair) + 1 <= 40
    drawn = SubwordDropout(WORDS, 0.7)
    epoch = arrays(by_tokens(source=drawn, target=drawn, length_multiple=1, **options))
    assert texts(epoch) == sorted(PAIRS)
    found = rows(epoch)
    assert max(len(row) for pair in found for row in pair) + 1 <= 40
    assert 0 < len({*PLAIN} & {*found}) < len(PAIRS)


def test_subword_dropout_needs_a_seed_and_token_batches():
    said = "token_batches: `shuffle_seed` must be given with a SubwordDropout"
    with pytest.raises(ValueError, match=said):
        by_tokens(shuffle_seed=None)
    for side in ("source_vocabulary", "target_vocabulary"):
        vocabularies = {"source_vocabulary": WORDS, "target_vocabulary": WORDS, side: DRAWN}
        said = f"translation_batches: `{side}` must be the same in each epoch"
        with pytest.raises(ValueError, match=said):
            translation_batches(PAIRS, batch_size=8, **vocabularies)
