"""Rows that are done stop costing: counted, written to their places, and the same as when every row
stays.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import ops

from tests.tensors import numpy, tf
from tfattn import decoding

pytestmark = pytest.mark.tensorflow

V, L, END = 13, 23, 3


def scripts(ends):
    """Rows `(B, L)` of random words, each with its end token at its place of `ends`."""
    words = np.random.default_rng(len(ends)).integers(4, V, size=(len(ends), L))
    return np.where(np.arange(L) == np.array(ends)[:, None], END, words).astype("int32")


def wanted(script, ends):
    return np.where(np.arange(L) <= np.array(ends)[:, None], script, 0)


class Counter:
    """Writes the rows of its state, and counts the rows that it is given."""

    def __init__(self):
        self.rows = tf.Variable(0)
        self.steps = tf.Variable(0)

    def step(self, tokens, position, state):
        self.rows.assign_add(ops.shape(tokens)[0])
        self.steps.assign_add(1)
        # The rows of what changes and of what does not must stay side by side.
        tf.debugging.assert_equal(state["name"], state["changing_name"])
        logits = ops.one_hot(ops.take(state["script"], position, axis=1), V)
        here = ops.arange(L) == position
        read = ops.where(here, ops.take(tokens, position, axis=1)[:, None], state["read"])
        # A new tensor, though equal.
        return logits * 50.0, {**state, "read": read, "changing_name": state["changing_name"] + 0}

    def state(self, script):
        names = ops.arange(len(script), dtype="int32")
        read = ops.full((len(script), L), -1, dtype="int32")
        return {
            "script": script,
            "name": names,
            "changing_name": names,
            "read": read,
            "nothing": None,
        }


def rows_that_remain(ends):
    """How many rows all steps have, where those that are done go when they are a quarter."""
    total, present, ends = 0, len(ends), np.array(ends)
    for position in range(min(max(ends) + 1, L)):
        open_rows = (ends >= position).sum()
        if position > 0 and 4 * open_rows <= 3 * present:
            present = open_rows
        total += present
    return total


many_ends = st.lists(st.integers(0, L + 5), min_size=1, max_size=41)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(ends=many_ends)
def test_rows_that_are_done_cost_no_step_once_they_are_a_quarter(ends):
    script = scripts(ends)
    COUNTER.rows.assign(0), COUNTER.steps.assign(0)
    tokens, state = decoding.greedy_search(
        COUNTER.step, COUNTER.state(script), len(ends), L, return_state=True
    )
    np.testing.assert_array_equal(tokens, wanted(script, ends))
    assert int(COUNTER.rows) == rows_that_remain(ends)
    assert int(COUNTER.steps) == min(max(ends) + 1, L)
    # Each row's state is its own, as it was when the row ended.
    begun = np.concatenate([np.full((len(ends), 1), 2), script[:, :-1]], axis=1)
    np.testing.assert_array_equal(
        state["read"], np.where(np.arange(L) <= np.array(ends)[:, None], begun, -1)
    )
    np.testing.assert_array_equal(state["name"], np.arange(len(ends)))
    np.testing.assert_array_equal(state["script"], script)


COUNTER = Counter()  # one for all examples: one compiled search


def test_a_batch_of_mixed_lengths_costs_far_less_than_all_its_rows():
    ends = np.minimum(np.random.default_rng(0).geometric(0.2, size=64), L - 1)
    counter = Counter()
    decoding.greedy_search(counter.step, counter.state(scripts(ends)), 64, L)
    assert int(counter.rows) < 0.5 * 64 * int(counter.steps)


@pytest.mark.slow
@pytest.mark.parametrize("num_beams", [1, 3])
def test_the_beams_of_a_sentence_leave_together(num_beams):
    ends = [2, 19, 5, 7, 2, 11, 3, 3, 4, 5]
    script, counter = scripts(ends), Counter()
    state = counter.state(script)
    found = decoding.beam_search(counter.step, state, 10, L, num_beams=num_beams, return_state=True)
    np.testing.assert_array_equal(found.tokens[:, 0], wanted(script, ends))
    assert int(counter.steps) == 20
    # The first step has a row a sentence, the others one for each beam.
    assert int(counter.rows) == 10 + num_beams * (rows_that_remain(ends) - 10)
    np.testing.assert_array_equal(found.state["changing_name"], np.arange(10))


@pytest.mark.slow
def test_samples_are_those_of_a_loop_that_keeps_every_row():
    ends = [2, 19, 5, 7, 2, 11, 3, 3, 4, 5]
    counter, logits = Counter(), np.random.default_rng(0).normal(size=(10, L, V)).astype("float32")

    def step(tokens, position, state):
        scripted, state = counter.step(tokens, position, state)
        ending = ops.take(state["script"], position, axis=1) == END
        free = ops.where(ops.arange(V) == END, -100.0, ops.take(state["logits"], position, axis=1))
        return ops.where(ending[:, None], scripted, free), state

    def search():
        state = {**counter.state(scripts(ends)), "logits": logits}
        return decoding.sample(step, state, 10, L, seed=5, return_state=True)

    (tokens, state), (all_tokens, all_state) = search(), tf.function(search)()
    np.testing.assert_array_equal(tokens, all_tokens)
    np.testing.assert_array_equal(state["read"], all_state["read"])
    # inside of a function every row stays
    assert int(counter.rows) == rows_that_remain(ends) + 10 * 20


def counting(tokens, position):
    return ops.one_hot(ops.take(tokens, position, axis=1) + 1, V)


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize(
    "width",
    [
        lambda x: (-1, tf.py_function(lambda: 5, (), "int32")),
        lambda x: (-1, ops.size(x) // ops.shape(x)[0]),
    ],
    ids=["always", "with the number of rows"],
)
def test_a_step_may_lose_what_is_known_of_a_shape(width):
    def step(tokens, position, state):
        return counting(tokens, position), ops.reshape(state + 1.0, width(state))

    assert (
        numpy(decoding.greedy_search(step, np.ones((3, 5)), 3, 5, end_id=6)).tolist()
        == [[3, 4, 5, 6, 0]] * 3
    )


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize(
    "change, message",
    [
        (
            lambda s, n: {"x": ops.concatenate([s["x"], s["x"]], axis=1)},
            r"keep .* here \(2, 6\) float32.*\(None, 12\)",
        ),
        (
            lambda s, n: {"x": ops.cast(s["x"], "float16" if n % 2 else "int32")},
            r"keep .* float16.*'int32'",
        ),
        (
            lambda s, n: {"x": ops.stack([s["x"]] * 2, axis=-1)[..., : n % 2 + 1, 0] + 1},
            r"keep .*\(2, 2\).*\(None, 1\)",
        ),
        (lambda s, n: {**s, str(n): s["x"]}, "keep its structure"),
        (lambda s, n: s if n == 1 else {"x": s["x"] + 1}, "change a leaf in its first step too"),
        (lambda s, n: {**s, "n": n}, "change a leaf in its first step too .* Received: state=2"),
    ],
    ids=["longer", "dtype", "shorter", "structure", "constant", "number"],
)
def test_a_state_that_does_not_stay_alike_is_refused(change, message):
    def step(tokens, position, state):
        calls.append(1)
        return counting(tokens, position), change(state, len(calls))

    calls = []
    with pytest.raises(ValueError, match=f"^step: `state` must {message}"):
        decoding.greedy_search(step, {"x": np.ones((2, 3), "float32")}, 2, 5)


def test_a_state_of_other_than_batch_size_rows_is_refused():
    sentence = (
        "^beam_search: `state` must hold `batch_size`=3 rows in each tensor. "
        r"Received: state=\(2, 5\)$"
    )
    with pytest.raises(ValueError, match=sentence):
        decoding.beam_search(Counter().step, {"a": np.ones((3, 5)), "b": np.ones((2, 5))}, 3, 5)
