"""Words cut by chance: BPE dropout, alone and in batches."""

import collections
import io
import itertools
import json
import tracemalloc

import hypothesis
import keras
import numpy as np
import pytest
import sentencepiece

from tests.processes import printed
from tfattn.data import (
    EpochCounter,
    SubwordDropout,
    SubwordVocabulary,
    Vocabulary,
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


def rows(dataset):
    """(source, target) ids of each pair, marks and padding left out, sorted."""
    return sorted(
        (tuple(source[source > 3].tolist()), tuple(target[target > 3].tolist()))
        for (sources, _), targets in dataset.as_numpy_iterator()
        for source, target in zip(sources, targets, strict=True)
    )


def texts(dataset):
    return sorted((WORDS.decode(source), WORDS.decode(target)) for source, target in rows(dataset))


def arrays(dataset):
    return [
        array.tolist()
        for (source, target_in), target in dataset.as_numpy_iterator()
        for array in (source, target_in, target)
    ]


def cut(word, joins, rate, generator):
    """Algorithm 1 of the paper, for one word; `joins` in the order in which they were learnt."""
    parts = list(word)
    while True:
        places = [i for i in range(len(parts) - 1) if parts[i] + parts[i + 1] in joins]
        places = [i for i in places if generator.random() >= rate]
        if not places:
            return tuple(parts)
        best = min(places, key=lambda i: joins.index(parts[i] + parts[i + 1]))
        parts[best : best + 2] = [parts[best] + parts[best + 1]]


def test_words_are_cut_as_often_as_in_the_paper_into_the_same_parts():
    words = SubwordVocabulary.from_sentences(["low lower lowest new newer newest"], size=30)
    joins = [part for part in words.words[4:] if len(part) > 1]
    rate, draws, generator = 0.4, 4000, np.random.default_rng(0)
    wanted = collections.Counter(cut("▁lowest", joins, rate, generator) for _ in range(draws))
    drawn = SubwordDropout(words, rate).draw(["lowest"] * draws, seed=1)
    found = collections.Counter(tuple(words.words[index] for index in ids) for ids in drawn)
    assert len(wanted) > 10
    for parts in wanted | found:  # five standard deviations of a difference of two counts
        assert abs(wanted[parts] - found[parts]) <= 5 * np.sqrt(wanted[parts] + found[parts])


@pytest.mark.parametrize("rate", [0.0, 0.3, 0.99])
def test_what_is_drawn_reads_as_the_sentence(rate):
    drawn = SubwordDropout(WORDS, rate).draw(SENTENCES, seed=1)
    assert [WORDS.decode(ids) for ids in drawn] == SENTENCES


ODD = [
    "",
    " ",
    "a",
    "zèbre ☃☃ ☃a☃ ",
    "the  black\tcat",
    "▁ ▅",
    "<eos> <pad>",
    "☃",
    "x" * 50,
    "\ud800",
]


@pytest.mark.slow
@hypothesis.settings(deadline=None)
@hypothesis.given(
    hypothesis.strategies.lists(
        hypothesis.strategies.text() | hypothesis.strategies.sampled_from(ODD)
    )
)
@hypothesis.example(ODD)
def test_no_dropout_is_what_encode_gives(sentences):
    plain = [WORDS.encode(sentence) for sentence in sentences]
    assert SubwordDropout(WORDS, 0.0).draw(sentences, seed=1) == plain


def test_no_dropout_is_what_encode_gives_on_a_corpus():
    assert SubwordDropout(WORDS, 0.0).draw(SENTENCES, seed=1) == [
        WORDS.encode(sentence) for sentence in SENTENCES
    ]


def test_a_vocabulary_without_joins_has_only_letters():
    letters = SubwordVocabulary.from_sentences(["a b"], size=7)
    assert sorted(letters.words[4:]) == ["a", "b", "▁"]
    assert SubwordDropout(letters, 0.5).draw(["ab ☃b"], seed=0) == [letters.encode("ab ☃b")]


def test_more_dropout_makes_more_parts():
    lengths = [
        sum(map(len, SubwordDropout(WORDS, rate).draw(SENTENCES, seed=1)))
        for rate in (0.0, 0.1, 0.3, 0.99)
    ]
    assert all(shorter < 0.97 * longer for shorter, longer in itertools.pairwise(lengths))


@pytest.mark.slow
def test_a_seed_gives_the_same_parts_in_any_process(tmp_path):
    first = DRAWN.draw(SENTENCES, seed=1)
    assert DRAWN.draw(SENTENCES, seed=1) == first != DRAWN.draw(SENTENCES, seed=2)
    WORDS.save(tmp_path / "words")
    (tmp_path / "sentences.json").write_text(json.dumps(SENTENCES))
    code = (
        "import json; from tfattn.data import *;"
        "words = SubwordDropout(SubwordVocabulary.load('words'), 0.2);"
        "print(words.draw(json.load(open('sentences.json')), seed=1))"
    )
    assert json.loads(printed("-c", code, folder=tmp_path, PYTHONHASHSEED="7")) == first


@pytest.mark.slow
def test_a_long_word_costs_no_more_than_its_letters():
    long = "thecatsleeps" * 200
    assert WORDS.decode(DRAWN.draw([*SENTENCES, long], seed=0)[-1]) == long
    tracemalloc.start()
    DRAWN.draw([*SENTENCES, long], seed=0)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    words = sum(len(sentence.split()) for sentence in SENTENCES)
    # bytes, of one row for each word as long as the longest
    assert most < 0.1 * words * len(long) * 4


def test_it_stands_where_its_vocabulary_stands():
    for name in ("padding_id", "unknown_id", "begin_id", "end_id", "words"):
        assert getattr(DRAWN, name) == getattr(WORDS, name)
    assert len(DRAWN) == len(WORDS)
    ids = DRAWN.encode(SENTENCES[0])
    assert ids == WORDS.encode(SENTENCES[0]) and DRAWN.decode(ids) == SENTENCES[0]


@pytest.mark.parametrize("seed", [-1, 0.5, None])
def test_a_seed_is_an_integer_of_at_least_0(seed):
    with pytest.raises(
        ValueError, match="SubwordDropout.draw: `seed` must be an integer of at least 0"
    ):
        DRAWN.draw(["a"], seed)


@pytest.mark.parametrize("sentences", ["a b", [3], None])
def test_sentences_are_a_collection_of_strings(sentences):
    with pytest.raises(ValueError, match="SubwordDropout.draw: `sentences` must (be|hold)"):
        DRAWN.draw(sentences, seed=0)


@pytest.mark.parametrize("rate", [-0.1, 1, "much"])
def test_a_rate_is_a_probability(rate):
    with pytest.raises(ValueError, match=r"SubwordDropout: `rate` must be a number in \[0, 1\)"):
        SubwordDropout(WORDS, rate)


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
def test_a_vocabulary_of_another_make_is_refused(options):
    model = io.BytesIO()
    ids = {f"{name}_id": index for index, name in enumerate(("pad", "unk", "bos", "eos"))}
    options = {
        "model_type": "bpe",
        "normalization_rule_name": "identity",
        "vocab_size": 150,
        **ids,
        **options,
    }
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES),
        model_writer=model,
        minloglevel=2,
        hard_vocab_limit=False,
        **options,
    )
    with pytest.raises(
        ValueError, match="SubwordDropout: `vocabulary` must be of byte pairs, joined within words"
    ):
        SubwordDropout(SubwordVocabulary(model.getvalue()))


def test_whole_words_have_no_parts():
    with pytest.raises(
        ValueError, match="SubwordDropout: `vocabulary` must be a SubwordVocabulary"
    ):
        SubwordDropout(Vocabulary(["a"]))


@pytest.mark.slow
def test_each_epoch_has_every_pair_once_in_parts_of_its_own():
    dataset = by_tokens()
    first, second = rows(dataset), rows(dataset)
    assert len({*first} & {*second}) < 0.2 * len(PAIRS)
    assert texts(dataset) == texts(dataset) == sorted(PAIRS)


@pytest.mark.slow
def test_the_sides_are_drawn_apart():
    pairs = [(sentence, sentence) for sentence in SENTENCES]
    assert sum(source == target for source, target in rows(by_tokens(pairs))) < 0.2 * len(pairs)


@pytest.mark.slow
@pytest.mark.parametrize("side", [0, 1])
def test_one_side_may_be_drawn_alone(side):
    dataset = by_tokens(**{("source", "target")[1 - side]: WORDS})
    plain = {tuple(WORDS.encode(pair[1 - side])) for pair in PAIRS}
    assert {row[1 - side] for row in rows(dataset)} == plain
    assert len(
        {row[side] for row in rows(dataset)} & {tuple(WORDS.encode(pair[side])) for pair in PAIRS}
    ) < 0.3 * len(PAIRS)


@pytest.mark.slow
def test_an_epoch_is_a_function_of_the_seed_and_its_number():
    unbroken = by_tokens(shuffle_seed=5)
    epochs = [arrays(unbroken) for _ in range(3)]
    keras.utils.set_random_seed(99)
    resumed = by_tokens(shuffle_seed=5, epoch_counter=EpochCounter(1))
    assert [arrays(resumed) for _ in range(2)] == epochs[1:]
    assert arrays(by_tokens(shuffle_seed=6)) != epochs[0]


@pytest.mark.slow
@pytest.mark.parametrize("length_multiple", [1, 4])
def test_batches_keep_the_budget_and_their_number(length_multiple):
    dataset = by_tokens(length_multiple=length_multiple)
    for _ in range(5):
        sizes = [
            array.shape
            for (source, target), _ in dataset.as_numpy_iterator()
            for array in (source, target)
        ]
        assert all(batch * length <= 256 for batch, length in sizes)
        assert len(sizes) == 2 * len(dataset)
    fullness = [batch * length / 256 for batch, length in sizes]
    assert np.mean(fullness) > 0.7  # both sides, of which one is the longer


class Moody(SubwordDropout):
    """Letters in some epochs, and whole words in others."""

    def draw(self, sentences, seed):
        return SubwordDropout(self.vocabulary, 0.9 * (seed % 2)).draw(sentences, seed)


@pytest.mark.slow
def test_an_epoch_that_needs_more_batches_than_the_first_is_cut_as_without_dropout():
    plain = sorted(
        (tuple(WORDS.encode(source)), tuple(WORDS.encode(target))) for source, target in PAIRS
    )
    # Of the first epoch on: letters, words, letters, letters, words; and words, words, letters,
    # words, words.
    for seed, wanted in ((0, [False, True, False, False, True]), (9, [True] * 5)):
        dataset = by_tokens(source=Moody(WORDS), target=WORDS, shuffle_seed=seed)
        assert [rows(dataset) == plain for _ in wanted] == wanted
        assert texts(dataset) == sorted(PAIRS)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"max_length": 40}, {"tokens_per_batch": 40}])
def test_pairs_that_would_be_too_long_are_cut_as_without_dropout(options):
    longest = max(len(WORDS.encode(sentence)) for sentence in SENTENCES) + 1
    assert longest <= 40
    dataset = by_tokens(
        source=SubwordDropout(WORDS, 0.7),
        target=SubwordDropout(WORDS, 0.7),
        length_multiple=1,
        **options,
    )
    assert texts(dataset) == sorted(PAIRS)
    found = rows(dataset)
    assert max(len(row) for pair in found for row in pair) + 1 <= 40
    plain = {(tuple(WORDS.encode(source)), tuple(WORDS.encode(target))) for source, target in PAIRS}
    assert 0 < len(plain & {*found}) < len(PAIRS)


@pytest.mark.slow
def test_one_pair_makes_one_batch():
    dataset = by_tokens(PAIRS[:1])
    assert len(dataset) == 1 and texts(dataset) == texts(dataset) == PAIRS[:1]


@pytest.mark.slow
def test_fit_takes_every_batch_of_every_epoch():
    dataset = by_tokens()
    source, target = keras.Input((None,)), keras.Input((None,))
    model = keras.Model((source, target), keras.layers.Embedding(len(WORDS), 1)(target))
    model.compile("sgd", "mse")
    seen = []
    count = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: seen.append(batch)
    )
    model.fit(dataset, epochs=3, shuffle=False, verbose=0, callbacks=[count])
    assert seen == 3 * list(range(len(dataset)))


def test_chance_needs_a_seed():
    with pytest.raises(
        ValueError,
        match="token_batches: `shuffle_seed` must be given where words are cut by chance",
    ):
        by_tokens(shuffle_seed=None)


@pytest.mark.parametrize("side", ["source_vocabulary", "target_vocabulary"])
def test_batches_that_encode_once_refuse_it(side):
    vocabularies = {"source_vocabulary": WORDS, "target_vocabulary": WORDS, side: DRAWN}
    with pytest.raises(
        ValueError, match=f"translation_batches: `{side}` must encode alike in each epoch"
    ):
        translation_batches(PAIRS, batch_size=8, **vocabularies)
