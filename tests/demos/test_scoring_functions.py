"""The demo of scoring functions, run as a reader runs it."""

import numpy as np
import pytest

from tests.demos.running import result, run


@pytest.fixture(scope="module")
def story(tmp_path_factory):
    """(the numbers of the last line, the demo's variables, the folder of the figures)."""
    folder = tmp_path_factory.mktemp("scoring_functions")
    output, variables = run("scoring_functions", folder=folder)
    return result(output), variables, folder / "out" / "scoring_functions"


@pytest.mark.slow
def test_masked_softmax_is_the_softmax_of_what_the_lengths_leave(story):
    scores, masked = story[1]["scores"].astype("float64"), story[1]["masked"]
    for lengths, found in zip(([[2, 2], [3, 3]], [[1, 3], [2, 4]]), masked, strict=True):
        seen = np.arange(4) < np.array(lengths)[..., None]  # (2, 2, 4)
        powers = np.exp(scores) * seen
        np.testing.assert_allclose(found, powers / powers.sum(-1, keepdims=True), rtol=1e-5)
        assert np.all(found[~seen] == 0)


@pytest.mark.slow
def test_equal_keys_share_the_weight_whatever_the_score(story):
    # the means of the first 2 and of the first 6 of the values (0 ... 3), (4 ... 7), ...
    values = np.arange(40.0).reshape(10, 4)
    wanted = [values[:2].mean(axis=0), values[:6].mean(axis=0)]
    np.testing.assert_array_equal(wanted, [[2, 3, 4, 5], [10, 11, 12, 13]])
    assert {"additive", "scaled dot product", "bilinear", "cosine"} <= set(story[0]["outputs"])
    for output in story[0]["outputs"].values():
        np.testing.assert_allclose(output, wanted, atol=1e-4)


@pytest.mark.slow
def test_the_variance_of_a_dot_product_is_the_width_and_1_with_the_scale(story):
    widths = np.array(story[0]["widths"])
    np.testing.assert_array_equal(widths, [4, 8, 16, 32, 64, 128, 256, 512])
    # Of 20,000 products, 10 of which share a query, the variance is off by 2 % as a rule.
    np.testing.assert_allclose(story[0]["variances"]["unscaled"], widths, rtol=0.1)
    np.testing.assert_allclose(story[0]["variances"]["scaled"], 1.0, rtol=0.1)


@pytest.mark.slow
def test_without_the_scale_the_softmax_gets_flat(story):
    unscaled, scaled = (np.array(story[0]["slopes"][name]) for name in ("unscaled", "scaled"))
    assert np.all(np.diff(unscaled) < 0) and unscaled[-1] < scaled[-1] / 5
    np.testing.assert_allclose(scaled, scaled[0], rtol=0.05)


@pytest.mark.slow
def test_the_figures_are_in_the_default_folder(story):
    assert sorted(path.stem for path in story[2].iterdir()) == [
        "gradient",
        "masked_softmax",
        "scores",
        "variance",
        "weights",
    ]
