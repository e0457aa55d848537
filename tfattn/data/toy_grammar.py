"""Sentence trees of the toy grammar and their words in each language.

`english` and `french` express the same `Sentence`, so a pair is a translation by construction.

French differs from a word-by-word translation by:

- agreement of article and adjective with the noun; most adjectives follow it, a few precede it;
- negation around the verb, and "de" for the indefinite article of its object: "ne voit pas de
  chat"; "de" for "des" before an adjective;
- elision before a vowel, "l' oiseau", "n' entend pas", and the forms cet, mon, bel and vieil.
"""

from typing import NamedTuple

from tfattn.data.toy_lexicon import COPULA, Adjective, Noun, Preposition, Pronoun, Verb

DETERMINERS = ("the", "a", "this", "my")

_ENGLISH_PLURAL_DETERMINERS = {"the": "the", "a": "some", "this": "these", "my": "my"}
_FRENCH_DETERMINERS = {
    "the": {"m": "le", "f": "la", "plural": "les"},
    "a": {"m": "un", "f": "une", "plural": "des"},
    "this": {"m": "ce", "f": "cette", "plural": "ces"},
    "my": {"m": "mon", "f": "ma", "plural": "mes"},
}
_BEFORE_VOWEL = {"ce": "cet", "ma": "mon"}
_ELIDED = {"le": "l'", "la": "l'", "de": "d'", "ne": "n'", "je": "j'"}


class NounPhrase(NamedTuple):
    """A determiner, a noun, and up to one adjective on each side of it in French."""

    determiner: str
    plural: bool
    before: Adjective | None
    noun: Noun
    after: Adjective | None


class Sentence(NamedTuple):
    """A subject, a verb and its complement.

    The complement is the copula's adjective, an object, a place with a preposition, or None.
    """

    subject: NounPhrase | Pronoun
    verb: Verb
    negated: bool
    complement: NounPhrase | Adjective | None = None
    preposition: Preposition | None = None

    @property
    def person(self) -> int:
        """The index of the subject's form in `Verb.french`."""
        if isinstance(self.subject, Pronoun):
            return self.subject.person
        return 4 if self.subject.plural else 1

    @property
    def negates_object(self) -> bool:
        """Whether the complement is the direct object of a negated verb."""
        is_object = isinstance(self.complement, NounPhrase) and self.preposition is None
        return self.negated and is_object


def english(sentence: Sentence) -> str:
    """The English sentence, words and full stop separated by single spaces."""
    if isinstance(sentence.subject, Pronoun):
        words = [sentence.subject.english]
    else:
        words = _english_phrase(sentence.subject)
    words += _english_verb(sentence)
    if sentence.preposition is not None:
        words += sentence.preposition.english.split(" ")
    if isinstance(sentence.complement, Adjective):
        words.append(sentence.complement.english)
    elif sentence.complement is not None:
        words += _english_phrase(sentence.complement, sentence.negates_object)
    return " ".join([*words, "."])


def french(sentence: Sentence) -> str:
    """The French sentence, words and full stop separated by single spaces."""
    subject = sentence.subject
    if isinstance(subject, Pronoun):
        words, gender, plural = [subject.french], subject.gender, subject.person >= 2
    else:
        words, gender, plural = _french_phrase(subject), subject.noun.gender, subject.plural
    verb = sentence.verb.french[sentence.person]
    words += ["ne", verb, "pas"] if sentence.negated else [verb]
    if sentence.preposition is not None:
        words.append(sentence.preposition.french)
    if isinstance(sentence.complement, Adjective):
        words.append(_agreed(sentence.complement, gender, plural))
    elif sentence.complement is not None:
        words += _french_phrase(sentence.complement, sentence.negates_object)
    for index, following in enumerate(words[1:]):
        if _starts_with_vowel(following):
            words[index] = _ELIDED.get(words[index], words[index])
    return " ".join([*words, "."])


def _english_phrase(phrase: NounPhrase, negates_object: bool = False) -> list[str]:
    noun = phrase.noun.english_plural if phrase.plural else phrase.noun.english
    words = [word.english for word in (phrase.before, phrase.after) if word] + [noun]
    determiner = phrase.determiner
    if phrase.plural:
        determiner = _ENGLISH_PLURAL_DETERMINERS[determiner]
    if determiner == "some" and negates_object:
        determiner = "any"
    if determiner == "a" and words[0][0] in "aeiou":
        determiner = "an"
    return [determiner, *words]


def _english_verb(sentence: Sentence) -> list[str]:
    verb = sentence.verb
    form = verb.english_third if sentence.person == 1 else verb.english
    if verb is COPULA:
        return [form, "not"] if sentence.negated else [form]
    if sentence.negated:
        words = ["does" if sentence.person == 1 else "do", "not", verb.english]
    else:
        words = [form]
    return [*words, verb.particle] if verb.particle else words


def _french_phrase(phrase: NounPhrase, negates_object: bool = False) -> list[str]:
    gender, plural = phrase.noun.gender, phrase.plural
    words = [phrase.noun.french_plural if plural else phrase.noun.french]
    if phrase.after is not None:
        words.append(_agreed(phrase.after, gender, plural))
    if phrase.before is not None:
        words.insert(0, _agreed(phrase.before, gender, plural, next_word=words[0]))
    determiner = _FRENCH_DETERMINERS[phrase.determiner]["plural" if plural else gender]
    if phrase.determiner == "a" and (negates_object or (plural and phrase.before)):
        determiner = "de"
    if _starts_with_vowel(words[0]):
        determiner = _BEFORE_VOWEL.get(determiner, determiner)
    return [determiner, *words]


def _agreed(adjective: Adjective, gender: str, plural: bool, next_word: str = "") -> str:
    if plural:
        return adjective.masculine_plural if gender == "m" else adjective.feminine_plural
    if gender == "f":
        return adjective.feminine
    if adjective.before_vowel and _starts_with_vowel(next_word):
        return adjective.before_vowel
    return adjective.masculine


def _starts_with_vowel(word: str) -> bool:
    # Every h in the lexicon is mute, and counts as a vowel.
    return word[:1] in tuple("aeiouéêh")
