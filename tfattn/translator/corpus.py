"""Sentence pairs, from files or from the toy grammar, and new vocabularies for them."""

import argparse

from tfattn import data

Pairs = list[tuple[str, str]]
Words = data.Vocabulary | data.SubwordVocabulary


def training_and_validation(options: argparse.Namespace) -> tuple[Pairs, Pairs]:
    if options.data is None:
        toy = data.toy_translation(options.pairs, seed=options.seed)
        return data.split_pairs(toy, seed=options.seed)
    return read(options, "train"), read(options, "val")


def read(options: argparse.Namespace, part: str) -> Pairs:
    """The sentence pairs of `part` in both languages, from plain or compressed files."""

    def path(language):
        compressed = options.data / f"{part}.{language}.gz"
        return compressed if compressed.exists() else options.data / f"{part}.{language}"

    source, target = options.languages
    return data.read_parallel(path(source), path(target))


def new_vocabularies(options: argparse.Namespace, train: Pairs) -> list[Words]:
    """Two word vocabularies, or one shared subword vocabulary twice."""
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
