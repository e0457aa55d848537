"""The batches of each epoch, and the learning rate.

A model learns fastest from plain batches. Later epochs with BPE dropout reduce overfitting.
"""

import argparse
from typing import Any, NamedTuple

from tfattn import data, training
from tfattn.translator.corpus import Pairs, Vocabulary
from tfattn.translator.presets import Preset

MAX_LENGTH = 100  # tokens of a training sentence, including its begin or end token


class FitPhase(NamedTuple):
    """Consecutive epochs that share their batches."""

    batches: Any  # one for each update
    counter: data.EpochCounter
    epochs: range


def phases(
    preset: Preset, train: Pairs, vocabularies: list[Vocabulary], options: argparse.Namespace
) -> list[FitPhase]:
    """The phases of `options.epochs` epochs; `vocabularies` are those of source and target."""
    begin, end = preset.bpe_dropout
    planned = [(0, begin, False), (begin, end, True), (end, options.epochs, False)]
    found = []
    for start, stop, cut in planned:
        if epochs := range(start, min(stop, options.epochs)):
            source, target = _with_dropout(vocabularies) if cut else vocabularies
            counter = data.EpochCounter()
            batches = data.token_batches(
                train,
                source,
                target,
                options.tokens,
                max_length=MAX_LENGTH,
                shuffle_seed=options.seed,
                epoch_counter=counter,
            )
            found.append(FitPhase(batches, counter, epochs))
    return found


def _with_dropout(vocabularies: list[Vocabulary]) -> list[Any]:
    return [
        data.SubwordDropout(each) if isinstance(each, data.SubwordVocabulary) else each
        for each in vocabularies
    ]


def learning_rate(preset: Preset, phases: list[FitPhase]) -> Any:
    """The schedule of all epochs: the last `preset.cooldown` of them decay to zero."""
    updates = [len(phase.batches) for phase in phases for _ in phase.epochs]
    rate = training.InverseSquareRootSchedule(preset.peak, preset.warmup)
    cooled = sum(updates[-preset.cooldown :]) if preset.cooldown else 0
    return training.Cooldown(rate, sum(updates) - cooled, cooled) if cooled else rate


def count_too_long(train: Pairs, vocabularies: list[Vocabulary]) -> int:
    """The number of pairs that are too long for training."""

    def is_long(side: Vocabulary, line: str) -> bool:
        # Fast path: a line has at most one token more than characters.
        return len(line) + 1 >= MAX_LENGTH and len(side.encode(line)) >= MAX_LENGTH

    return sum(any(map(is_long, vocabularies, pair)) for pair in train)
