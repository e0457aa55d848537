"""MaskedAccuracy and TokenLoss against counting in NumPy."""

import keras
import numpy as np
import pytest

import tfattn
from tfattn import training

B, T, V = 3, 5, 7


def draw(seed=0, length=T):
    rng = np.random.default_rng(seed)
    ids = rng.integers(1, V, size=(B, length))
    ids[0, 3:] = ids[2, 1:] = 0
    return ids, rng.normal(size=(B, length, V)).astype("float32")


def test_accuracy_is_the_share_of_real_tokens_over_all_updates():
    metric, right, real = tfattn.MaskedAccuracy(), 0, 0
    assert float(metric.result()) == 0.0
    for seed, length in enumerate((2, 5, 11)):  # a token of a wide batch counts as much as another
        ids, logits = draw(seed, length)
        metric.update_state(ids, logits)
        right += ((logits.argmax(-1) == ids) & (ids != 0)).sum()
        real += (ids != 0).sum()
    np.testing.assert_allclose(metric.result(), right / real, rtol=1e-6)
    metric.reset_state()
    assert float(metric.result()) == 0.0


@pytest.mark.parametrize("shape", [(B, T), (B,)])
def test_accuracy_takes_sample_weights(shape):
    ids, logits = draw()
    weights = np.random.default_rng(1).uniform(0.5, 2.0, size=shape)
    metric = tfattn.MaskedAccuracy()
    metric.update_state(ids, logits, sample_weight=weights)
    counted = (ids != 0) * (weights[:, None] if shape == (B,) else weights)
    np.testing.assert_allclose(
        metric.result(), ((logits.argmax(-1) == ids) * counted).sum() / counted.sum(), rtol=1e-5
    )


def test_accuracy_leaves_another_padding_id_out():
    metric = tfattn.MaskedAccuracy(padding_id=3)
    metric.update_state(np.array([[3, 0, 1]]), np.eye(V, dtype="float32")[[[3, 0, 2]]])
    assert float(metric.result()) == 0.5


def token_losses(ids, logits, smoothing):
    """(losses, whether they count), each `(B, T)`."""
    log_p = np.float64(logits) - np.log(np.exp(np.float64(logits)).sum(-1, keepdims=True))
    losses = -(1 - smoothing) * np.take_along_axis(log_p, ids[..., None], -1)[..., 0]
    return losses - smoothing * log_p.mean(-1), ids != 0


def test_the_loss_of_tokens_is_their_mean_over_all_updates():
    loss = tfattn.MaskedCrossentropy(label_smoothing=0.2)
    metric, total, real = training.TokenLoss(loss), 0.0, 0
    assert float(metric.result()) == 0.0
    for seed, length in enumerate((2, 5, 11)):
        ids, logits = draw(seed, length)
        metric.update_state(ids, logits)
        losses, counts = token_losses(ids, logits, 0.2)
        total, real = total + losses[counts].sum(), real + counts.sum()
    np.testing.assert_allclose(metric.result(), total / real, rtol=1e-5)
    rows_of_padding = np.zeros((5, 2), int), np.ones((5, 2, V), "float32")
    metric.update_state(*rows_of_padding)  # as `data.shard_batches` appends them
    np.testing.assert_allclose(metric.result(), total / real, rtol=1e-5)


def test_the_loss_of_tokens_takes_sample_weights():
    ids, logits = draw()
    weights, metric = np.random.default_rng(1).uniform(0.5, 2.0, size=(B,)), training.TokenLoss()
    metric.update_state(ids, logits, sample_weight=weights)
    losses, counts = token_losses(ids, logits, 0.0)
    counts = counts * weights[:, None]
    np.testing.assert_allclose(metric.result(), (losses * counts).sum() / counts.sum(), rtol=1e-5)


def test_the_loss_of_tokens_does_not_depend_on_how_they_are_batched_and_that_of_fit_does():
    ids, logits = draw(3)
    model = keras.Sequential([keras.Input((T, V)), keras.layers.Identity()])
    model.compile("sgd", tfattn.MaskedCrossentropy(), metrics=[training.TokenLoss()])
    whole, split = (
        model.evaluate(logits, ids, batch_size=rows, verbose=0, return_dict=True) for rows in (3, 1)
    )
    assert whole["token_loss"] == pytest.approx(whole["loss"], rel=1e-5)
    assert split["token_loss"] == pytest.approx(whole["token_loss"], rel=1e-5)
    assert abs(split["loss"] - whole["loss"]) > 1e-3


@pytest.mark.slow
def test_the_loss_of_tokens_does_without_all_logits_where_the_loss_does():
    sizes = {"num_layers": 1, "width": 8, "num_heads": 2, "hidden_dim": 16, "dropout": 0.0}
    model = tfattn.Transformer(600, **sizes)
    model.compile("sgd", tfattn.MaskedCrossentropy(), metrics=[training.TokenLoss()])
    ids = np.random.default_rng(0).integers(1, 600, size=(B, T))
    ids[0, 3:] = 0
    logs = model.evaluate((ids, ids), ids, verbose=0, return_dict=True)
    assert logs["token_loss"] == pytest.approx(logs["loss"], rel=1e-5)
    logits = model((ids, ids))
    losses, counts = token_losses(ids, np.array(logits), 0.0)
    assert logs["token_loss"] == pytest.approx(losses[counts].mean(), rel=1e-5)


def test_the_loss_of_tokens_is_saved_with_its_loss():
    loss = tfattn.MaskedCrossentropy(label_smoothing=0.2, padding_id=3)
    config = keras.metrics.serialize(training.TokenLoss(loss, name="mine"))
    again = keras.metrics.deserialize(config)
    assert (again.name, again.loss.label_smoothing, again.loss.padding_id) == ("mine", 0.2, 3)


def test_only_losses_of_tokens_are_taken():
    with pytest.raises(
        ValueError, match="TokenLoss: `loss` must be a MaskedCrossentropy. Received"
    ):
        training.TokenLoss(keras.losses.MeanSquaredError())
