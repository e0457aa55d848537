"""Several models as one, in every search."""

import keras
import numpy as np
import pytest
from keras import ops

import tfattn
from tests.helpers.searches import ENGLISH, GERMAN, eagerly, recurrent, transformer
from tfattn import decoding, rules

pytestmark = pytest.mark.usefixtures("dense_path")

SENTENCES = ["one two three", "four one two"]
SEARCHES = {
    "greedy": decoding.GreedySearch(rules=[rules.NoRepeatNgrams(2)]),
    "beams": decoding.BeamSearch(3, rules=[rules.MinLength(3)]),
    "sampling": decoding.Sampling(top_k=4, seed=3),
}


@pytest.fixture(scope="module")
def models():
    return [transformer(), transformer(num_layers=2, positions=tfattn.LearnedPositionalEncoding(9))]


@pytest.mark.slow
@eagerly()
@pytest.mark.parametrize("search", SEARCHES.values(), ids=SEARCHES)
def test_ensemble_of_a_model_twice_is_the_model(models, search):
    found, wanted = (
        decoding.translate(model, SENTENCES, ENGLISH, GERMAN, search, max_length=4)
        for model in (decoding.Ensemble(models[:1] * 2), models[0])
    )
    assert found == wanted


def mean_in_numpy(models, source, target_in):
    """The mean of the probabilities, in float64, `(B, T, V)`."""
    found = 0.0
    for model in models:
        logits = ops.convert_to_numpy(model((source, target_in))).astype("float64")
        p = np.exp(logits - logits.max(axis=-1, keepdims=True))
        found = found + p / p.sum(axis=-1, keepdims=True) / len(models)
    return found


@pytest.mark.slow
@eagerly()
def test_ensemble_sums_the_logs_of_mean_probabilities(models):
    """Of a Transformer and a recurrent model, with caches and states that follow the beams."""
    models = [models[0], recurrent()]
    ensemble, search = decoding.Ensemble(models), decoding.BeamSearch(3, length_penalty=0.0)
    source = np.array([[4, 7, 5, 3], [6, 4, 3, 0]], "int32")
    state = ensemble.encode(source, max_length=4)
    found = search(ensemble.step, state, len(source), 4)
    tokens = ops.convert_to_numpy(found.tokens)[:, 0]
    target_in = np.concatenate([np.full((2, 1), 2), tokens[:, :-1]], axis=1)
    log_p = np.log(mean_in_numpy(models, source, target_in))
    whole = ops.convert_to_numpy(ensemble((source, target_in)))
    np.testing.assert_allclose(whole, log_p, rtol=1e-4, atol=1e-4)
    picked = np.take_along_axis(log_p, tokens[..., None], axis=-1)[..., 0]
    wanted = np.where(tokens == 0, 0.0, picked).sum(axis=1)
    np.testing.assert_allclose(ops.convert_to_numpy(found.scores)[:, 0], wanted, rtol=1e-4)
    pairs = [("one two", "eins"), ("two", "")]
    found = decoding.log_probabilities(ensemble, pairs, ENGLISH, GERMAN)
    source, target = np.array([[4, 5, 3], [5, 3, 0]]), np.array([[GERMAN.encode("eins")[0], 3]] * 2)
    p = mean_in_numpy(models, source, np.array([[2, target[0, 0]]] * 2))
    wanted = [np.log(p[0, 0, target[0, 0]] * p[0, 1, 3]), np.log(p[1, 0, 3])]
    assert ENGLISH.encode("one two") == [4, 5]
    np.testing.assert_allclose(found, wanted, rtol=1e-4)


def test_ensemble_has_the_least_lengths(models):
    ensemble = decoding.Ensemble(models)
    assert (ensemble.max_source_length, ensemble.max_target_length) == (9, 9)
    assert ensemble.target_vocabulary_size == len(GERMAN)


@pytest.mark.slow
@eagerly()
def test_ensemble_of_language_models_keeps_the_prompt():
    sizes = {"num_layers": 1, "width": 8, "num_heads": 2, "hidden_dim": 16}
    ensemble = decoding.Ensemble([tfattn.CausalLM(11, **sizes) for _ in range(2)])
    prompt = np.array([[4, 7, 5], [6, 0, 0]])
    state = ensemble.encode(prompt, max_length=5)
    search = decoding.GreedySearch(rules=[rules.ForbiddenTokens([7, 6])])
    found = ops.convert_to_numpy(search(ensemble.step, state, 2, 5))
    assert found[0, :3].tolist() == [4, 7, 5] and found[1, 0] == 6
    assert not {6, 7} & {*found[0, 3:], *found[1, 1:]}


def test_ensemble_with_a_model_of_unknown_vocabularies_knows_the_others(models):
    class Unknown:
        encode, step = models[0].encode, models[0].step

    for pair in ([models[0], Unknown()], [Unknown(), models[0]]):
        assert decoding.Ensemble(pair).target_vocabulary_size == len(GERMAN)
    assert decoding.Ensemble([Unknown()]).target_vocabulary_size is None
    found, wanted = (
        decoding.translate(decoding.Ensemble([each]), SENTENCES, ENGLISH, GERMAN, max_length=3)
        for each in (decoding.Ensemble([Unknown()]), models[0])
    )
    assert found == wanted


def test_ensemble_of_other_vocabularies_or_objects_is_refused():
    sizes = {"num_layers": 1, "width": 8, "num_heads": 2, "hidden_dim": 16}
    models = [tfattn.Transformer(11, size, **sizes) for size in (13, 17)]
    said = r"must have the same `target_vocabulary_size`. Received: models=\[13, 17\]"
    with pytest.raises(ValueError, match=said):
        decoding.Ensemble(models)
    with pytest.raises(ValueError, match="Ensemble: `models` must be a sequence of models with"):
        decoding.Ensemble([models[0], keras.layers.Dense(3)])
    with pytest.raises(ValueError, match="Ensemble: `models` must be a sequence of models"):
        decoding.Ensemble([])
