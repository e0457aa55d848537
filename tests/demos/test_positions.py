"""The demo of positions, run as a reader runs it."""

import numpy as np
import pytest


@pytest.mark.slow
def test_a_rotation_leads_from_each_position_to_the_one_seven_further_on(story):
    # A frequency and its product with a position are each rounded to 24 bits, in both tables.
    bound = 2 * 2 * 59 * 2.0**-24
    assert story[0]["rotation_error"] < bound
    wide = story[1]["rotations"]
    np.testing.assert_allclose(
        wide @ wide.transpose(0, 2, 1), np.broadcast_to(np.eye(2), wide.shape), atol=1e-12
    )
    np.testing.assert_allclose(np.linalg.det(wide), 1.0)


@pytest.mark.slow
def test_the_table_is_the_formula(story):
    i, j = np.arange(60)[:, None], np.arange(16)
    angles = i / 10_000 ** (2 * j / 32)
    np.testing.assert_allclose(story[1]["table"][:, 0::2], np.sin(angles), atol=1e-5)
    np.testing.assert_allclose(story[1]["table"][:, 1::2], np.cos(angles), atol=1e-5)


@pytest.mark.slow
def test_the_share_of_columns_that_stand_still_is_that_of_the_logarithm(story):
    # 59 · 10000^(−2j/d) < 0.1 where 2j/d > log 590 / log 10000
    first = np.log(590) / np.log(10_000)
    for width, share in story[0]["still"].items():
        assert share == pytest.approx(1 - first, abs=2 / int(width))


@pytest.mark.slow
def test_both_kinds_of_position_find_the_weights_that_made_the_data(story):
    assert list(story[0]["weight_errors"]) == ["sines and cosines", "learned"]
    offsets = np.arange(40)[:, None] - np.arange(40)
    powers = np.exp(-(offsets**2) / 8)
    wanted = powers / powers.sum(axis=1, keepdims=True)
    for name, error in story[0]["weight_errors"].items():
        found = story[1]["found"][name]
        np.testing.assert_allclose(np.abs(found - wanted).max(), error, rtol=1e-5)
        assert error < wanted.max() / 5
        assert (np.abs(found.argmax(axis=1) - wanted.argmax(axis=1)) <= 1).all()


@pytest.mark.slow
def test_sines_and_cosines_are_as_alike_as_their_distance_says(story):
    alike, learned = story[1]["alike"]
    frequencies = 10_000 ** (-2 * np.arange(8) / 16)
    for offset in range(40):
        diagonal = np.diagonal(alike, offset)
        np.testing.assert_allclose(diagonal, np.cos(offset * frequencies).mean(), atol=1e-5)
    assert np.diagonal(learned, 1).min() > 0.8


@pytest.mark.slow
def test_the_counter_counts_and_the_figures_are_in_the_folder(story):
    np.testing.assert_array_equal(2 ** np.arange(4) @ story[1]["bits"], np.arange(16))
    names = sorted(path.name for path in story[2].iterdir())
    assert names == ["alike.png", "clocks.png", "counter.png", "waves.png", "weights.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in story[2].iterdir())
