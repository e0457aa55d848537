"""MaskedAccuracy against counting in NumPy."""

import numpy as np
import pytest

import tfattn

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
