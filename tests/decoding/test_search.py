"""The base of all searches: configs, and custom searches."""

import keras
import numpy as np
import pytest
from keras import ops

from tests.helpers.searches import (
    ENGLISH,
    GERMAN,
    IDS,
    WordForWord,
    eagerly,
    noting,
    tables,
    trigram,
)
from tests.helpers.tensors import CALLS_A_TRACE, floatx, needs_compiling, numpy
from tfattn import decoding, rules

pytestmark = pytest.mark.usefixtures("dense_path")

RULES = [
    rules.RepetitionPenalty(1.2),
    rules.NoRepeatNgrams(3),
    rules.ForbiddenTokens([0, [5, 5]]),
    rules.TargetPrefix([[5], [], [6, 4]]),
    rules.MinLength(3),
]
SEARCHES = {
    "greedy": decoding.GreedySearch(RULES),
    "sample": decoding.Sampling(0.7, top_k=5, top_p=0.9, seed=3, rules=RULES[:3]),
    "generator": decoding.Sampling(seed=keras.random.SeedGenerator(5)),
    "beams": decoding.BeamSearch(*(5, 0.6, 2), rules=[rules.TargetPrefix([5])]),
    "pooled": decoding.PooledBeamSearch(3, rules=RULES[:3]),
}


def test_rule_without_a_constructor_has_a_config():
    class Plain(rules.Rule):
        pass

    assert Plain().get_config() == {}
    search = decoding.GreedySearch(rules=[Plain()])
    assert repr(search) == "GreedySearch((Plain(),))"


@pytest.mark.slow
@pytest.mark.parametrize("name", SEARCHES)
@eagerly()
def test_search_from_its_config_is_the_same_also_with_another_floatx(name):
    search = SEARCHES[name]
    config = keras.saving.serialize_keras_object(search)
    assert config["registered_name"] == f"tfattn>{type(search).__name__}"
    again = keras.saving.deserialize_keras_object(config)
    assert type(again) is type(search) and again.get_config() == search.get_config()
    assert repr(again.rules) == repr(search.rules)
    with floatx("float64"):
        table = tables(3, batch=3, size=7)
        found = again(trigram, table, 3, 8, **IDS)
    wanted = search(trigram, table, 3, 8, **IDS)
    for mine, theirs in zip(*map(keras.tree.flatten, (found, wanted)), strict=True):
        np.testing.assert_array_equal(mine, theirs)


@keras.saving.register_keras_serializable("tests")
class TopA(decoding.Sampling):
    """Draws among the tokens with p ≥ share · max(p)²."""

    tensors = (*decoding.Sampling.tensors, "share")

    def __init__(self, share, **options):
        super().__init__(**options)
        self.share = share

    def keep(self, p):
        return ops.where(p * ops.sum(p, axis=-1, keepdims=True) >= self.share, p, 0.0)


@keras.saving.register_keras_serializable("tests")
class NthBest(decoding.Search):
    """Takes the n-th best token at every n-th place, and else the best."""

    def __init__(self, n, rules=()):
        super().__init__(rules)
        self.n = n

    def start(self, batch_size, length):
        return {"places": ops.zeros((batch_size,), "int32")}

    def choose(self, logits, position, found, width):
        best = ops.cast(ops.top_k(logits, self.n)[1], "int32")
        places = found.extra["places"] + 1
        token = ops.where(places % self.n == 0, best[:, -1], best[:, 0])
        return token, None, {"places": places}


@pytest.mark.parametrize("share", [0.3, 0.5, 0.95])
@eagerly()
def test_custom_sampling_keeps_what_its_keep_says(share):
    p = np.array([0.4, 0.25, 0.1, 0.06, 0.19 * 0.25, 0.1425])  # of tokens 3, 4, …
    kept = np.flatnonzero(p >= share * p.max() ** 2) + 3
    scores = np.log(np.concatenate([[1e-9] * 3, p])).astype("float32")

    def step(tokens, position, state):
        return ops.take(scores[None], 0 * tokens[:, 0], axis=0), state

    found = numpy(TopA(share, seed=3)(step, (), 999, 1, end_id=0))
    assert sorted(set(found[:, 0].tolist())) == kept.tolist()


@pytest.mark.slow
@needs_compiling
def test_custom_sampling_with_another_number_compiles_nothing_new():
    calls = []
    step = noting(trigram, calls)
    for share in (0.1, 0.5):
        TopA(share, seed=1)(step, tables(0, 2, 7), 2, 7, **IDS)
    assert len(calls) == CALLS_A_TRACE


@pytest.mark.slow
@eagerly()
def test_custom_search_works_wherever_a_search_is_taken():
    search = NthBest(2, rules=[rules.MinLength(3)])
    table = tables(5, batch=3, size=7)
    found = numpy(search(trigram, table, 3, 6, **IDS))
    for row in range(3):
        stream = search.stream(trigram, table[row : row + 1], 6, **IDS)
        assert [*stream] == [token for token in found[row].tolist() if token != IDS["padding_id"]]
    again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(search))
    assert again.n == 2 and again.rules[0].length == 3
    arguments = WordForWord(), ["one two", "three"], ENGLISH, GERMAN
    assert decoding.translate(*arguments, search=search) != decoding.translate(*arguments)


@eagerly()
def test_custom_search_tensors_leave_the_loop_with_their_row():
    """On TensorFlow, rows that have ended are dropped."""
    script = np.array([[1, 9, 9, 9], [0, 0, 1, 9], [0, 0, 0, 0]])

    def step(tokens, position, state):
        likes = ops.one_hot(ops.where(ops.take(state, position, axis=1) == 1, 3, 5), 9)
        return likes * 2.0 + ops.one_hot(ops.full_like(tokens[:, 0], 6), 9), state

    found = numpy(NthBest(2)(step, script, 3, 4))
    assert found.tolist() == [[3, 0, 0, 0], [5, 6, 3, 0], [5, 6, 5, 6]]
