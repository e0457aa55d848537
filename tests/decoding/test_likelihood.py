"""Log-probabilities of given translations."""

import numpy as np
import pytest
from keras import ops

import tfattn
from tests.helpers.searches import ENGLISH, GERMAN, transformer
from tests.helpers.tensors import torch
from tfattn import decoding

pytestmark = pytest.mark.usefixtures("dense_path")


def by_steps(model, source, target):
    """The sum over single steps of the decoder."""
    state = model.encode(np.array([[*ENGLISH.encode(source), ENGLISH.end_id]]))
    tokens = np.array([[GERMAN.begin_id, *GERMAN.encode(target), GERMAN.end_id]])
    found = 0.0
    for position, token in enumerate(tokens[0, 1:]):
        logits = ops.convert_to_numpy(model.step(tokens, position, state)[0])[0].astype("float64")
        found += logits[token] - np.logaddexp.reduce(logits)
    return found


@pytest.mark.slow
def test_log_probabilities_sum_the_tokens_and_the_end():
    model = transformer()
    pairs = [("one two three", "eins zwei"), ("four", ""), ("", "drei"), ("two " * 9, "vier kaum")]
    said = r"`target_vocabulary` lacks words, .*: 'kaum' \(pairs\[3\]\)"
    with pytest.warns(UserWarning, match=said) as warned:
        found = decoding.log_probabilities(model, pairs, ENGLISH, GERMAN, batch_size=3)
    assert warned[0].filename == __file__
    np.testing.assert_allclose(found, [by_steps(model, *pair) for pair in pairs], rtol=1e-4)


@pytest.mark.skipif(torch is None, reason="about the graph that PyTorch keeps for gradients")
def test_log_probabilities_on_pytorch_keep_nothing_for_gradients(monkeypatch):
    model, seen = transformer(), []
    call = type(model).call
    monkeypatch.setattr(
        type(model),
        "call",
        lambda *of, **options: seen.append(torch.is_grad_enabled()) or call(*of, **options),
    )
    decoding.log_probabilities(model, [("one", "eins")], ENGLISH, GERMAN)
    assert seen == [False]


def test_log_probabilities_of_a_long_pair_are_refused_by_its_place():
    model = transformer(positions=tfattn.LearnedPositionalEncoding(5))
    pairs = [("one", "eins"), ("one", "eins " * 9)]
    with pytest.raises(ValueError, match=r"log_probabilities: `pairs\[1\]` must have at most 4 to"):
        decoding.log_probabilities(model, pairs, ENGLISH, GERMAN)
