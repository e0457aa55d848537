"""The demo of heads, run as a reader runs it."""

import numpy as np
import pytest

from tests.demos.running import result, run


@pytest.fixture(scope="module")
def story(tmp_path_factory):
    """(the numbers of the last line, the folder of the figures)."""
    folder = tmp_path_factory.mktemp("multi_head")
    output, _ = run("multi_head", folder=folder)
    return result(output), folder / "out" / "multi_head"


@pytest.mark.slow
def test_heads_are_slices_of_one_product_and_keras_gives_the_same(story):
    # Outputs are near 1, sums of 16 products each, rounded to 24 bits.
    assert story[0]["slices_difference"] < 16 * 2.0**-22
    assert story[0]["keras_difference"] < 16 * 2.0**-22


@pytest.mark.slow
def test_two_heads_answer_what_one_cannot(story):
    accuracy = story[0]["accuracy"]
    assert accuracy["two heads"] > 0.95 and accuracy["two additive heads"] > 0.95
    assert accuracy["one head"] < 0.9


@pytest.mark.slow
@pytest.mark.parametrize("name", ["two heads", "two additive heads"])
def test_each_of_two_heads_takes_one_of_the_questions(name, story):
    agreement = np.array(story[0]["head_agreement"][name])  # (2, 2): head, question
    assert sorted(agreement.argmax(axis=1)) == [0, 1]
    assert agreement.max(axis=1).min() > 0.5 and agreement.min(axis=1).max() < 0.2


@pytest.mark.slow
def test_one_head_looks_at_both(story):
    ((first, second),) = story[0]["head_agreement"]["one head"]
    assert min(first, second) > 0.15


@pytest.mark.slow
def test_the_figures_are_in_the_default_folder(story):
    assert sorted(path.name for path in story[1].iterdir()) == ["heads.png", "loss.png"]
