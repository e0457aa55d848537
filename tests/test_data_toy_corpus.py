"""The toy corpus: correct French, one translation a sentence.

The forms below are written down again, apart from the package's lexicon, so that a slip
in one table shows against the other.
"""

import collections
import itertools
import re

import pytest

from tfattn.data import toy_lexicon as lexicon
from tfattn.data import toy_translation
from tfattn.data.toy_corpus import _grammar_size
from tfattn.data.toy_grammar import DETERMINERS, NounPhrase, Sentence, english, french
from tfattn.data.toy_lexicon import ADJECTIVES, NOUNS

# English: (gender, singular, plural), spelled out from a dictionary.
NOUN_TABLE = {
    "boy": "m garçon garçons",
    "girl": "f fille filles",
    "child": "m enfant enfants",
    "uncle": "m oncle oncles",
    "cat": "m chat chats",
    "horse": "m cheval chevaux",
    "bird": "m oiseau oiseaux",
    "cow": "f vache vaches",
    "spider": "f araignée araignées",
    "book": "m livre livres",
    "car": "f voiture voitures",
    "apple": "f pomme pommes",
    "tree": "m arbre arbres",
    "hat": "m chapeau chapeaux",
    "picture": "f image images",
    "garden": "m jardin jardins",
    "house": "f maison maisons",
    "church": "f église églises",
    "hotel": "m hôtel hôtels",
}
# Form: (gender, number) pairs that it agrees with.
ADJECTIVE_FORMS = {
    "ms": "petit grand jeune beau bel vieux vieil étrange heureux fatigué noir blanc vert",
    "fs": "petite grande jeune belle vieille étrange heureuse fatiguée noire blanche verte",
    "mp": "petits grands jeunes beaux vieux étranges heureux fatigués noirs blancs verts",
    "fp": "petites grandes jeunes belles vieilles étranges heureuses fatiguées noires blanches "
    "vertes",
}
DETERMINER_FORMS = {
    "ms": "le l' un ce cet mon de d'",
    "fs": "la l' une cette ma mon de d'",
    "mp": "les des ces mes de d'",
    "fp": "les des ces mes de d'",
}
BEFORE_NOUN = "petit|grand|jeune|beau|bel|vieux|vieil|petite|grande|belle|vieille"
BEFORE_NOUN_PLURAL = "petits|grands|jeunes|beaux|vieux|petites|grandes|belles|vieilles"
VOWEL = "[aeiouyàâéèêëîïôùûœh]"  # every h of this corpus is mute
CONSONANT = "[bcdfgjklmnpqrstvwxzç]"

AGREEMENT = {}
for _entry in NOUN_TABLE.values():
    _gender, _singular, _plural = _entry.split()
    AGREEMENT[_singular] = _gender + "s"
    AGREEMENT[_plural] = _gender + "p"


@pytest.fixture(scope="module")
def pairs():
    return toy_translation(40_000, seed=11)


def noun_phrases(nouns=NOUNS, determiners=DETERMINERS):
    for noun in nouns:
        fitting = [word for word in ADJECTIVES if noun.kind in word.kinds]
        before = [None, *(word for word in fitting if word.precedes)]
        after = [None, *(word for word in fitting if not word.precedes)]
        for choice in itertools.product(determiners, (False, True), before, [noun], after):
            yield NounPhrase(*choice)


def matches(pattern, pairs):
    return [target for _, target in pairs if re.search(pattern, target)]


@pytest.mark.slow
def test_exact_number_of_different_pairs(pairs):
    assert len(pairs) == 40_000
    assert len({source for source, _ in pairs}) == 40_000


def test_no_two_english_sentences_share_a_translation(pairs):
    assert len({target for _, target in pairs}) == 40_000


def test_noun_phrases_translate_one_to_one():
    for negated in (False, True):
        verb = lexicon.TRANSITIVE_VERBS[0]
        subject = NounPhrase("the", False, None, NOUNS[0], None)
        sentences = [Sentence(subject, verb, negated, phrase) for phrase in noun_phrases()]
        count = len(sentences)
        assert len(set(map(english, sentences))) == len(set(map(french, sentences))) == count


def test_same_seed_gives_same_pairs_and_another_seed_others():
    assert toy_translation(50, seed=3) == toy_translation(50, seed=3)
    assert toy_translation(50, seed=3) != toy_translation(50, seed=4)


def test_fewer_pairs_are_the_beginning_of_more():
    assert toy_translation(50, seed=3) == toy_translation(80, seed=3)[:50]


def test_words_are_separated_by_single_spaces_in_lower_case(pairs):
    for sentence in itertools.chain.from_iterable(pairs):
        assert sentence == sentence.lower()
        assert sentence.split() == sentence.split(" ")
        assert sentence.endswith(" .") and sentence.count(".") == 1


def test_sentence_lengths_are_as_documented(pairs):
    source_lengths = {len(source.split()) for source, _ in pairs}
    target_lengths = {len(target.split()) for _, target in pairs}
    assert (min(source_lengths), max(source_lengths)) == (3, 15)
    assert (min(target_lengths), max(target_lengths)) == (3, 13)


def test_no_unelided_word_stands_before_a_vowel(pairs):
    assert matches(rf"\b(le|la|de|ne|je) {VOWEL}", pairs) == []


def test_no_elided_word_stands_before_a_consonant(pairs):
    assert matches(rf"\b[ldnj]' {CONSONANT}", pairs) == []
    assert len(matches(rf"\b[ldnj]' {VOWEL}", pairs)) > 1000


def test_forms_before_a_vowel_stand_there_and_only_there(pairs):
    assert (
        matches(rf"\b(ce|ma|beau|un vieux|ce vieux|le vieux|mon vieux) (?!est){VOWEL}", pairs) == []
    )
    assert matches(rf"\b(cet|bel|vieil) {CONSONANT}", pairs) == []
    for form in ("cet", "bel", "vieil", "mon araignée", "mon église", "cet hôtel"):
        assert matches(rf"\b{form}\b", pairs), form


def test_determiners_and_adjectives_agree_with_their_noun(pairs):
    determiners = set(" ".join(DETERMINER_FORMS.values()).split())
    adjectives = set(" ".join(ADJECTIVE_FORMS.values()).split())
    checked = 0
    for _, target in pairs:
        words = target.split()
        for place, word in enumerate(words):
            if word not in AGREEMENT:
                continue
            first = place
            while words[first] not in determiners:
                first -= 1
            last = place + 1
            while words[last] in adjectives:
                last += 1
            agreement = AGREEMENT[word]
            assert words[first] in DETERMINER_FORMS[agreement].split(), target
            around = words[first + 1 : place] + words[place + 1 : last]
            assert all(form in ADJECTIVE_FORMS[agreement].split() for form in around), target
            checked += len(around)
    assert checked > 10_000


def test_feminine_singular_takes_mon_only_before_a_vowel(pairs):
    feminine = [noun for noun, agreement in AGREEMENT.items() if agreement == "fs"]
    starts = [noun for noun in feminine if re.match(CONSONANT, noun)]
    assert matches(rf"\bmon ({'|'.join(starts)})\b", pairs) == []
    assert matches(r"\bmon (petite|grande|jeune (fille|vache)|belle|vieille)\b", pairs) == []


def test_predicate_adjectives_agree_with_the_subject(pairs):
    seen = collections.Counter()
    for _, target in pairs:
        found = re.fullmatch(r"(.+?) (?:ne |n' )?(est|sont) (?:pas )?(\S+) \.", target)
        if not found:
            continue
        subject, verb, adjective = found.groups()
        pronouns = {"il": "ms", "elle": "fs", "ils": "mp"}
        nouns = [AGREEMENT[word] for word in subject.split() if word in AGREEMENT]
        agreement = pronouns.get(subject) or nouns[0]
        assert verb == ("est" if agreement[1] == "s" else "sont"), target
        assert adjective in ADJECTIVE_FORMS[agreement].split(), target
        assert adjective not in ("bel", "vieil"), target
        seen[agreement] += 1
    assert min(seen[agreement] for agreement in ("ms", "fs", "mp", "fp")) > 100


def test_common_adjectives_precede_the_noun_and_others_follow(pairs):
    nouns = "|".join(AGREEMENT)
    preposed = f"{BEFORE_NOUN}|{BEFORE_NOUN_PLURAL}"
    assert matches(rf"\b({nouns}) ({preposed})\b", pairs) == []
    after = "étranges?|heureu(x|ses?)|fatiguée?s?|noire?s?|blanc(s|hes?)?|verte?s?"
    assert matches(rf"\b({after}) ({nouns})\b", pairs) == []


def test_des_becomes_de_before_a_plural_adjective(pairs):
    assert matches(rf"\bdes ({BEFORE_NOUN_PLURAL})\b", pairs) == []
    assert matches(rf"\bde ({BEFORE_NOUN_PLURAL}) \w+", pairs)


def test_object_of_a_negated_verb_takes_de_for_the_indefinite_article(pairs):
    assert matches(r"\bpas (un|une|des)\b", pairs) == []
    assert len(matches(r"\bpas (de|d')", pairs)) > 1000
    for source, target in pairs:
        if re.search(r"\bnot \w+( for)? (a|an|any)\b", source):
            assert re.search(r"\bpas (de|d')", target), (source, target)


def test_a_place_keeps_its_article_under_negation(pairs):
    assert matches(r"\bpas (dans|derrière|devant) (un|une|des)\b", pairs)
    assert matches(rf"\b(dans|derrière|devant) d[e'] (?!{BEFORE_NOUN_PLURAL})", pairs) == []


def test_negation_stands_around_the_verb(pairs):
    for source, target in pairs:
        negated = re.findall(r"\b(?:ne|n') (\S+) pas\b", target)
        assert len(negated) == (" not " in source), (source, target)
        assert len(re.findall(r"\b(?:ne\b|n'|pas\b)", target)) == 2 * len(negated)


def test_subject_and_verb_agree_in_person(pairs):
    endings = {
        "i": r"(je|j') (ne |n' )?\w+[es]\b",
        "he": r"il (ne |n' )?\w+[etd]\b",
        "she": r"elle (ne |n' )?\w+[etd]\b",
        "we": r"nous (ne |n' )?\w+ons\b",
        "you": r"vous (ne |n' )?\w+ez\b",
        "they": r"ils (ne |n' )?(\w+ent|sont)\b",
    }
    for source, target in pairs:
        subject = source.split()[0]
        if subject in endings:
            assert re.match(endings[subject], target), (source, target)


def test_every_noun_has_its_dictionary_forms():
    assert {
        noun.english: f"{noun.gender} {noun.french} {noun.french_plural}" for noun in NOUNS
    } == NOUN_TABLE


def test_english_a_and_an_follow_the_next_word(pairs):
    for source, _ in pairs:
        assert not re.search(r"\ba [aeiou]|\ban [^aeiou]", source), source


def test_english_verb_takes_s_in_the_third_person_alone(pairs):
    third = "sees|finds|watches|draws|paints|hears|looks|waits|sleeps|sings|eats|plays|does|is"
    for source, _ in pairs:
        subject = source.split()[0]
        if subject in ("he", "she"):
            assert re.match(rf"\w+ ({third})\b", source), source
        elif subject in ("i", "we", "you", "they", "these", "some"):
            assert not re.search(rf"\b({third})\b", source), source


@pytest.mark.parametrize(
    ("source", "target"),
    [
        (
            "the happy boy watches some beautiful trees .",
            "le garçon heureux regarde de beaux arbres .",
        ),
        ("i do not wait for a bird .", "je n' attends pas d' oiseau ."),
        ("i wait for my old white horses .", "j' attends mes vieux chevaux blancs ."),
        ("these spiders are not happy .", "ces araignées ne sont pas heureuses ."),
        ("my spider sleeps behind an old hotel .", "mon araignée dort derrière un vieil hôtel ."),
        ("we do not see any beautiful churches .", "nous ne voyons pas de belles églises ."),
    ],
)
def test_known_translations(source, target):
    sentences = every_sentence_with_the_words_of(source)
    assert sentences[source] == target


def every_sentence_with_the_words_of(source):
    """The grammar's sentences that can be made of the words of `source`, with translations."""
    words = source.split()
    nouns = [noun for noun in NOUNS if {noun.english, noun.english_plural} & set(words)]
    verbs = [
        verb
        for verb in (*lexicon.TRANSITIVE_VERBS, *lexicon.INTRANSITIVE_VERBS, lexicon.COPULA)
        if {verb.english, verb.english_third} & set(words)
    ]
    adjectives = [word for word in ADJECTIVES if word.english in words]
    phrases = [
        phrase
        for phrase in noun_phrases(nouns)
        if all(word is None or word in adjectives for word in (phrase.before, phrase.after))
    ]
    subjects = [word for word in lexicon.PRONOUNS if word.english == words[0]] or phrases
    prepositions = [None, *(word for word in lexicon.PREPOSITIONS if word.english in words)]
    found = {}
    for subject, verb, negated, preposition in itertools.product(
        subjects, verbs, (False, True), prepositions
    ):
        complements = adjectives if verb is lexicon.COPULA else phrases
        for complement in complements:
            sentence = Sentence(subject, verb, negated, complement, preposition)
            found[english(sentence)] = french(sentence)
    return found


def test_grammar_is_large_enough_and_its_size_counts_its_phrases():
    living = [noun for noun in NOUNS if noun.kind in ("person", "animal")]
    places = [noun for noun in NOUNS if noun.kind == "place"]
    subjects = 6 + len(list(noun_phrases(living)))
    objects, spots = len(list(noun_phrases())), len(list(noun_phrases(places)))
    predicates = 3 * len([word for word in ADJECTIVES if "person" in word.kinds])
    for noun in living:
        fitting = [word for word in ADJECTIVES if noun.kind in word.kinds]
        predicates += len(list(noun_phrases([noun]))) * len(fitting)
    size = 2 * (predicates + subjects * 8 * objects + subjects * 4 * (1 + 3 * spots))
    assert _grammar_size() == size > 100_000_000


def test_more_pairs_than_the_grammar_has_are_refused_with_its_size():
    size = _grammar_size()
    with pytest.raises(ValueError, match=rf"toy_translation: `num_pairs` must be at most {size}"):
        toy_translation(size + 1)


@pytest.mark.parametrize("num_pairs", [0, -1, 2.5, "10", True])
def test_num_pairs_must_be_a_positive_integer(num_pairs):
    with pytest.raises(ValueError, match="toy_translation: `num_pairs` must be a positive integer"):
        toy_translation(num_pairs)


def test_seed_must_be_an_integer():
    with pytest.raises(ValueError, match="toy_translation: `seed` must be an integer"):
        toy_translation(5, seed=0.5)
