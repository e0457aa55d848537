"""The demo of attention that picks, run as a reader runs it."""

import numpy as np
import pytest

pytestmark = pytest.mark.tensorflow  # in which the demo is written


@pytest.mark.slow
def test_all_three_learn_what_a_blind_pick_does_not_know(story):
    numbers, variables, _ = story
    asked, digits = variables["test"]
    query, keys, values, digits = (
        np.asarray(x) for x in (asked["query"], asked["key"], asked["value"], digits)
    )
    blind = (values.argmax(axis=2) == digits[:, None]).mean()  # every card as likely
    deviation = (blind * (1 - blind) / len(digits)) ** 0.5
    assert numbers["chance"] == pytest.approx(blind, abs=4 * deviation)
    assert set(numbers["accuracy"]) == {"soft", "score function", "straight-through"}
    for accuracies in variables["curves"].values():
        assert accuracies[0] < 0.45
    # the best that can be had: the card whose look is the nearest to the one that was asked for
    distances = np.linalg.norm(query[:, 0, None] - variables["names"], axis=2)  # (B, colours)
    look = variables["looks"][distances.argmin(axis=1)][:, None]
    nearest = np.linalg.norm(keys - look, axis=2).argmin(axis=1)
    best = (values[np.arange(len(digits)), nearest].argmax(axis=1) == digits).mean()
    for accuracy in numbers["accuracy"].values():
        assert 0.85 < accuracy <= best + 0.01


@pytest.mark.slow
def test_the_score_function_is_right_on_average_and_straight_through_is_not(story):
    noise, error = story[0]["noise"], story[0]["error"]
    for name in ("with baseline", "without baseline"):
        # the mean of 300 draws strays by the noise of one over √300, give or take a half
        assert error[name] == pytest.approx(noise[name] / 300**0.5, rel=0.6)
    assert error["straight-through"] > 3 * noise["straight-through"] / 300**0.5


@pytest.mark.slow
def test_a_baseline_takes_noise_away(story):
    noise = story[0]["noise"]
    assert noise["with baseline"] < 0.7 * noise["without baseline"]


@pytest.mark.slow
def test_the_exact_gradient_is_that_of_finite_differences(story):
    variables = story[1]
    direction = np.random.default_rng(3).normal(size=variables["exact"].shape).astype("float32")
    matrix, attention, losses = (variables[n] for n in ("matrix", "attention", "each_loss"))
    start = np.asarray(matrix.value)
    expected = []
    for step in (-1e-2, 1e-2):
        matrix.assign(start + step * direction.reshape(start.shape))
        _, weights = attention(**variables["asked"], return_attention_scores=True)
        expected.append(np.sum(np.asarray(weights[:, 0], "float64") * losses, axis=1).mean())
    matrix.assign(start)
    slope = (expected[1] - expected[0]) / 2e-2
    assert variables["exact"] @ direction == pytest.approx(slope, rel=0.01, abs=1e-4)


@pytest.mark.slow
def test_the_figures_are_in_the_folder(story):
    figures = story[2]
    names = sorted(path.name for path in figures.iterdir())
    assert names == ["accuracy.png", "noise.png", "weights.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in figures.iterdir())
