"""The toy corpus: correct French, one translation a sentence.

The forms below are written down again, apart from the package's lexicon, so that a slip
in one table shows against the other.
"""

import collections
import itertools
import re

import pytest

from tfattn.data import split_pairs, toy_translation
from tfattn.data import toy_lexicon as lexicon
from tfattn.data.toy_grammar import DETERMINERS, NounPhrase, Sentence, english, french
from tfattn.data.toy_lexicon import ADJECTIVES, NOUNS

# English: (gender, singular, plural), spelled out from a dictionary.
NOUNS_SPELLED_OUT = """
boy m garçon garçons; girl f fille filles; child m enfant enfants; uncle m oncle oncles; cat m
chat chats; horse m cheval chevaux; bird m oiseau oiseaux; cow f vache vaches; spider f
araignée araignées; book m livre livres; car f voiture voitures; apple f pomme pommes; tree m
arbre arbres; hat m chapeau chapeaux; picture f image images; garden m jardin jardins; house f
maison maisons; church f église églises; hotel m hôtel hôtels
"""
NOUN_TABLE = dict(entry.split(" ", 1) for entry in " ".join(NOUNS_SPELLED_OUT.split()).split("; "))
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
    return toy_translation(10_000, seed=11)


def noun_phrases(nouns=NOUNS):
    for noun in nouns:
        fitting = [word for word in ADJECTIVES if noun.kind in word.kinds]
        before = [None, *(word for word in fitting if word.precedes)]
        after = [None, *(word for word in fitting if not word.precedes)]
        for choice in itertools.product(DETERMINERS, (False, True), before, [noun], after):
            yield NounPhrase(*choice)


def test_toy_translation_has_distinct_sentences_with_distinct_translations(pairs):
    for sentences in zip(*pairs, strict=True):
        assert len(set(sentences)) == 10_000


def test_toy_noun_phrases_translate_one_to_one():
    for negated in (False, True):
        verb = lexicon.TRANSITIVE_VERBS[0]
        subject = NounPhrase("the", False, None, NOUNS[0], None)
        sentences = [Sentence(subject, verb, negated, phrase) for phrase in noun_phrases()]
        count = len(sentences)
        assert len(set(map(english, sentences))) == len(set(map(french, sentences))) == count


def test_toy_translation_of_a_seed_is_the_same():
    assert toy_translation(50, seed=3) == toy_translation(80, seed=3)[:50]
    assert toy_translation(50, seed=3) != toy_translation(50, seed=4)


def test_toy_sentences_are_lower_case_words_with_single_spaces(pairs):
    for sentence in itertools.chain.from_iterable(pairs):
        assert sentence == sentence.lower()
        assert sentence.split() == sentence.split(" ")
        assert sentence.endswith(" .") and sentence.count(".") == 1
    for sentences, longest in zip(zip(*pairs, strict=True), (15, 13), strict=True):
        lengths = {len(sentence.split()) for sentence in sentences}
        assert (min(lengths), max(lengths)) == (3, longest)


FEMININE = "|".join(
    noun for noun, kind in AGREEMENT.items() if kind == "fs" and re.match(CONSONANT, noun)
)
FOLLOWING = "étranges?|heureu(x|ses?)|fatiguée?s?|noire?s?|blanc(s|hes?)?|verte?s?"
AT_A_PLACE = "(dans|derrière|devant)"
NEVER = {
    "an unelided word before a vowel": rf"\b(le|la|de|ne|je) {VOWEL}",
    "an elided word before a consonant": rf"\b[ldnj]' {CONSONANT}",
    "a form before a vowel that should be another": (
        rf"\b(ce|ma|beau|un vieux|ce vieux|le vieux|mon vieux) (?!est){VOWEL}"
    ),
    "a form for vowels before a consonant": rf"\b(cet|bel|vieil) {CONSONANT}",
    "mon before a feminine noun that begins with a consonant": rf"\bmon ({FEMININE})\b",
    "mon before a feminine adjective": r"\bmon (petite|grande|jeune (fille|vache)|belle|vieille)\b",
    "a common adjective after its noun": (
        rf"\b({'|'.join(AGREEMENT)}) ({BEFORE_NOUN}|{BEFORE_NOUN_PLURAL})\b"
    ),
    "another adjective before its noun": rf"\b({FOLLOWING}) ({'|'.join(AGREEMENT)})\b",
    "des before a plural adjective": rf"\bdes ({BEFORE_NOUN_PLURAL})\b",
    "an indefinite article of a negated verb's object": r"\bpas (un|une|des)\b",
    "de for the article of a place": rf"\b{AT_A_PLACE} d[e'] (?!{BEFORE_NOUN_PLURAL})",
}
OFTEN = {
    rf"\b[ldnj]' {VOWEL}": 250,
    r"\bpas (de|d')": 250,
    rf"\bde ({BEFORE_NOUN_PLURAL}) \w+": 1,
    rf"\bpas {AT_A_PLACE} (un|une|des)\b": 1,
    **{
        rf"\b{form}\b": 1
        for form in ("cet", "bel", "vieil", "mon araignée", "mon église", "cet hôtel")
    },
}


def test_toy_french_is_never_wrong_by_a_rule(pairs):
    for what, pattern in NEVER.items():
        assert [target for _, target in pairs if re.search(pattern, target)] == [], what


def test_toy_french_has_what_might_be_wrong(pairs):
    for pattern, times in OFTEN.items():
        assert sum(bool(re.search(pattern, target)) for _, target in pairs) >= times, pattern
    for source, target in pairs:
        if re.search(r"\bnot \w+( for)? (a|an|any)\b", source):
            assert re.search(r"\bpas (de|d')", target), (source, target)


def test_toy_french_determiners_and_adjectives_agree(pairs):
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
    assert checked > 2500


def test_toy_french_predicate_adjectives_agree(pairs):
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
    assert min(seen[agreement] for agreement in ("ms", "fs", "mp", "fp")) > 25


def test_toy_french_negation_stands_around_its_verb(pairs):
    endings = {
        "i": r"(je|j') (ne |n' )?\w+[es]\b",
        "he": r"il (ne |n' )?\w+[etd]\b",
        "she": r"elle (ne |n' )?\w+[etd]\b",
        "we": r"nous (ne |n' )?\w+ons\b",
        "you": r"vous (ne |n' )?\w+ez\b",
        "they": r"ils (ne |n' )?(\w+ent|sont)\b",
    }
    for source, target in pairs:
        negated = re.findall(r"\b(?:ne|n') (\S+) pas\b", target)
        assert len(negated) == (" not " in source), (source, target)
        assert len(re.findall(r"\b(?:ne\b|n'|pas\b)", target)) == 2 * len(negated)
        assert re.match(endings.get(source.split()[0], ""), target), (source, target)


def test_toy_nouns_have_their_dictionary_forms():
    assert {
        noun.english: f"{noun.gender} {noun.french} {noun.french_plural}" for noun in NOUNS
    } == NOUN_TABLE


def test_toy_english_has_an_before_vowels_and_s_in_third_person(pairs):
    third = "sees|finds|watches|draws|paints|hears|looks|waits|sleeps|sings|eats|plays|does|is"
    for source, _ in pairs:
        assert not re.search(r"\ba [aeiou]|\ban [^aeiou]", source), source
        subject = source.split()[0]
        if subject in ("he", "she"):
            assert re.match(rf"\w+ ({third})\b", source), source
        elif subject in ("i", "we", "you", "they", "these", "some"):
            assert not re.search(rf"\b({third})\b", source), source


KNOWN = {
    "the small strange bird sees some beautiful trees .": (
        "le petit oiseau étrange voit de beaux arbres ."
    ),
    "a cat does not find a child .": "un chat ne trouve pas d' enfant .",
    "i wait for my old apples .": "j' attends mes vieilles pommes .",
    "my spiders are not happy .": "mes araignées ne sont pas heureuses .",
    "my spider sleeps in these old hotels .": "mon araignée dort dans ces vieux hôtels .",
    "we do not draw any beautiful black hats .": "nous ne dessinons pas de beaux chapeaux noirs .",
    "this beautiful child is not strange .": "ce bel enfant n' est pas étrange .",
    "i paint this old bird .": "je peins ce vieil oiseau .",
}


def test_toy_translation_has_known_pairs(pairs):
    assert KNOWN.items() <= dict(pairs).items()


def test_toy_grammar_counts_its_sentences():
    living = [noun for noun in NOUNS if noun.kind in ("person", "animal")]
    places = [noun for noun in NOUNS if noun.kind == "place"]
    subjects = 6 + len(list(noun_phrases(living)))
    objects, spots = len(list(noun_phrases())), len(list(noun_phrases(places)))
    predicates = 3 * len([word for word in ADJECTIVES if "person" in word.kinds])
    for noun in living:
        fitting = [word for word in ADJECTIVES if noun.kind in word.kinds]
        predicates += len(list(noun_phrases([noun]))) * len(fitting)
    size = 2 * (predicates + subjects * 8 * objects + subjects * 4 * (1 + 3 * spots))
    assert size == 205_496_890


# Two parts of a corpus.


def assert_apart(train, held_out, pairs):
    assert collections.Counter(train + held_out) == collections.Counter(pairs)
    for side in (0, 1):
        assert not {pair[side] for pair in train} & {pair[side] for pair in held_out}


def test_split_pairs_shares_no_sentence_and_depends_on_the_seed():
    pairs = toy_translation(2000, seed=11)
    train, held_out = split_pairs(pairs, fraction=0.1, seed=5)
    assert len(held_out) == 200
    assert_apart(train, held_out, pairs)
    assert split_pairs(iter(pairs), fraction=0.1, seed=5) == (train, held_out)
    assert split_pairs(pairs, fraction=0.1, seed=6) != (train, held_out)


def test_split_pairs_keeps_linked_pairs_together():
    chains = [[(f"a{i}", f"x{i}"), (f"b{i}", f"x{i}"), (f"b{i}", f"y{i}")] for i in range(40)]
    pairs = [chain[step] for step in range(3) for chain in chains]
    train, held_out = split_pairs(pairs, fraction=0.25, seed=1)
    assert len(held_out) == 30
    assert_apart(train, held_out, pairs)
    train, held_out = split_pairs([("a", "x")] * 3 + [("b", "y")] * 2, fraction=0.4)
    assert (set(train), set(held_out)) == ({("a", "x")}, {("b", "y")})
    # The same word on both sides links nothing.
    assert [*map(len, split_pairs([("a", "b"), ("b", "c")], fraction=0.5))] == [1, 1]


def test_split_pairs_that_leaves_a_part_empty_is_refused():
    for pairs in ([("a", "b")], [("a", "b"), ("a", "c")], []):
        with pytest.raises(ValueError, match="`fraction` must leave pairs to both parts"):
            split_pairs(pairs, fraction=0.5)
    for fraction in (0, 1):
        with pytest.raises(ValueError, match="`fraction` must (leave pairs|be a number in )"):
            split_pairs([("a", "b"), ("c", "d")], fraction=fraction)
