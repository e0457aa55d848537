"""Sentence pairs, from files or from the toy grammar, with vocabularies and batches for them."""

import argparse
from collections.abc import Iterable
from typing import Any, NamedTuple

from tfattn import data
from tfattn.translator.arguments import WrongName
from tfattn.translator.presets import Preset

Pairs = list[tuple[str, str]]
Vocabulary = data.Vocabulary | data.SubwordVocabulary | data.MarianVocabulary
Vocabularies = tuple[Vocabulary, Vocabulary]
MAX_LENGTH = 100  # tokens of a training sentence, including its begin or end token


def training_and_validation(options: argparse.Namespace) -> tuple[Pairs, Pairs]:
    if options.data is None:
        toy = data.toy_translation(options.pairs, seed=options.seed)
        return data.split_pairs(toy, seed=options.seed)
    return read(options, "train"), read(options, "val")


def read(options: argparse.Namespace, part: str, option: str = "--data") -> Pairs:
    """The sentence pairs of `part`, which `option` named, from plain or compressed files."""
    paths = []
    for language in options.languages:
        path = options.data / f"{part}.{language}"
        compressed = path.with_name(f"{path.name}.gz")
        paths.append(compressed if compressed.exists() else path)
        if not paths[-1].is_file():
            others = [each.name for each in options.data.glob("*.*")]
            if option != "--parts" and any(name.startswith(f"{part}.") for name in others):
                option = "--languages"
            raise WrongName(option if others else "--data", f"file {path}", others)
    return data.read_parallel(*paths)


def new_vocabularies(options: argparse.Namespace, train: Pairs) -> Vocabularies:
    """Two word vocabularies, or one shared subword vocabulary twice."""
    if not options.subwords:
        min_count = 2 if options.data else 1
        sides = zip(*train, strict=True)
        source, target = (data.Vocabulary.from_sentences(side, min_count) for side in sides)
        return source, target
    sentences = [sentence for pair in train for sentence in pair]
    size, symbols = options.subwords, options.symbols or ()
    shared = data.SubwordVocabulary.from_sentences(sentences, size, symbols=symbols)
    return shared, shared


class FitPhase(NamedTuple):
    """Consecutive epochs that share their batches."""

    batches: Any  # one for each update
    counter: data.EpochCounter
    epochs: range


def phases(
    preset: Preset, train: Pairs, vocabularies: Vocabularies, options: argparse.Namespace
) -> list[FitPhase]:
    """The phases of `options.epochs` epochs: plain, which teaches fastest, and with BPE dropout."""
    begin, end = preset.bpe_dropout
    found = []
    for start, stop in ((0, begin), (begin, end), (end, options.epochs)):
        if epochs := range(start, min(stop, options.epochs)):
            sides: Iterable[Any] = vocabularies
            subwords = [v for v in vocabularies if isinstance(v, data.SubwordVocabulary)]
            if stop == end > begin and subwords:  # both or none
                sides = map(data.SubwordDropout, subwords)
            source, target = sides
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
