"""Training phases, their batches and losses, and the learning rate."""

import types

import numpy as np
import pytest

import tfattn
from tfattn import data, training
from tfattn.translator import curriculum

UPDATES = [3, 3, 11, 7, 5]  # in each epoch
CURRICULUM = (("plain", 2), ("bpe_dropout", 4))
PAIRS = data.toy_translation(60, seed=0)
SENTENCES = [sentence for pair in PAIRS for sentence in pair]


@pytest.mark.parametrize("cooldown, start", [(0, None), (2, 17), (9, 0)])
def test_the_rate_decays_to_zero_in_the_last_epochs(new_preset, cooldown, start):
    rate = curriculum.learning_rate(new_preset(peak=0.01, warmup=3, cooldown=cooldown), UPDATES)
    plain = tfattn.InverseSquareRootSchedule(0.01, 3)
    factors = np.array([float(rate(step)) / float(plain(step)) for step in range(29)])
    if start is None:
        np.testing.assert_array_equal(factors, 1.0)
    else:
        wanted = np.minimum(1.0, (29 - np.arange(29)) / (29 - start))
        np.testing.assert_allclose(factors, wanted, rtol=1e-5)


@pytest.mark.parametrize(
    "letters, tokens", [(1, 98), (1, 99), (1, 100), (3, 98), (3, 99), (3, 100)]
)
def test_pairs_too_long_to_learn_from_are_counted(letters, tokens):
    word = "a" * letters
    words = data.Vocabulary([word])
    pairs = [(word, word), (" ".join([word] * tokens), word), (word, word)]
    batches = data.token_batches(pairs, words, words, 400, max_length=curriculum.MAX_LENGTH)
    kept = sum(len(target) for _, target in batches.as_numpy_iterator())
    assert curriculum.count_too_long(pairs, [words, words]) == 3 - kept == (tokens >= 100)


@pytest.fixture
def phases_of(new_preset):
    """Function from words and epochs to the phases of a training with this curriculum."""

    def phases(words, epochs, steps=CURRICULUM):
        options = types.SimpleNamespace(tokens=256, seed=0, epochs=epochs)
        return curriculum.phases(new_preset(curriculum=steps), PAIRS, [words, words], options)

    return phases


SUBWORDS = data.SubwordVocabulary.from_sentences(SENTENCES, 90)


@pytest.mark.slow
@pytest.mark.parametrize(
    "epochs, wanted",
    [
        (6, [range(2), range(2, 4), range(4, 6)]),
        (4, [range(2), range(2, 4)]),
        (3, [range(2), range(2, 3)]),
        (1, [range(1)]),
    ],
)
def test_phases_follow_the_curriculum_of_the_preset(phases_of, epochs, wanted):
    def sources(batches):
        return [source for (source, _), _ in batches.as_numpy_iterator()]

    def tokens(batches):
        return sum(map(np.count_nonzero, sources(batches)))

    phases = phases_of(SUBWORDS, epochs)
    assert [phase.epochs for phase in phases] == wanted
    plain, *others = [phase.batches for phase in phases]
    assert tokens(plain) == tokens(data.token_batches(PAIRS, SUBWORDS, SUBWORDS, 256))
    for cut in others[:1]:
        assert tokens(cut) > 1.05 * tokens(plain) and sum(map(len, sources(cut))) == 60
    for last in others[1:]:
        assert tokens(last) == tokens(plain) and len(last) == len(plain)


@pytest.mark.slow
@pytest.mark.parametrize("kind", curriculum.KINDS)
def test_each_kind_has_its_batches_and_its_loss(phases_of, kind):
    first, last = phases_of(SUBWORDS, 3, ((kind, 2),))
    ((source, _), target) = next(first.batches.as_numpy_iterator())
    twice = kind == "simcut"
    half = len(target) // 2
    assert np.array_equal(target[:half], target[half:]) == twice
    if twice:
        assert not np.array_equal(source[:half], source[half:])
    loss = first.loss(label_smoothing=0.2)
    assert type(loss) is (training.SimCutCrossentropy if twice else training.MaskedCrossentropy)
    assert loss.label_smoothing == 0.2
    assert getattr(loss, "weight", None) == (1.0 if twice else None)
    assert last.loss is training.MaskedCrossentropy


@pytest.mark.slow
def test_word_vocabularies_have_no_bpe_dropout(phases_of):
    phases = phases_of(data.Vocabulary.from_sentences(SENTENCES), 4)
    assert len(phases) == 2 and len({len(phase.batches) for phase in phases}) == 1
