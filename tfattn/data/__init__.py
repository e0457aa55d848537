"""Text for translation: a toy corpus, parallel files, vocabularies, batches.

    from tfattn import data

    train, held_out = data.split_pairs(data.toy_translation(10_000, seed=0))
    english = data.Vocabulary.from_sentences(source for source, _ in train)
    french = data.Vocabulary.from_sentences(target for _, target in train)
    batches = data.translation_batches(train, english, french, batch_size=64, shuffle_seed=0)

Sentences travel as a list of `(source, target)` pairs of strings, whether they
come from the toy grammar or from files. TensorFlow is imported only when
`translation_batches` is called.
"""

from tfattn.data.batches import translation_batches
from tfattn.data.parallel import read_parallel
from tfattn.data.toy_corpus import split_pairs, toy_translation
from tfattn.data.vocabulary import Vocabulary

__all__ = [
    "Vocabulary",
    "read_parallel",
    "split_pairs",
    "toy_translation",
    "translation_batches",
]
