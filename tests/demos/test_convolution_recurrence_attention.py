"""The demo of what layers cost, on short sequences. Times are the machine's: none is tested."""

import numpy as np
import pytest

import tfattn
from tests.demos.running import result, run


@pytest.fixture(scope="module")
def story(tmp_path_factory):
    """(the numbers of the last line, the folder of the figures)."""
    folder = tmp_path_factory.mktemp("convolution_recurrence_attention")
    name = "convolution_recurrence_attention"
    output, _ = run(name, "--longest", "64", folder=folder)
    return result(output), folder / "out" / name


@pytest.mark.slow
def test_the_table_is_that_of_the_formulas(story):
    n, d, k, r = 1000, 64, 3, 100
    assert story[0]["complexity"] == {
        "self-attention": [n * n * d, 1, 1],
        "recurrence": [n * d * d, n, n],
        "convolution": [k * n * d * d, 1, 334],  # 1000 / 3
        "dilated convolution": [k * n * d * d, 1, 7],  # 3^7 = 2187
        "separable convolution": [k * n * d + n * d * d, 1, 334],
        "windowed self-attention": [r * n * d, 1, 10],
    }
    assert story[0]["complexity"] == {
        name: list(cost) for name, cost in tfattn.complexity(n, d, k, r).items()
    }


@pytest.mark.slow
def test_attention_is_predicted_to_grow_with_the_square_and_the_others_with_the_length(story):
    predicted = dict(story[0]["predicted_slopes"])
    assert predicted.pop("self-attention") == 2.0
    assert set(predicted.values()) == {1.0}


@pytest.mark.slow
def test_each_layer_has_a_measured_slope(story):
    assert list(story[0]["measured_slopes"]) == list(story[0]["predicted_slopes"])
    assert np.isfinite(list(story[0]["measured_slopes"].values())).all()


@pytest.mark.slow
def test_the_figures_are_in_the_default_folder(story):
    assert sorted(path.name for path in story[1].iterdir()) == ["operations.png", "time.png"]
