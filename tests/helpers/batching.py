"""Pairs of the toy task in batches, what is in a batch, and models of sentencepiece."""

import io

from tfattn.data import Vocabulary, token_batches, toy_translation, translation_batches

PAIRS = toy_translation(53, seed=2)
MORE_PAIRS = toy_translation(503, seed=3)  # enough for several batches of each length
ENGLISH = Vocabulary.from_sentences(source for source, _ in PAIRS + MORE_PAIRS)
FRENCH = Vocabulary.from_sentences(target for _, target in PAIRS + MORE_PAIRS)


def batches(pairs=PAIRS, batch_size=7, **arguments):
    return translation_batches(pairs, ENGLISH, FRENCH, batch_size, **arguments)


def by_tokens(pairs=MORE_PAIRS, tokens_per_batch=211, **arguments):
    return token_batches(pairs, ENGLISH, FRENCH, tokens_per_batch, **arguments)


def arrays(dataset):
    """The batches of a pass."""
    return list(dataset.as_numpy_iterator())


def sentences(epoch):
    """The pairs of some batches, decoded, in their order."""
    return [pair for batch in companies(epoch) for pair in batch]


def companies(epoch):
    """The pairs of some batches, decoded, batch by batch."""
    return [
        [
            (ENGLISH.decode(source), FRENCH.decode(target))
            for source, target in zip(sources, targets, strict=True)
        ]
        for (sources, _), targets in epoch
    ]


SPECIAL_IDS = {"pad_id": 0, "unk_id": 1, "bos_id": 2, "eos_id": 3}


def learned_by_sentencepiece(sentences, **options):
    """A model that sentencepiece learns by itself."""
    import sentencepiece

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(sentences),
        model_writer=model,
        **{"vocab_size": 150, "hard_vocab_limit": False, "minloglevel": 2, **options},
    )
    return model.getvalue()
