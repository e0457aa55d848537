"""The demo of several heads, run as a reader runs it."""

import numpy as np
import pytest

MODELS = ["one head", "two heads", "two additive heads"]


@pytest.mark.slow
def test_slices_layer_and_keras_give_the_formulas_output(story):
    numbers, variables, _ = story
    x = np.random.default_rng(0).normal(size=(2, 7, 16))
    heads = [np.einsum("btd,dhp->bhtp", x, w) for w in variables["theirs"].get_weights()[:3]]
    scores = np.einsum("bhtp,bhsp->bhts", *heads[:2]) / 2  # the root of a head's width, 4
    scores[1, :, :, 4:] = -np.inf
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    shares = powers / powers.sum(axis=-1, keepdims=True)
    expected = np.einsum("bhts,bhsp,hpe->bte", shares, heads[2], variables["w_output"])
    # sums of 16 products of numbers of about 1, in float32
    bound = 64 * 2.0**-24 * np.abs(expected).max()
    for output in ("by_slices", "theirs_output"):
        np.testing.assert_allclose(variables[output], expected, atol=bound)
    assert numbers["slices_difference"] <= 2 * bound
    assert numbers["keras_difference"] <= 2 * bound


@pytest.mark.slow
def test_the_answers_are_the_letter_before_and_the_marked_one(story):
    ids, marks, answers = (story[1][name] for name in ("ids", "marks", "answers"))
    assert (marks.sum(axis=1) == 1).all()
    for row in range(5):
        letters, mark = ids[row].tolist(), marks[row].tolist().index(1)
        before = [letters[0], *letters[:-1]]
        assert answers[row].tolist() == [[letter, letters[mark]] for letter in before]


@pytest.mark.slow
def test_two_heads_answer_both_questions_and_one_head_cannot(story):
    accuracy = story[0]["accuracy"]
    assert list(accuracy) == MODELS
    # A mean of two different letters leaves two orders, so one head alone does not reach them all.
    assert 0.4 < accuracy["one head"] < 0.9
    assert accuracy["two heads"] > 0.99
    assert accuracy["two additive heads"] > 0.99


@pytest.mark.slow
def test_the_heads_share_the_work(story):
    agreement = {name: np.array(each) for name, each in story[0]["head_agreement"].items()}
    assert {name: each.shape for name, each in agreement.items()} == {
        "one head": (1, 2),
        "two heads": (2, 2),
        "two additive heads": (2, 2),
    }
    for each in agreement.values():
        assert (each >= 0).all() and (each.sum(axis=1) <= 1 + 1e-6).all()
    assert agreement["one head"].max() < 0.75
    for name in MODELS[1:]:
        assert sorted(agreement[name].argmax(axis=1)) == [0, 1]
        assert agreement[name].max(axis=1).min() > 0.75
        assert agreement[name].min(axis=1).max() < 0.1


@pytest.mark.slow
def test_the_agreement_is_the_mean_weight_where_the_two_letters_are_apart(story):
    numbers, variables, _ = story
    weights, marked = variables["weights"]["two heads"], variables["marked"]
    for head in range(2):
        on = [
            (weights[row, head, t, max(t - 1, 0)], weights[row, head, t, marked[row]])
            for row in range(512)
            for t in range(8)
            if max(t - 1, 0) != marked[row]
        ]
        expected = np.mean(on, axis=0, dtype="float64")
        np.testing.assert_allclose(
            numbers["head_agreement"]["two heads"][head], expected, rtol=1e-4
        )


@pytest.mark.slow
def test_the_figures_are_in_the_folder(story):
    assert sorted(path.name for path in story[2].iterdir()) == ["heads.png", "loss.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in story[2].iterdir())
