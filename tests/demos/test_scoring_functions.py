"""The demo of scores, run as a reader runs it."""

import numpy as np
import pytest

from tests.reference import softmax

OPTIONS = []  # figures go to the demo's own folder


@pytest.mark.slow
@pytest.mark.parametrize("score", ["additive", "scaled dot product", "bilinear", "cosine"])
def test_equal_keys_pool_the_mean_of_those_that_count(story, score):
    values = np.arange(40.0).reshape(10, 4)
    expected = [values[:2].mean(axis=0), values[:6].mean(axis=0)]  # (2, 3, 4, 5), (10, 11, 12, 13)
    np.testing.assert_allclose(story[0]["outputs"][score], expected, atol=1e-4)


@pytest.mark.slow
def test_what_lies_past_a_length_gets_no_weight(story):
    _, variables, _ = story
    lengths = np.array([[[2, 2], [3, 3]], [[1, 3], [2, 4]]])  # by row; by query
    visible = np.arange(4) < lengths[..., None]  # (2, 2, 2, 4)
    scores = np.where(visible, variables["scores"], -np.inf)
    np.testing.assert_allclose(variables["masked"], softmax(scores), rtol=1e-5)
    assert not variables["masked"][~visible].any()


@pytest.mark.slow
def test_the_variance_of_a_product_is_the_width_and_1_with_the_scale(story):
    numbers, _, _ = story
    widths = np.array(numbers["widths"])
    assert widths.tolist() == [4, 8, 16, 32, 64, 128, 256, 512]
    # Relative standard error of the variance of n queries by ten keys. Given a query, a product is
    # normal with variance |q|², which itself varies by 2/d.
    error = np.sqrt((2 / widths + (2 + 6 / widths) / 10) / 2000)
    unscaled, scaled = (np.array(numbers["variances"][name]) for name in ("unscaled", "scaled"))
    assert np.all(np.abs(unscaled / widths - 1) < 5 * error)
    np.testing.assert_allclose(scaled, unscaled / widths, rtol=1e-4)


@pytest.mark.slow
def test_the_scale_keeps_the_gradient_of_the_softmax(story):
    slopes = story[0]["slopes"]
    assert np.all(np.diff(slopes["unscaled"]) < 0)
    # The mean of α(1 − α) over ten standard normal scores, by simulation.
    weights = softmax(np.random.default_rng(1).normal(size=(20_000, 10)))
    np.testing.assert_allclose(slopes["scaled"], np.mean(weights * (1 - weights)), rtol=0.03)
    assert slopes["unscaled"][-1] < slopes["scaled"][-1] / 10


@pytest.mark.slow
def test_the_figures_are_in_the_folder(story):
    names = ["gradient.png", "masked_softmax.png", "scores.png", "variance.png", "weights.png"]
    assert sorted(path.name for path in story[2].iterdir()) == names
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in story[2].iterdir())
