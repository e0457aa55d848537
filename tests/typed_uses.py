"""Uses of the package for mypy, which checks the types of what public names return.

Nothing here runs. A `type: ignore` stands where mypy must find a mistake.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

import tfattn
from tfattn import MultiHeadAttention, Score, Transformer, convert, data, masks
from tfattn._types import Tensor
from tfattn.core.masks.base import Mask
from tfattn.decoding import Hypotheses
from tfattn.kernel_regression import KernelRegression, KernelRegressor

if TYPE_CHECKING:
    from typing import assert_type


def attention(tokens: np.ndarray) -> None:
    layer = MultiHeadAttention(num_heads=2, key_dim=4)
    assert_type(layer(tokens, tokens), Tensor)
    output, weights = layer(query=tokens, value=tokens, return_attention_scores=True)
    assert_type(weights, Tensor)
    assert_type(layer.num_heads, int)
    assert_type(layer.score, Score)
    assert_type(layer.get_config(), dict[str, Any])
    assert_type(MultiHeadAttention.from_config({}), MultiHeadAttention)
    assert_type(tfattn.attention_weights(layer, tokens, tokens), dict[str, Any])
    assert_type(convert.from_keras(convert.to_keras(layer)), MultiHeadAttention)
    MultiHeadAttention(heads=2, key_dim=4)  # type: ignore[call-arg]
    mask = masks.causal() & masks.window(3) | ~masks.padding([1, 2])
    assert_type(mask, Mask)
    tfattn.attend(query=output, value=tokens, mask=mask)
    tfattn.attend(query=output, values=tokens)  # type: ignore[call-arg]


def translation(pairs: list[tuple[str, str]], source: np.ndarray) -> None:
    words = data.Vocabulary.from_sentences(sentence for pair in pairs for sentence in pair)
    assert_type(words, data.Vocabulary)
    assert_type(words.encode("a bird"), list[int])
    subwords = data.SubwordVocabulary.from_sentences(["a bird"], size=9)
    data.token_batches(pairs, data.SubwordDropout(subwords), subwords, 9)
    model = Transformer(len(words), num_layers=1)
    assert_type(model.encoder, tfattn.TransformerEncoder)
    assert_type(model.decoder.max_length, int | None)
    assert_type(convert.to_marian(model), dict[str, np.ndarray])
    state = model.encode(source, max_length=6)
    assert_type(state, dict[str, Any])
    search = tfattn.BeamSearch(num_beams=4)
    found = search(model.step, state, batch_size=1, max_length=6)
    assert_type(found, Hypotheses)
    assert_type(found.scores, Tensor)
    search(model.step, state, batch_size=1, length=6)  # type: ignore[call-arg]
    assert_type(search.stream(model.step, state, max_length=6), Iterator[int])
    assert_type(tfattn.translate(model, ["a"], words, words, search=search), list[str])


def regression(x: np.ndarray, y: np.ndarray) -> None:
    fitted = KernelRegression(bandwidth=0.5).fit(x, y)
    assert_type(fitted, KernelRegression)
    assert_type(fitted.predict(x), np.ndarray)
    assert_type(fitted.leave_one_out().r2, float)
    assert_type(KernelRegressor(bandwidth=0.5).fit(x, y), KernelRegressor)
