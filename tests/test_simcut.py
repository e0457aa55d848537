"""SimCut: cross-entropy of whole inputs, and how far the predictions from cut ones differ."""

import keras
import numpy as np
import pytest

import tfattn
from tests.small_vocabulary import V as SMALL
from tests.small_vocabulary import blocks
from tests.tensors import as_tensor, both_ways, compiled, numpy, tf
from tfattn import data
from tfattn._factors import Factors
from tfattn.training import RDropCrossentropy, SimCutCrossentropy
from tfattn.training.losses import _has_its_sum

pytestmark = pytest.mark.usefixtures("dense_path")

B, T, V = 3, 5, 7  # a half of a batch


def case(seed=0):
    """Targets `(2B, T)` that come twice, some of them padding, and logits."""
    generator = np.random.default_rng(seed)
    ids = generator.integers(1, V, size=(B, T))
    ids[0, 3:] = 0
    return np.concatenate([ids, ids]), generator.normal(scale=2.0, size=(2 * B, T, V))


def log_softmax(logits):
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def oracle(ids, logits, weight, smoothing):
    """Loss of each token of the first half, float64: the paper's, for whole and cut inputs."""
    log_p, log_q = log_softmax(logits[:B]), log_softmax(logits[B:])
    right = np.take_along_axis(log_p, ids[:B, :, None], -1)[..., 0]
    crossentropy = -(1 - smoothing) * right - smoothing * log_p.mean(-1)
    divergence = np.sum(np.exp(log_p) * (log_p - log_q), axis=-1)
    return np.where(ids[:B] == 0, 0.0, crossentropy + weight * divergence)


@pytest.mark.parametrize("weight, smoothing", [(3.0, 0.1), (1.0, 0.0), (0.0, 0.1)])
def test_it_is_the_formula(weight, smoothing):
    ids, logits = case()
    wanted = oracle(ids, logits, weight, smoothing)
    loss = {
        reduction: SimCutCrossentropy(weight, smoothing, reduction=reduction)(ids, logits)
        for reduction in ("none", "sum", "sum_over_batch_size")
    }
    np.testing.assert_allclose(loss["none"], np.tile(wanted, (2, 1)), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(loss["sum"], 2 * wanted.sum(), rtol=1e-5)
    mean = wanted.sum() / np.count_nonzero(ids[:B])
    np.testing.assert_allclose(loss["sum_over_batch_size"], mean, rtol=1e-5)


@pytest.mark.tensorflow
@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("road", ["eager", "unknown sizes", "xla"])
def test_both_predictions_learn_on_every_road(road):
    ids, logits = case()
    loss = SimCutCrossentropy(3.0, 0.1)

    def gradient(ids, logits):
        _, (found,) = both_ways(lambda logits: loss(ids, logits), [logits])
        return found

    if road == "unknown sizes":
        signature = [tf.TensorSpec((None, None), "int32"), tf.TensorSpec((None, None, V))]
        gradient = tf.function(gradient, input_signature=signature)
    if road == "xla":
        gradient = compiled(gradient, jit=True)
    found = numpy(gradient(as_tensor(ids, "int32"), as_tensor(logits, "float32")))

    def mean(logits):
        return oracle(ids, logits, 3.0, 0.1).sum() / np.count_nonzero(ids[:B])

    wanted = np.zeros_like(logits)
    for place in np.ndindex(*logits.shape):
        step = np.zeros_like(logits)
        step[place] = 1e-5
        wanted[place] = (mean(logits + step) - mean(logits - step)) / 2e-5
    np.testing.assert_allclose(found, wanted, atol=1e-5)
    assert np.abs(found[:B]).max() > 0.01 and np.abs(found[B:]).max() > 0.01


@pytest.mark.parametrize("rows", [slice(None, -1), slice(1), [0, 0, 0]], ids=str)
def test_a_batch_without_twins_has_the_cross_entropy_alone(rows):
    ids, logits = case()
    ids, logits = ids[rows], logits[: len(ids[rows])]
    found, wanted = (
        loss(ids, logits) for loss in (SimCutCrossentropy(3.0, 0.1), tfattn.MaskedCrossentropy(0.1))
    )
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


@pytest.mark.parametrize("side", [slice(None), slice(B), slice(B, None)], ids=["both", "p", "q"])
def test_a_word_that_is_ruled_out_adds_nothing_where_p_rules_it_out(side):
    ids, logits = case()
    ids[ids == 1] = 2
    results = []
    for value in (-np.inf, -1e4):
        scores = np.array(logits, "float32")
        scores[side, :, 1] = value
        loss = SimCutCrossentropy(3.0)
        value, (gradient,) = both_ways(lambda x, loss=loss: loss(ids, x), [as_tensor(scores)])
        results.append((numpy(value), numpy(gradient)))
    (found, slope), (wanted, other) = results
    if side == slice(B, None):  # p has some hope of it: no distance is greater
        assert found == np.inf
    else:
        np.testing.assert_allclose(found, wanted, rtol=1e-5)
        np.testing.assert_allclose(slope, other, atol=1e-6)


@pytest.mark.parametrize("garbage", [np.nan, np.inf])
def test_what_padding_holds_reaches_nothing(garbage):
    ids, logits = case()
    dirty = np.where(ids[..., None] == 0, garbage, logits).astype("float32")
    loss, results = SimCutCrossentropy(3.0, 0.1), []
    for scores in (as_tensor(dirty), as_tensor(logits, "float32")):
        value, (gradient,) = both_ways(lambda x: loss(ids, x), [scores])
        assert np.all(numpy(gradient)[ids == 0] == 0)
        results.append((numpy(value), numpy(gradient)))
    for found, wanted in zip(*results, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-7)


@pytest.mark.tensorflow
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rows", [slice(None), slice(None, -1), slice(0)], ids=str)
@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.slow(keep=1)
def test_factors_give_what_the_logits_give(rows, bias, jit):
    ids, _ = case()
    ids, generator = ids[rows], np.random.default_rng(1)
    factors = [generator.normal(size=shape) for shape in ((*ids.shape, 4), (SMALL, 4), (SMALL,))]
    factors = [as_tensor(factor, "float32") for factor in factors[: 3 if bias else 2]]
    weights = as_tensor(generator.uniform(size=ids.shape) * (ids > 0), "float32")
    ids = as_tensor(ids, "int32")
    loss = SimCutCrossentropy(3.0, 0.1)

    @tf.function(jit_compile=jit)
    def both(weights, *factors):
        def streamed(weights, *factors):
            return loss.weighted_sum(Factors(*factors), ids, weights)

        def dense(weights, tokens, vectors, *bias):
            logits = tf.matmul(tokens, vectors, transpose_b=True) + (bias[0] if bias else 0.0)
            return tf.reduce_sum(weights * loss.call(ids, logits))

        return [both_ways(way, [weights, *factors]) for way in (streamed, dense)]

    with blocks(rows=2):  # several blocks
        (found, slopes), (wanted, others) = both(weights, *factors)
    np.testing.assert_allclose(found, wanted, rtol=1e-5)
    for one, other in zip(slopes, others, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.tensorflow
@pytest.mark.parametrize("rows", ["twins", "others"])
def test_without_logits_it_is_the_same(rows):
    """In the step of a model that `fit` compiles, once with the logits and once without."""
    pairs = PAIRS[:9]
    plain = data.token_batches(pairs, *WORDS, 128, length_multiple=1)
    twice = data.simcut_batches(plain, *WORDS, rate=0.3)
    learned = []
    for logits in (True, False):
        keras.utils.set_random_seed(0)
        model = tfattn.Transformer(
            *map(len, WORDS), num_layers=1, width=4, num_heads=2, hidden_dim=4, seed=0, dropout=0.0
        )
        call = model.call
        if logits:
            model.call = lambda inputs, training=None, call=call: tf.identity(
                call(inputs, training)
            )
        with blocks(rows=2):
            model.compile(keras.optimizers.SGD(0.1), SimCutCrossentropy(3.0), jit_compile=False)
            model.fit(twice if rows == "twins" else plain, shuffle=False, verbose=0)
        learned.append(model.get_weights())
    for one, other in zip(*learned, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def test_a_subclass_with_a_loss_of_its_own_takes_the_logits():
    class Own(SimCutCrossentropy):
        def with_twins(self, losses, logits, real):
            return losses

    class Named(SimCutCrossentropy):
        pass

    assert [_has_its_sum(cls) for cls in (SimCutCrossentropy, Named, Own)] == [True, True, False]
    assert not _has_its_sum(RDropCrossentropy) and _has_its_sum(tfattn.MaskedCrossentropy)


def test_it_is_saved_with_its_settings():
    loss = keras.losses.deserialize(keras.losses.serialize(SimCutCrossentropy(2.0, 0.2, 4)))
    assert isinstance(loss, SimCutCrossentropy)
    assert (loss.weight, loss.label_smoothing, loss.padding_id) == (2.0, 0.2, 4)


@pytest.mark.parametrize("weight", [-1.0, "much", np.nan, np.inf])
def test_a_weight_is_a_number_of_at_least_0(weight):
    said = "SimCutCrossentropy: `weight` must be a finite number of at least 0"
    with pytest.raises(ValueError, match=said):
        SimCutCrossentropy(weight)


# Batches.

PAIRS = data.toy_translation(300, seed=0)
WORDS = [data.Vocabulary.from_sentences(side) for side in zip(*PAIRS, strict=True)]


def batches_of(**options):
    return data.token_batches(PAIRS, *WORDS, 512, **options)


def test_the_second_half_has_cut_tokens_at_their_rate_and_no_cut_mark():
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


def test_what_is_cut_follows_from_the_seed_and_the_batch():
    def halves(seed, **options):
        cut = data.simcut_batches(batches_of(**options), *WORDS, rate=0.3, seed=seed)
        return [
            np.concatenate([np.ravel(side) for side in sides])
            for sides, _ in cut.as_numpy_iterator()
        ]

    def same(one, other):
        pairs = zip(one, other, strict=True)
        return [a.shape == b.shape and bool(np.all(a == b)) for a, b in pairs]

    assert all(same(halves(3), halves(3))) and not any(same(halves(3), halves(4)))
    shuffled = data.simcut_batches(batches_of(shuffle_seed=0), *WORDS, rate=0.3)
    epochs = [[np.array(s) for (s, _), _ in shuffled.as_numpy_iterator()] for _ in range(2)]
    assert len(data.simcut_batches(batches_of(), *WORDS)) == len(epochs[0])

    def cut_of(rows):  # from a row's words to what is cut of them
        half = len(rows) // 2
        return {
            tuple(plain[plain > 0]): tuple((plain != other)[plain > 0])
            for plain, other in zip(rows[:half], rows[half:], strict=True)
        }

    first, second = ({k: v for rows in epoch for k, v in cut_of(rows).items()} for epoch in epochs)
    assert np.mean([first[row] != second[row] for row in first]) > 0.5


@pytest.mark.tensorflow
def test_arrays_are_cut_as_tensors_are():
    from tfattn.data import simcut

    for (sides, out), (both, outs) in zip(
        batches_of().as_numpy_iterator(),
        data.simcut_batches(batches_of(), *WORDS, rate=0.2, seed=5).as_numpy_iterator(),
        strict=True,
    ):
        found, doubled = simcut._with_cut_arrays((sides, out), WORDS, 0.2, 5)
        for one, other in zip((*found, doubled), (*both, outs), strict=True):
            np.testing.assert_array_equal(one, other)
            assert one.dtype == other.dtype


@pytest.mark.tensorflow
@pytest.mark.parametrize("wrong", [[1, 2], "abc", None])
def test_what_is_no_batches_of_pairs_is_refused(wrong):
    said = r"simcut_batches: `batches` must be batches of \(\(source, target_in\), target_out\)"
    for batches in (wrong, tf.data.Dataset.range(3).batch(2)):
        with pytest.raises(ValueError, match=said):
            data.simcut_batches(batches, *WORDS)


@pytest.mark.slow
def test_a_model_learns_with_it_and_is_judged_without():
    batches = data.simcut_batches(batches_of(shuffle_seed=0), *WORDS)
    model = tfattn.Transformer(
        *map(len, WORDS), num_layers=1, width=16, num_heads=2, hidden_dim=16, dropout=0.1, seed=0
    )
    model.compile(keras.optimizers.Adam(0.01), SimCutCrossentropy(3.0), jit_compile=False)
    losses = model.fit(batches, epochs=4, shuffle=False, verbose=0).history["loss"]
    assert losses[-1] < losses[0]
    judged = model.evaluate(batches_of(), verbose=0)
    model.compile("adam", tfattn.MaskedCrossentropy(), jit_compile=False)
    np.testing.assert_allclose(model.evaluate(batches_of(), verbose=0), judged, rtol=1e-5)
