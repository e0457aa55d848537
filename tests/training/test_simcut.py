"""SimCut: cross-entropy, divergence of paired predictions, and batches with duplicated rows."""

import keras
import numpy as np
import pytest
from keras import ops

import tfattn
from tests.helpers.small_vocabulary import V as SMALL
from tests.helpers.small_vocabulary import blocks
from tests.helpers.tensors import as_tensor, both_ways, compiled, numpy, tf
from tfattn import data
from tfattn._factors import LogitFactors
from tfattn.training import SimCutCrossentropy
from tfattn.training.losses import _sum_fits_call

pytestmark = pytest.mark.usefixtures("dense_path")

B, T, V = 3, 5, 7  # half of a batch


def case():
    """Duplicated targets `(2B, T)`, some of them padding, and logits."""
    generator = np.random.default_rng(0)
    ids = generator.integers(1, V, size=(B, T))
    ids[0, 3:] = 0
    return np.concatenate([ids, ids]), generator.normal(scale=2.0, size=(2 * B, T, V))


def log_softmax(logits):
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def oracle(ids, logits, weight, smoothing):
    """Loss of each token, float64, by the paper's formula."""
    log_p = log_softmax(logits)
    right = np.take_along_axis(log_p, ids[..., None], -1)[..., 0]
    losses = -(1 - smoothing) * right - smoothing * log_p.mean(-1)
    first, second = log_p[:B], log_p[B:]
    divergence = np.sum(np.exp(first) * (first - second), axis=-1)
    losses = np.tile(losses[:B] + weight * divergence, (2, 1))
    return np.where(ids == 0, 0.0, losses)


@pytest.mark.parametrize("weight, smoothing", [(5.0, 0.1), (1.0, 0.0)])
def test_the_loss_is_the_formula(weight, smoothing):
    ids, logits = case()
    tokens = oracle(ids, logits, weight, smoothing)
    mean = tokens.sum() / np.count_nonzero(ids)
    for reduction, wanted in (
        ("none", tokens),
        ("sum", tokens.sum()),
        ("sum_over_batch_size", mean),
    ):
        loss = SimCutCrossentropy(weight, smoothing, reduction=reduction)(ids, logits)
        np.testing.assert_allclose(loss, wanted, rtol=1e-5, atol=1e-6)


def value_and_gradient(loss, ids, logits, weights=None):
    value, (gradient,) = both_ways(lambda x: loss(ids, x, sample_weight=weights), [logits])
    return value, gradient


def graph_of_unknown_sizes(function):
    specs = (None, None), (None, None, V), (None, None)
    signature = [tf.TensorSpec(specs[0], "int32"), *map(tf.TensorSpec, specs[1:])]
    return tf.function(function, input_signature=signature)


MODES = {
    "eager": lambda function: function,
    "unknown sizes": graph_of_unknown_sizes,
    "xla": lambda function: compiled(function, jit=True),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "mode", ["eager", pytest.param("unknown sizes", marks=pytest.mark.tensorflow), "xla"]
)
def test_paired_predictions_learn_in_every_mode_and_other_rows_have_the_plain_loss(mode):
    ids, logits = case()
    weights = np.random.default_rng(1).uniform(size=ids.shape)
    loss, plain = SimCutCrossentropy(3.0, 0.1), tfattn.MaskedCrossentropy(0.1)
    function = MODES[mode](lambda *inputs: value_and_gradient(loss, *inputs))

    def inputs(rows=slice(None)):
        dirty = np.where(ids[..., None] == 0, np.nan, logits)  # padding may hold anything
        floats = (as_tensor(x[rows], "float32") for x in (dirty, weights))
        return as_tensor(ids[rows], "int32"), *floats

    def mean(logits):
        losses = oracle(ids, logits, 3.0, 0.1)
        return np.sum(losses * weights) / np.sum(weights * (ids != 0))

    value, gradient = map(numpy, function(*inputs()))
    wanted = np.zeros_like(logits)
    for place in np.ndindex(*logits.shape):
        step = np.zeros_like(logits)
        step[place] = 1e-5
        wanted[place] = (mean(logits + step) - mean(logits - step)) / 2e-5
    np.testing.assert_allclose(value, mean(logits), rtol=1e-5)
    np.testing.assert_allclose(gradient, wanted, atol=1e-5)
    assert np.abs(gradient[:B]).max() > 0.01 and np.abs(gradient[B:]).max() > 0.01

    alone = [[1, 1, 1], slice(1), slice(0)] if mode == "eager" else [[1, 1, 1]]
    for rows in alone:
        results = [function(*inputs(rows)), value_and_gradient(plain, *inputs(rows))]
        for found, wanted in zip(*results, strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-8)


def test_rows_with_one_different_target_are_not_paired():
    ids, logits = case()
    ids[-1, -1] = ids[-1, -1] % (V - 1) + 1
    found = compiled(SimCutCrossentropy(5.0, 0.1).__call__)(ids, logits)
    wanted = tfattn.MaskedCrossentropy(0.1)(ids, logits)
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


@pytest.mark.parametrize("side", [slice(None), slice(B), slice(B, None)], ids=["both", "p", "q"])
def test_a_word_that_is_ruled_out_adds_nothing_where_p_rules_it_out(side):
    ids, logits = case()
    ids[ids == 1] = 2
    results = []
    for value in (-np.inf, -1e4):
        scores = np.array(logits, "float32")
        scores[side, :, 1] = value
        results.append(value_and_gradient(SimCutCrossentropy(3.0), ids, as_tensor(scores)))
    if side == slice(B, None):  # p has some hope of it: no distance is greater
        assert results[0][0] == np.inf
    else:
        for found, wanted in zip(*results, strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-7)


@pytest.mark.slow
@pytest.mark.tensorflow
@pytest.mark.parametrize(
    "rows, bias, jit",
    [(slice(None), True, False), (slice(None), False, True), (slice(-1), True, False)]
    + [(slice(0), True, False)],
)
def test_without_logits_simcut_is_the_same(rows, bias, jit):
    ids, _ = case()
    ids, generator = ids[rows], np.random.default_rng(1)
    factors = [generator.normal(size=shape) for shape in ((*ids.shape, 4), (SMALL, 4), (SMALL,))]
    factors = [as_tensor(factor, "float32") for factor in factors[: 3 if bias else 2]]
    weights = as_tensor(generator.uniform(size=ids.shape), "float32")
    ids, loss = as_tensor(ids, "int32"), SimCutCrossentropy(3.0, 0.1)

    def value(weights, tokens, vectors, *bias, streams):
        logits = tf.matmul(tokens, vectors, transpose_b=True) + (bias[0] if bias else 0.0)
        if streams:
            logits = LogitFactors(tokens, vectors, *bias).on(logits)
        found = loss(ids, logits, sample_weight=weights)
        factors = LogitFactors.of(logits)
        assert (factors is not None and factors.are_used) == streams
        return found

    @tf.function(jit_compile=jit)
    def both(*inputs):
        return [
            both_ways(lambda *inputs, way=way: value(*inputs, streams=way), inputs)
            for way in (True, False)
        ]

    with blocks(rows=2):  # several blocks
        (found, slopes), (wanted, others) = both(weights, *factors)
    np.testing.assert_allclose(found, wanted, rtol=1e-5)
    for one, other in zip(slopes, others, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.tensorflow
def test_without_logits_a_word_that_is_ruled_out_adds_nothing_either():
    generator = np.random.default_rng(1)
    tokens, vectors = (generator.normal(size=shape) for shape in ((2 * B, T, 4), (SMALL, 4)))

    def loss(tokens, vectors, bias):
        logits = tf.matmul(tokens, vectors, transpose_b=True) + bias
        return SimCutCrossentropy(3.0)(case()[0], LogitFactors(tokens, vectors, bias).on(logits))

    results = []
    for value in (-np.inf, -1e4):
        inputs = tokens, vectors, np.append(np.zeros(SMALL - 1), value)
        with blocks():
            results.append(both_ways(loss, [as_tensor(x, "float32") for x in inputs]))
    (found, slopes), (wanted, others) = results
    for one, other in zip([found, *slopes], [wanted, *others], strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-7)


def test_a_subclass_with_a_loss_of_its_own_takes_the_logits():
    class Own(SimCutCrossentropy):
        def call(self, y_true, y_pred):
            return ops.zeros_like(y_true)

    class Named(SimCutCrossentropy):
        pass

    assert [_sum_fits_call(cls) for cls in (SimCutCrossentropy, Named, Own)] == [True, True, False]
    assert _sum_fits_call(tfattn.MaskedCrossentropy)


# Batches.

PAIRS = data.toy_translation(300, seed=0)
WORDS = [data.Vocabulary.from_sentences(side) for side in zip(*PAIRS, strict=True)]


def batches_of(pairs=PAIRS, **options):
    return data.token_batches(pairs, *WORDS, 512, **options)


@pytest.mark.tensorflow
def test_a_dataset_of_another_structure_is_refused():
    rows = tf.data.Dataset.from_tensor_slices({"a": [[1, 2]], "b": [[3]]})
    said = r"simcut_batches: `batches` must be batches of \(\(source, target_in\), target_out\)"
    with pytest.raises(ValueError, match=said):
        data.simcut_batches(rows, *WORDS)


@pytest.mark.slow
def test_the_second_half_has_cut_tokens_at_their_rate_and_no_special_token_is_cut():
    cut, words = 0, 0
    for ((source, target_in), out), ((sources, targets_in), outs) in zip(
        batches_of(), data.simcut_batches(batches_of(), *WORDS, rate=0.1), strict=True
    ):
        half = len(source)
        np.testing.assert_array_equal(outs, np.concatenate([out, out]))
        for plain, both in ((source, sources), (target_in, targets_in)):
            plain, both = np.array(plain), np.array(both)
            np.testing.assert_array_equal(both[:half], plain)
            changed = both[half:] != plain
            assert np.all(both[half:][changed] == 1) and np.all(plain[changed] > 3)
            cut, words = cut + changed.sum(), words + (plain > 3).sum()
    assert words > 3000 and 0.08 < cut / words < 0.12


@pytest.mark.slow
def test_what_is_cut_follows_from_the_seed_and_the_batch():
    some = PAIRS[:100]

    def sides(batches):
        return [side for batch, _ in batches.as_numpy_iterator() for side in batch]

    def cut(seed):
        return sides(data.simcut_batches(batches_of(some), *WORDS, rate=0.3, seed=seed))

    def same(one, other):
        return [np.array_equal(a, b) for a, b in zip(one, other, strict=True)]

    assert all(same(cut(3), cut(3))) and not any(same(cut(3), cut(4)))
    shuffled = data.simcut_batches(batches_of(some, shuffle_seed=0), *WORDS, rate=0.3)
    assert len(shuffled) == len(batches_of(some))

    def cut_of(rows):  # from a row's words to what is cut of them
        half = len(rows) // 2
        return {
            tuple(plain[plain > 0]): tuple((plain != other)[plain > 0])
            for plain, other in zip(rows[:half], rows[half:], strict=True)
        }

    first, second = (
        {k: v for rows in sides(shuffled) for k, v in cut_of(rows).items()} for _ in range(2)
    )
    assert np.mean([first[row] != second[row] for row in first]) > 0.5


@pytest.mark.slow
def test_a_model_learns_with_it_and_is_judged_without():
    batches, in_order = batches_of(PAIRS[:60], shuffle_seed=0), batches_of(PAIRS[:60])
    source, target = (keras.Input((None,), dtype="int32") for _ in range(2))
    hidden = keras.layers.Dropout(0.3, seed=0)(keras.layers.Embedding(len(WORDS[1]), 8)(target))
    model = keras.Model((source, target), keras.layers.Dense(len(WORDS[1]))(hidden))
    model.compile(keras.optimizers.Adam(0.01), SimCutCrossentropy(3.0), jit_compile=False)
    repeated = data.simcut_batches(batches, *WORDS)
    losses = model.fit(repeated, epochs=3, shuffle=False, verbose=0).history["loss"]
    assert losses[-1] < losses[0]
    judged = model.evaluate(in_order, verbose=0)
    model.compile("adam", tfattn.MaskedCrossentropy(), jit_compile=False)
    np.testing.assert_allclose(model.evaluate(in_order, verbose=0), judged, rtol=1e-5)
