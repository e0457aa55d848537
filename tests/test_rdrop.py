"""R-Drop: cross-entropy, and how far the predictions for twins differ."""

import keras
import numpy as np
import pytest

import tfattn
from tests.tensors import JIT, as_tensor, both_ways, compiled, numpy, tf
from tfattn import data
from tfattn.training import RDropCrossentropy

pytestmark = pytest.mark.usefixtures("dense_path")

B, T, V = 3, 5, 7  # a half of a batch


def case(seed=0):
    """Targets `(2B, T)` that come twice, some of them padding, and logits."""
    generator = np.random.default_rng(seed)
    ids = generator.integers(1, V, size=(B, T))
    ids[0, 3:] = 0
    return np.concatenate([ids, ids]), generator.normal(scale=2.0, size=(2 * B, T, V))


def softmax(logits):
    powers = np.exp(logits - logits.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def oracle(ids, logits, weight, smoothing):
    """Loss of each token, float64."""
    p = softmax(logits)
    nll = -(1 - smoothing) * np.log(np.take_along_axis(p, ids[..., None], -1))[
        ..., 0
    ] - smoothing * np.log(p).mean(-1)
    first, second = p[:B], p[B:]
    distance = 0.5 * np.sum(
        first * np.log(first / second) + second * np.log(second / first), axis=-1
    )
    return np.where(ids == 0, 0.0, nll + weight / 2 * np.concatenate([distance, distance]))


@pytest.mark.parametrize("weight, smoothing", [(5.0, 0.1), (1.0, 0.0), (0.0, 0.1)])
def test_it_is_the_formula(weight, smoothing):
    ids, logits = case()
    wanted = oracle(ids, logits, weight, smoothing)
    loss = {
        reduction: RDropCrossentropy(weight, smoothing, reduction=reduction)(ids, logits)
        for reduction in ("none", "sum", "sum_over_batch_size")
    }
    np.testing.assert_allclose(loss["none"], wanted, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(loss["sum"], wanted.sum(), rtol=1e-5)
    np.testing.assert_allclose(
        loss["sum_over_batch_size"], wanted.sum() / np.count_nonzero(ids), rtol=1e-5
    )


def test_half_the_papers_loss():
    # Of the two passes the paper adds up the cross-entropies, and α times the mean of the two
    # divergences.
    ids, logits = case()
    sides = [
        tfattn.MaskedCrossentropy(reduction="sum")(ids[:B], half)
        for half in (logits[:B], logits[B:])
    ]
    distances = oracle(ids, logits, 2.0, 0.0) - oracle(ids, logits, 0.0, 0.0)
    paper = sum(map(float, sides)) + 5.0 * distances[:B].sum()
    np.testing.assert_allclose(
        RDropCrossentropy(5.0, reduction="sum")(ids, logits), paper, rtol=1e-5
    )


@pytest.mark.tensorflow
@pytest.mark.slow
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("jit", [False, True])
def test_its_gradient_is_that_of_the_formula(jit, weighted):
    ids, logits = case()
    weights = (
        np.random.default_rng(1).uniform(size=(2 * B, T)).astype("float32") if weighted else None
    )
    loss = RDropCrossentropy(5.0, 0.1)

    def gradient(logits):
        _, (found,) = both_ways(lambda x: loss(ids, x, sample_weight=weights), [logits])
        return found

    found = compiled(gradient, jit)(as_tensor(logits, "float32"))
    share = np.where(ids == 0, 0.0, 1.0 if weights is None else weights)

    def total(logits):
        return np.sum(oracle(ids, logits, 5.0, 0.1) * share) / share.sum()

    wanted = np.zeros_like(logits)
    for place in np.ndindex(*logits.shape):
        step = np.zeros_like(logits)
        step[place] = 1e-5
        wanted[place] = (total(logits + step) - total(logits - step)) / 2e-5
    np.testing.assert_allclose(found, wanted, atol=1e-5)


def test_twins_that_agree_have_the_cross_entropy_alone():
    ids, logits = case()
    logits[B:] = logits[:B]
    found, wanted = (
        RDropCrossentropy(5.0, 0.1)(ids, logits),
        tfattn.MaskedCrossentropy(0.1)(ids, logits),
    )
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


ROADS = {
    "eager": lambda f, *inputs: f(*inputs),
    "unknown sizes": lambda f, *inputs: graph_of_unknown_sizes(f)(*inputs),
    "known sizes": lambda f, *inputs: compiled(f)(*inputs),
    "xla": lambda f, *inputs: compiled(f, jit=True)(*inputs),
}
each_road = pytest.mark.parametrize(
    "road",
    [
        pytest.param(road, marks=pytest.mark.tensorflow) if road == "unknown sizes" else road
        for road in ROADS
    ],
)


def graph_of_unknown_sizes(function):
    signature = [tf.TensorSpec((None, None), "int32"), tf.TensorSpec((None, None, V))]
    return tf.function(function, input_signature=signature)


def value_and_gradient(loss, ids, logits):
    value, (gradient,) = both_ways(lambda logits: loss(ids, logits), [logits])
    return value, gradient


@pytest.mark.slow(keep=1)
@each_road
@pytest.mark.parametrize(
    "rows", [slice(None, -1), slice(1, None), slice(1), slice(0), [0, 0, 0]], ids=str
)
def test_a_batch_without_twins_has_the_cross_entropy_alone(rows, road):
    ids, logits = case()
    ids = ids[rows]
    inputs = (
        as_tensor(ids, "int32"),
        as_tensor(logits[: len(ids)], "float32"),
    )
    results = [
        ROADS[road](lambda *inputs, loss=loss: value_and_gradient(loss, *inputs), *inputs)
        for loss in (RDropCrossentropy(5.0, 0.1), tfattn.MaskedCrossentropy(0.1))
    ]
    for found, wanted in zip(*results, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-8)


@pytest.mark.slow(keep=1)
@each_road
def test_twins_are_found_on_every_road(road):
    ids, logits = case()
    loss = RDropCrossentropy(5.0, 0.1, reduction="sum")
    value, _ = ROADS[road](
        lambda *inputs: value_and_gradient(loss, *inputs),
        as_tensor(ids, "int32"),
        as_tensor(logits, "float32"),
    )
    np.testing.assert_allclose(value, oracle(ids, logits, 5.0, 0.1).sum(), rtol=1e-5)


def test_a_word_that_both_rule_out_is_no_difference():
    ids, logits = case()
    ids[ids == 1] = 2
    inputs = [
        as_tensor(np.where(np.arange(V) == 1, value, logits), "float32")
        for value in (-np.inf, -1e4)
    ]
    results = [value_and_gradient(RDropCrossentropy(5.0), ids, scores) for scores in inputs]
    for found, wanted in zip(*results, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize("jit", JIT)
def test_rows_that_chance_leaves_alone_are_trained_on_and_judged(jit):
    ids = np.random.default_rng(0).integers(1, V, size=(7, T))
    model = keras.Sequential([keras.layers.Embedding(V, V)])
    model.compile("sgd", RDropCrossentropy(5.0), jit_compile=jit)
    found = model.fit(ids, ids, batch_size=4, verbose=0, shuffle=False).history["loss"]
    assert np.isfinite(found).all()
    np.testing.assert_allclose(
        model.evaluate(ids[:1], ids[:1], verbose=0),
        tfattn.MaskedCrossentropy()(ids[:1], model(ids[:1])),
        rtol=1e-5,
    )


def test_one_other_target_makes_no_twins():
    ids, logits = case()
    ids[-1, -1] = ids[-1, -1] % (V - 1) + 1
    loss = compiled(RDropCrossentropy(5.0, 0.1).__call__)
    np.testing.assert_allclose(
        loss(ids, logits), tfattn.MaskedCrossentropy(0.1)(ids, logits), rtol=1e-6
    )


@pytest.mark.parametrize("garbage", [np.nan, np.inf, -np.inf])
def test_what_padding_holds_reaches_nothing(garbage):
    ids, logits = case()
    dirty = np.where(ids[..., None] == 0, garbage, logits).astype("float32")
    loss, results = RDropCrossentropy(5.0, 0.1), []
    for scores in (as_tensor(dirty), as_tensor(logits, "float32")):
        value, gradient = map(numpy, value_and_gradient(loss, ids, scores))
        assert np.all(gradient[ids == 0] == 0)
        results.append((value, gradient))
    np.testing.assert_allclose(results[0][0], results[1][0], rtol=1e-6)
    np.testing.assert_allclose(results[0][1], results[1][1], atol=1e-7)


@pytest.mark.slow
def test_a_model_learns_with_it_from_doubled_batches_and_is_judged_without():
    pairs = data.toy_translation(40, seed=0)
    words = data.Vocabulary.from_sentences([sentence for pair in pairs for sentence in pair])
    batches = data.token_batches(pairs, words, words, 96, shuffle_seed=0)
    model = tfattn.Transformer(
        len(words), num_layers=1, width=8, num_heads=2, hidden_dim=8, dropout=0.3, seed=0
    )
    model.compile(keras.optimizers.Adam(0.01), RDropCrossentropy(5.0), jit_compile=False)
    losses = model.fit(data.rdrop_batches(batches), epochs=4, shuffle=False, verbose=0).history[
        "loss"
    ]
    assert losses[-1] < losses[0]
    in_order = data.token_batches(pairs, words, words, 96)
    judged = model.evaluate(in_order, verbose=0)
    np.testing.assert_allclose(
        model.evaluate(data.rdrop_batches(in_order), verbose=0), judged, rtol=1e-5
    )
    model.compile("adam", tfattn.MaskedCrossentropy(), jit_compile=False)
    np.testing.assert_allclose(model.evaluate(in_order, verbose=0), judged, rtol=1e-5)


def test_every_row_comes_twice_one_half_after_the_other():
    pairs = data.toy_translation(30, seed=0)
    words = data.Vocabulary.from_sentences([sentence for pair in pairs for sentence in pair])
    batches = data.token_batches(pairs, words, words, 64)
    doubled = data.rdrop_batches(batches)
    assert len(doubled) == len(batches)
    for batch, double in zip(batches, doubled, strict=True):
        for rows, both in zip(keras.tree.flatten(batch), keras.tree.flatten(double), strict=True):
            np.testing.assert_array_equal(both, np.concatenate([rows, rows]))


@pytest.mark.tensorflow
def test_a_dataset_of_another_structure_keeps_it():
    rows = tf.data.Dataset.from_tensor_slices({"a": [[1, 2]], "b": [[3]]})
    ((found,), (double,)) = (list(dataset) for dataset in (rows, data.rdrop_batches(rows)))
    assert found.keys() == double.keys()
    np.testing.assert_array_equal(double["a"], [1, 2, 1, 2])
    with pytest.raises(
        ValueError, match="rdrop_batches: `batches` must be a tf.data.Dataset or a keras"
    ):
        data.rdrop_batches([1, 2])


def test_its_errors_have_its_name():
    with pytest.raises(ValueError, match="RDropCrossentropy: `y_pred` must have"):
        RDropCrossentropy()(np.ones((2, 3), int), np.ones((2, 3)))


def test_it_is_saved_with_its_settings():
    loss = keras.losses.deserialize(
        keras.losses.serialize(RDropCrossentropy(3.0, 0.2, padding_id=4, reduction="sum"))
    )
    assert isinstance(loss, RDropCrossentropy)
    assert (loss.weight, loss.label_smoothing, loss.padding_id, loss.reduction) == (
        3.0,
        0.2,
        4,
        "sum",
    )


@pytest.mark.parametrize("weight", [-1.0, "much", np.nan, np.inf])
def test_a_weight_is_a_number_of_at_least_0(weight):
    with pytest.raises(
        ValueError, match="RDropCrossentropy: `weight` must be a finite number of at least 0"
    ):
        RDropCrossentropy(weight)
