"""Sampling: frequencies against probabilities, seeds, tokens that are never drawn."""

import keras
import numpy as np
import pytest
from keras import ops

from tests.helpers.searches import eagerly
from tests.helpers.tensors import as_tensor, numpy, tf
from tfattn import decoding

pytestmark = pytest.mark.usefixtures("dense_path")

ROWS = 5000
LOGITS = np.array([-np.inf, 1.3, -np.inf, -np.inf, 0.2, 0.9, -1.0, 2.0, -np.inf], "float32")


def constant(tokens, position, state):
    """The same scores, `state` (B, V), at every step."""
    return state, state


@eagerly()
def drawn(rows=ROWS, logits=LOGITS, length=1, **options):
    """Token ids `(rows, length)`, all drawn from the same logits."""
    state = np.tile(logits, (rows, 1))
    options = {"seed": 11, **options}
    return ops.convert_to_numpy(decoding.Sampling(**options)(constant, state, rows, length))


def probabilities(temperature=1.0, top_k=None, top_p=None):
    """The probabilities of sampling, in float64."""
    logits = LOGITS.astype("float64") / temperature
    order = np.argsort(-logits, kind="stable")[:top_k]
    p = np.zeros(len(LOGITS))
    p[order] = np.exp(logits[order]) / np.exp(logits[order]).sum()
    if top_p is not None:
        order = np.argsort(-p, kind="stable")
        kept = order[: np.searchsorted(np.cumsum(p[order]), top_p) + 1]
        p = np.where(np.isin(np.arange(len(p)), kept), p, 0.0)
    return p / p.sum()


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
def test_sampling_draws_tokens_as_often_as_their_probabilities_say(options, kinds):
    p = probabilities(**options)
    assert (p > 0).sum() == kinds  # the case has the intended number of tokens
    counts = np.bincount(drawn(**options)[:, 0], minlength=len(p))
    assert counts[p == 0].sum() == 0
    expected = ROWS * p[p > 0]
    chi_square = ((counts[p > 0] - expected) ** 2 / expected).sum()
    assert chi_square < 25  # for 4 degrees of freedom, once in 20,000


@pytest.mark.slow
@eagerly()
def test_sampling_with_a_single_token_left_is_greedy_search():
    def step(tokens, position, state):
        return ops.take(state, position, axis=1), state

    for options in ({"top_k": 1}, {"top_p": 1e-9}, {"temperature": 1e-45}):
        table = np.random.default_rng(5).normal(size=(7, 5, 13)).astype("float32")
        table[0, :, 4:7] = 5.0  # of equal tokens, the first
        if "temperature" in options:
            table[0] += np.arange(13)[::-1]
        written = decoding.Sampling(seed=3, **options)(step, table, 7, 5)
        np.testing.assert_array_equal(written, decoding.GreedySearch()(step, table, 7, 5))


@pytest.mark.parametrize("draw", [0.0, 1 - 2**-24], ids=["least", "greatest"])
def test_sampling_never_draws_a_token_of_probability_zero(draw, monkeypatch):
    def extreme(shape, **_):
        return ops.full(shape, draw, dtype="float32")

    monkeypatch.setattr(keras.random, "uniform", extreme)
    logits = np.concatenate(
        [LOGITS, np.log(np.random.default_rng(0).uniform(size=997)), [-np.inf] * 3]
    )
    for some in (LOGITS, logits.astype("float32"), np.float32([-np.inf, 0.0, 0.0, 0.0, -np.inf])):
        for options in ({}, {"top_k": 7}, {"top_p": 1.0}, {"top_p": 0.9}):
            token = drawn(rows=1, logits=some, **options)[0, 0]
            assert some[token] > -np.inf


# Seeds.


def test_sampling_with_the_same_seed_gives_the_same_result():
    first, again, other = (drawn(23, length=7, seed=seed) for seed in (5, np.int64(5), 6))
    assert (first == again).all() and (first != other).any()


def seed_generator():
    return keras.random.SeedGenerator(5)


def seed_of_keras():
    keras.utils.clear_session()  # older versions of Keras seed only a generator to be made
    keras.utils.set_random_seed(3)


@pytest.mark.parametrize("new_seed", [seed_generator, seed_of_keras])
def test_sampling_with_a_generator_goes_on_from_call_to_call(new_seed):
    """Also that of Keras, which is taken without a seed."""

    def two():
        seed = new_seed()
        return [drawn(23, length=7, seed=seed) for _ in range(2)]

    (first, second), (again, _) = two(), two()
    assert (first == again).all() and (first != second).any()


@pytest.mark.slow
@pytest.mark.tensorflow
def test_sampling_without_a_seed_draws_anew_in_a_function():
    @tf.function
    def search(state):
        return decoding.Sampling()(constant, state, 23, 2)

    state = as_tensor(np.tile(LOGITS, (23, 1)))
    assert numpy(search(state) != search(state)).any()


@pytest.mark.slow
@eagerly()
def test_sampling_of_a_row_does_not_depend_on_others_ends():
    def step(tokens, position, state):
        ends = state["ends"] == position
        return ops.where(ends[:, None] & (ops.arange(len(LOGITS)) == 3), 100.0, LOGITS), state

    never, ends = (
        np.full(23, 99, "int32"),
        np.where(np.arange(23) % 3, np.arange(23) % 7, 99).astype("int32"),
    )
    alone = np.array(decoding.Sampling(seed=7)(step, {"ends": never}, 23, 9))
    written = np.array(decoding.Sampling(seed=7)(step, {"ends": ends}, 23, 9))
    np.testing.assert_array_equal(written[ends == 99], alone[ends == 99])
    assert ((written == 3).any(axis=1) == (ends < 99)).all()
