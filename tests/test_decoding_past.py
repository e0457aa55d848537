"""A `Past` holds no more positions than are written, and each hypothesis finds its own in it."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import ops

import tfattn
from tests.tensors import BACKEND, numpy, tf
from tfattn import decoding

pytestmark = pytest.mark.usefixtures("dense_path")

BEGIN, END, PAD, V = 1, 2, 0, 7
IDS = {"begin_id": BEGIN, "end_id": END, "padding_id": PAD}


class Reader:
    """Draws its logits from the whole past, which it reads from a `Past` and from nowhere else, and
    counts positions.
    """

    def __init__(self):
        if BACKEND == "tensorflow":  # the one backend where a `Past` grows
            self.positions, self.steps = tf.Variable(0), tf.Variable(0)

    def state(self, batch, length):
        return {
            "read": decoding.Past(np.zeros((batch, 3, length, 2), "float32")),
            "likes": likes(batch),
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
            # Whether there is room for it, nothing else would tell.
            tf.debugging.assert_less(position, room)
            longer = tf.pad(tokens, [[0, 0], [0, room]])[:, :room]
            so_far = ops.where(is_written, ops.cast(longer, "float32"), 0.0)
            # With the state asked for, that of a row stays as it was when the row ended.
            still_open = ops.logical_and(token != END, token != PAD)[:, None]
            tf.debugging.assert_equal(ops.where(still_open, written, so_far), so_far)
        weights = ops.sin(ops.cast(ops.arange(room), "float32") + 1.0)
        sums = ops.sum(written * weights, axis=1)  # tells orders of the same tokens apart
        logits = 3.0 * ops.sin(sums[:, None] * state["likes"])  # (R, V)
        logits = ops.where(ops.arange(V) < END, -1e9, logits)
        return logits, {**state, "read": decoding.Past(past)}


def likes(batch):
    return np.random.default_rng(batch).normal(size=(batch, V)).astype("float32")


def plainly(tokens, position, state):
    """The same step without a `Past`: from the tokens."""
    shown = ops.where(
        ops.arange(ops.shape(tokens)[1]) <= position, ops.cast(tokens, "float32"), 0.0
    )
    weights = ops.sin(ops.cast(ops.arange(ops.shape(tokens)[1]), "float32") + 1.0)
    logits = 3.0 * ops.sin(ops.sum(shown * weights, axis=1)[:, None] * state["likes"])
    return ops.where(ops.arange(V) < END, -1e9, logits), state


READER = Reader()  # one for all examples: one compiled search


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(
    batch=st.sampled_from([1, 5, 17]),
    length=st.sampled_from([1, 5, 8, 21]),
    beams_and_results=st.sampled_from([(1, 1), (4, 3)]),
)
def test_each_hypothesis_finds_its_own_past(batch, length, beams_and_results):
    num_beams, num_results = beams_and_results
    options = {"num_beams": num_beams, "num_results": num_results, "return_state": True, **IDS}
    limits = np.random.default_rng(length).integers(1, length + 1, size=batch)
    found = decoding.beam_search(READER.step, READER.state(batch, length), batch, limits, **options)
    wanted = decoding.beam_search(plainly, {"likes": likes(batch)}, batch, limits, **options)
    np.testing.assert_array_equal(found.tokens, wanted.tokens)
    np.testing.assert_allclose(found.scores, wanted.scores, rtol=1e-5)
    # The state of each result is whole, and as it was when the result ended.
    past, tokens = numpy(found.state["read"].tensor), numpy(found.tokens).reshape(-1, max(limits))
    assert past.shape == (batch * num_results, 3, length, 2)
    begun = np.concatenate([np.full((len(tokens), 1), BEGIN), tokens[:, :-1]], axis=1)
    read = np.zeros((len(tokens), length))
    read[:, : max(limits)] = np.where(
        np.arange(max(limits)) < (tokens != PAD).sum(axis=1, keepdims=True), begun, 0
    )
    there_is = numpy(found.scores).reshape(-1) > -np.inf
    np.testing.assert_array_equal(
        past[there_is], np.broadcast_to(read[:, None, :, None], past.shape)[there_is]
    )


@pytest.mark.tensorflow
@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("length", [3, 8, 9, 21])
def test_a_step_gets_room_for_a_few_positions_more_than_are_written(length):
    reader = Reader()
    state = reader.state(2, length)

    def step(tokens, position, state):
        logits, state = reader.step(tokens, position, state)
        return ops.where(ops.arange(V) == END, -1e9, logits), state

    decoding.greedy_search(step, state, 2, length, **IDS)
    assert int(reader.steps) == length
    # The first step comes before the loop.
    room = length + sum(min(8 * (position // 8 + 1), length) for position in range(1, length))
    assert int(reader.positions) == room


@pytest.mark.tensorflow
@pytest.mark.slow
def test_inside_of_a_function_of_the_callers_every_position_is_there():
    outer = tf.function(
        lambda: decoding.greedy_search(READER.step, READER.state(5, 21), 5, 21, **IDS)
    )
    READER.positions.assign(0), READER.steps.assign(0)
    found = outer()
    assert int(READER.positions) == 21 * int(READER.steps) > 21
    np.testing.assert_array_equal(
        found, decoding.greedy_search(READER.step, READER.state(5, 21), 5, 21, **IDS)
    )


@pytest.mark.slow
def test_samples_are_those_of_a_step_without_a_past():
    found = decoding.sample(READER.step, READER.state(17, 21), 17, 21, seed=3, **IDS)
    np.testing.assert_array_equal(
        found, decoding.sample(plainly, {"likes": likes(17)}, 17, 21, seed=3, **IDS)
    )


def test_only_what_is_called_a_past_is_cut():
    def step(tokens, position, state):
        same = state["whole"] + 1.0
        sizes.append(same.shape[1])
        # The first step gives one tensor out under both names.
        past = same if len(sizes) == 1 else state["past"].tensor + 1.0
        at_the_end = ops.take(same, 20, axis=1)  # there in every step
        logits = (
            ops.where(ops.arange(V) == END, -1e9, ops.one_hot(tokens[:, 0], V))
            + 0.0 * at_the_end[:, :1]
        )
        return logits, {"whole": same, "past": decoding.Past(past)}

    sizes, zeros = [], np.zeros((2, 21, 1), "float32")
    state = {"whole": zeros, "past": decoding.Past(zeros)}
    _, after = decoding.greedy_search(step, state, 2, 21, return_state=True, **IDS)
    assert set(sizes) == {21}
    np.testing.assert_array_equal(after["whole"], zeros + 21.0)
    assert after["past"].tensor.shape == zeros.shape


@pytest.mark.parametrize(
    "wrong", [np.zeros((2, 5)), {"keys": np.zeros((2, 5, 1))}], ids=["rank", "several"]
)
def test_a_past_of_something_else_is_refused(wrong):
    with pytest.raises(
        ValueError,
        match="^greedy_search: `state` must have a `Past` of one tensor of rank 3 or more",
    ):
        decoding.greedy_search(READER.step, decoding.Past(wrong), 2, 5)


def test_a_past_with_less_room_than_there_are_positions_is_refused():
    message = (
        "^beam_search: `state` must have room for `max_length`=12 positions in each `Past`. "
        r"Received: state=\(2, 3, 5, 2\)$"
    )
    with pytest.raises(ValueError, match=message):
        decoding.beam_search(READER.step, READER.state(2, 5), 2, 12)


def test_a_past_without_an_axis_of_positions_is_refused_in_the_first_step_too():
    def step(tokens, position, state):
        return ops.one_hot(tokens[:, 0], V), decoding.Past(
            ops.zeros((2, 5)) + ops.cast(position, "float32")
        )

    message = (
        r"^step: `state` must have a `Past` of one tensor of rank 3 or more, \(B, ..., L, P\). "
        r"Received: state=\(2, 5\)(\n|$)"  # JAX adds lines of its own
    )
    with pytest.raises(ValueError, match=message):
        decoding.greedy_search(step, (), 2, 5)


@pytest.mark.slow
def test_beams_of_a_transformer_are_the_same_with_and_without_caches():
    model, rng = (
        tfattn.Transformer(13, 11, num_layers=2, width=10, num_heads=5, hidden_dim=14),
        np.random.default_rng(5),
    )
    model.build(((None, None), (None, None)))
    weights = [(w.path, w.shape) for w in model.weights]
    model.set_weights(
        [rng.normal(size=n) if len(n) > 1 else np.full(n, "gamma" in path) for path, n in weights]
    )
    source = rng.integers(4, 13, (17, 7))
    source[5:9, 3:] = 0
    options = {"batch_size": 17, "max_length": 21, "num_beams": 3, "num_results": 3}
    plain = tfattn.beam_search(model.step, model.encode(source), **options)
    cached = tfattn.beam_search(model.step, model.encode(source, max_length=21), **options)
    np.testing.assert_array_equal(cached.tokens, plain.tokens)
    np.testing.assert_allclose(cached.scores, plain.scores, rtol=1e-4)
    lengths = (numpy(plain.tokens)[:, 0] != 0).sum(axis=1)
    assert lengths.min() < 8 < lengths.max()  # some end before their room is full, and some after
