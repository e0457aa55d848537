"""Training phases, with their batches and losses, and the learning rate.

A model learns fastest from plain batches. Later epochs with BPE dropout or SimCut reduce
overfitting. The last epochs, with a decaying learning rate, use plain batches again.
"""

import argparse
import functools
from collections.abc import Callable
from typing import NamedTuple

import keras

from tfattn import data, training
from tfattn.translator.corpus import Pairs, Words
from tfattn.translator.presets import Preset

MAX_LENGTH = 100  # tokens of a training sentence, including its begin or end token


class Phase(NamedTuple):
    """Consecutive epochs that share their batches (a `tf.data.Dataset`) and their loss."""

    batches: object
    counter: data.EpochCounter
    epochs: range
    loss: Callable  # from label smoothing to a loss


class Kind(NamedTuple):
    """A kind of training phase.

    Attributes:
        words: function from both vocabularies to the encoders used for the batches.
        batches: function from plain batches, both vocabularies and a seed to the phase's batches.
        loss: function from label smoothing to a loss.
    """

    words: Callable
    batches: Callable
    loss: Callable


def phases(
    preset: Preset, train: Pairs, words: list[Words], options: argparse.Namespace
) -> list[Phase]:
    """The phases of `options.epochs` epochs; `words` has both vocabularies."""
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


# An epoch of SimCut has as many updates as a plain epoch, each with twice the rows.
KINDS = {
    "plain": Kind(_same, _plain, training.MaskedCrossentropy),
    "bpe_dropout": Kind(_bpe_dropout, _plain, training.MaskedCrossentropy),
    # With the paper's weight of 3, a small model learns less than without SimCut.
    "simcut": Kind(_same, _simcut, functools.partial(training.SimCutCrossentropy, weight=1.0)),
}


def count_too_long(train: Pairs, words: list[Words]) -> int:
    """The number of pairs that are too long for training."""

    def is_long(side, line):
        # Fast path: a line has at most one token more than letters.
        return len(line) + 1 >= MAX_LENGTH and len(side.encode(line)) >= MAX_LENGTH

    return sum(any(map(is_long, words, pair)) for pair in train)


def learning_rate(
    preset: Preset, updates: list[int]
) -> keras.optimizers.schedules.LearningRateSchedule:
    """The learning rate schedule; `updates` has the number of updates in each epoch."""
    schedule = training.InverseSquareRootSchedule(preset.peak, preset.warmup)
    if not preset.cooldown:
        return schedule
    steps = sum(updates[-preset.cooldown :])
    return training.Cooldown(schedule, start=sum(updates) - steps, steps=steps)
