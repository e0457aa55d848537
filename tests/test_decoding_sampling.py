"""Sampling: how often each token is drawn, against its probability; seeds; what is never drawn."""

import re

import keras
import numpy as np
import pytest
from keras import ops

from tests.tensors import CALLS_A_TRACE, as_tensor, needs_compiling, numpy, tf
from tfattn import decoding

pytestmark = pytest.mark.usefixtures("dense_path")

ROWS = 5000
LOGITS = np.array([-np.inf, 1.3, -np.inf, -np.inf, 0.2, 0.9, -1.0, 2.0, -np.inf], "float32")


def constant(tokens, position, state):
    """The same scores, `state` (B, V), at every step."""
    return state, state


def drawn(rows=ROWS, logits=LOGITS, length=1, **options):
    """Token ids `(rows, length)`, all drawn from the same logits."""
    state = np.tile(logits, (rows, 1))
    options = {"seed": 11, **options}
    return ops.convert_to_numpy(decoding.sample(constant, state, rows, length, **options))


def probabilities(temperature=1.0, top_k=None, top_p=None):
    """What sampling is to draw from, in float64."""
    logits = LOGITS.astype("float64") / temperature
    order = np.argsort(-logits, kind="stable")[:top_k]
    p = np.zeros(len(LOGITS))
    p[order] = np.exp(logits[order]) / np.exp(logits[order]).sum()
    if top_p is not None:
        order = np.argsort(-p, kind="stable")
        kept = order[: np.searchsorted(np.cumsum(p[order]), top_p) + 1]
        p = np.where(np.isin(np.arange(len(p)), kept), p, 0.0)
    return p / p.sum()


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize(
    "options, kinds",
    [
        ({}, 5),
        ({"temperature": 0.5}, 5),
        ({"temperature": 3.0}, 5),
        ({"top_k": 3}, 3),
        ({"top_k": 100}, 5),
        ({"top_p": 0.5}, 2),
        ({"top_p": 0.9}, 4),
        ({"top_p": 1.0}, 5),
        # The order matters: 0.75 of the best three alone are two tokens, 0.75 of all are three.
        ({"top_k": 3, "top_p": 0.75}, 2),
        ({"top_p": 0.75}, 3),
        ({"temperature": 2.0, "top_k": 4, "top_p": 0.8}, 3),
    ],
    ids=str,
)
def test_tokens_are_drawn_as_often_as_their_probabilities_say(options, kinds):
    p = probabilities(**options)
    assert (p > 0).sum() == kinds  # the case is the one that it is meant to be
    counts = np.bincount(drawn(**options)[:, 0], minlength=len(p))
    assert counts[p == 0].sum() == 0
    expected = ROWS * p[p > 0]
    chi_square = ((counts[p > 0] - expected) ** 2 / expected).sum()
    assert chi_square < 25  # for 4 degrees of freedom, once in 20,000


def test_each_token_is_drawn_anew_from_what_the_step_says_of_it():
    # After 4 and after 5 the odds are the opposite of each other.
    table = np.full((6, 6), -np.inf, "float32")
    table[2, 4:] = np.log([0.3, 0.7])
    table[4, 4:], table[5, 4:] = np.log([0.9, 0.1]), np.log([0.2, 0.8])

    def step(tokens, position, state):
        return ops.take(table, ops.take(tokens, position, axis=1), axis=0), state

    written = ops.convert_to_numpy(decoding.sample(step, (), ROWS, 2, seed=3))
    pairs = np.array(
        [[((written[:, 0] == a) & (written[:, 1] == b)).mean() for b in (4, 5)] for a in (4, 5)]
    )
    np.testing.assert_allclose(pairs, [[0.27, 0.03], [0.14, 0.56]], atol=0.02)


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize(
    "options",
    [{"top_k": 1}, {"top_p": 1e-9}, {"temperature": 1e-45}, {"temperature": 1e-3}],
    ids=str,
)
def test_a_single_token_left_is_greedy_search(options):
    table = np.random.default_rng(5).normal(size=(7, 11, 13)).astype("float32")
    table[0, :, 4:7] = 5.0  # of equal tokens, the first

    def step(tokens, position, state):
        return ops.take(state, position, axis=1), state

    if "temperature" in options:
        table[0] += np.arange(13)[::-1]
    written = decoding.sample(step, table, 7, 11, seed=3, **options)
    np.testing.assert_array_equal(written, decoding.greedy_search(step, table, 7, 11))


def test_a_row_ends_with_its_end_token_and_padding_after_it():
    logits = np.log([1e-30, 1e-30, 0.2, 0.3, 0.5]).astype("float32")
    written = drawn(rows=200, logits=logits, length=9, begin_id=0, end_id=2, padding_id=1)
    for row in written.tolist():
        end = row.index(2) if 2 in row else 9
        assert 1 not in row[:end] and row[end + 1 :] == [1] * len(row[end + 1 :])
    assert 20 < (written[:, 0] == 2).sum() < 60


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("draw", [0.0, 1 - 2**-24], ids=["least", "greatest"])
@pytest.mark.parametrize("options", [{}, {"top_k": 7}, {"top_p": 1.0}, {"top_p": 0.9}], ids=str)
def test_no_draw_reaches_a_token_without_a_probability(draw, options, monkeypatch):
    def extreme(shape, **_):
        return ops.full(shape, draw, dtype="float32")

    monkeypatch.setattr(keras.random, "uniform", extreme)
    logits = np.concatenate(
        [LOGITS, np.log(np.random.default_rng(0).uniform(size=997)), [-np.inf] * 3]
    )
    for some in (LOGITS, logits.astype("float32"), np.float32([-np.inf, 0.0, 0.0, 0.0, -np.inf])):
        token = drawn(rows=1, logits=some, **options)[0, 0]
        assert some[token] > -np.inf


# Seeds.


def test_a_seed_is_the_same_result_and_another_seed_another():
    first, again, other = (drawn(rows=23, length=7, seed=seed) for seed in (5, 5, 6))
    assert (first == again).all() and (first != other).any()


def test_a_seed_of_numpy_is_that_number():
    wanted = drawn(rows=23, length=7, seed=5)
    np.testing.assert_array_equal(drawn(rows=23, length=7, seed=np.int64(5)), wanted)


def test_a_seed_generator_goes_on_from_call_to_call():
    def two(seed):
        generator = keras.random.SeedGenerator(seed)
        return [drawn(rows=23, length=7, seed=generator) for _ in range(2)]

    (first, second), (again, _) = two(5), two(5)
    assert (first == again).all() and (first != second).any()


def test_without_a_seed_each_call_differs_and_keras_own_seed_brings_it_back():
    def two():
        keras.utils.clear_session()  # older versions of Keras seed only a generator to be made
        keras.utils.set_random_seed(3)
        return [drawn(rows=23, length=7, seed=None) for _ in range(2)]

    (first, second), (again, _) = two(), two()
    assert (first == again).all() and (first != second).any()


def test_a_row_does_not_depend_on_when_others_end():
    def step(tokens, position, state):
        ends = state["ends"] == position
        return ops.where(ends[:, None] & (ops.arange(len(LOGITS)) == 3), 100.0, LOGITS), state

    never, ends = (
        np.full(23, 99, "int32"),
        np.where(np.arange(23) % 3, np.arange(23) % 7, 99).astype("int32"),
    )
    alone = np.array(decoding.sample(step, {"ends": never}, 23, 9, seed=7))
    written = np.array(decoding.sample(step, {"ends": ends}, 23, 9, seed=7))
    np.testing.assert_array_equal(written[ends == 99], alone[ends == 99])
    assert ((written == 3).any(axis=1) == (ends < 99)).all()


# One compiled loop.


@needs_compiling
@pytest.mark.slow
def test_another_seed_temperature_or_top_p_is_no_new_trace():
    def step(tokens, position, state):
        calls.append(1)
        return constant(tokens, position, state)

    calls, state = [], np.tile(LOGITS, (5, 1))
    for seed in (None, 1, 2, keras.random.SeedGenerator(3)):
        for temperature in (0.5, 1.0, 2.0):
            for top_p in (0.5, 0.9):
                decoding.sample(
                    step, state, 5, 3, temperature=temperature, top_p=top_p, top_k=4, seed=seed
                )
    assert len(calls) == CALLS_A_TRACE


@pytest.mark.tensorflow
@pytest.mark.slow
@pytest.mark.parametrize("jit_compile", [False, True])
def test_sampling_works_inside_a_tf_function(jit_compile):
    @tf.function(jit_compile=jit_compile)
    def search(state):
        return decoding.sample(constant, state, 23, 7, seed=5), decoding.sample(
            constant, state, 23, 7
        )

    state = as_tensor(np.tile(LOGITS, (23, 1)))
    (first, free), (again, other) = search(state), search(state)
    np.testing.assert_array_equal(first, again)
    assert numpy(free != other).any()
    if not jit_compile:  # XLA has random numbers of its own
        np.testing.assert_array_equal(first, drawn(rows=23, length=7, seed=5))


def test_the_state_is_returned_on_request():
    def step(tokens, position, state):
        return ops.zeros_like(state[:, None]) + LOGITS, state + 1

    written, state = decoding.sample(
        step, np.zeros(13, "float32"), 13, 9, seed=5, end_id=7, return_state=True
    )
    lengths = [row.index(7) + 1 if 7 in row else 9 for row in numpy(written).tolist()]
    assert numpy(state).tolist() == lengths and len(set(lengths)) > 3


@pytest.mark.parametrize(
    "argument, value, expected",
    [
        ("temperature", 0, "be a positive, finite number"),
        ("temperature", float("inf"), "be a positive, finite number"),
        ("temperature", None, "be a positive, finite number"),
        ("top_k", 0, "be a positive integer"),
        ("top_k", 2.5, "be a positive integer"),
        ("top_p", 0.0, "be a number in (0, 1], or None"),
        ("top_p", 1.5, "be a number in (0, 1], or None"),
        ("top_p", "all", "be a number in (0, 1], or None"),
        ("seed", -1, "be an integer of at least 0"),
        ("seed", 0.5, "be an integer of at least 0"),
        ("batch_size", 0, "be a positive integer"),
        ("max_length", 0, "be a positive integer"),
        ("end_id", -1, "be an integer of at least 0"),
        ("return_state", None, "be True or False"),
    ],
)
def test_a_bad_argument_is_refused(argument, value, expected):
    sentence = f"sample: `{argument}` must {expected}. Received: {argument}={value!r}"
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}$"):
        decoding.sample(constant, (), **{"batch_size": 2, "max_length": 3, argument: value})
