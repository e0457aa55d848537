"""Where a model that translates the toy sentences looked, for adjectives and nouns that change
places.
"""

import itertools

import numpy as np

from tfattn.data import toy_lexicon


def aligned_swaps(model, alignment, pairs, source_words, target_words):
    """Share of the adjectives and nouns that change places for which the heaviest source word is
    the true one, best head.
    """
    right = []
    for sources, targets, swaps in swaps_of(pairs):
        rows = [[*source_words.encode(source), source_words.end_id] for source in sources]
        target_in = [[target_words.begin_id, *target_words.encode(target)] for target in targets]
        weights, _ = alignment(model, padded(rows), padded(target_in))
        heaviest = np.argmax(weights, axis=-1)  # (B, heads, T)
        right += [heaviest[row, :, written] == true for row, written, true in swaps]
    return round(float(np.mean(right, axis=0).max()), 4) if right else None


def swaps_of(pairs, batch_size=100):
    """(sources, targets, [(row, place of a written word, place of its source word)]) for batches of
    pairs.
    """
    french = {
        form: adjective.english
        for adjective in toy_lexicon.ADJECTIVES
        if not adjective.precedes
        for form in (
            adjective.masculine,
            adjective.feminine,
            adjective.masculine_plural,
            adjective.feminine_plural,
        )
    }
    nouns = {noun.french: noun.english for noun in toy_lexicon.NOUNS}
    nouns.update({noun.french_plural: noun.english_plural for noun in toy_lexicon.NOUNS})
    for start in range(0, len(pairs), batch_size):
        sources, targets = zip(*pairs[start : start + batch_size], strict=True)
        swaps = []
        for row, (source, target) in enumerate(zip(sources, targets, strict=True)):
            followers = list(itertools.pairwise(source.split()))
            for place, (noun, adjective) in enumerate(itertools.pairwise(target.split())):
                true = french.get(adjective), nouns.get(noun)
                # The only one of its kind, so that no other word could be meant.
                if followers.count(true) == 1:
                    at = followers.index(true)
                    swaps += [(row, place, at + 1), (row, place + 1, at)]
        yield sources, targets, swaps


def padded(rows):
    longest = max(map(len, rows))
    return np.array([row + [0] * (longest - len(row)) for row in rows], "int32")
