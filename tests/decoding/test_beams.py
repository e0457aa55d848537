"""Beams, and beams with a pool, apart from what `test_rules.py` tests of every search."""

import numpy as np
import pytest
from keras import ops

from tests.helpers.searches import (
    BEGIN,
    END,
    IDS,
    assert_same,
    beams_in_python,
    eagerly,
    noting,
    reading,
    reading_state,
    tables,
    trigram,
)
from tests.helpers.tensors import as_tensor, compiled, dtype_of, numpy
from tfattn import decoding, rules

pytestmark = pytest.mark.usefixtures("dense_path")


@pytest.mark.slow
@eagerly()
def test_beam_search_with_enough_beams_finds_what_trying_everything_finds():
    table = tables(0, batch=3, size=6)
    for penalty in (0.0, 0.6, 1.0, 2.0):
        search = decoding.BeamSearch(num_beams=121, length_penalty=penalty, num_results=121)
        found = search(trigram, table, 3, 4, **IDS)
        for row in range(3):
            wanted = beams_in_python(table[row], 4, penalty)
            assert len(wanted) == 1 + 3 + 9 + 27 + 81
            assert_same(found, wanted, row)


@pytest.mark.slow
@eagerly()
def test_beam_search_with_one_beam_equals_greedy_also_where_sums_round():
    # 1e-6 between two logits is lost when it is added to a sum of about -1000.
    logits = np.zeros((7, 8), "float32")
    logits[:, 3], logits[:, 5:7] = -1.0, [[1.0, 1.0 + 1e-6]]

    def step(tokens, position, state):
        row = as_tensor(logits)[position]
        first = ops.where(position == 0, ops.where(ops.arange(8) == 7, 0.0, 1000.0), row)
        zeros = ops.zeros((ops.shape(tokens)[0], 1))
        return ops.where(ops.arange(8) == 4, 0.0, first) + zeros, state

    found = decoding.BeamSearch(num_beams=1)(step, (), 1, 7)
    np.testing.assert_array_equal(found.tokens[:, 0], decoding.GreedySearch()(step, (), 1, 7))
    assert found.tokens[0, 0, 1] == 6


@pytest.mark.slow
@eagerly()
def test_beam_search_puts_lower_ids_of_equal_beams_first_and_pads():
    table = np.full((3, 3, 6, 6, 6), -np.inf, "float32")  # the last row has no possible token
    table[0] = np.where(np.isfinite(tables(0, 1, 6, length=3)[0]), 0.0, -np.inf)
    # Three hypotheses in all: END; 3 END; 4, which then has nothing that may follow.
    table[1, 0, BEGIN, BEGIN, [END, 3, 4]] = np.log([0.2, 0.5, 0.3])
    table[1, 1, BEGIN, 3, END] = 0.0
    found = decoding.BeamSearch(num_results=4)(trigram, table, 3, [2, 3, 3], **IDS)
    assert_same(found, [(-np.log(4), text) for text in ((END,), (3, END), (3, 3), (3, 4))])
    assert_same(found, [(np.log(0.5) / 2, (3, END)), (np.log(0.2), (END,))], row=1)
    assert_same(found, [], row=2)


@pytest.mark.slow
@eagerly()
def test_beam_search_of_a_float16_step_sums_in_float32():
    def half(tokens, position, table):
        return ops.cast(trigram(tokens, position, table)[0], "float16"), table

    table = tables(11, batch=2, size=7).astype("float16").astype("float32")
    found, wanted = (
        decoding.BeamSearch(num_beams=3)(step, table, 2, 9, **IDS) for step in (half, trigram)
    )
    np.testing.assert_array_equal(found.tokens, wanted.tokens)
    np.testing.assert_array_equal(found.scores, wanted.scores)
    assert dtype_of(found.scores) == "float32"


@pytest.mark.tensorflow
@eagerly()
def test_beam_search_stops_when_no_open_beam_can_overtake():
    # The end has probability 0.9, every other way 0.05 a token: after the first step nothing can
    # come close.
    logits = np.log([1e-9, 1e-9, 0.9, 0.05, 0.05]).astype("float32")

    def step(tokens, position, state):
        return ops.zeros((ops.shape(tokens)[0], 1)) + logits, state

    def steps_taken(**options):
        calls = []
        decoding.BeamSearch(num_beams=30, **options)(noting(step, calls), (), 2, 101, **IDS)
        return len(calls)

    assert steps_taken(length_penalty=0.0) == 1
    # Under the mean a long sentence could still overtake: n log 0.05 / 101 is worse than log 0.9
    # from n = 4 on.
    assert steps_taken(length_penalty=1.0) == 4
    assert steps_taken(length_penalty=0.0, num_results=2) == 2


# The state.


@pytest.mark.slow
@pytest.mark.parametrize(
    "run",
    [eagerly()(lambda search: search()), lambda search: compiled(search)()],
    ids=["dropped", "all"],
)
def test_beam_search_returns_the_state_in_the_order_of_the_results(run):
    """With finished rows dropped, and in a function of the caller's, which keeps all."""

    def search():
        options = {"return_state": True, **IDS}
        beams = decoding.BeamSearch(num_beams=4, num_results=3)
        found = beams(reading, reading_state(table, 7), 5, 7, **options)
        words = {"none", "word", "number"}
        assert found.state["none"] is None
        return found.tokens, {name: x for name, x in found.state.items() if name not in words}

    table = tables(17, batch=5, size=7, scale=3.0)
    tokens, state = run(search)
    tokens = numpy(tokens).reshape(15, 7).tolist()
    assert numpy(state["rows"]).tolist() == np.repeat(np.arange(5), 3).tolist()
    np.testing.assert_array_equal(state["table"], np.repeat(table, 3, axis=0))
    lengths = [row.index(END) + 1 if END in row else 7 for row in tokens]
    assert max(lengths) <= int(state["count"]) <= 7 and tuple(state["made"].shape) == (15, 7)
    assert len(set(lengths)) > 2
    for written, seen, length in zip(tokens, numpy(state["read"]).tolist(), lengths, strict=True):
        # Read up to the token before the last, and left as it was from there on.
        assert seen == [BEGIN, *written[: length - 1], *[-1] * (7 - length)]


@pytest.mark.tensorflow
@pytest.mark.slow
@eagerly()
def test_beam_search_does_not_gather_what_a_step_leaves_alone():
    def step(tokens, position, state):
        seen.append(state)
        return reading(tokens, position, state)

    seen, table = [], tables(3, 2, 7)
    table[..., END] = -np.inf
    found = decoding.BeamSearch(num_beams=3)(step, reading_state(table, 5), 2, 5, **IDS)
    assert found.state is None  # without `return_state`
    first, *later = seen
    assert first["table"].shape[0] == 2  # the first step has one row per sentence
    assert len(later) == 4 and later[0]["table"].shape[0] == 6
    assert all(
        state["table"] is later[0]["table"] and state["read"] is not later[0]["read"]
        for state in later[1:]
    )


def test_beam_search_of_more_results_than_beams_is_refused():
    message = "^BeamSearch: `num_results` must be at most `num_beams`=4. Received: num_results=5$"
    with pytest.raises(ValueError, match=message):
        decoding.BeamSearch(num_results=5)(trigram, tables(0, 1, 5), 1, 3, **IDS)


# The pool.


@eagerly()
def test_pooled_beam_search_with_more_beams_than_candidates_leaves_places_empty():
    found = decoding.PooledBeamSearch(6)(trigram, tables(1, 1, 7), 1, 1, **IDS)
    np.testing.assert_array_equal(numpy(found.tokens)[0, :, 0], [END, 0, 0, 0, 0, 0])
    assert np.isneginf(numpy(found.scores)[0, 1:]).all()


@eagerly()
def test_pooled_beam_search_refuses_what_it_cannot_do():
    arguments = trigram, tables(5, 1, 7), 1, 6
    every = decoding.PooledBeamSearch(rules=[rules.ForbiddenTokens(range(7))])
    with pytest.raises(ValueError, match="leave each row a token to write"):
        every(*arguments, **IDS)
    with pytest.raises(ValueError, match="PooledBeamSearch: `return_state` must be False"):
        decoding.PooledBeamSearch(2)(*arguments, **IDS, return_state=True)
    with pytest.raises(ValueError, match="PooledBeamSearch: `steps` must be a positive integer"):
        decoding.PooledBeamSearch(2).stream(trigram, tables(5, 1, 7), 6, steps=-3)
