"""The demo of costs, run as a reader runs it, on short sequences: no time is asserted."""

import numpy as np
import pytest

from tests.demos.running import result, run

NAME = "convolution_recurrence_attention"
D, K, R = 128, 3, 127


@pytest.fixture(scope="module")
def story(tmp_path_factory):
    """(what was printed, the demo's variables, the folder of the figures)."""
    folder = tmp_path_factory.mktemp(NAME)
    output, variables = run(NAME, "--longest", "1024", "--out", "new/figures", folder=folder)
    return output, variables, folder / "new" / "figures"


@pytest.mark.slow
def test_predicted_slopes_are_the_powers_of_the_length(story):
    predicted = result(story[0])["predicted_slopes"]
    assert len(predicted) == 6
    for name, slope in predicted.items():
        assert slope == pytest.approx(2 if name == "self-attention" else 1)


@pytest.mark.slow
def test_a_measured_slope_is_reported_for_each_layer(story):
    numbers, variables, _ = result(story[0]), *story[1:]
    assert list(numbers["measured_slopes"]) == list(numbers["predicted_slopes"])
    for name, slope in numbers["measured_slopes"].items():
        first, last = variables["seconds"][name]  # of 512 and of 1024 tokens
        assert 0 < first and 0 < last
        assert slope == pytest.approx(np.log2(last / first))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "numbers"),
    [
        ("self-attention", (1024**2 * D, 1, 1)),
        ("recurrence", (1024 * D**2, 1024, 1024)),
        ("convolution", (K * 1024 * D**2, 1, 342)),
        ("dilated convolution", (K * 1024 * D**2, 1, 7)),
        ("separable convolution", (K * 1024 * D + 1024 * D**2, 1, 342)),
        ("windowed self-attention", (R * 1024 * D, 1, 9)),
    ],
)
def test_the_story_has_the_table(story, name, numbers):
    assert tuple(result(story[0])["complexity"][name]) == numbers
    (line,) = [line for line in story[0].splitlines() if line.startswith(f"{name}  ")][:1]
    assert tuple(int(word.replace(",", "")) for word in line[len(name) :].split()) == numbers


@pytest.mark.slow
def test_self_attention_and_recurrence_meet_where_length_is_width(story):
    lengths, operations = story[1]["lengths"].tolist(), story[1]["operations"]
    meeting = lengths.index(512)
    for place in range(len(lengths)):
        difference = operations["self-attention"][place] - operations["recurrence"][place]
        assert np.sign(difference) == np.sign(place - meeting)


@pytest.mark.slow
def test_the_window_shows_as_many_keys_as_the_formula_takes(story):
    square = story[1]["masks"]["windowed self-attention"].dense(300, 300)
    assert np.sum(square, axis=-1).max() == R


@pytest.mark.slow
def test_the_figures_are_in_the_folder(story):
    names = sorted(path.name for path in story[2].iterdir())
    assert names == ["operations.png", "paths.png", "times.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in story[2].iterdir())
