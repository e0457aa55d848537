"""Text for translation: a toy corpus, parallel files, vocabularies, batches.

    train, held_out = data.split_pairs(data.toy_translation(10_000, seed=0))
    english, french = map(data.Vocabulary.from_sentences, zip(*train))
    batches = data.token_batches(train, english, french, tokens_per_batch=1024, shuffle_seed=0)

Sentences are a list of `(source, target)` pairs of strings, from the toy grammar or from files. A
`Vocabulary` contains words, a `SubwordVocabulary` subwords, a `MarianVocabulary` those of a
published translator; all have the same methods. `Characters`, `Moses` or your own function can
tokenize sentences for a `Vocabulary`. `token_batches` groups sentences of similar length.

Batches are a `tf.data.Dataset`, or a `keras.utils.PyDataset` with the same batches on the JAX and
PyTorch backends. TensorFlow is imported only for the former, and sentencepiece only for subwords.
"""

from tfattn.data.batches import token_batches, translation_batches
from tfattn.data.epochs import EpochCounter
from tfattn.data.marian import MarianVocabulary
from tfattn.data.parallel import read_parallel
from tfattn.data.shards import shard_batches
from tfattn.data.subword_dropout import SubwordDropout
from tfattn.data.subwords import SubwordVocabulary, load_vocabulary
from tfattn.data.tokenizers import Characters, Moses
from tfattn.data.toy_corpus import split_pairs, toy_translation
from tfattn.data.vocabulary import Vocabulary

__all__ = [
    "Characters",
    "EpochCounter",
    "MarianVocabulary",
    "Moses",
    "SubwordDropout",
    "SubwordVocabulary",
    "Vocabulary",
    "load_vocabulary",
    "read_parallel",
    "shard_batches",
    "split_pairs",
    "token_batches",
    "toy_translation",
    "translation_batches",
]
