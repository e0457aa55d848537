"""Training phases, with their batches, and the learning rate.

A model learns fastest from plain batches. Later epochs with BPE dropout reduce overfitting.
"""

import argparse
from typing import Any, NamedTuple

import keras

from tfattn import data, training
from tfattn.translator.corpus import Pairs, Vocabulary
from tfattn.translator.presets import Phase, Preset

MAX_LENGTH = 100  # tokens of a training sentence, including its begin or end token


class FitPhase(NamedTuple):
    """Consecutive epochs that share their batches and their schedule."""

    batches: Any  # one for each update
    counter: data.EpochCounter
    epochs: range
    rate: keras.optimizers.schedules.LearningRateSchedule


KINDS = ("plain", "bpe_dropout")


def training_phases(preset: Preset, epochs: int) -> list[tuple[Phase, range]]:
    """The phases of a training run of `epochs` epochs, each with its range.

    The last phase is cut or extended. If it has no cooldown, it gets the cooldown of
    the preset's last phase.
    """
    found, begin = [], 0
    for number, phase in enumerate(preset.phases, 1):
        end = epochs if number == len(preset.phases) else min(begin + phase.epochs, epochs)
        if begin < end:
            found.append((phase, range(begin, end)))
        begin = end
    last, its_epochs = found.pop()
    cooldown = last.cooldown or preset.phases[-1].cooldown
    return [*found, (last._replace(cooldown=cooldown), its_epochs)]


def cooldowns(planned: list[tuple[Phase, range]]) -> list[range]:
    """The epochs of each cooldown. One that is longer than its phase begins earlier."""
    found = [range(0)]
    for phase, epochs in planned:
        if phase.cooldown:
            start = max(found[-1].stop, epochs.stop - phase.cooldown)
            found.append(range(start, epochs.stop))
    return found[1:]


def phases(
    preset: Preset, train: Pairs, vocabularies: list[Vocabulary], options: argparse.Namespace
) -> list[FitPhase]:
    """The phases of `options.epochs` epochs; `vocabularies` are those of source and target."""
    planned = training_phases(preset, options.epochs)
    prepared = [_prepared(phase.kind, train, vocabularies, options) for phase, _ in planned]
    pairs = list(zip(planned, prepared, strict=True))
    updates = [len(batches) for (_, epochs), (batches, _) in pairs for _ in epochs]
    rates = learning_rates(preset.warmup, planned, updates)
    return [
        FitPhase(*own, epochs, rate) for ((_, epochs), own), rate in zip(pairs, rates, strict=True)
    ]


def _prepared(
    kind: str, train: Pairs, vocabularies: list[Vocabulary], options: argparse.Namespace
) -> tuple[Any, data.EpochCounter]:
    """Batches of a kind of phase, and the counter of their epochs."""
    counter = data.EpochCounter()
    source, target = _with_dropout(vocabularies) if kind == "bpe_dropout" else vocabularies
    batches = data.token_batches(
        train,
        source,
        target,
        options.tokens,
        max_length=MAX_LENGTH,
        shuffle_seed=options.seed,
        epoch_counter=counter,
    )
    return batches, counter


def _with_dropout(vocabularies: list[Vocabulary]) -> list[Any]:
    return [
        data.SubwordDropout(each) if isinstance(each, data.SubwordVocabulary) else each
        for each in vocabularies
    ]


def count_too_long(train: Pairs, vocabularies: list[Vocabulary]) -> int:
    """The number of pairs that are too long for training."""

    def is_long(side: Vocabulary, line: str) -> bool:
        # Fast path: a line has at most one token more than characters.
        return len(line) + 1 >= MAX_LENGTH and len(side.encode(line)) >= MAX_LENGTH

    return sum(any(map(is_long, vocabularies, pair)) for pair in train)


def learning_rates(
    warmup: int, planned: list[tuple[Phase, range]], updates: list[int]
) -> list[keras.optimizers.schedules.LearningRateSchedule]:
    """The schedule of each phase; `updates` has the number of updates in each epoch."""
    rates = []
    for phase, epochs in planned:
        rate = training.InverseSquareRootSchedule(phase.peak, warmup)
        for cooled in cooldowns(planned):
            if cooled.start < epochs.stop and epochs.start < cooled.stop:
                start, stop = sum(updates[: cooled.start]), sum(updates[: cooled.stop])
                rate = training.Cooldown(rate, start, stop - start)
        rates.append(rate)
    return rates
