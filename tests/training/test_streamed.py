"""Loss and accuracy without logits: against float64 NumPy, and against the logits' own."""

import functools
import types

import numpy as np
import pytest
import tensorflow as tf

import tfattn
from tests import reference
from tests.helpers.small_vocabulary import V, assert_alike, blocks
from tfattn._shared import LogitFactors
from tfattn.training import losses, streamed

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


@functools.cache
def graph_of_unknown_counts(*shapes, smoothing, upstream, numbers, least):
    specs = [tf.TensorSpec((None,), tf.int32), *map(tf.TensorSpec, shapes)]

    @tf.function(input_signature=specs, autograph=False)
    def function(target, *inputs):
        weights, *factors = inputs
        with blocks(numbers, least):
            with tf.GradientTape() as tape:
                tape.watch(inputs)
                loss = streamed.weighted_loss(LogitFactors(*factors), target, weights, smoothing)
                loss *= upstream
            return loss, tape.gradient(loss, inputs)

    return function


def pulled(target, weights, *factors, smoothing=0.1, upstream=1.0, numbers=3 * V, least=1):
    """The sum of losses and its gradients, from a graph that knows the vocabulary's size alone."""
    tokens, *rows = factors
    shapes = [(None,), (None, tokens.shape[1]), *(row.shape for row in rows)]
    options = {"smoothing": smoothing, "upstream": upstream, "numbers": numbers, "least": least}
    inputs = [tf.constant(x, tf.float32) for x in (weights, *factors)]
    return graph_of_unknown_counts(*shapes, **options)(tf.constant(target, tf.int32), *inputs)


@pytest.mark.slow
@pytest.mark.parametrize(
    "count, size, numbers, smoothing, biased, scale, shift",
    [
        (13, V, 3 * V, 0.1, True, 1.0, 0.0),
        (17, 13, 150, 0.0, False, 1.0, 0.0),  # two blocks, and smaller ones for the rest
        (0, 7, 21, 0.6, True, 1.0, 0.0),
        (5, 1, 1, 0.1, False, 1.0, 0.0),
        # Where exponentials of logits overflow or vanish.
        *((13, V, 3 * V, 0.1, True, 1.0, shift) for shift in (200.0, -200.0, 70.0)),
        (13, V, 3 * V, 0.1, True, 1e4, 0.0),
    ],
)
def test_streamed_loss_and_gradients_are_the_references(
    count, size, numbers, smoothing, biased, scale, shift
):
    target, weights, tokens, vectors, bias = arrays(4 if shift or scale > 1 else 0, count, size)
    inputs = [target, weights, tokens * scale, vectors, bias + shift][: 5 if biased else 4]
    loss, gradients = pulled(*inputs, smoothing=smoothing, upstream=-3.0, numbers=numbers)
    wanted, expected = reference.cross_entropy(*inputs, smoothing=smoothing)
    digits = 1e-4 if shift else 1e-5
    np.testing.assert_allclose(loss, -3.0 * wanted, rtol=digits, atol=digits)
    for found, one in zip(gradients, expected, strict=True):
        largest = max(1.0, np.abs(one).max(initial=0.0)) if scale > 1 else 1.0
        atol = 3 * digits * largest if shift or scale > 1 else 2e-5
        np.testing.assert_allclose(found, -3.0 * one, rtol=10 * digits, atol=atol)


@pytest.mark.slow
def test_streamed_loss_without_weight_may_be_anything_and_no_word_is_nan():
    target, weights, tokens, *others = arrays(1)
    clean = pulled(target, weights, tokens, *others)
    tokens[weights == 0], target[weights == 0] = np.nan, -7
    found = pulled(target, weights, tokens, *others)
    for one, other in zip(tf.nest.flatten(found), tf.nest.flatten(clean), strict=True):
        np.testing.assert_array_equal(one, other)
    assert not np.any(found[1][1].numpy()[weights == 0])

    target, weights, tokens, *others = arrays(2)
    target[[4, 5]], weights[[4, 5]] = (-1, V), 1.0
    words = (target >= 0) & (target < V)
    loss, (_, of_tokens, *of_others) = pulled(target, weights, tokens, *others)
    assert np.isnan(loss) and not np.any(of_tokens[~words])
    _, (_, wanted, *wanted_of_others) = reference.cross_entropy(
        target[words], weights[words], tokens[words], *others, smoothing=0.1
    )
    assert_alike((of_tokens[words], *of_others), (wanted, *wanted_of_others), 1e-4, 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("smoothing", [0.1, 0.0])
def test_streamed_loss_word_of_minus_infinity_gets_no_gradient(smoothing):
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


@pytest.mark.slow
def test_streamed_loss_padding_is_not_computed(monkeypatch):
    seen, logits = [], streamed._logits

    def counted(tokens, *rest):
        tf.py_function(lambda x: seen.append(len(x)), [tokens], [])
        return logits(tokens, *rest)

    monkeypatch.setattr(streamed, "_logits", counted)
    target, _, tokens, *others = arrays(5, 64, width=3)
    for counting in (0, 1, 5, 16, 17, 40, 64):
        weights = np.zeros(64)
        weights[np.random.default_rng(6).permutation(64)[:counting]] = 1.0
        seen.clear()
        loss, _ = pulled(target, weights, tokens, *others, numbers=16 * V)  # 16 tokens a block
        wanted, _ = reference.cross_entropy(target, weights, tokens, *others, smoothing=0.1)
        np.testing.assert_allclose(loss, wanted, 1e-5)
        assert counting <= sum(seen) < counting + 4
        assert seen.count(16) == counting // 16
    seen.clear()
    # No block has fewer than 32, unless there are fewer tokens.
    weights = np.array([1.0, 0.0, 1.0, 1.0, 1.0])
    pulled(target[:5], weights, tokens[:5], *others, numbers=16 * V, least=32)
    assert seen == [5]
    graph_of_unknown_counts.cache_clear()  # of what counts


@pytest.mark.slow
def test_best_ids_are_the_first_of_the_highest(streams):
    *_, tokens, vectors, bias = arrays(3, count=20)
    vectors[7], bias[7] = vectors[2], bias[2]
    factors = [tf.constant(x, tf.float32) for x in (tokens.reshape(4, 5, -1), vectors, bias)]
    found = tf.function(lambda *factors: streamed.best_ids(LogitFactors(*factors)))(*factors)
    wanted = (tokens @ vectors.T + bias).argmax(-1)
    assert 2 in wanted and found.dtype == tf.int32
    np.testing.assert_array_equal(found, wanted.reshape(4, 5))


def judged(loss, change, marked=True, jit_compile=False):
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
                logits = LogitFactors(*factors).on(logits)
            logits = change(logits)
            value = loss(target, logits)
        metric.update_state(target, logits)
        return value, tape.gradient(value, factors)

    results = function(*(tf.constant(x, tf.float32) for x in (tokens, *others)))
    return [*tf.nest.flatten(results), metric.result()]


class OwnLoss(tfattn.MaskedCrossentropy):
    def call(self, y_true, y_pred):
        return 2.0 * super().call(y_true, y_pred)


@pytest.mark.slow
@pytest.mark.parametrize(
    "loss, change, jit",
    [
        (tfattn.MaskedCrossentropy(0.1, padding_id=3), lambda logits: logits, False),
        (tfattn.MaskedCrossentropy(0.1), lambda logits: logits, True),
        (tfattn.MaskedCrossentropy(0.1, reduction="none"), lambda logits: logits, False),
        (OwnLoss(0.1), lambda logits: logits, False),
        (tfattn.MaskedCrossentropy(0.1), lambda logits: logits / 2.0, False),
    ],
    ids=["another padding", "xla", "none", "a loss of one's own", "logits that were worked on"],
)
def test_streamed_loss_of_every_kind_is_that_of_the_logits(streams, loss, change, jit):
    assert_alike(judged(loss, change, jit_compile=jit), judged(loss, change, marked=False))


@pytest.mark.slow
def test_streamed_loss_scores_that_do_not_fit_the_ids_are_refused(streams):
    loss, shapes = tfattn.MaskedCrossentropy(), ((None, None, 4), (V, 4))
    said = r"MaskedCrossentropy: `y_pred` must have shape \(2, 7\), as `y_true`"
    with pytest.raises(ValueError, match=said):
        judged(loss, lambda logits: LogitFactors.of(logits).on(logits[:1]))

    @tf.function(
        input_signature=[tf.TensorSpec((None, None), tf.int32), *map(tf.TensorSpec, shapes)]
    )
    def function(target, tokens, vectors):
        logits = tf.einsum("btw,vw->btv", tokens, vectors)
        return loss(target, LogitFactors(tokens, vectors).on(logits))

    # Lengths that only the run knows.
    with pytest.raises(tf.errors.InvalidArgumentError, match="must have the shape of the tokens"):
        function(tf.ones((5, 3), tf.int32), tf.ones((3, 5, 4)), tf.ones((V, 4)))


@pytest.mark.slow
def test_streamed_loss_xla_holds_no_logits(streams):
    loss, target = tfattn.MaskedCrossentropy(0.1), np.ones((1, 14))

    def gradients(change, *factors):
        with tf.GradientTape() as tape:
            tape.watch(factors)
            logits = LogitFactors(*factors).on(
                tf.matmul(factors[0], factors[1], transpose_b=True)[None]
            )
            value = loss(target, change(logits))
        return tape.gradient(value, factors)

    factors = tf.ones((14, 4)), tf.ones((V, 4))
    for change, held in ((lambda x: x, False), (lambda x: x + 0.0, True)):
        function = tf.function(functools.partial(gradients, change), jit_compile=True)
        compiled = function.experimental_get_compiler_ir(*factors)(stage="optimized_hlo")
        assert any(f"[{shape},{V}]" in compiled for shape in ("14", "1,14")) == held


def test_streamable_small_vocabulary_or_gpu_keeps_its_logits(monkeypatch):
    def logits_of(size):
        factors = LogitFactors(None, tf.TensorSpec((size, 4)))
        return factors.on(types.SimpleNamespace())

    found = [losses.streamable(logits_of(size)) for size in (100, 511, 512, None)]
    assert [each is not None for each in found] == [False, False, True, False]
    assert losses.streamable(types.SimpleNamespace()) is None
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: [kind])
    assert losses.streamable(logits_of(512)) is None


@pytest.mark.slow
def test_streamed_loss_in_a_branch_has_logits_of_the_graph_outside(streams):
    target, _, tokens, vectors, bias = arrays(6)
    loss = tfattn.MaskedCrossentropy()
    factors = [tf.constant(x, tf.float32) for x in (tokens[None], vectors, bias)]

    @tf.function
    def function(condition, *factors):
        with tf.GradientTape() as tape:
            tape.watch(factors)
            logits = LogitFactors(*factors).on(factors[0] @ tf.transpose(factors[1]) + factors[2])
            value = tf.cond(condition, lambda: loss(target[None], logits), lambda: 0.0)
        return value, *tape.gradient(value, factors)

    eager = tfattn.MaskedCrossentropy()(target[None], tokens[None] @ vectors.T + bias)
    found = function(tf.constant(True), *factors)
    np.testing.assert_allclose(found[0], eager, rtol=1e-5)
    assert all(np.any(x) for x in found[1:])


@pytest.mark.slow
def test_streamed_loss_gradient_has_a_gradient(streams):
    target, weights, *factors = arrays(4, count=7)
    weights, *factors = (tf.constant(x, tf.float32) for x in (weights, *factors))
    by_token = tfattn.MaskedCrossentropy(0.1, padding_id=V, reduction="none")

    def by_logits(tokens, vectors, bias):
        logits = tf.matmul(tokens, vectors, transpose_b=True) + bias
        return tf.reduce_sum(by_token(target, logits, weights))

    def by_factors(*factors):
        return streamed.weighted_loss(
            LogitFactors(*factors), tf.constant(target, tf.int32), weights, 0.1
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
