"""The demo of batched products, run as a reader runs it."""

import numpy as np
import pytest

OPTIONS = []  # figures go to the demo's own folder


@pytest.mark.slow(keep=1)
def test_ones_by_ones_count_the_inner_axis(story):
    numbers, _, _ = story
    expected = np.einsum("nab,nbc->nac", np.ones((2, 1, 4)), np.ones((2, 4, 6)))
    assert tuple(numbers["product_shape"]) == expected.shape == (2, 1, 6)
    assert numbers["product"] == expected.max() == expected.min()


@pytest.mark.slow
def test_the_weighted_means_are_those_that_readers_know(story):
    numbers, _, _ = story
    expected = np.arange(20.0).reshape(2, 10).mean(axis=1)  # 4.5 and 14.5
    assert numbers["means_shape"] == numbers["attended_shape"] == [2, 1, 1]
    # ten roundings of float32
    np.testing.assert_allclose(numbers["means"], expected, rtol=1e-6)
    np.testing.assert_allclose(numbers["attended"], expected, rtol=1e-6)


@pytest.mark.slow
def test_the_figure_is_in_the_folder(story):
    assert [path.name for path in story[2].iterdir()] == ["means.png"]
    assert (story[2] / "means.png").read_bytes().startswith(b"\x89PNG")
