"""Words of a toy sentence whose order changes in French."""

import itertools

from tfattn import _checks
from tfattn.data.toy_lexicon import ADJECTIVES, NOUNS

_ADJECTIVES = {  # adjectives that follow their noun in French
    form: adjective.english
    for adjective in ADJECTIVES
    if not adjective.precedes
    for form in (
        adjective.masculine,
        adjective.feminine,
        adjective.masculine_plural,
        adjective.feminine_plural,
    )
}
_NOUNS = {noun.french: noun.english for noun in NOUNS} | {
    noun.french_plural: noun.english_plural for noun in NOUNS
}


def swapped_words(source: str, target: str) -> list[tuple[int, int]]:
    """The nouns and adjectives of a toy pair whose order is reversed in French.

    In row t of the decoder's attention over the source, a trained model has its largest weight at
    s.

    Args:
        source: str, an English sentence of `toy_translation`.
        target: str, its translation, or a model's.
    Returns:
        A list of `(t, s)`: word t of `target` translates word s of `source`, both counted from 0.
        Pairs of words that occur twice in `source` are left out.
    Example:
        >>> swapped_words("the black cat sleeps .", "le chat noir dort .")
        [(1, 2), (2, 1)]
    """
    source = _checks.string("swapped_words", "source", source)
    target = _checks.string("swapped_words", "target", target)
    source_pairs: list[tuple[str | None, str | None]] = list(itertools.pairwise(source.split()))
    swaps = []
    for t, (noun, adjective) in enumerate(itertools.pairwise(target.split())):
        translated = _ADJECTIVES.get(adjective), _NOUNS.get(noun)
        if source_pairs.count(translated) == 1:  # unambiguous
            s = source_pairs.index(translated)
            swaps += [(t, s + 1), (t + 1, s)]
    return swaps
