"""Loss and accuracy without logits: against float64 NumPy, and against the logits' own."""

import functools
import types

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

import tfattn
from tests import reference
from tests.small_vocabulary import V, assert_alike, blocks
from tfattn._factors import Factors
from tfattn.training import RDropCrossentropy, losses, streamed

pytestmark = pytest.mark.tensorflow


@pytest.fixture
def streams():
    with blocks():
        yield


def arrays(seed, count=13, size=V, width=4):
    """Targets, weights of which a third is 0, tokens, vectors, and a bias."""
    rng = np.random.default_rng(seed)
    weights = rng.normal(size=count) * (rng.random(count) < 0.7)
    factors = rng.normal(size=(count, width)), rng.normal(size=(size, width)), rng.normal(size=size)
    return rng.integers(0, size, count), weights, *factors


def pulled(target, weights, tokens, vectors, bias=None, smoothing=0.1, upstream=1.0):
    """The sum of losses and its gradients, from a graph that knows the vocabulary's size alone."""
    shapes = [(None,), (None, tokens.shape[1]), vectors.shape] + (
        [] if bias is None else [bias.shape]
    )

    @tf.function(input_signature=[tf.TensorSpec((None,), tf.int32), *map(tf.TensorSpec, shapes)])
    def function(target, *inputs):
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            weights, *factors = inputs
            loss = upstream * streamed.weighted_loss(Factors(*factors), target, weights, smoothing)
        return loss, tape.gradient(loss, inputs)

    inputs = [tf.constant(x, tf.float32) for x in (weights, tokens, vectors, bias) if x is not None]
    return function(tf.constant(target, tf.int32), *inputs)


@pytest.mark.slow
@given(
    seed=st.integers(0, 999),
    count=st.integers(0, 17),
    size=st.integers(1, 13),
    width=st.integers(1, 5),
    numbers=st.integers(1, 150),
    smoothing=st.sampled_from([0.0, 0.1, 0.6]),
    biased=st.booleans(),
)
@settings(max_examples=25, deadline=None)
def test_loss_and_gradients_are_the_oracles(seed, count, size, width, numbers, smoothing, biased):
    inputs = arrays(seed, count, size, width)[: 5 if biased else 4]
    with blocks(numbers):
        loss, gradients = pulled(*inputs, smoothing=smoothing, upstream=-3.0)
    wanted, wanted_gradients = reference.cross_entropy(*inputs, smoothing=smoothing)
    np.testing.assert_allclose(loss, -3.0 * wanted, rtol=1e-5, atol=1e-5)
    for found, expected in zip(gradients, wanted_gradients, strict=True):
        np.testing.assert_allclose(found, -3.0 * expected, rtol=1e-4, atol=2e-5)


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("size", [1e-3, 30.0, 1e4])
def test_tokens_of_any_size(streams, size):
    target, weights, tokens, *others = arrays(0)
    loss, gradients = pulled(target, weights, tokens * size, *others)
    wanted, expected = reference.cross_entropy(
        target, weights, tokens * size, *others, smoothing=0.1
    )
    np.testing.assert_allclose(loss, wanted, rtol=1e-5)
    for found, one in zip(gradients, expected, strict=True):
        np.testing.assert_allclose(found, one, rtol=1e-4, atol=1e-5 * max(1.0, np.abs(one).max()))


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("shift", [-200.0, -30.0, 70.0, 200.0])
def test_logits_may_be_shifted_to_where_exponentials_overflow_or_vanish(streams, shift):
    target, weights, tokens, vectors, bias = arrays(4)
    loss, gradients = pulled(target, weights, tokens, vectors, bias + shift)
    wanted, expected = reference.cross_entropy(
        target, weights, tokens, vectors, bias, smoothing=0.1
    )
    np.testing.assert_allclose(loss, wanted, rtol=1e-4, atol=1e-4)
    for found, one in zip(gradients, expected, strict=True):
        np.testing.assert_allclose(found, one, rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_what_counts_for_nothing_may_hold_anything(streams):
    target, weights, tokens, *others = arrays(1)
    clean = pulled(target, weights, tokens, *others)
    tokens[weights == 0], target[weights == 0] = np.nan, -7
    found = pulled(target, weights, tokens, *others)
    for one, other in zip(tf.nest.flatten(found), tf.nest.flatten(clean), strict=True):
        np.testing.assert_array_equal(one, other)
    assert not np.any(found[1][1].numpy()[weights == 0])


@pytest.mark.slow
@pytest.mark.parametrize("counting", [0, 1, 5, 16, 17, 40, 64])
def test_padding_is_left_out(counting, monkeypatch):
    target, _, tokens, *others = arrays(5, 64)
    weights = np.zeros(64)
    weights[np.random.default_rng(6).permutation(64)[:counting]] = 1.0
    seen, logits = [], streamed._logits

    def counted(tokens, *rest):
        tf.py_function(lambda x: seen.append(len(x)), [tokens], [])
        return logits(tokens, *rest)

    monkeypatch.setattr(streamed, "_logits", counted)
    with blocks(16 * V):  # 16 tokens each
        loss, _ = pulled(target, weights, tokens, *others)
    np.testing.assert_allclose(
        loss, reference.cross_entropy(target, weights, tokens, *others, smoothing=0.1)[0], 1e-5
    )
    assert counting <= sum(seen) < counting + 4
    assert seen.count(16) == counting // 16
    seen.clear()
    with blocks(16 * V, rows=32):  # of which no block has fewer, unless there are fewer tokens
        pulled(target[:5], np.array([1.0, 0.0, 1.0, 1.0, 1.0]), tokens[:5], *others)
    assert seen == [5]


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("wrong", [-1, V])
def test_an_id_that_is_no_word_shows_in_the_loss_and_has_no_gradient(streams, wrong):
    target, weights, tokens, *others = arrays(2)
    target[4], weights[4], rest = wrong, 1.0, np.arange(len(target)) != 4
    loss, (_, of_tokens, *of_others) = pulled(target, weights, tokens, *others)
    assert np.isnan(loss)
    _, (_, wanted, *wanted_of_others) = reference.cross_entropy(
        target[rest], weights[rest], tokens[rest], *others, smoothing=0.1
    )
    np.testing.assert_allclose(of_tokens[rest], wanted, rtol=1e-4, atol=1e-5)
    assert not np.any(of_tokens[4])
    for one, other in zip(of_others, wanted_of_others, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_a_word_that_a_bias_rules_out_gets_no_gradient(streams, smoothing):
    target, weights, tokens, vectors, bias = arrays(5)
    target[target == 4], bias[4] = 5, -np.inf
    loss, gradients = pulled(target, weights, tokens, vectors, bias, smoothing=smoothing)
    if smoothing:  # which asks for some of that word
        assert not np.isfinite(loss)
    else:
        bias[4] = -1e3
        wanted, _ = reference.cross_entropy(target, weights, tokens, vectors, bias)
        np.testing.assert_allclose(loss, wanted, rtol=1e-5)
        assert not np.any(gradients[2][4]) and not np.any(gradients[3][4])
    assert all(np.isfinite(x).all() for x in gradients[1:])


def test_the_best_id_is_the_first_of_the_highest(streams):
    *_, tokens, vectors, bias = arrays(3, count=20)
    vectors[7], bias[7] = vectors[2], bias[2]
    factors = [tf.constant(x, tf.float32) for x in (tokens.reshape(4, 5, -1), vectors, bias)]
    found = tf.function(lambda *factors: streamed.best_ids(Factors(*factors)))(*factors)
    wanted = (tokens @ vectors.T + bias).argmax(-1)
    assert 2 in wanted and found.dtype == tf.int32
    np.testing.assert_array_equal(found, wanted.reshape(4, 5))


def judged(loss, change=None, marked=True, jit_compile=False):
    """Loss, accuracy and gradients from logits `(2, 7, V)` with a third of padding, in a graph."""
    target, _, tokens, *others = arrays(6, count=14)
    target[::3] = 0
    target, tokens = target.reshape(2, 7), tokens.reshape(2, 7, -1)
    metric = tfattn.MaskedAccuracy()

    @tf.function(jit_compile=jit_compile)
    def function(*factors):
        with tf.GradientTape() as tape:
            tape.watch(factors)
            tokens, vectors, bias = factors
            logits = tf.reshape(
                tf.matmul(tf.reshape(tokens, (14, -1)), vectors, transpose_b=True) + bias, (2, 7, V)
            )
            if marked:
                logits = Factors(*factors).on(logits)
            if change is not None:
                logits = change(logits)
            value = loss(target, logits)
        metric.update_state(target, logits)
        return value, tape.gradient(value, factors)

    results = function(*(tf.constant(x, tf.float32) for x in (tokens, *others)))
    return [*tf.nest.flatten(results), metric.result()]


class OwnLoss(tfattn.MaskedCrossentropy):
    def call(self, y_true, y_pred):
        return 2.0 * super().call(y_true, y_pred)


LOSSES = {
    "mean": lambda: tfattn.MaskedCrossentropy(0.1),
    "sum": lambda: tfattn.MaskedCrossentropy(0.1, reduction="sum"),
    "none": lambda: tfattn.MaskedCrossentropy(0.1, reduction="none"),
    "another padding": lambda: tfattn.MaskedCrossentropy(0.1, padding_id=3),
    "a loss of one's own": lambda: OwnLoss(0.1),
    "R-Drop": lambda: RDropCrossentropy(label_smoothing=0.1),
    "Keras's": lambda: keras.losses.SparseCategoricalCrossentropy(from_logits=True),
}


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("loss", LOSSES)
def test_every_loss_is_that_of_the_logits(streams, loss):
    assert_alike(judged(LOSSES[loss]()), judged(LOSSES[loss](), marked=False))


@pytest.mark.slow
def test_xla_compiles_it(streams):
    assert_alike(judged(LOSSES["mean"](), jit_compile=True), judged(LOSSES["mean"](), marked=False))


@pytest.mark.slow
def test_logits_that_were_worked_on_are_what_counts(streams):
    found, wanted = (
        judged(LOSSES["mean"](), lambda x: x / 2.0, marked) for marked in (True, False)
    )
    assert_alike(found, wanted)
    assert abs(found[0] - judged(LOSSES["mean"]())[0]) > 0.1


@pytest.mark.slow
def test_scores_that_do_not_fit_the_ids_are_refused(streams):
    with pytest.raises(
        ValueError, match=r"MaskedCrossentropy: `y_pred` must have shape \(2, 7\), as `y_true`"
    ):
        judged(LOSSES["mean"](), lambda logits: Factors.of(logits).on(logits[:1]))


@pytest.mark.slow
def test_xla_holds_no_logits(streams):
    loss, target = tfattn.MaskedCrossentropy(0.1), np.ones((1, 14))

    def gradients(change, *factors):
        with tf.GradientTape() as tape:
            tape.watch(factors)
            logits = Factors(*factors).on(tf.matmul(factors[0], factors[1], transpose_b=True)[None])
            value = loss(target, change(logits))
        return tape.gradient(value, factors)

    factors = tf.ones((14, 4)), tf.ones((V, 4))
    for change, held in ((lambda x: x, False), (lambda x: x + 0.0, True)):
        function = tf.function(functools.partial(gradients, change), jit_compile=True)
        compiled = function.experimental_get_compiler_ir(*factors)(stage="optimized_hlo")
        assert any(f"[{shape},{V}]" in compiled for shape in ("14", "1,14")) == held


def test_a_small_vocabulary_keeps_its_logits():
    sizes = 100, 511, 512, None
    factors = [Factors(None, tf.TensorSpec((size, 4))) for size in sizes]
    logits = [each.on(types.SimpleNamespace()) for each in factors]
    assert [losses.streamable(each) is not None for each in logits] == [False, False, True, False]
    assert losses.streamable(types.SimpleNamespace()) is None


def test_a_gpu_keeps_its_logits(streams, monkeypatch):
    factors = Factors(None, tf.TensorSpec((V, 4)))
    logits = factors.on(types.SimpleNamespace())
    assert losses.streamable(logits) is factors
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: [kind])
    assert losses.streamable(logits) is None


@pytest.mark.slow
def test_lengths_that_only_the_run_knows_must_fit_too(streams):
    loss = tfattn.MaskedCrossentropy()
    specs = (
        tf.TensorSpec((None, None), tf.int32),
        tf.TensorSpec((None, None, 4)),
        tf.TensorSpec((V, 4)),
    )

    @tf.function(input_signature=specs)
    def function(target, tokens, vectors):
        logits = tf.einsum("btw,vw->btv", tokens, vectors)
        return loss(target, Factors(tokens, vectors).on(logits))

    with pytest.raises(tf.errors.InvalidArgumentError, match="must have the shape of the tokens"):
        function(tf.ones((5, 3), tf.int32), tf.ones((3, 5, 4)), tf.ones((V, 4)))


@pytest.mark.slow
def test_logits_of_the_graph_outside_reach_a_branch(streams):
    target, _, tokens, vectors, bias = arrays(6)
    loss, factors = (
        tfattn.MaskedCrossentropy(),
        [tf.constant(x, tf.float32) for x in (tokens[None], vectors, bias)],
    )

    @tf.function
    def function(condition, *factors):
        with tf.GradientTape() as tape:
            tape.watch(factors)
            logits = Factors(*factors).on(factors[0] @ tf.transpose(factors[1]) + factors[2])
            value = tf.cond(condition, lambda: loss(target[None], logits), lambda: 0.0)
        return value, *tape.gradient(value, factors)

    eager = tfattn.MaskedCrossentropy()(target[None], tokens[None] @ vectors.T + bias)
    found = function(tf.constant(True), *factors)
    np.testing.assert_allclose(found[0], eager, rtol=1e-5)
    assert all(np.any(x) for x in found[1:])


@pytest.mark.slow
def test_the_gradient_has_a_gradient(streams):
    target, weights, *factors = arrays(4, count=7)
    weights, *factors = (tf.constant(x, tf.float32) for x in (weights, *factors))
    by_token = tfattn.MaskedCrossentropy(0.1, padding_id=V, reduction="none")

    def by_logits(tokens, vectors, bias):
        return tf.reduce_sum(
            by_token(target, tf.matmul(tokens, vectors, transpose_b=True) + bias, weights)
        )

    def by_factors(*factors):
        return streamed.weighted_loss(
            Factors(*factors), tf.constant(target, tf.int32), weights, 0.1
        )

    def second(loss):
        @tf.function
        def function(*factors):
            with tf.GradientTape() as outer:
                outer.watch(factors)
                with tf.GradientTape() as inner:
                    inner.watch(factors)
                    value = loss(*factors)
                along = sum(tf.reduce_sum(tf.sin(x)) for x in inner.gradient(value, factors))
            return outer.gradient(along, factors)

        return function(*factors)

    assert_alike(second(by_factors), second(by_logits), 1e-4, 1e-5)
