"""Text for translation: a toy corpus, parallel files, vocabularies, batches.

    from tfattn import data

    train, held_out = data.split_pairs(data.toy_translation(10_000, seed=0))
    english = data.Vocabulary.from_sentences(source for source, _ in train)
    french = data.Vocabulary.from_sentences(target for _, target in train)
    batches = data.translation_batches(train, english, french, batch_size=64, shuffle_seed=0)

Sentences are a list of `(source, target)` pairs of strings, from the toy grammar or from files. A
`Vocabulary` has whole words, a `SubwordVocabulary` parts of words; both have the same methods.
`Characters` and `Moses` split sentences for a `Vocabulary`, and so may a function of your own.
`token_batches` puts sentences of similar length together. With a `SubwordDropout` it applies BPE
dropout, differently in each epoch. `simcut_batches` repeats each pair with some tokens cut, for
SimCut. `shard_batches` gives a process its rows of each batch.

Batches are a `tf.data.Dataset`, or on another backend than TensorFlow's a `keras.utils.PyDataset`;
either way the same batches. TensorFlow is imported only when it makes them, and sentencepiece only
for subwords.
"""

from tfattn.data.batches import token_batches, translation_batches
from tfattn.data.epochs import EpochCounter
from tfattn.data.parallel import read_parallel
from tfattn.data.shards import shard_batches
from tfattn.data.simcut import simcut_batches
from tfattn.data.subword_dropout import SubwordDropout
from tfattn.data.subwords import SubwordVocabulary, load_vocabulary
from tfattn.data.tokenizers import Characters, Moses
from tfattn.data.toy_corpus import split_pairs, toy_translation
from tfattn.data.toy_swaps import swapped_words
from tfattn.data.vocabulary import Vocabulary

__all__ = [
    "Characters",
    "EpochCounter",
    "Moses",
    "SubwordDropout",
    "SubwordVocabulary",
    "Vocabulary",
    "load_vocabulary",
    "read_parallel",
    "shard_batches",
    "simcut_batches",
    "split_pairs",
    "swapped_words",
    "token_batches",
    "toy_translation",
    "translation_batches",
]
