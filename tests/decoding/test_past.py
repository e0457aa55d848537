"""A `Past` holds no more positions than are written, and each hypothesis finds its own in it."""

import numpy as np
import pytest
from keras import ops

from tests.helpers.searches import BEGIN, END, IDS, PAD
from tests.helpers.tensors import BACKEND, numpy, tf
from tfattn import decoding

pytestmark = pytest.mark.usefixtures("dense_path")

V = 7


class Reader:
    """Draws its logits from the whole past, which it reads from a `Past` and from nowhere else, and
    counts positions.
    """

    def __init__(self):
        if BACKEND == "tensorflow":  # the only backend on which a `Past` grows
            self.positions, self.steps = tf.Variable(0), tf.Variable(0)

    def state(self, batch, length):
        return {
            "read": decoding.Past(np.zeros((batch, 3, length, 2), "float32")),
            "likes": likes(batch),
            "end": np.zeros(batch, "float32"),
        }

    def step(self, tokens, position, state):
        past = state["read"].tensor  # (R, 3, L, 2)
        here = ops.arange(ops.shape(past)[2]) == position
        room = ops.shape(past)[2]
        token = ops.cast(ops.take(tokens, position, axis=1), "float32")
        past = ops.where(here[:, None], token[:, None, None, None], past)
        is_written = ops.arange(room) <= position
        written = ops.where(is_written, past[:, 1, :, 1], 0.0)  # (R, room)
        if BACKEND == "tensorflow":
            self.steps.assign_add(1)
            self.positions.assign_add(room)
            # An index beyond the end would be ignored.
            tf.debugging.assert_less(position, room)
            longer = tf.pad(tokens, [[0, 0], [0, room]])[:, :room]
            so_far = ops.where(is_written, ops.cast(longer, "float32"), 0.0)
            # With the state asked for, that of a row stays as it was when the row ended.
            still_open = ops.logical_and(token != END, token != PAD)[:, None]
            tf.debugging.assert_equal(ops.where(still_open, written, so_far), so_far)
        return logits_of(written, state), {**state, "read": decoding.Past(past)}


def likes(batch):
    return np.random.default_rng(batch).normal(size=(batch, V)).astype("float32")


def logits_of(written, state):
    weights = ops.sin(ops.cast(ops.arange(ops.shape(written)[1]), "float32") + 1.0)
    sums = ops.sum(written * weights, axis=1)  # depends on the order of the tokens
    logits = 3.0 * ops.sin(sums[:, None] * state["likes"])  # (R, V)
    end = ops.where(ops.arange(V) == END, state["end"][:, None], 0.0)
    return ops.where(ops.arange(V) < END, -1e9, logits + end)


def plainly(tokens, position, state):
    """The same step without a `Past`: from the tokens."""
    is_written = ops.arange(ops.shape(tokens)[1]) <= position
    return logits_of(ops.where(is_written, ops.cast(tokens, "float32"), 0.0), state), state


READER = Reader()  # one object for all tests: one compiled search


@pytest.mark.slow
def test_past_of_each_hypothesis_is_its_own():
    for batch, length in ((1, 1), (17, 21), (5, 9)):
        beams = decoding.BeamSearch(num_beams=4, num_results=3)
        options = {"return_state": True, **IDS}
        limits = np.random.default_rng(length).integers(1, length + 1, size=batch)
        state = READER.state(batch, length)
        found = beams(READER.step, state, batch, limits, **options)
        plain = {name: state[name] for name in ("likes", "end")}
        wanted = beams(plainly, plain, batch, limits, **options)
        np.testing.assert_array_equal(found.tokens, wanted.tokens)
        np.testing.assert_allclose(found.scores, wanted.scores, rtol=1e-5)
        # The state of each result is whole, and as it was when the result ended.
        past, most = numpy(found.state["read"].tensor), max(limits)
        tokens = numpy(found.tokens).reshape(-1, most)
        assert past.shape == (batch * 3, 3, length, 2)
        begun = np.concatenate([np.full((len(tokens), 1), BEGIN), tokens[:, :-1]], axis=1)
        read = np.zeros((len(tokens), length))
        is_there = np.arange(most) < (tokens != PAD).sum(axis=1, keepdims=True)
        read[:, :most] = np.where(is_there, begun, 0)
        there_is = numpy(found.scores).reshape(-1) > -np.inf
        wanted = np.broadcast_to(read[:, None, :, None], past.shape)
        np.testing.assert_array_equal(past[there_is], wanted[there_is])


@pytest.mark.tensorflow
@pytest.mark.slow
def test_past_grows_by_a_few_positions_as_they_are_written():
    for length in (3, 8, 9, 21):
        state = READER.state(2, length)
        state["end"] -= 1e9
        READER.positions.assign(0), READER.steps.assign(0)
        found = decoding.GreedySearch()(READER.step, state, 2, length, **IDS)
        assert int(READER.steps) == length
        # The first step comes before the loop.
        room = length + sum(min(8 * (position // 8 + 1), length) for position in range(1, length))
        assert int(READER.positions) == room
    # Inside a function of the caller a `Past` has every position.
    READER.positions.assign(0)
    outer = tf.function(lambda: decoding.GreedySearch()(READER.step, state, 2, 21, **IDS))
    np.testing.assert_array_equal(outer(), found)
    assert int(READER.positions) == 21 * 21


@pytest.mark.slow
def test_past_alone_is_cut_to_what_is_written():
    def step(tokens, position, state):
        same = state["whole"] + 1.0
        sizes.append(same.shape[1])
        # The first step returns the same tensor under both names.
        past = same if len(sizes) == 1 else state["past"].tensor + 1.0
        at_the_end = ops.take(same, 20, axis=1)  # in range at every step
        likely = ops.where(ops.arange(V) == END, -1e9, ops.one_hot(tokens[:, 0], V))
        logits = likely + 0.0 * at_the_end[:, :1]
        return logits, {"whole": same, "past": decoding.Past(past)}

    sizes, zeros = [], np.zeros((2, 21, 1), "float32")
    state = {"whole": zeros, "past": decoding.Past(zeros)}
    _, after = decoding.GreedySearch()(step, state, 2, 21, return_state=True, **IDS)
    assert set(sizes) == {21}
    np.testing.assert_array_equal(after["whole"], zeros + 21.0)
    assert after["past"].tensor.shape == zeros.shape


@pytest.mark.parametrize(
    "past, length, message",
    [
        (np.zeros((2, 5)), 5, r"have a `Past` of one tensor of rank 3 or more, \(B, ..., L, P\)"),
        ({"keys": np.zeros((2, 5, 1))}, 5, "have a `Past` of one tensor of rank 3 or more"),
        (
            np.zeros((2, 3, 5, 2)),
            12,
            r"have room for `max_length`=12 positions in each `Past`. Received: .*2, 3, 5, 2\)$",
        ),
    ],
    ids=["rank", "several", "room"],
)
def test_past_that_does_not_fit_is_refused(past, length, message):
    with pytest.raises(ValueError, match=f"^GreedySearch: `state` must {message}"):
        decoding.GreedySearch()(READER.step, decoding.Past(past), 2, length)
