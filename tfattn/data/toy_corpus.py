"""A toy corpus, English to French, that requires attention.

Word-by-word translation fails: adjectives change sides, articles and adjectives agree with a noun
elsewhere, negation wraps the verb. A small Transformer learns it within minutes.
"""

import random
from collections.abc import Sequence
from typing import TypeVar

from tfattn import _checks
from tfattn.data import toy_lexicon as lexicon
from tfattn.data.toy_grammar import DETERMINERS, NounPhrase, Sentence, english, french

_LIVING = tuple(noun for noun in lexicon.NOUNS if noun.kind in ("person", "animal"))
_PLACES = tuple(noun for noun in lexicon.NOUNS if noun.kind == "place")
# "i", "you" and "we" hide the gender that a French adjective needs.
_PREDICATE_PRONOUNS = tuple(
    word for word in lexicon.PRONOUNS if word.english in ("he", "she", "they")
)

_T = TypeVar("_T")


def toy_translation(num_pairs: int, seed: int = 0) -> list[tuple[str, str]]:
    """Draws distinct sentences of a toy grammar with their French translations.

    Text is in lower case, and single spaces separate the words, the full stop, and elided French
    words: "l' oiseau", "n' entend pas". English sentences and their translations are in one-to-one
    correspondence ("you" is always "vous", "they" always "ils"). English sentences have 3 to 15
    words, French sentences 3 to 13, including the full stop.

    Args:
        num_pairs: positive int, the number of pairs to draw, of over two hundred million.
        seed: int; the same seed gives the same pairs on every platform. Defaults to 0.
    Returns:
        A list of `num_pairs` distinct tuples `(english, french)`.
    Raises:
        ValueError: `num_pairs` is not a positive int, or `seed` is no int.
    Example:
        >>> for source, target in toy_translation(3, seed=0):
        ...     print(source, "|", target)
        my children play . | mes enfants jouent .
        my green horse hears the churches . | mon cheval vert entend les églises .
        the beautiful child hears the tired boys . | le bel enfant entend les garçons fatigués .
    """
    _checks.positive_int("toy_translation", "num_pairs", num_pairs)
    generator = random.Random(_checks.integer("toy_translation", "seed", seed))
    pairs: dict[str, str] = {}
    while len(pairs) < num_pairs:
        sentence = _draw_sentence(generator)
        pairs[english(sentence)] = french(sentence)
    return list(pairs.items())


def split_pairs(
    pairs: Sequence[tuple[str, str]], fraction: float = 0.1, seed: int = 0
) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Splits pairs at random so that no sentence, on either side, is in both parts.

    Pairs that share a sentence, directly or through other pairs, stay together. If all sentences
    differ, as in `toy_translation`, the held-out part has exactly `round(fraction * len(pairs))`
    pairs; otherwise it may have fewer.

    Args:
        pairs: sequence of `(source, target)` strings.
        fraction: float in (0, 1), the fraction of pairs to hold out. Defaults to 0.1.
        seed: int; the same seed gives the same split on every platform. Defaults to 0.
    Returns:
        `(train, held_out)`: two lists of pairs in the order of `pairs`.
    Raises:
        ValueError: one of the two parts would be empty; `seed` is no int.
    Example:
        >>> train, held_out = split_pairs(toy_translation(50), fraction=0.2)
        >>> len(train), len(held_out)
        (40, 10)
    """
    pairs = _checks.pairs("split_pairs", "pairs", pairs)
    wanted = round(_checks.probability("split_pairs", "fraction", fraction) * len(pairs))
    generator = random.Random(_checks.integer("split_pairs", "seed", seed))
    groups = _linked_groups(pairs)
    keys = [generator.random() for _ in groups]
    held_out: set[int] = set()
    for number in sorted(range(len(groups)), key=keys.__getitem__):
        if len(held_out) + len(groups[number]) <= wanted:
            held_out.update(groups[number])
    if not 0 < len(held_out) < len(pairs):
        expected = f"leave pairs to both parts (of {len(pairs)} pairs, {len(held_out)} held out)"
        _checks.fail("split_pairs", "fraction", expected, fraction)
    train = [pair for index, pair in enumerate(pairs) if index not in held_out]
    return train, [pairs[index] for index in sorted(held_out)]


def _draw_sentence(generator: random.Random) -> Sentence:
    negated = generator.random() < 0.35
    shape = generator.random()
    if shape < 0.15:
        subject = _draw_subject(generator, _PREDICATE_PRONOUNS)
        kind = "person" if isinstance(subject, lexicon.Pronoun) else subject.noun.kind
        predicates = [word for word in lexicon.ADJECTIVES if kind in word.kinds]
        adjective = _pick(predicates, generator)
        return Sentence(subject, lexicon.COPULA, negated, adjective)
    subject = _draw_subject(generator, lexicon.PRONOUNS)
    if shape < 0.75:
        verb = _pick(lexicon.TRANSITIVE_VERBS, generator)
        return Sentence(subject, verb, negated, _draw_phrase(generator, lexicon.NOUNS))
    verb = _pick(lexicon.INTRANSITIVE_VERBS, generator)
    if shape < 0.8:
        return Sentence(subject, verb, negated)
    place = _draw_phrase(generator, _PLACES)
    return Sentence(subject, verb, negated, place, _pick(lexicon.PREPOSITIONS, generator))


def _draw_subject(
    generator: random.Random, pronouns: Sequence[lexicon.Pronoun]
) -> NounPhrase | lexicon.Pronoun:
    if generator.random() < 0.3:
        return _pick(pronouns, generator)
    return _draw_phrase(generator, _LIVING)


def _draw_phrase(generator: random.Random, nouns: Sequence[lexicon.Noun]) -> NounPhrase:
    noun = _pick(nouns, generator)
    before = _pick(_adjectives(noun.kind, True), generator)
    after = _pick(_adjectives(noun.kind, False), generator)
    return NounPhrase(
        determiner=_pick(DETERMINERS, generator),
        plural=generator.random() < 0.5,
        before=before if generator.random() < 0.4 else None,
        noun=noun,
        after=after if generator.random() < 0.4 else None,
    )


def _adjectives(kind: str, precedes: bool) -> list[lexicon.Adjective]:
    return [word for word in lexicon.ADJECTIVES if kind in word.kinds and word.precedes == precedes]


def _linked_groups(pairs: Sequence[tuple[str, str]]) -> list[list[int]]:
    """Indices of pairs, grouped so that no sentence occurs in two groups."""
    parent = list(range(len(pairs)))

    def root(index: int) -> int:
        while parent[index] != index:
            parent[index] = parent[parent[index]]  # halves the path for the next search
            index = parent[index]
        return index

    first_index: dict[tuple[str, str], int] = {}
    for index, (source, target) in enumerate(pairs):
        for key in (("source", source), ("target", target)):
            parent[root(index)] = root(first_index.setdefault(key, index))
    groups: dict[int, list[int]] = {}
    for index in range(len(pairs)):
        groups.setdefault(root(index), []).append(index)
    return list(groups.values())


# All choices use `random.Random.random`, the only method with a guaranteed sequence for a seed.
def _pick(options: Sequence[_T], generator: random.Random) -> _T:
    return options[int(generator.random() * len(options))]
