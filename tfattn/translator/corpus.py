"""Sentence pairs, from files or from the toy grammar, and new vocabularies for them."""

import argparse

from tfattn import data
from tfattn.translator.arguments import WrongName

Pairs = list[tuple[str, str]]
Vocabulary = data.Vocabulary | data.SubwordVocabulary | data.MarianVocabulary


def training_and_validation(options: argparse.Namespace) -> tuple[Pairs, Pairs]:
    if options.data is None:
        toy = data.toy_translation(options.pairs, seed=options.seed)
        return data.split_pairs(toy, seed=options.seed)
    return read(options, "train"), read(options, "val")


def read(options: argparse.Namespace, part: str, option: str = "--data") -> Pairs:
    """The sentence pairs of `part`, which `option` named, from plain or compressed files."""
    folder, paths = options.data, []
    for language in options.languages:
        plain = folder / f"{part}.{language}"
        compressed = folder / f"{plain.name}.gz"
        paths.append(compressed if compressed.exists() else plain)
    for missing in paths:
        if not missing.is_file():
            others = [each.name for each in folder.glob("*.*")]
            if option != "--parts" and any(name.startswith(f"{part}.") for name in others):
                option = "--languages"
            raise WrongName(option if others else "--data", f"file {missing}", others)
    return data.read_parallel(*paths)


def new_vocabularies(options: argparse.Namespace, train: Pairs) -> list[Vocabulary]:
    """Two word vocabularies, or one shared subword vocabulary twice."""
    if not options.subwords:
        min_count = 2 if options.data else 1
        return [
            data.Vocabulary.from_sentences(side, min_count) for side in zip(*train, strict=True)
        ]
    sentences = [sentence for pair in train for sentence in pair]
    size, symbols = options.subwords, options.symbols or ()
    return [data.SubwordVocabulary.from_sentences(sentences, size, symbols=symbols)] * 2
