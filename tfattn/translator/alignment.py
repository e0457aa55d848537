"""Attention of translations to the words of their sources."""

from collections.abc import Sequence

import keras
import numpy as np

from tfattn import data
from tfattn.layers.attention.weights import attention_weights
from tfattn.translator.corpus import Pairs, Vocabulary


def source_attention(
    model: keras.Model, pairs: Pairs, vocabularies: list[Vocabulary]
) -> np.ndarray:
    """Cross-attention weights of the decoder's last block: `(B, H, T, S)`."""
    source_vocabulary, target_vocabulary = vocabularies
    source = _padded([[*source_vocabulary.encode(s), source_vocabulary.end_id] for s, _ in pairs])
    target_in = _padded(
        [[target_vocabulary.begin_id, *target_vocabulary.encode(t)] for _, t in pairs]
    )
    recorded = attention_weights(model, (source, target_in))
    last = [name for name in recorded if name.endswith(("cross_attention", "decoder"))][-1]
    weights = recorded[last]
    return weights if weights.ndim == 4 else weights[:, None]


def _padded(rows: list[list[int]]) -> np.ndarray:
    longest = max(map(len, rows))
    return np.array([row + [0] * (longest - len(row)) for row in rows], "int32")


def check_vocabularies(vocabularies: list[Vocabulary]) -> None:
    """Raises unless both vocabularies have words separated by spaces."""
    for vocabulary in vocabularies:
        if not isinstance(vocabulary, data.Vocabulary) or vocabulary.tokenizer is not None:
            raise ValueError("--replace-unknown needs vocabularies of words separated by spaces")


def replace_unknown(
    model: keras.Model,
    vocabularies: list[Vocabulary],
    sources: Sequence[str],
    translations: Sequence[str],
) -> list[str]:
    """The translations with a source word in the place of each unknown word.

    It is the word with the largest cross-attention weight in the decoder's last block, averaged
    over its heads.
    """
    unknown = vocabularies[1].words[vocabularies[1].unknown_id]
    replaced = list(translations)
    places = [i for i, text in enumerate(translations) if unknown in text.split()]
    places.sort(key=lambda i: len(sources[i]))
    for start in range(0, len(places), 100):
        batch = places[start : start + 100]
        pairs = [(sources[i], translations[i]) for i in batch]
        weights = np.mean(source_attention(model, pairs, vocabularies), axis=1)  # (B, T, S)
        for i, (source, translation), row in zip(batch, pairs, weights, strict=True):
            copied = source.split()
            heaviest = np.argmax(row[:, : len(copied)], axis=-1)  # (T,), without the end token
            replaced[i] = " ".join(
                copied[heaviest[t]] if word == unknown else word
                for t, word in enumerate(translation.split())
            )
    return replaced
