"""Deletion tests."""

import numpy as np
import pytest

from tests.helpers.tensors import as_tensor
from tfattn.interpret import DeletionTest, deletion_test

SCORES = np.array([[3.0, 1.0, 2.0, 9.0], [0.0, 5.0, 5.0, 1.0]])


def left(deleted):
    """What is left of the scores."""
    return SCORES[~deleted].sum()


def test_deletion_takes_the_most_important_of_each_row():
    test = deletion_test(lambda deleted: as_tensor(left(deleted)), SCORES, size=2)
    np.testing.assert_array_equal(test.deleted, [[True, False, False, True], [0, 1, 1, 0]])
    assert (test.intact, test.named) == (26.0, 4.0)
    assert test.random.shape == (20,) and (test.random >= 4.0).all()


def test_deletion_of_a_single_row_takes_the_first_of_equals():
    test = deletion_test(lambda gone: float(gone.sum()), SCORES[1], size=1)
    np.testing.assert_array_equal(test.deleted, [False, True, False, False])
    assert (test.random == 1.0).all() and test.p_value == 1.0


def test_deletion_takes_candidates_only():
    candidates = np.array([[True, True, True, False], [True, False, False, False]])
    seen = []

    def measure(deleted):
        seen.append(deleted)
        return left(deleted)

    test = deletion_test(measure, SCORES, size=2, candidates=candidates, num_random=30)
    np.testing.assert_array_equal(test.deleted, [[1, 0, 1, 0], [1, 0, 0, 0]])
    assert not (seen & ~candidates).any()
    np.testing.assert_array_equal(np.sum(seen[1:], axis=2), [[2, 1]] * 31)
    assert len({deleted.tobytes() for deleted in seen[2:]}) == 3  # of three pairs, each is drawn


def test_deletion_of_heads_ranks_over_all_layers():
    importance = {"a": np.array([1.0, 7.0]), "b": np.array([3.0, 2.0, 8.0]), "c": np.array([0.0])}
    seen = []
    test = deletion_test(lambda heads: seen.append(heads) or 0.0, importance, 3, num_random=50)
    assert test.deleted == {"a": [1], "b": [0, 2]}
    assert seen[:2] == [{}, {"a": [1], "b": [0, 2]}]
    assert all(sum(map(len, heads.values())) == 3 for heads in seen[1:])
    drawn = {(path, head) for heads in seen[2:] for path, of in heads.items() for head in of}
    assert drawn == {(path, head) for path in importance for head in range(len(importance[path]))}
    only = {"a": [True, False], "b": [True, True, False], "c": [True]}
    assert deletion_test(lambda heads: 0.0, importance, 2, candidates=only).deleted == {"b": [0, 1]}


def test_deletion_with_a_seed_is_the_same():
    def drawn(seed):
        return deletion_test(left, SCORES, 1, seed=seed).random

    np.testing.assert_array_equal(drawn(3), drawn(3))
    assert (drawn(3) != drawn(4)).any()
    assert (drawn(None) != drawn(None)).any()


def test_deletion_p_value_counts_both_directions_and_is_never_zero():
    random = np.array([10.0, 12.0, 7.0, 13.0, 6.5])
    assert DeletionTest(None, 10.0, 13.0, random).p_value == pytest.approx(4 / 6)
    assert DeletionTest(None, 10.0, 20.0, random).p_value == pytest.approx(1 / 6)
    assert "p = 0.17" in str(DeletionTest(None, 10.0, 20.0, random))


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"measure": lambda gone: float("nan")}, "`measure` must be a finite number"),
        ({"importance": SCORES * np.nan}, "`importance` must hold finite numbers"),
        ({"importance": SCORES[None]}, r"`importance` must have shape \(T,\) or \(B, T\)"),
        ({"importance": {"a": SCORES}}, r"`importance\['a'\]` must have shape \(H,\)"),
        ({"size": 4}, "`size` must be below the number of candidates, 4. Received: size=4"),
        ({"size": 0}, "`size` must be a positive integer"),
        ({"candidates": SCORES > 99}, "`size` must be below the number of candidates, 0"),
        ({"candidates": SCORES}, "`candidates` must be boolean, .*='float64"),
        ({"candidates": SCORES[:1] > 0}, r"`candidates` must be boolean, in the shape .* \(2, 4\)"),
        ({"num_random": 0}, "`num_random` must be a positive integer"),
    ],
)
def test_deletion_with_invalid_arguments_is_refused(arguments, message):
    with pytest.raises(ValueError, match=f"deletion_test: {message}"):
        deletion_test(**{"measure": left, "importance": SCORES, "size": 1, **arguments})
