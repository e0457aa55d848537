"""The words of the toy grammar in English and French.

`kind` excludes senseless sentences (a book is never tired) and set phrases ("vieille fille" is a
spinster, not an old girl).
"""

from typing import NamedTuple


class Noun(NamedTuple):
    """A noun in both numbers, with its French gender and its kind."""

    english: str
    english_plural: str
    french: str
    french_plural: str
    gender: str  # "m" or "f"
    kind: str  # "person", "animal", "thing" or "place"


class Adjective(NamedTuple):
    """An adjective with its four French forms and its side of the noun."""

    english: str
    masculine: str
    feminine: str
    masculine_plural: str
    feminine_plural: str
    kinds: tuple[str, ...]  # the kinds of nouns it can describe
    precedes: bool = False  # in French: "petit chat", but "chat noir"
    before_vowel: str = ""  # masculine singular before a vowel: "bel oiseau"


class Verb(NamedTuple):
    """A verb in the present tense, with its English particle."""

    english: str
    english_third: str  # third person singular
    french: tuple[str, str, str, str, str]  # je, il, nous, vous, ils
    particle: str = ""  # "look for" is one word in French: "chercher"


class Pronoun(NamedTuple):
    """A subject pronoun."""

    english: str
    french: str
    person: int  # the index of its form in `Verb.french`
    gender: str


class Preposition(NamedTuple):
    """A preposition of place; the English preposition may be several words."""

    english: str
    french: str


NOUNS = (
    Noun("boy", "boys", "garçon", "garçons", "m", "person"),
    Noun("girl", "girls", "fille", "filles", "f", "person"),
    Noun("child", "children", "enfant", "enfants", "m", "person"),
    Noun("uncle", "uncles", "oncle", "oncles", "m", "person"),
    Noun("cat", "cats", "chat", "chats", "m", "animal"),
    Noun("horse", "horses", "cheval", "chevaux", "m", "animal"),
    Noun("bird", "birds", "oiseau", "oiseaux", "m", "animal"),
    Noun("cow", "cows", "vache", "vaches", "f", "animal"),
    Noun("spider", "spiders", "araignée", "araignées", "f", "animal"),
    Noun("book", "books", "livre", "livres", "m", "thing"),
    Noun("car", "cars", "voiture", "voitures", "f", "thing"),
    Noun("apple", "apples", "pomme", "pommes", "f", "thing"),
    Noun("tree", "trees", "arbre", "arbres", "m", "thing"),
    Noun("hat", "hats", "chapeau", "chapeaux", "m", "thing"),
    Noun("picture", "pictures", "image", "images", "f", "thing"),
    Noun("garden", "gardens", "jardin", "jardins", "m", "place"),
    Noun("house", "houses", "maison", "maisons", "f", "place"),
    Noun("church", "churches", "église", "églises", "f", "place"),
    Noun("hotel", "hotels", "hôtel", "hôtels", "m", "place"),
)

_LIVING = ("person", "animal")
_NOT_PERSON = ("animal", "thing", "place")
_ANY = ("person", "animal", "thing", "place")

ADJECTIVES = (
    Adjective("small", "petit", "petite", "petits", "petites", _ANY, True),
    Adjective("big", "grand", "grande", "grands", "grandes", _ANY, True),
    Adjective("young", "jeune", "jeune", "jeunes", "jeunes", _LIVING, True),
    Adjective("beautiful", "beau", "belle", "beaux", "belles", _ANY, True, "bel"),
    Adjective("old", "vieux", "vieille", "vieux", "vieilles", _NOT_PERSON, True, "vieil"),
    Adjective("strange", "étrange", "étrange", "étranges", "étranges", _ANY),
    Adjective("happy", "heureux", "heureuse", "heureux", "heureuses", _LIVING),
    Adjective("tired", "fatigué", "fatiguée", "fatigués", "fatiguées", _LIVING),
    Adjective("black", "noir", "noire", "noirs", "noires", _NOT_PERSON),
    Adjective("white", "blanc", "blanche", "blancs", "blanches", _NOT_PERSON),
    Adjective("green", "vert", "verte", "verts", "vertes", _NOT_PERSON),
)

TRANSITIVE_VERBS = (
    Verb("see", "sees", ("vois", "voit", "voyons", "voyez", "voient")),
    Verb("find", "finds", ("trouve", "trouve", "trouvons", "trouvez", "trouvent")),
    Verb("watch", "watches", ("regarde", "regarde", "regardons", "regardez", "regardent")),
    Verb("draw", "draws", ("dessine", "dessine", "dessinons", "dessinez", "dessinent")),
    Verb("paint", "paints", ("peins", "peint", "peignons", "peignez", "peignent")),
    Verb("hear", "hears", ("entends", "entend", "entendons", "entendez", "entendent")),
    Verb("look", "looks", ("cherche", "cherche", "cherchons", "cherchez", "cherchent"), "for"),
    Verb("wait", "waits", ("attends", "attend", "attendons", "attendez", "attendent"), "for"),
)

INTRANSITIVE_VERBS = (
    Verb("sleep", "sleeps", ("dors", "dort", "dormons", "dormez", "dorment")),
    Verb("sing", "sings", ("chante", "chante", "chantons", "chantez", "chantent")),
    Verb("eat", "eats", ("mange", "mange", "mangeons", "mangez", "mangent")),
    Verb("play", "plays", ("joue", "joue", "jouons", "jouez", "jouent")),
)

COPULA = Verb("are", "is", ("suis", "est", "sommes", "êtes", "sont"))

# "you" is always the polite or plural "vous", and "they" always "ils", so that an English sentence
# has one translation.
PRONOUNS = (
    Pronoun("i", "je", 0, "m"),
    Pronoun("he", "il", 1, "m"),
    Pronoun("she", "elle", 1, "f"),
    Pronoun("we", "nous", 2, "m"),
    Pronoun("you", "vous", 3, "m"),
    Pronoun("they", "ils", 4, "m"),
)

PREPOSITIONS = (
    Preposition("in", "dans"),
    Preposition("behind", "derrière"),
    Preposition("in front of", "devant"),
)
