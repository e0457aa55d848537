"""Mask objects against plain NumPy, whole and block by block."""

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import reference
from tfattn import masks

B, T, S = 2, 5, 7


def dense(mask, queries=T, keys=S):
    return np.asarray(mask.dense(queries, keys))


def spread(mask, queries=T, keys=S):
    return np.broadcast_to(np.asarray(mask), (B, queries, keys))


RULES = {
    "padding": (masks.padding(np.array([3, 0])), reference.padding([3, 0], S)),
    "padding of each query": (
        masks.padding(np.array([[0, 1, 2, 3, 9], [7, 6, 5, 4, 3]])),
        reference.padding([[0, 1, 2, 3, 9], [7, 6, 5, 4, 3]], S),
    ),
    "causal": (masks.causal(), reference.causal(T, S)),
    "window": (masks.window(2), reference.window(2, T, S)),
    "prefix": (masks.prefix(3), np.arange(S)[None] < 3),
    "prefix of a scalar array": (masks.prefix(np.int64(3)), np.arange(S)[None] < 3),
    "prefix of each row": (masks.prefix(np.array([1, 4])), reference.padding([1, 4], S)),
    "segments": (
        masks.segments(np.array([[0, 0, 1, 1, 2]] * B), np.array([[0, 0, 0, 1, 1, 1, 3]] * B)),
        reference.segments([[0, 0, 1, 1, 2]] * B, [[0, 0, 0, 1, 1, 1, 3]] * B),
    ),
    "explicit": (masks.explicit(np.tri(T, S, dtype=bool)), np.tri(T, S, dtype=bool)),
}


@pytest.mark.parametrize("name", RULES)
def test_rule_equals_its_definition(name):
    mask, expected = RULES[name]
    np.testing.assert_array_equal(spread(dense(mask)), spread(expected))


@pytest.mark.parametrize("name", RULES)
def test_blocks_of_a_rule_are_cut_out_of_the_whole(name):
    mask, expected = RULES[name]
    block = mask.on(masks.Grid(T, S, query_start=1, key_start=2, queries=3, keys=4))
    block = np.broadcast_to(np.asarray(block), (B, 3, 4))
    np.testing.assert_array_equal(block, spread(expected)[:, 1:4, 2:6])


@settings(deadline=None)
@given(
    name=st.sampled_from(sorted(RULES)),
    start=st.tuples(st.integers(0, T - 1), st.integers(0, S - 1)),
    sides=st.tuples(st.integers(1, T), st.integers(1, S)),
    known=st.booleans(),
)
def test_a_rectangle_may_begin_anywhere_and_reach_beyond_the_square(name, start, sides, known):
    mask, expected = RULES[name]
    begin = start if known else [keras.ops.convert_to_tensor(x, "int32") for x in start]
    block = np.broadcast_to(np.asarray(mask.on(masks.Grid(T, S, *begin, *sides))), (B, *sides))
    inside = spread(expected)[:, start[0] : start[0] + sides[0], start[1] : start[1] + sides[1]]
    np.testing.assert_array_equal(block[:, : inside.shape[1], : inside.shape[2]], inside)


def test_a_rectangle_whose_side_divides_the_square_may_reach_beyond_it():
    block = np.asarray(masks.explicit(np.eye(12, dtype=bool)).on(masks.Grid(12, 12, 10, 0, 4, 12)))
    np.testing.assert_array_equal(block[:2], np.eye(12, dtype=bool)[10:])


@settings(deadline=None)
@given(st.sampled_from(sorted(RULES)), st.sampled_from(sorted(RULES)))
def test_rules_join_as_sets(left, right):
    (a, in_a), (b, in_b) = RULES[left], RULES[right]
    in_a, in_b = spread(in_a), spread(in_b)
    np.testing.assert_array_equal(spread(dense(a & b)), in_a & in_b)
    np.testing.assert_array_equal(spread(dense(a | b)), in_a | in_b)
    np.testing.assert_array_equal(spread(dense(~a)), ~in_a)
    np.testing.assert_array_equal(spread(dense(~(a | ~b))), ~in_a & in_b)


@settings(deadline=None)
@given(st.sampled_from(sorted(RULES)), st.sampled_from(sorted(RULES)))
def test_a_key_that_some_query_sees_is_never_called_padding(left, right):
    (a, in_a), (b, in_b) = RULES[left], RULES[right]
    for mask, inside in (
        (a & b, spread(in_a) & spread(in_b)),
        (a | b, spread(in_a) | spread(in_b)),
    ):
        seen = mask.seen_keys(T, S)
        if seen is not None:
            assert np.all(np.broadcast_to(np.asarray(seen), (B, S)) | ~inside.any(axis=1))


def test_padding_is_known_without_the_square():
    np.testing.assert_array_equal(
        RULES["padding"][0].seen_keys(T, S), np.arange(S) < np.array([[3], [0]])
    )
    joined = masks.causal() & masks.padding(np.array([3, 0]))
    np.testing.assert_array_equal(joined.seen_keys(T, S), np.arange(S) < np.array([[3], [0]]))


def test_array_joins_from_either_side():
    array = np.zeros((T, S), bool)
    array[:, 0] = True
    for mask in (masks.causal() & array, array & masks.causal()):
        np.testing.assert_array_equal(dense(mask), reference.causal(T, S) & array)
    np.testing.assert_array_equal(dense(array | masks.causal()), reference.causal(T, S) | array)


def test_mask_with_heads_joins_one_without():
    heads = np.random.default_rng(0).random((B, 3, T, S)) < 0.5
    joined = dense(masks.explicit(heads) & masks.padding(np.array([3, 5])))
    np.testing.assert_array_equal(joined, heads & reference.padding([3, 5], S)[:, None])


def test_causal_lines_up_at_the_end():
    np.testing.assert_array_equal(dense(masks.causal(), 2, 5), [[1, 1, 1, 1, 0], [1, 1, 1, 1, 1]])


def test_causal_with_more_queries_than_keys_leaves_the_first_ones_nothing():
    np.testing.assert_array_equal(dense(masks.causal(), 3, 2), [[0, 0], [1, 0], [1, 1]])


def test_window_of_one_is_the_diagonal():
    np.testing.assert_array_equal(dense(masks.window(1), 5, 5), np.eye(5, dtype=bool))


@pytest.mark.parametrize("name", RULES)
def test_rule_survives_keras_serialization(name):
    mask, expected = RULES[name]
    config = keras.saving.serialize_keras_object(~mask & masks.causal())
    copy = keras.saving.deserialize_keras_object(config)
    np.testing.assert_array_equal(
        spread(dense(copy)), spread(~spread(expected) & reference.causal(T, S))
    )


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: masks.explicit(np.zeros((T, S), "float32")), "goes into `bias`"),
        (lambda: masks.explicit(np.zeros((T, S), "int32")), "mask != 0"),
        (
            lambda: masks.explicit(np.zeros((T,), bool)),
            r"must have shape \(T, S\), \(B, T, S\) or \(B, H, T, S\)",
        ),
        (lambda: masks.padding(np.array([1.0])), r"masks.padding: `valid_lens` must hold integers"),
        (
            lambda: masks.padding(np.zeros((1, 1, 1), int)),
            r"`valid_lens` must have shape \(B,\) or \(B, T\)",
        ),
        (
            lambda: masks.window(0),
            r"masks.window: `size` must be a positive integer. Received: size=0",
        ),
        (lambda: masks.prefix(-1), "`length` must be an integer of at least 0"),
        (lambda: masks.prefix(0.5), "`length` must be an integer of at least 0"),
        (lambda: masks.segments(np.zeros((B, T))), "`query_segments` must hold integers"),
        (
            lambda: masks.segments(np.zeros((B, T), int), np.zeros(S, int)),
            "`key_segments` must have shape",
        ),
    ],
)
def test_bad_mask_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
