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


# An epoch of SimCut has as many updates as a plain epoch, each with twice the rows.
KINDS = ("plain", "bpe_dropout", "simcut")


def phases(
    preset: Preset, train: Pairs, words: list[Words], options: argparse.Namespace
) -> list[Phase]:
    """The phases of `options.epochs` epochs; `words` has both vocabularies."""
    found, begin = [], 0
    for kind, end in (*preset.curriculum, ("plain", options.epochs)):
        epochs = range(begin, min(end, options.epochs))
        if epochs:
            counter, loss = data.EpochCounter(), training.MaskedCrossentropy
            batches = data.token_batches(
                train,
                *(_with_dropout(words) if kind == "bpe_dropout" else words),
                options.tokens,
                max_length=MAX_LENGTH,
                shuffle_seed=options.seed,
                epoch_counter=counter,
            )
            if kind == "simcut":
                batches = data.simcut_batches(batches, *words, seed=options.seed)
                # With the paper's weight of 3, a small model learns less than without SimCut.
                loss = functools.partial(training.SimCutCrossentropy, weight=1.0)
            found.append(Phase(batches, counter, epochs, loss))
        begin = end
    return found


def _with_dropout(words):
    return [
        data.SubwordDropout(each) if isinstance(each, data.SubwordVocabulary) else each
        for each in words
    ]


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
