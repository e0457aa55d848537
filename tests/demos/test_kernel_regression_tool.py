"""The demo of kernel regression as a tool, run as a reader runs it."""

import numpy as np
import pytest

pytestmark = pytest.mark.slow

NAMES = ["local linear", "a plane", "20 neighbours"]


def test_the_last_line_holds_its_numbers(story):
    assert list(story[0]) == [
        "bandwidth",
        "best_bandwidth",
        "covered",
        "bandwidths_of_two_inputs",
        "rmse_surface",
        "r2",
        "slope",
    ]


def test_the_bandwidth_is_that_of_the_least_leave_one_out_error(story):
    numbers, variables, _ = story
    x, y, found = variables["x"], variables["y"], []
    for h in variables["bandwidths"]:
        powers = np.exp(-(((x[:, None] - x) / h) ** 2) / 2) * (1 - np.eye(50))
        found.append(np.mean((powers @ y / powers.sum(axis=1) - y) ** 2))
    np.testing.assert_allclose(variables["errors"]["leave-one-out"], found, rtol=1e-9)
    assert variables["model"].path[-1] <= min(found)
    step = (2.0 / 0.05) ** (1 / 59)
    assert abs(np.log(numbers["bandwidth"] / numbers["best_bandwidth"])) < np.log(step)


def test_the_error_against_the_truth_has_its_least_where_neither_noise_nor_bias_rules(story):
    against = story[1]["errors"]["against the truth"]
    assert min(against) < 0.3 * against[0] and min(against) < 0.1 * against[-1]


def test_the_band_holds_most_of_the_curve_and_widens_where_few_points_count(story):
    numbers, variables, _ = story
    assert 0.8 < numbers["covered"] < 1.0
    band, neighbours = variables["band"], variables["neighbours"]
    assert np.corrcoef(band.high - band.low, neighbours)[0, 1] < 0
    assert neighbours.min() > 1 and neighbours.max() < 50


def test_the_surface_is_found_and_the_slower_input_gets_the_wider_bandwidth(story):
    numbers, variables, _ = story
    first, second = numbers["bandwidths_of_two_inputs"]
    assert 1.3 * first < second
    assert numbers["rmse_surface"] < 0.15  # of noise of 0.3
    np.testing.assert_allclose(variables["smooth"][30, 12], variables["plane"].predict([[-0.6, 0]]))


def test_measured_data_are_predicted_as_well_as_a_plane_does_and_better_than_by_neighbours(story):
    r2 = story[0]["r2"]
    assert list(r2) == NAMES
    assert r2["local linear"] > r2["20 neighbours"]
    assert abs(r2["local linear"] - r2["a plane"]) < 0.03


def test_the_error_falls_with_the_points_as_the_theory_says(story):
    # The limit is −2/5. Twenty draws have a relative standard error of 0.1 or so, and the slope
    # through seven of them one of 0.03.
    assert story[0]["slope"] == pytest.approx(-0.4, abs=0.1)
    assert story[1]["rmse"][-1] < 0.3 * story[1]["rmse"][0]


def test_the_figures_are_in_the_folder(story):
    assert sorted(path.name for path in story[2].iterdir()) == [
        "band.png",
        "bandwidths.png",
        "consistency.png",
        "diabetes.png",
        "surface.png",
    ]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in story[2].iterdir())
