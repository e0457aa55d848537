"""demos/course.py: phases, what is learnt from in them, and the rate; and a training that goes
through them.
"""

import types

import keras
import numpy as np
import pytest

import tfattn
from tfattn import data, training

UPDATES = [3, 3, 11, 7, 5]  # in each epoch


@pytest.mark.parametrize("cooldown, start", [(0, None), (2, 17), (9, 0)])
def test_the_rate_goes_down_to_zero_in_the_last_epochs(demo_module, plain_preset, cooldown, start):
    rate = demo_module("course").rate(plain_preset(peak=0.01, warmup=3, cooldown=cooldown), UPDATES)
    plain = tfattn.InverseSquareRootSchedule(0.01, 3)
    factors = np.array([float(rate(step)) / float(plain(step)) for step in range(29)])
    if start is None:
        np.testing.assert_array_equal(factors, 1.0)
    else:
        wanted = np.minimum(1.0, (29 - np.arange(29)) / (29 - start))
        np.testing.assert_allclose(factors, wanted, rtol=1e-5)


def test_a_batch_too_small_for_a_sentence_names_the_option(demo_module, plain_preset):
    options, words = types.SimpleNamespace(tokens=8, seed=0, epochs=1), data.Vocabulary(["a"])
    pairs = [("a " * 20, "a")]
    with pytest.raises(
        ValueError,
        match="--tokens 8, lines of at most 100 tokens: .* must be at least 24, for the longest",
    ):
        demo_module("translation")._batches(options, plain_preset(), pairs, pairs, (words, words))


@pytest.mark.parametrize(
    "letters, tokens", [(1, 98), (1, 99), (1, 100), (3, 98), (3, 99), (3, 100)]
)
def test_pairs_too_long_to_learn_from_are_counted(demo_module, letters, tokens):
    word = "a" * letters
    words, pairs = (
        data.Vocabulary([word]),
        [(word, word), (" ".join([word] * tokens), word), (word, word)],
    )
    course = demo_module("course")
    batches = data.token_batches(pairs, words, words, 400, max_length=course.MAX_LENGTH)
    kept = sum(len(target) for _, target in batches.as_numpy_iterator())
    assert course.too_long(pairs, (words, words)) == 3 - kept == (tokens >= 100)


def test_a_long_line_to_validate_with_needs_no_option(demo_module, plain_preset):
    words, pairs = data.Vocabulary(["a"]), [("a", "a")]
    options = types.SimpleNamespace(tokens=64, seed=0, epochs=1)
    _, held_out = demo_module("translation")._batches(
        options, plain_preset(), pairs, [("a", "a " * 1500)], (words, words)
    )
    assert [target.shape for _, target in held_out.as_numpy_iterator()] == [(1, 1504)]


@pytest.mark.parametrize(
    "course, twice", [((), False), ((("plain", 2), ("cut", 4)), False), ((("twice", 2),), True)]
)
def test_the_loss_looks_for_twins_where_there_are_some(demo_module, plain_preset, course, twice):
    loss = demo_module("course").loss(plain_preset(course=course))
    assert isinstance(loss, training.RDropCrossentropy) == twice and loss.label_smoothing == 0.1


COURSE = (("plain", 2), ("cut", 4), ("twice", 5))


@pytest.mark.parametrize(
    "epochs, wanted",
    [
        (7, [range(2), range(2, 4), range(4, 5), range(5, 7)]),
        (5, [range(2), range(2, 4), range(4, 5)]),
        (3, [range(2), range(2, 3)]),
        (1, [range(1)]),
    ],
)
def test_phases_follow_the_course_of_the_preset(demo_module, plain_preset, epochs, wanted):
    pairs = data.toy_translation(60, seed=0)
    words = data.SubwordVocabulary.from_sentences(
        [sentence for pair in pairs for sentence in pair], 90
    )
    options = types.SimpleNamespace(tokens=256, seed=0, epochs=epochs)

    def sources(batches):
        return [source for (source, _), _ in batches.as_numpy_iterator()]

    def tokens(batches):
        return sum(map(np.count_nonzero, sources(batches)))

    course = demo_module("course")
    phases = course.phases(plain_preset(course=COURSE), pairs, (words, words), options)
    assert [phase.epochs for phase in phases] == wanted
    plain, *others = [phase.batches for phase in phases]
    assert tokens(plain) == tokens(data.token_batches(pairs, words, words, 256))
    for cut in others[:1]:
        assert tokens(cut) > 1.05 * tokens(plain) and sum(map(len, sources(cut))) == 60
    for double in others[1:2]:
        assert all(np.array_equal(*np.split(source, 2)) for source in sources(double))
        assert tokens(double) == 2 * tokens(plain) and max(map(np.size, sources(double))) <= 256
    for last in others[2:]:
        assert tokens(last) == tokens(plain) and len(last) == len(plain)


def test_a_batch_too_small_for_a_pair_and_its_twin_says_so(demo_module, plain_preset):
    course, words = demo_module("course"), data.Vocabulary(["a"])
    options = types.SimpleNamespace(tokens=24, seed=0, epochs=1)
    with pytest.raises(
        ValueError,
        match="a phase with each pair twice has room for half as many: .* must be at least 24",
    ):
        course.phases(
            plain_preset(course=(("twice", 1),)), [("a " * 20, "a")], (words, words), options
        )


def test_whole_words_are_not_cut(demo_module, plain_preset):
    pairs = data.toy_translation(60, seed=0)
    words = data.Vocabulary.from_sentences([sentence for pair in pairs for sentence in pair])
    options = types.SimpleNamespace(tokens=256, seed=0, epochs=4)
    course = demo_module("course")
    phases = course.phases(plain_preset(course=COURSE), pairs, (words, words), options)
    assert len(phases) == 2 and len({len(phase.batches) for phase in phases}) == 1


@pytest.mark.slow
def test_a_training_goes_through_its_phases_and_on_with_them(demo_module, plain_preset, tmp_path):
    translation = demo_module("translation")
    pairs = data.toy_translation(60, seed=0)
    words = data.SubwordVocabulary.from_sentences(
        [sentence for pair in pairs for sentence in pair], 90
    )
    preset = plain_preset(peak=0.01, warmup=3, look_back=2, course=(("plain", 1), ("cut", 3)))

    def train(out, epochs):
        options = types.SimpleNamespace(tokens=256, seed=0, epochs=4, subwords=90, out=out)
        out.mkdir(exist_ok=True)
        keras.utils.set_random_seed(0)
        # The one of the demos' models whose step takes a third of the other's time to trace. Four
        # are traced here.
        model = tfattn.BahdanauSeq2Seq(len(words), len(words), width=8, units=8, dropout=0.3)
        model.build(((None, None), (None, None)))
        phases, held_out = translation._batches(options, preset, pairs, pairs, (words, words))
        backup = training.Backup(out / "backup.npz")
        phases = [
            phase._replace(epochs=range(phase.epochs.start, min(phase.epochs.stop, epochs)))
            for phase in phases
            if phase.epochs.start < epochs
        ]
        history = translation._train(
            options, preset, model, backup, phases, held_out, pairs[:5], (words, words)
        )
        return history, model.get_weights()

    whole, wanted = train(tmp_path / "whole", 4)
    for epochs in (1, 2, 4):  # stopped at the end of a phase, and amid one
        resumed, found = train(tmp_path / "resumed", epochs)
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(one, other)
    for name in ("loss", "val_loss", "accuracy"):
        np.testing.assert_array_equal(resumed[name], whole[name])
