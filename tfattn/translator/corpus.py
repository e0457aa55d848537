"""Sentence pairs, from files or from the toy grammar, and new vocabularies for them."""

import argparse

from tfattn import data

__all__ = ["new_vocabularies", "read", "training_and_validation"]

Pairs = list[tuple[str, str]]
Words = data.Vocabulary | data.SubwordVocabulary


def training_and_validation(options: argparse.Namespace) -> tuple[Pairs, Pairs]:
    if options.data is None:
        toy = data.toy_translation(options.pairs, seed=options.seed)
        return data.split_pairs(toy, seed=options.seed)
    return read(options, "train"), read(options, "val")


def read(options: argparse.Namespace, part: str) -> Pairs:
    """The pairs of `part.en` and `part.de`, or of the languages that were asked for; a file may be
    packed.
    """

    def path(language):
        packed = options.data / f"{part}.{language}.gz"
        return packed if packed.exists() else options.data / f"{part}.{language}"

    source, target = options.languages
    return data.read_parallel(path(source), path(target))


def new_vocabularies(options: argparse.Namespace, train: Pairs) -> list[Words]:
    """Source and target, of whole words or, twice the same, of subwords."""
    if not options.subwords:
        min_count = 2 if options.data else 1
        return [
            data.Vocabulary.from_sentences(side, min_count) for side in zip(*train, strict=True)
        ]
    sentences = [sentence for pair in train for sentence in pair]
    try:
        return [data.SubwordVocabulary.from_sentences(sentences, options.subwords)] * 2
    except ValueError as error:
        raise ValueError(f"--subwords {options.subwords}: {error}") from None
