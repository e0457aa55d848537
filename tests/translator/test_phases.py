"""Training phases, their batches and losses, and the learning rate."""

import types

import numpy as np
import pytest

import tfattn
from tfattn import data
from tfattn.translator import corpus

PAIRS = data.toy_translation(60, seed=0)
SENTENCES = [sentence for pair in PAIRS for sentence in pair]


@pytest.mark.parametrize("cooldown, start", [(0, 29), (1, 24), (2, 17), (5, 0), (9, 0)])
def test_learning_rate_decays_to_zero_in_the_cooldown(new_preset, cooldown, start):
    preset = new_preset(peak=0.01, warmup=3, cooldown=cooldown)
    rate = preset.learning_rate([3, 3, 11, 7, 5])
    plain = tfattn.InverseSquareRootSchedule(0.01, 3)
    for step in range(29):
        factor = (29 - step) / (29 - start) if step >= start else 1.0
        assert float(rate(step)) == pytest.approx(float(plain(step)) * factor, rel=1e-5)


@pytest.fixture
def phases_of(new_preset):
    """Function from words and epochs to the phases of a training."""

    def phases(words, epochs):
        options = types.SimpleNamespace(tokens=256, seed=0, epochs=epochs)
        preset = new_preset(epochs=6, bpe_dropout=(2, 4))
        return corpus.phases(preset, PAIRS, [words, words], options)

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
        (9, [range(2), range(2, 4), range(4, 9)]),
    ],
)
def test_phases_are_those_of_the_preset(phases_of, epochs, wanted):
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
def test_phases_of_words_have_no_bpe_dropout(phases_of):
    phases = phases_of(data.Vocabulary.from_sentences(SENTENCES), 4)
    assert len(phases) == 2 and len({len(phase.batches) for phase in phases}) == 1
