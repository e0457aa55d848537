"""Two parts of a corpus: no sentence of the one is in the other."""

import collections

import pytest

from tfattn.data import split_pairs, toy_translation


@pytest.fixture(scope="module")
def pairs():
    return toy_translation(40_000, seed=11)


@pytest.mark.slow
def test_split_shares_no_sentence(pairs):
    train, held_out = split_pairs(pairs, fraction=0.1, seed=5)
    assert len(held_out) == 4000
    assert sorted(train + held_out) == sorted(pairs)
    for side in (0, 1):
        assert not {pair[side] for pair in train} & {pair[side] for pair in held_out}


def test_split_keeps_pairs_linked_by_a_sentence_together():
    chains = [[(f"a{i}", f"x{i}"), (f"b{i}", f"x{i}"), (f"b{i}", f"y{i}")] for i in range(40)]
    pairs = [chain[step] for step in range(3) for chain in chains]
    train, held_out = split_pairs(pairs, fraction=0.25, seed=1)
    assert len(held_out) == 30
    assert collections.Counter(train + held_out) == collections.Counter(pairs)
    for side in (0, 1):
        assert not {pair[side] for pair in train} & {pair[side] for pair in held_out}


def test_split_keeps_equal_pairs_together():
    train, held_out = split_pairs([("a", "x")] * 3 + [("b", "y")] * 2, fraction=0.4)
    assert (set(train), set(held_out)) == ({("a", "x")}, {("b", "y")})


def test_same_word_on_both_sides_links_nothing():
    train, held_out = split_pairs([("a", "b"), ("b", "c")], fraction=0.5)
    assert len(train) == len(held_out) == 1


def test_split_depends_on_the_seed_alone(pairs):
    some = pairs[:200]
    assert split_pairs(some, seed=1) == split_pairs(some, seed=1)
    assert split_pairs(some, seed=1) != split_pairs(some, seed=2)


@pytest.mark.parametrize("fraction", [0, 1, -0.1, 1.5, float("nan"), "half", True])
def test_fraction_must_lie_between_0_and_1(fraction):
    with pytest.raises(
        ValueError, match="split_pairs: `fraction` must be a number between 0 and 1"
    ):
        split_pairs([("a", "b"), ("c", "d")], fraction=fraction)


@pytest.mark.parametrize("pairs", [[], [("a", "b")], [("a", "b"), ("a", "c")]])
def test_split_that_leaves_a_part_empty_is_refused(pairs):
    with pytest.raises(ValueError, match="split_pairs: `fraction` must leave pairs to both parts"):
        split_pairs(pairs, fraction=0.5)


def test_seed_of_a_split_must_be_an_integer():
    with pytest.raises(ValueError, match="split_pairs: `seed` must be an integer"):
        split_pairs([("a", "b"), ("c", "d")], seed=None)
