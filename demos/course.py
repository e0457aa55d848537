"""The course of a training: what is learnt from in which epochs, and at which rate."""

from typing import NamedTuple

import tfattn
from tfattn import data, training

MAX_LENGTH = 100  # tokens of a training sentence, its begin or end included


class Preset(NamedTuple):
    """One size of a model, and how it is trained. `subwords` 0 stands for whole words."""

    model: dict
    subwords: int
    tokens: int  # in a batch, on its longer side
    epochs: int
    peak: float  # of the learning rate
    warmup: int  # updates
    look_back: int  # updates that the averaged weights stand for
    cooldown: int = 0  # epochs at the end in which the rate goes down to zero
    bleu_every: int = 5  # epochs
    # (one of `KINDS`, the epoch that ends it), one after another; after the last of them all is
    # "plain"
    course: tuple = ()


class Phase(NamedTuple):
    """Some epochs of a training, and what is learnt from in them."""

    batches: object  # a `tf.data.Dataset`
    counter: data.EpochCounter
    epochs: range


def phases(preset, train, words, options):
    """The phases of a training of `options.epochs` epochs on the pairs of `train`; `words` has both
    vocabularies.
    """
    found, begin = [], 0
    for kind, end in (*preset.course, ("plain", options.epochs)):
        epochs = range(begin, min(end, options.epochs))
        if epochs:
            counter = data.EpochCounter()
            shared = {
                "max_length": MAX_LENGTH,
                "shuffle_seed": options.seed,
                "epoch_counter": counter,
            }
            found.append(
                Phase(KINDS[kind](train, words, options.tokens, **shared), counter, epochs)
            )
        begin = end
    return found


def _plain(train, words, tokens, **options):
    return data.token_batches(train, *words, tokens, **options)


def _cut(train, words, tokens, **options):
    """BPE dropout, where there are subwords."""
    words = [
        data.SubwordDropout(each) if isinstance(each, data.SubwordVocabulary) else each
        for each in words
    ]
    return data.token_batches(train, *words, tokens, **options)


def _twice(train, words, tokens, **options):
    """R-Drop: half as many pairs in a batch, each of them twice."""
    try:
        return data.twice(data.token_batches(train, *words, tokens // 2, **options))
    except ValueError as error:
        raise ValueError(
            f"a phase with each pair twice has room for half as many: {error}"
        ) from None


# What a phase learns from. A model learns quickest from plain batches; then some epochs of another
# kind keep it from learning few sentences by heart; and plain ones again, while the rate goes down,
# end the course.
KINDS = {"plain": _plain, "cut": _cut, "twice": _twice}


def too_long(train, words):
    """How many pairs no phase learns from."""

    def is_long(side, line):
        # Letters are quicker to count than tokens, of which there is at most one more.
        return len(line) + 1 >= MAX_LENGTH and len(side.encode(line)) >= MAX_LENGTH

    return sum(any(map(is_long, words, pair)) for pair in train)


def loss(preset):
    """The loss of a run: R-Drop's, which costs time, where some of its batches have each pair
    twice.
    """
    twice = any(kind == "twice" for kind, _ in preset.course)
    return (training.RDropCrossentropy if twice else tfattn.MaskedCrossentropy)(label_smoothing=0.1)


def rate(preset, updates):
    """The learning rate of a run; `updates` has the number of them in each epoch."""
    found = tfattn.InverseSquareRootSchedule(preset.peak, preset.warmup)
    if not preset.cooldown:
        return found
    last = sum(updates[-preset.cooldown :])
    return training.Cooldown(found, start=sum(updates) - last, steps=last)
