"""Beam search over tables of probabilities: against every hypothesis there is, and against a beam
search in Python.
"""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import ops

import tfattn
from tests.tensors import (
    BACKEND,
    CALLS_A_TRACE,
    as_tensor,
    dtype_of,
    needs_compiling,
    numpy,
    tf,
)
from tfattn import decoding

pytestmark = pytest.mark.usefixtures("dense_path")

BEGIN, END, PAD = 1, 2, 0
IDS = {"begin_id": BEGIN, "end_id": END, "padding_id": PAD}
PENALTIES = [0.0, 0.6, 1.0, 2.0]


def trigram(tokens, position, table):
    """Logits by position and the last two tokens; `table` (B, L, V, V, V) is the state, one for
    each row.
    """
    last = ops.take(tokens, position, axis=1)
    before = ops.take(tokens, ops.maximum(position - 1, 0), axis=1)
    chosen = ops.take(table, position, axis=1)  # (B, V, V, V)
    chosen = ops.take_along_axis(chosen, before[:, None, None, None], axis=1)[:, 0]  # (B, V, V)
    return ops.take_along_axis(chosen, last[:, None, None], axis=1)[:, 0], table


def tables(seed, batch, size, scale=2.0, length=11):
    """Random logits `(B, L, V, V, V)`; padding and begin are never written."""
    logits = np.random.default_rng(seed).normal(size=(batch, length, size, size, size), scale=scale)
    logits[..., [BEGIN, PAD]] = -np.inf
    return logits.astype("float32")


def log_probabilities(table, tokens):
    """float64 log-probabilities of the token after `tokens`, which begin with BEGIN."""
    with np.errstate(divide="ignore"):
        logits = table[
            len(tokens) - 1, tokens[-2] if len(tokens) > 1 else BEGIN, tokens[-1]
        ].astype("float64")
        return logits - np.log(np.exp(logits - logits.max()).sum()) - logits.max()


def every_hypothesis(table, max_length, penalty):
    """(score, tokens) of all that can be written, the best first."""
    found, live = [], [((BEGIN,), 0.0)]
    for length in range(1, max_length + 1):
        longer = []
        for tokens, total in live:
            for token, gain in enumerate(log_probabilities(table, tokens)):
                if gain > -np.inf:
                    longer.append(((*tokens, token), total + gain))
        ended = [h for h in longer if h[0][-1] == END or length == max_length]
        found += [(total / length**penalty, tokens[1:]) for tokens, total in ended]
        live = [h for h in longer if h[0][-1] != END]
    return sorted(found, reverse=True)


def beams_in_python(table, max_length, penalty, num_beams):
    """The same search, one sentence at a time and always to the last step."""
    beams = [((BEGIN,), 0.0, 0)]

    def score(beam):
        return beam[1] / max(beam[2], 1) ** penalty

    for _ in range(max_length):
        candidates = []
        for tokens, total, length in beams:
            if tokens[-1] == END:
                candidates.append((tokens, total, length))
                continue
            gains = log_probabilities(table, tokens)
            candidates += [
                ((*tokens, t), total + g, length + 1) for t, g in enumerate(gains) if g > -np.inf
            ]
        beams = sorted(candidates, key=score, reverse=True)[:num_beams]
    return [(score(beam), beam[0][1:]) for beam in beams]


def assert_same(found, wanted, row=0):
    """A row of `Hypotheses` is the list of (score, tokens) `wanted`; the rest of it is padding with
    score -inf.
    """
    tokens, scores = np.array(found.tokens[row]), np.array(found.scores[row])
    for (score, sequence), got, got_score in zip(wanted, tokens, scores, strict=False):
        assert got.tolist() == [*sequence, *[PAD] * (len(got) - len(sequence))]
        np.testing.assert_allclose(got_score, score, rtol=1e-5, atol=1e-5)
    assert (tokens[len(wanted) :] == PAD).all() and (scores[len(wanted) :] == -np.inf).all()


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("penalty", PENALTIES)
@pytest.mark.parametrize("seed", range(2))
def test_enough_beams_find_what_trying_everything_finds(seed, penalty):
    table = tables(seed, batch=3, size=6)
    found = decoding.beam_search(
        trigram, table, 3, 4, num_beams=121, length_penalty=penalty, num_results=121, **IDS
    )
    for row in range(3):
        wanted = every_hypothesis(table[row], 4, penalty)
        assert len(wanted) == 1 + 3 + 9 + 27 + 81
        assert_same(found, wanted, row)


# One step for all examples: another table is another state of the same compiled search.
@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    size=st.sampled_from([4, 7]),
    penalty=st.sampled_from(PENALTIES),
    beams_and_results=st.sampled_from([(2, 1), (5, 3)]),
    scale=st.sampled_from([0.3, 2.0, 6.0]),
)
def test_few_beams_find_what_the_search_in_python_finds(
    seed, size, penalty, beams_and_results, scale
):
    num_beams, num_results = beams_and_results
    table = tables(seed, batch=7, size=size, scale=scale)
    options = {"num_beams": num_beams, "num_results": num_results, "length_penalty": penalty, **IDS}
    limits = np.random.default_rng(seed).permutation(7) + 1
    found = decoding.beam_search(trigram, table, 7, max_length=limits, **options)
    for row, limit in enumerate(limits):
        assert_same(
            found, beams_in_python(table[row], limit, penalty, num_beams)[:num_results], row
        )


@pytest.mark.slow
def test_one_beam_is_greedy_search():
    table = tables(7, batch=23, size=13)
    for penalty in PENALTIES:
        found = decoding.beam_search(
            trigram, table, 23, 11, num_beams=1, length_penalty=penalty, **IDS
        )
        np.testing.assert_array_equal(
            found.tokens[:, 0], decoding.greedy_search(trigram, table, 23, 11, **IDS)
        )


@pytest.mark.slow
def test_one_beam_is_greedy_search_where_rounding_makes_two_sums_equal():
    # 1e-6 between two logits is lost when it is added to a sum of about -1000.
    logits = np.zeros((7, 8), "float32")
    logits[:, 3], logits[:, 5:7] = -1.0, [[1.0, 1.0 + 1e-6]]

    def step(tokens, position, state):
        row = as_tensor(logits)[position]
        first = ops.where(position == 0, ops.where(ops.arange(8) == 7, 0.0, 1000.0), row)
        return ops.where(ops.arange(8) == 4, 0.0, first) + ops.zeros(
            (ops.shape(tokens)[0], 1)
        ), state

    found = decoding.beam_search(step, (), 1, 7, num_beams=1)
    np.testing.assert_array_equal(found.tokens[:, 0], decoding.greedy_search(step, (), 1, 7))
    assert found.tokens[0, 0, 1] == 6


@pytest.mark.slow
def test_one_beam_is_greedy_search_on_a_transformer():
    model = tfattn.Transformer(13, 11, num_layers=1, width=10, num_heads=2, hidden_dim=14)
    rng = np.random.default_rng(3)
    source = rng.integers(4, 13, size=(7, 5))
    model((source, source % 11))
    model.set_weights([rng.normal(size=w.shape) if w.ndim > 1 else w for w in model.get_weights()])
    state = model.encode(source)
    greedy = decoding.greedy_search(model.step, state, 7, 6)
    found = decoding.beam_search(model.step, state, 7, 6, num_beams=1)
    np.testing.assert_array_equal(found.tokens[:, 0], greedy)
    more = decoding.beam_search(model.step, state, 7, 6, num_beams=3)
    assert (np.array(more.scores) >= np.array(found.scores) - 1e-5).all() and numpy(
        more.tokens != found.tokens
    ).any()


@pytest.mark.slow
def test_beams_that_there_are_not_are_padding_with_score_minus_infinity():
    # Three hypotheses in all: END; 3 END; 4, which then has nothing that may follow.
    table = np.full((1, 3, 6, 6, 6), -np.inf, "float32")
    table[0, 0, BEGIN, BEGIN, [END, 3, 4]] = np.log([0.2, 0.5, 0.3])
    table[0, 1, BEGIN, 3, END] = 0.0
    found = decoding.beam_search(
        trigram, table, 1, 3, num_beams=7, length_penalty=0.0, num_results=5, **IDS
    )
    assert_same(found, [(np.log(0.5), (3, END)), (np.log(0.2), (END,))])


@pytest.mark.slow
def test_no_hypothesis_comes_twice_and_none_is_no_number():
    table = tables(5, batch=5, size=5)
    table[0] = np.where(np.isfinite(table[0]), 0.0, -np.inf)  # ties everywhere
    table[1, :, :, 3] = -np.inf  # a dead end
    table[2] = -np.inf
    found = decoding.beam_search(trigram, table, 5, 4, num_beams=13, num_results=13, **IDS)
    for tokens, scores in zip(numpy(found.tokens), numpy(found.scores), strict=True):
        written = [tuple(row) for row, score in zip(tokens, scores, strict=True) if score > -np.inf]
        assert len(set(written)) == len(written)
        assert not np.isnan(scores).any() and (np.diff(scores[scores > -np.inf]) <= 0).all()
    assert numpy(found.tokens[2] == PAD).all()


@pytest.mark.slow
def test_of_two_equal_beams_the_one_with_the_lower_ids_comes_first():
    table = np.where(np.isfinite(tables(0, 1, 6)), 0.0, -np.inf)
    found = decoding.beam_search(trigram, table, 1, 2, num_beams=4, num_results=4, **IDS)
    assert numpy(found.tokens).tolist() == [[[END, 0], [3, END], [3, 3], [3, 4]]]


@pytest.mark.slow
def test_a_float16_step_is_summed_in_float32():
    def half(tokens, position, table):
        return ops.cast(trigram(tokens, position, table)[0], "float16"), table

    table = tables(11, batch=2, size=7).astype("float16").astype("float32")
    found, wanted = (
        decoding.beam_search(step, table, 2, 9, num_beams=3, **IDS) for step in (half, trigram)
    )
    np.testing.assert_array_equal(found.tokens, wanted.tokens)
    np.testing.assert_array_equal(found.scores, wanted.scores)
    assert dtype_of(found.scores) == "float32"


@pytest.mark.tensorflow
@pytest.mark.slow
def test_a_sentence_is_done_when_no_open_beam_can_overtake():
    # The end has probability 0.9, every other way 0.05 a token: after the first step nothing can
    # come close.
    logits = np.log([1e-9, 1e-9, 0.9, 0.05, 0.05]).astype("float32")

    def step(tokens, position, state):
        steps.assign_add(1)
        return ops.zeros((ops.shape(tokens)[0], 1)) + logits, state

    def steps_taken(**options):
        steps.assign(0)
        decoding.beam_search(step, (), 2, 101, num_beams=30, **options, **IDS)
        return int(steps)

    steps = tf.Variable(0)
    assert steps_taken(length_penalty=0.0) == 1
    # Under the mean a long sentence could still overtake: n log 0.05 / 101 is worse than log 0.9
    # from n = 4 on.
    assert steps_taken(length_penalty=1.0) == 4
    assert steps_taken(length_penalty=0.0, num_results=2) == 2


# The state.


def reading(tokens, position, state):
    """`trigram` that notes what it reads: a buffer (B, L), filled in place."""
    here = ops.arange(ops.shape(tokens)[1]) == position
    read = ops.take(tokens, position, axis=1)
    logits, table = trigram(tokens, position, state["table"])
    return logits, {**state, "read": ops.where(here, read[:, None], state["read"]), "table": table}


def reading_state(table, length):
    rows = ops.arange(len(table), dtype="int32")
    return {
        "table": as_tensor(table),
        "read": ops.full((len(table), length), -1),
        "rows": rows,
    }


@pytest.mark.tensorflow
@pytest.mark.slow
@pytest.mark.parametrize("in_a_function", [False, True], ids=["rows dropped", "all rows"])
def test_the_state_comes_out_in_the_order_of_the_results(in_a_function):
    def search(state):
        return decoding.beam_search(
            reading, state, 5, 7, num_beams=4, num_results=3, return_state=True, **IDS
        )

    table = tables(17, batch=5, size=7, scale=3.0)
    found = (tf.function(search) if in_a_function else search)(reading_state(table, 7))
    tokens, read = numpy(found.tokens).reshape(15, 7), numpy(found.state["read"])
    assert numpy(found.state["rows"]).tolist() == np.repeat(np.arange(5), 3).tolist()
    np.testing.assert_array_equal(found.state["table"], np.repeat(table, 3, axis=0))
    lengths = [row.index(END) + 1 if END in row else 7 for row in tokens.tolist()]
    assert len(set(lengths)) > 2
    for written, seen, length in zip(tokens.tolist(), read.tolist(), lengths, strict=True):
        # Read up to the token before the last, and left as it was from there on.
        assert seen == [BEGIN, *written[: length - 1], *[-1] * (7 - length)]


@pytest.mark.slow
def test_no_state_is_returned_unasked():
    assert decoding.beam_search(trigram, tables(0, 1, 5), 1, 2, **IDS).state is None


@pytest.mark.tensorflow
def test_what_a_step_leaves_alone_is_not_gathered_at_every_step():
    def step(tokens, position, state):
        seen.append(state)
        return reading(tokens, position, state)

    seen, table = [], tables(3, 2, 7)
    table[..., END] = -np.inf
    tf.config.run_functions_eagerly(True)
    try:
        decoding.beam_search(step, reading_state(table, 5), 2, 5, num_beams=3, **IDS)
    finally:
        tf.config.run_functions_eagerly(False)
    first, *later = seen
    assert first["table"].shape[0] == 2  # one row a sentence is enough for the first step
    assert len(later) == 4 and later[0]["table"].shape[0] == 6
    assert all(
        state["table"] is later[0]["table"] and state["read"] is not later[0]["read"]
        for state in later[1:]
    )


@pytest.mark.slow
def test_a_state_may_hold_none_words_scalars_and_what_the_first_step_makes():
    def step(tokens, position, state):
        assert state["none"] is None and state["word"] == "word" and state["number"] == 3
        logits, table = trigram(tokens, position, state["table"])
        count = state["count"] + 1
        return logits, {
            **state,
            "table": table,
            "count": count,
            "made": ops.cast(tokens, "float32"),
        }

    table = tables(3, batch=3, size=6)
    state = {
        "none": None,
        "word": "word",
        "number": 3,
        "table": table,
        "count": ops.zeros((), "int32"),
        "made": None,
    }
    options = {"num_beams": 4, "num_results": 2, "return_state": True, **IDS}
    found = decoding.beam_search(step, state, 3, 4, **options)
    for row in range(3):
        assert_same(found, beams_in_python(table[row], 4, 1.0, 4)[:2], row)
    assert found.state["count"] == 4 and found.state["made"].shape == (6, 4)
    assert found.state["none"] is None and found.state["word"] == "word"


# One compiled loop.


@needs_compiling
@pytest.mark.slow
def test_another_prompt_or_length_penalty_is_no_new_trace_and_other_shapes_few():
    def step(tokens, position, state):
        calls.append(1)
        return trigram(tokens, position, state)

    calls = []
    for seed in range(5):
        for penalty in PENALTIES:
            decoding.beam_search(step, tables(seed, 3, 6), 3, 5, length_penalty=penalty, **IDS)
    assert len(calls) == CALLS_A_TRACE
    for batch, size, length in ((5, 7, 5), (7, 5, 3), (11, 6, 9), (3, 6, 5), (2, 11, 7)):
        decoding.beam_search(step, tables(0, batch, size), batch, length, **IDS)
    # On JAX each of five shapes has its own trace.
    assert len(calls) <= (5 if BACKEND == "jax" else 4) * CALLS_A_TRACE


@pytest.mark.tensorflow
@pytest.mark.slow
@pytest.mark.parametrize("jit_compile", [False, True])
def test_a_beam_search_works_inside_a_tf_function(jit_compile):
    @tf.function(jit_compile=jit_compile)
    def search(table):
        return decoding.beam_search(trigram, table, 3, 5, num_beams=3, num_results=2, **IDS)

    table = tables(13, batch=3, size=5)
    found = search(as_tensor(table))
    for row in range(3):
        assert_same(found, beams_in_python(table[row], 5, 1.0, 3)[:2], row)


@pytest.mark.slow
def test_a_sentence_finds_the_same_alone_and_among_others():
    table = tables(19, batch=11, size=7, scale=4.0)
    together = decoding.beam_search(trigram, table, 11, 9, num_results=4, **IDS)
    for row in range(11):
        alone = decoding.beam_search(trigram, table[row : row + 1], 1, 9, num_results=4, **IDS)
        np.testing.assert_array_equal(alone.tokens[0], together.tokens[row])
        np.testing.assert_allclose(alone.scores[0], together.scores[row], rtol=1e-6)


@pytest.mark.parametrize(
    "argument, value, expected",
    [
        ("num_beams", 0, "be a positive integer"),
        ("num_beams", 2.0, "be a positive integer"),
        ("num_results", 0, "be a positive integer"),
        ("num_results", 5, "be at most `num_beams`=4"),
        ("length_penalty", -1.0, "be a finite number of at least 0"),
        ("length_penalty", float("nan"), "be a finite number of at least 0"),
        ("length_penalty", "1", "be a finite number of at least 0"),
        ("batch_size", 0, "be a positive integer"),
        ("max_length", None, "be a positive integer"),
        ("begin_id", -1, "be an integer of at least 0"),
        ("end_id", -1, "be an integer of at least 0"),
        ("padding_id", None, "be an integer of at least 0"),
        ("return_state", 1, "be True or False"),
    ],
)
def test_a_bad_argument_is_refused(argument, value, expected):
    sentence = f"beam_search: `{argument}` must {expected}. Received: {argument}={value!r}"
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}$"):
        decoding.beam_search(trigram, (), **{"batch_size": 2, "max_length": 3, argument: value})
