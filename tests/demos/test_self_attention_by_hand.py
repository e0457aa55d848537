"""The walk-through of self-attention, run as a reader runs it."""

import numpy as np
import pytest

from tests.demos.running import result, run

NAME = "self_attention_by_hand"


@pytest.fixture(scope="module")
def story(tmp_path_factory):
    """(what was printed, the folder that it was run in)."""
    folder = tmp_path_factory.mktemp("self_attention_by_hand")
    output, _ = run(NAME, "--seed", "3", folder=folder)
    return output, folder


@pytest.mark.slow
def test_the_weights_are_those_that_readers_know(story):
    known = [
        [6.3379e-02, 4.6831e-01, 4.6831e-01],
        [6.0337e-06, 9.8201e-01, 1.7986e-02],
        [2.9539e-04, 8.8054e-01, 1.1917e-01],
    ]
    np.testing.assert_allclose(result(story[0])["weights"], known, rtol=5e-5)


@pytest.mark.slow
def test_the_output_is_the_weighted_sum_of_the_values(story):
    numbers = result(story[0])
    values = np.array([[1.0, 2.0, 3.0], [2.0, 8.0, 0.0], [2.0, 6.0, 3.0]])
    np.testing.assert_allclose(numbers["output"], np.array(numbers["weights"]) @ values, rtol=1e-5)
    np.testing.assert_allclose(numbers["output"][0], [1.9366, 6.6831, 1.5951], atol=5e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    "rows",
    [
        ["0  1  1", "4  4  0", "2  3  1"],  # keys
        ["1  0  2", "2  2  2", "2  1  3"],  # queries
        ["1  2  3", "2  8  0", "2  6  3"],  # values
        ["2  4  4", "4  16  12", "4  12  10"],  # scores
        ["6.3379e-02  4.6831e-01  4.6831e-01", "6.0337e-06  9.8201e-01  1.7986e-02"],
        ["1.9366  6.6831  1.5951"],
        # with the walk-through's short weights
        ["2.0  7.0  1.5", "2.0  8.0  0.0", "2.0  7.8  0.3"],
    ],
)
def test_every_step_is_printed(story, rows):
    lines = [line.strip() for line in story[0].splitlines()]
    assert any(lines[start : start + len(rows)] == rows for start in range(len(lines)))


@pytest.mark.slow
def test_the_figure_is_in_the_default_folder(story):
    figures = story[1] / "out" / "self_attention_by_hand"
    assert [path.name for path in figures.iterdir()] == ["weights.png"]
    assert (figures / "weights.png").read_bytes().startswith(b"\x89PNG")
