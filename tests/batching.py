"""Pairs of the toy task in batches, and what is in a batch."""

from tfattn.data import Vocabulary, token_batches, toy_translation, translation_batches

PAIRS = toy_translation(53, seed=2)
MORE_PAIRS = toy_translation(503, seed=3)  # enough for several batches of each length
ENGLISH = Vocabulary.from_sentences(source for source, _ in PAIRS + MORE_PAIRS)
FRENCH = Vocabulary.from_sentences(target for _, target in PAIRS + MORE_PAIRS)


def batches(pairs=PAIRS, batch_size=7, **arguments):
    return translation_batches(pairs, ENGLISH, FRENCH, batch_size, **arguments)


def by_tokens(pairs=MORE_PAIRS, tokens_per_batch=211, **arguments):
    return token_batches(pairs, ENGLISH, FRENCH, tokens_per_batch, **arguments)


def sentences(dataset):
    """The pairs of a dataset, decoded, in its order."""
    return [pair for batch in companies(dataset) for pair in batch]


def companies(dataset):
    """The pairs of a dataset, decoded, batch by batch."""
    return [
        [
            (ENGLISH.decode(source), FRENCH.decode(target))
            for source, target in zip(sources, targets, strict=True)
        ]
        for (sources, _), targets in dataset.as_numpy_iterator()
    ]
