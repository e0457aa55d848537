"""The loss and the metrics against NumPy in float64, and what a compiled model keeps of them."""

import keras
import numpy as np
import pytest
from keras import ops

import tfattn
from tests.helpers.tensors import BACKEND, as_tensor, both_ways, compiled, dtype_of, numpy, tf
from tfattn import training

B, T, V = 3, 5, 7


def draw(seed=0, length=T):
    """Ids `(B, T)`, some of them padding, and logits."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(1, V, size=(B, length))
    ids[0, 3:] = ids[2, 1:] = 0
    return ids, rng.normal(size=(B, length, V)).astype("float32") * 3


def log_softmax(logits):
    logits = logits.astype("float64")
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def smoothed_rows(ids, smoothing):
    return (1 - smoothing) * np.eye(V + 1)[ids][..., :V] + smoothing / V


def token_losses(ids, logits, smoothing=0.0, padding=0):
    return -(smoothed_rows(ids, smoothing) * log_softmax(logits)).sum(-1) * (ids != padding)


def expected_mean(ids, logits, smoothing=0.0, weights=1.0, padding=0):
    weights = (ids != padding) * weights
    return (token_losses(ids, logits, smoothing, padding) * weights).sum() / weights.sum()


def expected_gradient(ids, logits, smoothing, upstream):
    upstream = np.broadcast_to(upstream, ids.shape)[..., None]
    return (np.exp(log_softmax(logits)) - smoothed_rows(ids, smoothing)) * upstream


def gradient_of(loss, ids, logits, weights=None):
    return both_ways(lambda logits: loss(ids, logits, sample_weight=weights), [logits])[1][0]


@pytest.mark.parametrize("smoothing", [0.7, 0.0])
def test_loss_is_the_weighted_mean_over_real_tokens(smoothing):
    ids, logits = draw()
    tokens = token_losses(ids, logits, smoothing)
    mean = expected_mean(ids, logits, smoothing)
    reductions = {"sum_over_batch_size": mean, "sum": tokens.sum(), "none": tokens, None: tokens}
    for reduction, wanted in reductions.items():
        loss = tfattn.MaskedCrossentropy(smoothing, reduction=reduction)
        np.testing.assert_allclose(loss(ids, logits), wanted, rtol=1e-5)
        assert not np.any(loss(np.zeros((B, T), int), logits))  # of padding alone
    for shape in [(B, T), (B,), (1, T)]:
        weights = np.random.default_rng(1).uniform(0.5, 2.0, size=shape)
        loss = tfattn.MaskedCrossentropy(smoothing)(ids, logits, sample_weight=weights)
        aligned = weights[:, None] if shape == (B,) else weights
        np.testing.assert_allclose(loss, expected_mean(ids, logits, smoothing, aligned), rtol=1e-5)


@pytest.mark.parametrize(
    "smoothing, size, padding",
    [(0.1, 1e4, 0), (0.0, 1.0, 0), (0.1, 1.0, 4), (0.1, 1.0, V)],  # V is no word
)
def test_loss_gradient_is_softmax_minus_the_smoothed_target(smoothing, size, padding):
    ids, logits = draw()
    logits = logits * np.float32(size)
    if padding:  # ids of 0 are words then
        ids = np.where(ids == 0, padding, np.where(ids == padding, 0, ids))
        ids[1, 1] = 0
    loss, real = tfattn.MaskedCrossentropy(smoothing, padding_id=padding), ids != padding
    wanted = expected_mean(ids, logits, smoothing, padding=padding)
    np.testing.assert_allclose(loss(ids, logits), wanted, rtol=1e-5)
    wanted = expected_gradient(ids, logits, smoothing, real / real.sum())
    found = gradient_of(loss, ids, logits)
    np.testing.assert_allclose(found, wanted, rtol=1e-7 if padding else 1e-5, atol=1e-6)


MODES = {
    "eager": lambda f: f,
    "graph": lambda f: graph_of_unknown_sizes(f),
    "xla": lambda f: graph_of_unknown_sizes(f, jit_compile=True),
}


def graph_of_unknown_sizes(function, **options):
    if BACKEND != "tensorflow":
        return compiled(function)
    signature = [
        tf.TensorSpec((None, None), "int32"),
        tf.TensorSpec((None, None, None)),
        tf.TensorSpec((None, None)),
    ]
    return tf.function(function, input_signature=signature, **options)


@pytest.mark.parametrize("mode", MODES)
def test_loss_gradient_in_every_mode_is_weighted_like_the_loss(mode):
    loss = tfattn.MaskedCrossentropy(0.1)

    def all_of_it(ids, logits, weights):
        value, (gradient,) = both_ways(
            lambda logits: loss(ids, logits, sample_weight=weights), [logits]
        )
        return value, gradient, loss.call(ids, logits)

    def found(ids, logits, weights):
        inputs = as_tensor(ids, "int32"), as_tensor(logits), as_tensor(weights, "float32")
        return map(numpy, function(*inputs))

    function = MODES[mode](all_of_it)
    ids, logits = draw()
    clean, weights = logits.copy(), np.random.default_rng(1).normal(size=(B, T))
    weights[1, 1] = 0.0
    # What is padding or of no weight may hold anything.
    logits[1, 1], logits[ids == 0] = np.nan, np.nan
    value, gradient, _ = found(ids, logits, weights)
    np.testing.assert_allclose(value, expected_mean(ids, clean, 0.1, weights), rtol=1e-5)
    weights = (ids != 0) * weights
    wanted = expected_gradient(ids, clean, 0.1, weights / weights.sum())
    np.testing.assert_allclose(gradient, wanted, rtol=1e-5, atol=1e-6)

    # An id that is no word shows in the loss, and has no gradient.
    wanted, wrong = token_losses(ids, clean, 0.1), np.zeros((B, T), bool)
    wrong[1, :3] = True
    ids[wrong], wanted[wrong] = [-1, -100, V], np.nan
    value, gradient, tokens = found(ids, clean, np.ones((B, T)))
    assert np.isnan(value)
    np.testing.assert_allclose(tokens, wanted, rtol=1e-5, atol=1e-6)
    assert np.isfinite(gradient).all() and not gradient[wrong].any()


def test_loss_ids_with_fraction_are_ids_outside_and_whole_floats_are_ids():
    ids, logits = draw()
    for who in (tfattn.MaskedCrossentropy(), tfattn.MaskedCrossentropy(reduction="none")):
        np.testing.assert_array_equal(numpy(who(ids * 1.0, logits)), numpy(who(ids, logits)))
        outside = numpy(who(np.where(ids == ids[1, 1], -1, ids), logits))
        assert np.isnan(outside).any()
        for wrong in (2.7, np.nan):
            wrong = as_tensor(np.where(ids == ids[1, 1], wrong, ids), "float32")
            for call in (who, compiled(who)):
                np.testing.assert_array_equal(numpy(call(wrong, as_tensor(logits))), outside)


@pytest.mark.parametrize("who", [tfattn.MaskedCrossentropy, tfattn.MaskedAccuracy])
def test_losses_and_metrics_shapes_that_do_not_fit_the_ids_are_refused(who):
    ids, logits = draw()
    for shape in [(B, T, 1), (B, T + 1), (B + 2,)]:
        said = f"{who.__name__}: `sample_weight` must have shape"
        with pytest.raises(ValueError, match=said):
            who()(ids, logits, sample_weight=np.ones(shape))
    with pytest.raises(
        ValueError, match=rf"{who.__name__}: `y_pred` must .+\. Received: y_pred=\(3, 4, 7\)"
    ):
        who()(ids, logits[:, 1:])


def test_loss_half_precision_overflows_nothing_and_has_its_gradient():
    ids, logits = draw()
    loss, logits = tfattn.MaskedCrossentropy(0.1), (logits * 4000).astype("float16")
    value, gradient = loss(ids, logits), gradient_of(loss, ids, logits)
    assert (dtype_of(value), dtype_of(gradient)) == ("float32", "float16")
    np.testing.assert_allclose(value, expected_mean(ids, logits, 0.1), rtol=1e-4)
    wanted = gradient_of(loss, ids, logits.astype("float32"))
    np.testing.assert_allclose(gradient, wanted, rtol=1e-3, atol=1e-6)


def test_loss_word_of_minus_infinity_gets_no_gradient():
    ids, logits = draw()
    ids[ids == 4] = 5
    logits[..., 4] = -np.inf
    loss = tfattn.MaskedCrossentropy()
    wanted = expected_mean(ids, np.where(logits == -np.inf, -1e6, logits))
    np.testing.assert_allclose(loss(ids, logits), wanted, rtol=1e-5)
    gradient = numpy(gradient_of(loss, ids, logits))
    assert np.isfinite(gradient).all() and not np.any(gradient[..., 4])


def test_loss_gradient_has_a_gradient():
    ids, logits = draw()
    direction = np.random.default_rng(1).normal(size=(B, T, V)).astype("float32")
    loss, along = tfattn.MaskedCrossentropy(0.1, reduction="sum"), as_tensor(direction)
    found = both_ways(lambda logits: ops.sum(gradient_of(loss, ids, logits) * along), [logits])
    p = np.exp(log_softmax(logits))
    wanted = p * (direction - (p * direction).sum(-1, keepdims=True)) * (ids != 0)[..., None]
    np.testing.assert_allclose(found[1][0], wanted, atol=1e-5)


def test_loss_and_accuracy_of_one_row_have_weights_of_its_tokens():
    ids, logits = np.array([1, 3, 0]), draw()[1][0, :3]
    weights = np.array([1.0, 0.0, 5.0])
    found = tfattn.MaskedCrossentropy()(ids, logits, sample_weight=weights)
    np.testing.assert_allclose(found, token_losses(ids, logits)[0], rtol=1e-5)
    metric = tfattn.MaskedAccuracy()
    metric.update_state(ids, np.eye(V, dtype="float32")[[1, 4, 0]], sample_weight=weights)
    assert float(metric.result()) == 1.0


# The metric, against counting in NumPy.


@pytest.mark.parametrize("weighted", [None, (B,), (B, 1)])
def test_accuracy_is_the_mean_over_real_tokens_of_all_updates(weighted):
    accuracy, right, total = tfattn.MaskedAccuracy(), 0, 0
    assert float(accuracy.result()) == 0.0
    for seed, length in enumerate((2, 5, 11)):  # a token of a wide batch counts as much as another
        ids, logits = draw(seed, length)
        weights = None
        if weighted:
            shape = (B, length) if weighted == (B, 1) else weighted
            weights = np.random.default_rng(seed).uniform(0.5, 2.0, size=shape)
        accuracy.update_state(ids, logits, sample_weight=weights)
        aligned = 1.0 if weights is None else weights.reshape(B, -1)
        counts = (ids != 0) * aligned
        right += ((logits.argmax(-1) == ids) * counts).sum()
        total += counts.sum()
    # Rows of padding, as `data.shard_batches` appends them.
    accuracy.update_state(np.zeros((5, 2), int), np.ones((5, 2, V), "float32"))
    np.testing.assert_allclose(accuracy.result(), right / total, rtol=1e-6)
    accuracy.reset_state()
    assert float(accuracy.result()) == 0.0
    metric = tfattn.MaskedAccuracy(padding_id=3)
    metric.update_state(np.array([[3, 0, 1]]), np.eye(V, dtype="float32")[[[3, 0, 2]]])
    assert float(metric.result()) == 0.5


# Files.


LOSS = {"label_smoothing": 0.3, "padding_id": 2, "reduction": "sum"}
SCHEDULE = tfattn.TransformerSchedule(width=5, warmup_steps=3)
PARTS = [
    (tfattn.MaskedCrossentropy, LOSS),
    (tfattn.MaskedAccuracy, {"padding_id": 2, "name": "accuracy"}),
    (tfattn.TransformerSchedule, {"width": 5, "warmup_steps": 3, "scale": 2.0}),
    (training.InverseSquareRootSchedule, {"peak": 0.005, "warmup_steps": 2000}),
    (training.Cooldown, {"schedule": SCHEDULE, "start": 11, "steps": 13}),
]


@pytest.mark.parametrize("cls, arguments", PARTS)
def test_losses_metrics_and_schedules_come_back_from_their_configs(cls, arguments):
    part = cls(**arguments)
    back = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(part))
    assert type(back) is cls and back.get_config() == part.get_config()
    for name, value in arguments.items():
        found = getattr(back, name)
        if hasattr(value, "get_config"):
            found, value = found.get_config(), value.get_config()
        assert found == value, name


def test_keras_takes_class_weights_of_ids_for_those_of_one_hot_rows():
    """Once it does not, `MaskedCrossentropy` need not warn, nor models of ids refuse them."""
    ids = np.array([[1, 2, 5], [4, 3, 1]])  # the largest at places 2 and 0
    model = keras.Sequential([keras.Input((3,), dtype="int32"), keras.layers.Embedding(V, V)])
    loss = tfattn.MaskedCrossentropy()
    model.compile(keras.optimizers.SGD(0.0), loss)
    found = model.train_on_batch(ids, ids, class_weight={i: i + 1.0 for i in range(V)})
    wanted = loss(ids, model(ids), np.array([3.0, 1.0], "float32"))
    np.testing.assert_allclose(found, wanted, rtol=1e-5)


@pytest.mark.skipif(keras.backend.backend() != "torch", reason="about PyTorch's optimizers")
def test_a_file_that_was_compiled_on_pytorch_names_an_optimizer_of_that_backend():
    """Once it does not, `docs/coming-from-keras.md` need not name `compile=False`."""
    found = keras.saving.serialize_keras_object(keras.optimizers.Adam())
    assert found["module"].startswith("keras.src.backend.torch")


@pytest.mark.slow
def test_compiled_model_learns_and_is_loaded_with_loss_metric_and_schedule(tmp_path):
    ids, _ = draw()
    model = keras.Sequential(
        [keras.Input((T,), dtype="int32"), keras.layers.Embedding(V, V, mask_zero=True)]
    )
    model.compile(
        keras.optimizers.Adam(tfattn.TransformerSchedule(width=V, warmup_steps=3)),
        tfattn.MaskedCrossentropy(0.1),
        metrics=[tfattn.MaskedAccuracy()],
    )
    before, _ = model.evaluate(ids, ids, verbose=0)
    np.testing.assert_allclose(before, expected_mean(ids, np.asarray(model(ids)), 0.1), rtol=1e-5)
    model.fit(ids, ids, epochs=23, verbose=0)
    loss, accuracy = model.evaluate(ids, ids, verbose=0)
    assert loss < 0.6 * before and accuracy == 1.0
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(loaded.evaluate(ids, ids, verbose=0), [loss, accuracy], rtol=1e-6)
    np.testing.assert_allclose(loaded.optimizer.learning_rate, model.optimizer.learning_rate)
