"""Which batches are used in which epochs, and at which learning rate.

A model learns fastest from plain batches. Then some epochs with BPE dropout or SimCut
reduce overfitting. Words are whole again at the end, while the learning rate decays.
"""

import argparse
import functools
from collections.abc import Callable
from typing import NamedTuple

import keras

from tfattn import data, training
from tfattn.translator.corpus import Pairs, Words
from tfattn.translator.presets import Preset

__all__ = ["KINDS", "MAX_LENGTH", "Phase", "count_too_long", "learning_rate", "phases"]

MAX_LENGTH = 100  # tokens of a training sentence, its begin or end included


class Phase(NamedTuple):
    """Some epochs of a training, and what is learned from in them: a `tf.data.Dataset`."""

    batches: object
    counter: data.EpochCounter
    epochs: range
    loss: Callable  # from the label smoothing to a loss


class Kind(NamedTuple):
    """What is learned from.

    Attributes:
        words: function from both vocabularies to those that batches are made with.
        batches: function from the batches, both vocabularies and a seed to those of the phase.
        loss: function from the label smoothing to the loss.
    """

    words: Callable
    batches: Callable
    loss: Callable


def phases(
    preset: Preset, train: Pairs, words: list[Words], options: argparse.Namespace
) -> list[Phase]:
    """The phases of a training of `options.epochs` epochs; `words` has both vocabularies."""
    found, begin = [], 0
    for kind, end in (*preset.curriculum, ("plain", options.epochs)):
        epochs = range(begin, min(end, options.epochs))
        if epochs:
            counter = data.EpochCounter()
            batches = data.token_batches(
                train,
                *KINDS[kind].words(words),
                options.tokens,
                max_length=MAX_LENGTH,
                shuffle_seed=options.seed,
                epoch_counter=counter,
            )
            batches = KINDS[kind].batches(batches, words, options.seed)
            found.append(Phase(batches, counter, epochs, KINDS[kind].loss))
        begin = end
    return found


def _same(words):
    return words


def _bpe_dropout(words):
    return [
        data.SubwordDropout(each) if isinstance(each, data.SubwordVocabulary) else each
        for each in words
    ]


def _plain(batches, words, seed):
    return batches


def _simcut(batches, words, seed):
    return data.simcut_batches(batches, *words, seed=seed)


# An epoch of SimCut has as many updates as a plain one, of twice the rows.
KINDS = {
    "plain": Kind(_same, _plain, training.MaskedCrossentropy),
    "bpe_dropout": Kind(_bpe_dropout, _plain, training.MaskedCrossentropy),
    # The paper's weight is 3. A model of few parameters then learns less than without.
    "simcut": Kind(_same, _simcut, functools.partial(training.SimCutCrossentropy, weight=1.0)),
}


def count_too_long(train: Pairs, words: list[Words]) -> int:
    """How many pairs no phase learns from."""

    def is_long(side, line):
        # Letters are quicker to count than tokens, of which there is at most one more.
        return len(line) + 1 >= MAX_LENGTH and len(side.encode(line)) >= MAX_LENGTH

    return sum(any(map(is_long, words, pair)) for pair in train)


def learning_rate(
    preset: Preset, updates: list[int]
) -> keras.optimizers.schedules.LearningRateSchedule:
    """The learning rate of a run; `updates` has the number of them in each epoch."""
    schedule = training.InverseSquareRootSchedule(preset.peak, preset.warmup)
    if not preset.cooldown:
        return schedule
    steps = sum(updates[-preset.cooldown :])
    return training.Cooldown(schedule, start=sum(updates) - steps, steps=steps)
