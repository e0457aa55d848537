"""The loss against NumPy in float64, and what a compiled model keeps of it and of its metric."""

import re

import keras
import numpy as np
import pytest
from keras import ops

import tfattn
from tests.tensors import BACKEND, as_tensor, both_ways, compiled, dtype_of, numpy, tf

B, T, V = 3, 5, 7


def draw(seed=0, padded=True):
    rng = np.random.default_rng(seed)
    ids = rng.integers(1, V, size=(B, T))
    if padded:
        ids[0, 3:] = 0
        ids[2, 1:] = 0
    return ids, rng.normal(size=(B, T, V)).astype("float32") * 3


def log_softmax(logits):
    logits = logits.astype("float64")
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def smoothed_rows(ids, smoothing):
    return (1 - smoothing) * np.eye(V)[ids] + smoothing / V


def token_losses(ids, logits, smoothing=0.0):
    return -(smoothed_rows(ids, smoothing) * log_softmax(logits)).sum(-1) * (ids != 0)


def expected_mean(ids, logits, smoothing=0.0, weights=1.0):
    weights = (ids != 0) * weights
    return (token_losses(ids, logits, smoothing) * weights).sum() / weights.sum()


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.7])
def test_the_loss_is_the_mean_over_real_tokens(smoothing):
    ids, logits = draw()
    loss = tfattn.MaskedCrossentropy(label_smoothing=smoothing)(ids, logits)
    np.testing.assert_allclose(loss, expected_mean(ids, logits, smoothing), rtol=1e-5)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_without_padding_the_loss_equals_keras_over_one_hot_rows(smoothing):
    ids, logits = draw(padded=False)
    theirs = keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=smoothing)
    ours = tfattn.MaskedCrossentropy(label_smoothing=smoothing)(ids, logits)
    np.testing.assert_allclose(ours, theirs(np.eye(V, dtype="float32")[ids], logits), rtol=1e-5)


def test_reductions_are_mean_sum_and_none():
    ids, logits = draw()
    wanted = token_losses(ids, logits, 0.1)
    by_token = tfattn.MaskedCrossentropy(0.1, reduction="none")(ids, logits)
    np.testing.assert_allclose(by_token, wanted, rtol=1e-5)
    assert not np.any(np.asarray(by_token)[ids == 0])
    np.testing.assert_allclose(
        tfattn.MaskedCrossentropy(0.1, reduction=None)(ids, logits), wanted, rtol=1e-5
    )
    np.testing.assert_allclose(
        tfattn.MaskedCrossentropy(0.1, reduction="sum")(ids, logits), wanted.sum(), rtol=1e-5
    )


def test_more_padding_changes_no_loss():
    ids, logits = draw()
    longer = np.pad(ids, ((0, 0), (0, 6)))
    wider = np.pad(logits, ((0, 0), (0, 6), (0, 0)), constant_values=9.0)
    loss = tfattn.MaskedCrossentropy(0.1)
    np.testing.assert_allclose(loss(longer, wider), loss(ids, logits), rtol=1e-6)


@pytest.mark.parametrize("reduction", ["sum_over_batch_size", "sum", "none"])
def test_all_padding_gives_a_loss_of_0(reduction):
    _, logits = draw()
    loss = tfattn.MaskedCrossentropy(0.1, reduction=reduction)(np.zeros((B, T), int), logits)
    assert not np.any(np.asarray(loss))


def test_another_padding_id_is_left_out():
    ids, logits = draw(padded=False)
    ids[:, 2] = 4
    real = ids != 4
    wanted = -(np.eye(V)[ids] * log_softmax(logits)).sum(-1)[real].mean()
    np.testing.assert_allclose(
        tfattn.MaskedCrossentropy(padding_id=4)(ids, logits), wanted, rtol=1e-5
    )


@pytest.mark.parametrize("shape", [(B, T), (B,), (B, 1), (1, T)])
def test_sample_weights_give_a_weighted_mean(shape):
    ids, logits = draw()
    weights = np.random.default_rng(1).uniform(0.5, 2.0, size=shape)
    loss = tfattn.MaskedCrossentropy(0.1)(ids, logits, sample_weight=weights)
    aligned = weights[:, None] if shape == (B,) else weights
    np.testing.assert_allclose(loss, expected_mean(ids, logits, 0.1, aligned), rtol=1e-5)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_gradient_is_softmax_minus_the_smoothed_target(smoothing):
    ids, logits = draw()
    gradient = gradient_of(tfattn.MaskedCrossentropy(smoothing), ids, logits)
    real = (ids != 0)[..., None]
    wanted = (np.exp(log_softmax(logits)) - smoothed_rows(ids, smoothing)) * real / real.sum()
    np.testing.assert_allclose(gradient, wanted, atol=1e-6)


def gradient_of(loss, ids, logits, weights=None):
    return both_ways(lambda logits: loss(ids, logits, sample_weight=weights), [logits])[1][0]


ROADS = {
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


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("road", ROADS)
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_on_every_road_the_gradient_is_weighted_like_the_loss(road, smoothing):
    ids, logits = draw()
    weights = np.random.default_rng(1).normal(size=(B, T)).astype("float32")
    weights[1, 1] = 0.0
    logits[1, 1] = np.nan  # of no weight, and so of no gradient
    loss = tfattn.MaskedCrossentropy(smoothing)
    inputs = (
        as_tensor(ids, "int32"),
        as_tensor(logits),
        as_tensor(weights),
    )
    gradient = ROADS[road](lambda *inputs: gradient_of(loss, *inputs))(*inputs)
    value = ROADS[road](loss)(*inputs)
    logits[1, 1] = 0.0
    np.testing.assert_allclose(value, expected_mean(ids, logits, smoothing, weights), rtol=1e-5)
    scale = ((ids != 0) * weights / ((ids != 0) * weights).sum())[..., None]
    wanted = (np.exp(log_softmax(logits)) - smoothed_rows(ids, smoothing)) * scale
    np.testing.assert_allclose(gradient, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("road", ROADS)
@pytest.mark.parametrize("wrong", [-1, -100, V])
def test_an_id_that_is_no_word_shows_in_the_loss_and_has_no_gradient(road, wrong):
    ids, logits = draw()
    wanted = token_losses(ids, logits, 0.1)
    ids[1, 1], wanted[1, 1] = wrong, np.nan
    loss, inputs = (
        tfattn.MaskedCrossentropy(0.1),
        (as_tensor(ids, "int32"), as_tensor(logits), ops.ones((B, T))),
    )
    assert np.isnan(ROADS[road](loss)(*inputs))
    tokens = ROADS[road](lambda ids, logits, _: loss.call(ids, logits))(*inputs)
    np.testing.assert_allclose(tokens, wanted, rtol=1e-5, atol=1e-6)
    gradient = numpy(ROADS[road](lambda *inputs: gradient_of(loss, *inputs))(*inputs))
    assert np.isfinite(gradient).all() and not gradient[1, 1].any()


@pytest.mark.parametrize("shape", [(1, B, T), (B, T, 1), (B, 1, 1), (B, T + 1), (B + 2,)])
def test_sample_weights_of_other_shapes_are_refused(shape):
    ids, logits = draw()
    for who in (tfattn.MaskedCrossentropy(), tfattn.MaskedAccuracy()):
        with pytest.raises(
            ValueError, match=f"{type(who).__name__}: `sample_weight` must have shape"
        ):
            who(ids, logits, sample_weight=np.ones(shape))


@pytest.mark.parametrize(
    "logits, received",
    [
        (np.ones((B, T)), "(3, 5)"),
        (np.ones((B, T + 2, V)), "(3, 7, 7)"),
        (np.ones((B, T, V, 1)), "(3, 5, 7, 1)"),
    ],
    ids=["rank 2", "another length", "rank 4"],
)
@pytest.mark.parametrize("who", ["MaskedCrossentropy", "MaskedAccuracy"])
def test_scores_that_do_not_fit_the_ids_are_refused(who, logits, received):
    with pytest.raises(
        ValueError, match=rf"{who}: `y_pred` must .+\. Received: y_pred={re.escape(received)}"
    ):
        getattr(tfattn, who)()(np.ones((B, T), "int32"), logits)


def test_a_token_may_have_any_upstream_gradient():
    ids, logits = draw()
    upstream = np.random.default_rng(1).normal(size=(B, T)).astype("float32")
    loss = tfattn.MaskedCrossentropy(0.1)
    _, (gradient,) = both_ways(lambda logits: loss.call(ids, logits), [logits], upstream)
    wanted = (np.exp(log_softmax(logits)) - smoothed_rows(ids, 0.1)) * ((ids != 0) * upstream)[
        ..., None
    ]
    np.testing.assert_allclose(gradient, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("size", [1e-3, 30.0, 1e4])
def test_the_gradient_holds_for_logits_of_any_size(size):
    ids, logits = draw()
    logits = logits * np.float32(size)
    wanted = np.exp(log_softmax(logits)) - smoothed_rows(ids, 0.1)
    gradient = gradient_of(tfattn.MaskedCrossentropy(0.1, reduction="sum"), ids, logits)
    np.testing.assert_allclose(gradient, wanted * (ids != 0)[..., None], rtol=1e-5, atol=1e-6)


def test_the_gradient_of_half_precision_logits_is_theirs():
    ids, logits = draw()
    half = logits.astype("float16")
    gradient = gradient_of(tfattn.MaskedCrossentropy(0.1), ids, half)
    assert dtype_of(gradient) == "float16"
    wanted = gradient_of(tfattn.MaskedCrossentropy(0.1), ids, half.astype("float32"))
    np.testing.assert_allclose(gradient, wanted, rtol=1e-3, atol=1e-6)


def test_a_word_that_is_ruled_out_by_minus_infinity_gets_no_gradient():
    ids, logits = draw()
    ids[ids == 4] = 5
    logits[..., 4] = -np.inf
    loss = tfattn.MaskedCrossentropy()
    np.testing.assert_allclose(
        loss(ids, logits), expected_mean(ids, np.where(logits == -np.inf, -1e6, logits)), rtol=1e-5
    )
    gradient = numpy(gradient_of(loss, ids, logits))
    assert np.isfinite(gradient).all() and not np.any(gradient[..., 4])


def test_the_gradient_has_a_gradient():
    ids, logits = draw()
    direction = np.random.default_rng(1).normal(size=(B, T, V)).astype("float32")
    loss = tfattn.MaskedCrossentropy(0.1, reduction="sum")
    along = as_tensor(direction)
    found = both_ways(lambda logits: ops.sum(gradient_of(loss, ids, logits) * along), [logits])
    p = np.exp(log_softmax(logits))
    wanted = p * (direction - (p * direction).sum(-1, keepdims=True)) * (ids != 0)[..., None]
    np.testing.assert_allclose(found[1][0], wanted, atol=1e-5)


@pytest.mark.parametrize("garbage", [np.nan, np.inf, -np.inf])
def test_what_lies_under_padding_reaches_neither_the_loss_nor_its_gradient(garbage):
    ids, logits = draw()
    clean = tfattn.MaskedCrossentropy(0.1)(ids, logits)
    logits[ids == 0] = garbage
    loss = tfattn.MaskedCrossentropy(0.1)
    np.testing.assert_allclose(loss(ids, logits), clean, rtol=1e-6)
    gradient = numpy(gradient_of(loss, ids, logits))
    assert np.isfinite(gradient).all()
    assert not np.any(gradient[ids == 0]) and np.any(gradient[ids != 0])


def test_large_logits_in_half_precision_overflow_nothing():
    ids, logits = draw()
    logits = (logits * 4000).astype("float16")
    loss = tfattn.MaskedCrossentropy(0.1)(ids, logits)
    assert dtype_of(loss) == "float32"
    np.testing.assert_allclose(loss, expected_mean(ids, logits, 0.1), rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["float32", "mixed_float16", "mixed_bfloat16"])
def test_fit_lowers_the_loss_and_reports_both_numbers(policy):
    ids, _ = draw()
    model = keras.Sequential(
        [keras.layers.Embedding(V, 11, mask_zero=True), keras.layers.Dense(V, dtype=policy)]
    )
    model.compile(
        keras.optimizers.Adam(0.1),
        tfattn.MaskedCrossentropy(0.1),
        metrics=[tfattn.MaskedAccuracy()],
    )
    history = model.fit(ids, ids, epochs=23, verbose=0).history
    assert history["loss"][-1] < 0.6 * history["loss"][0]
    assert history["masked_accuracy"][-1] == 1.0
    assert np.isfinite(history["loss"]).all()


def test_fits_loss_is_the_mean_over_real_tokens():
    ids, _ = draw()
    model = keras.Sequential([keras.layers.Embedding(V, V, mask_zero=True)])
    model.compile("sgd", tfattn.MaskedCrossentropy(0.1))
    wanted = expected_mean(ids, np.asarray(model(ids)), 0.1)
    np.testing.assert_allclose(model.evaluate(ids, ids, verbose=0), wanted, rtol=1e-5)


def test_an_id_for_padding_alone_need_not_be_in_the_vocabulary():
    ids, logits = draw()
    shifted = np.where(ids == 0, V, ids)
    loss = tfattn.MaskedCrossentropy(0.1, padding_id=V)
    np.testing.assert_allclose(loss(shifted, logits), expected_mean(ids, logits, 0.1), rtol=1e-5)
    found, wanted = (
        gradient_of(
            each,
            as_tensor(rows, "int32"),
            as_tensor(logits),
            ops.ones((B, T)),
        )
        for each, rows in ((loss, shifted), (tfattn.MaskedCrossentropy(0.1), ids))
    )
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


def test_one_row_of_tokens_has_weights_of_its_tokens():
    ids, logits = np.array([1, 3, 0]), draw()[1][0, :3]
    weights = np.array([1.0, 0.0, 5.0])
    wanted = token_losses(ids, logits)[0]
    np.testing.assert_allclose(
        tfattn.MaskedCrossentropy()(ids, logits, sample_weight=weights), wanted, rtol=1e-5
    )
    metric = tfattn.MaskedAccuracy()
    metric.update_state(ids, np.eye(V, dtype="float32")[[1, 4, 0]], sample_weight=weights)
    assert float(metric.result()) == 1.0


def test_loss_metric_and_schedule_come_back_from_their_configs():
    parts = [
        tfattn.MaskedCrossentropy(0.3, padding_id=2, reduction="sum"),
        tfattn.MaskedAccuracy(padding_id=2, name="accuracy"),
        tfattn.TransformerSchedule(width=5, warmup_steps=3, scale=2.0),
        tfattn.training.InverseSquareRootSchedule(0.005, warmup_steps=2000),
        tfattn.training.Cooldown(tfattn.TransformerSchedule(width=5), start=11, steps=13),
    ]
    for part in parts:
        back = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(part))
        assert type(back) is type(part)
        assert back.get_config() == part.get_config()


@pytest.mark.slow
def test_a_compiled_model_comes_back_with_its_loss_metric_and_schedule(tmp_path):
    ids, _ = draw()
    model = keras.Sequential(
        [keras.Input((T,), dtype="int32"), keras.layers.Embedding(V, V, mask_zero=True)]
    )
    model.compile(
        keras.optimizers.Adam(tfattn.TransformerSchedule(width=V, warmup_steps=3)),
        tfattn.MaskedCrossentropy(0.1),
        metrics=[tfattn.MaskedAccuracy()],
    )
    model.fit(ids, ids, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(
        loaded.evaluate(ids, ids, verbose=0), model.evaluate(ids, ids, verbose=0), rtol=1e-6
    )
    np.testing.assert_allclose(loaded.optimizer.learning_rate, model.optimizer.learning_rate)
