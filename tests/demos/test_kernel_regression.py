"""The kernel regression demo, run as a reader runs it."""

import numpy as np
import pytest

from tests.demos.running import result, run

pytestmark = pytest.mark.tensorflow  # in which the demo is written

NAME = "kernel_regression"


@pytest.fixture(scope="module")
def story(tmp_path_factory):
    """(what was printed, the folder of the figures, the variables) with the default seed."""
    folder = tmp_path_factory.mktemp("kernel_regression")
    output, variables = run(NAME, "--out", "new/figures", folder=folder)
    return output, folder / "new" / "figures", variables


def by_numpy(bandwidth):
    """Errors of average pooling and of a Gaussian of that bandwidth, from the data of seed 0."""
    random = np.random.default_rng(0)
    x = np.sort(random.uniform(0.0, 5.0, 50))
    y = 2 * np.sin(x) + x**0.8 + random.normal(0.0, 0.5, 50)
    queries = np.linspace(0.0, 4.9, 50)
    truth = 2 * np.sin(queries) + queries**0.8
    weights = np.exp(-(((queries[:, None] - x) / bandwidth) ** 2) / 2)
    pooled = (weights / weights.sum(axis=1, keepdims=True)) @ y
    return np.mean((y.mean() - truth) ** 2), np.mean((pooled - truth) ** 2)


@pytest.mark.slow
def test_the_last_line_holds_its_numbers(story):
    assert list(result(story[0])) == [
        "mse_average",
        "mse_nonparametric",
        "mse_parametric",
        "bandwidth",
    ]


@pytest.mark.slow
def test_attention_pooling_errs_less_than_half_as_much_as_average_pooling(story):
    numbers = result(story[0])
    assert numbers["mse_nonparametric"] < numbers["mse_average"] / 2


@pytest.mark.slow
def test_the_errors_are_those_of_the_formulas(story):
    numbers = result(story[0])
    average, fixed = by_numpy(1.0)
    np.testing.assert_allclose(numbers["mse_average"], average, rtol=1e-6)
    np.testing.assert_allclose(numbers["mse_nonparametric"], fixed, rtol=1e-4)
    np.testing.assert_allclose(
        numbers["mse_parametric"], by_numpy(numbers["bandwidth"])[1], rtol=1e-3
    )


@pytest.mark.slow
def test_the_five_steps_of_write_ups_are_those_of_finite_differences(story):
    x, y = story[2]["x_train"], story[2]["y_train"]
    distance = x[:, None] - x

    def squared_error(w):
        powers = np.exp(-((distance * w) ** 2) / 2) * (1 - np.eye(50))
        return np.sum((powers / powers.sum(axis=1, keepdims=True) @ y - y) ** 2)

    w = 1.0
    for _ in range(5):
        w -= 0.5 * (squared_error(w + 1e-5) - squared_error(w - 1e-5)) / 2e-5
    assert float(story[2]["w"]) == pytest.approx(w, rel=1e-3)
    assert story[2]["mse_noisy"] == pytest.approx(by_numpy(1 / w)[1], rel=1e-3)


@pytest.mark.slow
def test_the_learned_bandwidth_is_sharper(story):
    assert 0.05 < result(story[0])["bandwidth"] < 0.5


@pytest.mark.slow
def test_training_finds_the_bandwidth_of_the_least_leave_one_out_error(story):
    x, y = story[2]["x_train"], story[2]["y_train"]
    bandwidths, errors = np.geomspace(0.05, 2.0, 60), []
    for h in bandwidths:
        powers = np.exp(-(((x[:, None] - x) / h) ** 2) / 2) * (1 - np.eye(50))
        errors.append(np.mean((powers @ y / powers.sum(axis=1) - y) ** 2))
    best = bandwidths[np.argmin(errors)]
    step = (2.0 / 0.05) ** (1 / 59)
    assert abs(np.log(result(story[0])["bandwidth"] / best)) < 2 * np.log(step)


@pytest.mark.slow
def test_the_story_gives_the_batched_product_that_readers_know(story):
    assert "give 4.5 and 14.5" in story[0]


@pytest.mark.slow
def test_five_kernels_err_as_their_formulas_do(story):
    x, y, queries, truth = (story[2][name] for name in ("x_train", "y_train", "x_test", "truth"))
    u = np.abs(queries[:, None] - x)
    kernels = {
        "Gaussian": np.exp(-(u**2) / 2),
        "boxcar": u <= 1.0,
        "triangular": np.maximum(1 - u, 0),
        "Epanechnikov": np.maximum(1 - u**2, 0),
        "constant": np.ones_like(u),
    }
    assert list(story[2]["mse_kernels"]) == list(kernels)
    for name, kernel in kernels.items():
        expected = np.mean((kernel @ y / kernel.sum(axis=1) - truth) ** 2)
        np.testing.assert_allclose(story[2]["mse_kernels"][name], expected, rtol=1e-4)


@pytest.mark.slow
def test_the_figures_are_in_the_folder(story):
    assert sorted(path.name for path in story[1].iterdir()) == [
        "fits.png",
        "kernels.png",
        "weights.png",
    ]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in story[1].iterdir())
