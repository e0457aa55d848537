"""The loop drops rows that are done, and writes their results to their indices."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import ops

from tests.helpers.tensors import numpy, tf
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
        # Rows of changing tensors and of constants must stay aligned.
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
    """The number of rows over all steps, if done rows are dropped once they are a quarter."""
    total, present, ends = 0, len(ends), np.array(ends)
    for position in range(min(max(ends) + 1, L)):
        open_rows = (ends >= position).sum()
        if position > 0 and 4 * open_rows <= 3 * present:
            present = open_rows
        total += present
    return total


many_ends = st.lists(st.integers(0, L + 5), min_size=1, max_size=41)


@pytest.mark.slow
@settings(max_examples=20, deadline=None)
@given(ends=many_ends)
def test_rows_done_are_dropped_once_they_are_a_quarter(ends):
    script = scripts(ends)
    COUNTER.rows.assign(0), COUNTER.steps.assign(0)
    tokens, state = decoding.GreedySearch()(
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


COUNTER = Counter()  # one object for all examples: one compiled search


@pytest.mark.slow
def test_rows_of_the_beams_of_a_sentence_leave_together():
    ends = [2, 19, 5, 7, 2, 11, 3, 3, 4, 5]
    script, counter = scripts(ends), Counter()
    state = counter.state(script)
    found = decoding.BeamSearch(num_beams=3)(counter.step, state, 10, L, return_state=True)
    np.testing.assert_array_equal(found.tokens[:, 0], wanted(script, ends))
    assert int(counter.steps) == 20
    # The first step has a row a sentence, the others one for each beam.
    assert int(counter.rows) == 10 + 3 * (rows_that_remain(ends) - 10)
    np.testing.assert_array_equal(found.state["changing_name"], np.arange(10))


def counting(tokens, position):
    return ops.one_hot(ops.take(tokens, position, axis=1) + 1, V)


@pytest.mark.slow
def test_rows_of_a_step_may_lose_their_static_shape():
    """Once the number of rows is unknown, which it is in the loop alone."""

    def step(tokens, position, state):
        width = ops.size(state) // ops.shape(state)[0]
        return counting(tokens, position), ops.reshape(state + 1.0, (-1, width))

    written = numpy(decoding.GreedySearch()(step, np.ones((3, 5)), 3, 5, end_id=6))
    assert written.tolist() == [[3, 4, 5, 6, 0]] * 3


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda s, n: {**s, str(n): s["x"]}, "keep its structure"),
        (lambda s, n: s if n == 1 else {"x": s["x"] + 1}, "change only in tensors that"),
        (lambda s, n: {**s, "n": n}, "change only in tensors .* Received: state={.*'n'"),
    ],
    ids=["structure", "constant", "number"],
)
def test_state_that_changes_its_structure_or_constants_is_refused(change, message):
    def step(tokens, position, state):
        calls.append(1)
        return counting(tokens, position), change(state, len(calls))

    calls = []
    with pytest.raises(ValueError, match=f"^step: `state` must .*{message}"):
        decoding.GreedySearch()(step, {"x": np.ones((2, 3), "float32")}, 2, 5)


def test_state_of_other_than_batch_size_rows_is_refused():
    sentence = (
        "^BeamSearch: `state` must hold `batch_size`=3 rows in each tensor. "
        r"Received: state=\(2, 5\)$"
    )
    with pytest.raises(ValueError, match=sentence):
        decoding.BeamSearch()(Counter().step, {"a": np.ones((3, 5)), "b": np.ones((2, 5))}, 3, 5)
