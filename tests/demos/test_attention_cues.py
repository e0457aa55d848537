"""The demo of cues, run as a reader runs it."""

import numpy as np
import pytest

OPTIONS = []  # figures go to the demo's own folder


def by_numpy(variables):
    """Weights without and with the query, from the formula."""
    scores = variables["queries"].astype("float64") @ variables["keys"].T / 2  # 2 = sqrt(width)
    powers = np.exp(scores)
    return powers / powers.sum(axis=1, keepdims=True)


@pytest.mark.slow
def test_the_weights_are_the_softmax_of_the_products(story):
    numbers, variables, _ = story
    assert list(numbers) == ["without_query", "with_query"]
    np.testing.assert_allclose(list(numbers.values()), by_numpy(variables), rtol=1e-5)


@pytest.mark.slow
def test_the_cup_stands_out_and_the_reader_finds_the_book(story):
    numbers, variables, _ = story
    assert variables["things"][np.argmax(numbers["without_query"])] == "cup"
    assert variables["things"][np.argmax(numbers["with_query"])] == "book"


@pytest.mark.slow
def test_the_output_is_the_mean_colour(story):
    _, variables, _ = story
    expected = by_numpy(variables) @ variables["values"]
    np.testing.assert_allclose(variables["outputs"], expected, rtol=1e-5)


@pytest.mark.slow
def test_the_figures_are_in_the_folder(story):
    assert sorted(path.name for path in story[2].iterdir()) == ["keys.png", "table.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in story[2].iterdir())
