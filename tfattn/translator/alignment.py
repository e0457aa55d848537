"""Attention of translations to the words of their sources."""

import keras
import numpy as np

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
