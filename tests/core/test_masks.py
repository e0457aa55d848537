"""Mask objects against plain NumPy, whole and block by block."""

import ast
import inspect
import pathlib

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tfattn
from tests import reference
from tests.helpers.tensors import as_tensor, tf
from tfattn import masks
from tfattn.core import trees
from tfattn.core.masks import hooks

B, H, T, S = 2, 3, 5, 7


def dense(mask, queries=T, keys=S):
    return np.asarray(mask.dense(queries, keys))


def spread(mask, queries=T, keys=S):
    """`(B, H, T, S)` of a mask with or without a batch and heads."""
    mask = np.asarray(mask)
    mask = mask[:, None] if mask.ndim == 3 else mask
    return np.broadcast_to(mask, (B, H, queries, keys))


DRAWN = np.random.default_rng(0)
PLAN, HEADS_PLAN = DRAWN.random((3, 4)) < 0.4, DRAWN.random((B, H, 2, 3)) < 0.5
PACKED = np.array([[0, 0, 1, 1, 2], [3, 3, 3, 3, 4]])
PACKED_KEYS = np.array([[0, 0, 0, 1, 1, 1, 2], [2, 3, 3, 3, 3, 4, 4]])

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
    "segments in order": (
        masks.segments(PACKED, PACKED_KEYS),
        reference.segments(PACKED, PACKED_KEYS),
    ),
    "explicit": (masks.explicit(np.tri(T, S, dtype=bool)), np.tri(T, S, dtype=bool)),
    "strided": (masks.strided(3), reference.strided(3, T, S)),
    "dilated window": (
        masks.window(4) & masks.strided(2),
        reference.window(4, T, S) & reference.strided(2, T, S),
    ),
    "chunks": (masks.chunks(3), reference.chunks(3, T, S)),
    "chunk ends": (masks.chunk_ends(3, 2), reference.chunk_ends(3, 2, S)),
    "fixed": (
        masks.chunks(3) | masks.chunk_ends(3),
        reference.chunks(3, T, S) | reference.chunk_ends(3, 1, S),
    ),
    "blocks": (masks.blocks(PLAN, 2), reference.blocks(PLAN, 2, T, S)),
    "blocks of each head": (masks.blocks(HEADS_PLAN, 3), reference.blocks(HEADS_PLAN, 3, T, S)),
    "per head": (
        masks.per_head([masks.window(2), masks.padding([3, 6]) | masks.prefix(1)], heads=[2, 1]),
        reference.per_head(
            [reference.window(2, T, S)] * 2
            + [reference.padding([3, 6], S) | reference.padding([1, 1], S)],
            (B, T, S),
        ),
    ),
    "blocks per head": (
        masks.per_head([masks.blocks(PLAN, 2), masks.chunks(2), np.eye(T, S, dtype=bool)]),
        reference.per_head(
            [
                reference.blocks(PLAN, 2, T, S),
                reference.chunks(2, T, S),
                np.eye(T, S, dtype=bool),
            ],
            (B, T, S),
        ),
    ),
}

# A mask and its visible pairs, joined with a causal mask.
JOINS = {
    "it alone": (lambda mask: mask, lambda seen, causal: seen),
    "not it": (lambda mask: ~mask, lambda seen, causal: ~seen),
    "it and causal": (lambda mask: mask & masks.causal(), lambda seen, causal: seen & causal),
    "causal or not it": (lambda mask: masks.causal() | ~mask, lambda seen, causal: causal | ~seen),
}


@pytest.mark.parametrize("name", RULES)
def test_rule_equals_its_definition(name):
    mask, expected = RULES[name]
    np.testing.assert_array_equal(spread(dense(mask)), spread(expected))
    copy = keras.saving.deserialize_keras_object(
        keras.saving.serialize_keras_object(~mask & masks.causal())
    )
    np.testing.assert_array_equal(spread(dense(copy)), ~spread(expected) & reference.causal(T, S))


@pytest.mark.slow
@settings(deadline=None)
@given(
    name=st.sampled_from(sorted(RULES)),
    start=st.tuples(st.integers(0, T - 1), st.integers(0, S - 1)),
    sides=st.tuples(st.integers(1, T), st.integers(1, S)),
    known=st.booleans(),
)
def test_a_rectangle_may_begin_anywhere_and_reach_beyond_the_square(name, start, sides, known):
    mask, expected = RULES[name]
    begin = start if known else [as_tensor(x, "int32") for x in start]
    block = spread(mask.on(masks.Grid(T, S, *begin, *sides)), *sides)
    inside = spread(expected)[..., start[0] : start[0] + sides[0], start[1] : start[1] + sides[1]]
    np.testing.assert_array_equal(block[..., : inside.shape[-2], : inside.shape[-1]], inside)


def test_a_rectangle_whose_side_divides_the_square_may_reach_beyond_it():
    block = np.asarray(masks.explicit(np.eye(12, dtype=bool)).on(masks.Grid(12, 12, 10, 0, 4, 12)))
    np.testing.assert_array_equal(block[:2], np.eye(12, dtype=bool)[10:])


@pytest.mark.slow
@settings(deadline=None)
@given(st.sampled_from(sorted(RULES)), st.sampled_from(sorted(RULES)))
def test_rules_join_as_sets(left, right):
    (a, in_a), (b, in_b) = RULES[left], RULES[right]
    in_a, in_b = spread(in_a), spread(in_b)
    np.testing.assert_array_equal(spread(dense(a & b)), in_a & in_b)
    np.testing.assert_array_equal(spread(dense(a | b)), in_a | in_b)
    np.testing.assert_array_equal(spread(dense(~a)), ~in_a)
    np.testing.assert_array_equal(spread(dense(~(a | ~b))), ~in_a & in_b)
    for mask, inside in ((a & b, in_a & in_b), (a | b, in_a | in_b)):
        seen = hooks.seen_keys(mask, T, S)
        if seen is not None:  # a key that some query sees is never called padding
            assert np.all(np.broadcast_to(np.asarray(seen), (B, S)) | ~inside.any(axis=(1, 2)))


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


def test_positions_line_up_at_the_end():
    np.testing.assert_array_equal(dense(masks.causal(), 2, 5), [[1, 1, 1, 1, 0], [1, 1, 1, 1, 1]])
    np.testing.assert_array_equal(dense(masks.causal(), 3, 2), [[0, 0], [1, 0], [1, 1]])
    np.testing.assert_array_equal(dense(masks.window(1), 5, 5), np.eye(5, dtype=bool))


# as in files saved when all masks were in one module
SAVED = [
    ("causal", {}, reference.causal(T, S)),
    ("window", {"size": 2}, reference.window(2, T, S)),
    ("padding", {"valid_lens": [3, 0]}, reference.padding([3, 0], S)),
    ("prefix", {"length": [1, 4]}, reference.padding([1, 4], S)),
    (
        "segments",
        {"query_segments": [[0, 0, 1, 1, 2]], "key_segments": [[0, 0, 0, 1, 1, 1, 3]]},
        reference.segments([[0, 0, 1, 1, 2]], [[0, 0, 0, 1, 1, 1, 3]]),
    ),
    ("explicit", {"mask": np.tri(T, S, dtype=bool).tolist()}, np.tri(T, S, dtype=bool)),
]


def saved(name, config):
    module, registered = "tfattn.core.masks", f"tfattn>masks.{name}"
    return {
        "module": module,
        "class_name": name,
        "config": config,
        "registered_name": registered,
    }


@pytest.mark.parametrize(("name", "config", "expected"), SAVED, ids=[row[0] for row in SAVED])
def test_saved_masks_of_every_name_load(name, config, expected):
    inner = saved(name, config)
    negated = saved("_Not", {"inner": inner})
    causal, seen = reference.causal(T, S), spread(expected)
    for kind, both in (("_Both", ~seen & causal), ("_Either", ~seen | causal)):
        pair = saved(kind, {"left": negated, "right": saved("causal", {})})
        np.testing.assert_array_equal(
            spread(dense(keras.saving.deserialize_keras_object(pair))), both
        )
        written = keras.saving.serialize_keras_object(keras.saving.deserialize_keras_object(pair))
        assert written["registered_name"] == pair["registered_name"]
        assert written["config"]["left"]["config"]["inner"]["config"] == config


def covered(bounds, size=S):
    low, high = (int(end) for end in bounds)
    return (np.arange(size) >= low) & (np.arange(size) < high)


@pytest.mark.parametrize("join", JOINS)
@pytest.mark.parametrize("name", RULES)
def test_hooks_tell_the_truth_about_the_mask(name, join):
    (mask, expected), (joined, seen_of) = RULES[name], JOINS[join]
    mask = joined(mask)
    seen = spread(seen_of(spread(expected), reference.causal(T, S)))
    for start in range(T):
        for queries in range(1, T - start + 1):
            grid = masks.Grid(T, S, start, 0, queries, S)
            here = seen[:, :, start : start + queries]
            assert not here[..., ~covered(hooks.key_bounds(mask, grid))].any()
            assert here[..., covered(hooks.full_bounds(mask, grid))].all()
            assert here.any(axis=2).sum(-1).max() <= hooks.max_keys(mask, grid) <= S
            for columns in (1, 2, 3, S, S + 2):
                blocks = hooks.seen_blocks(mask, grid, columns)
                if blocks is not None:
                    assert blocks.shape == (-(-S // columns),)
                    assert not here[..., ~np.repeat(blocks, columns)[:S]].any()
    some, common = hooks.seen_keys(mask, T, S), hooks.common_keys(mask, T, S)
    if some is not None:
        assert np.all(np.broadcast_to(some, (B, S)) | ~seen.any(axis=(1, 2)))
    if common is not None:
        assert np.all(~np.broadcast_to(common, (B, S)) | seen.all(axis=(1, 2)))
    if hooks.is_relative(mask):
        beyond = np.asarray(mask.on(masks.Grid(T, S, 0, 0, T + 3, S + 3)))
        np.testing.assert_array_equal(beyond[1:, 1:], beyond[:-1, :-1])


# Masks with exact hooks for the keys that no query sees, and that every query sees.
EXACT = {
    "causal": masks.causal(),
    "not causal": ~masks.causal(),
    "window": masks.window(2),
    "not a window": ~masks.window(2),
    "causal window": masks.causal() & masks.window(3),
    "strided": masks.strided(3),
    "dilated window": masks.window(4) & masks.strided(2),
    "causal, dilated": masks.causal() & (masks.window(5) & masks.strided(3)),
    "window or strided": masks.window(2) | masks.strided(4),
    "not that": ~(masks.window(2) | masks.strided(4)),
    "chunks": masks.chunks(3),
    "chunks or a prefix": masks.chunks(3) | masks.prefix(1),
    "window and padding": masks.window(2) & masks.padding(np.array([4, 9])),
    "per head": masks.per_head([masks.window(2), masks.chunks(2), masks.strided(5)]),
}


@pytest.mark.parametrize(
    "known",
    [
        pytest.param(True, id="known lengths"),
        pytest.param(False, id="unknown lengths", marks=pytest.mark.tensorflow),
    ],
)
@pytest.mark.parametrize("name", EXACT)
def test_keys_that_no_query_sees_are_told_exactly(name, known):
    mask = EXACT[name]
    for queries, keys in ((5, 7), (7, 5), (3, 11), (1, 7), (6, 6), (2, 1)):
        seen = spread(dense(mask, queries, keys), queries, keys)
        lengths = (queries, keys) if known else (tf.constant(queries), tf.constant(keys))
        some, common = hooks.seen_keys(mask, *lengths), hooks.common_keys(mask, *lengths)
        some = np.ones((1, 1), bool) if some is None else some
        np.testing.assert_array_equal(np.broadcast_to(some, (B, keys)), seen.any(axis=(1, 2)))
        if common is not None:
            assert np.all(~np.broadcast_to(common, (B, keys)) | seen.all(axis=(1, 2)))
    for queries, keys in ((0, 0), (0, 3), (3, 0)):
        for hook in (hooks.seen_keys, hooks.common_keys):
            told = hook(mask, queries, keys)
            assert told is None or told.shape[1] == keys


def test_a_plain_causal_mask_and_a_window_over_as_many_keys_look_for_no_hidden_key():
    for mask in (masks.causal(), masks.window(2), masks.causal() & masks.window(2)):
        assert hooks.seen_keys(mask, S, S) is None
    assert hooks.seen_keys(masks.causal(), T, S) is None
    assert hooks.seen_keys(masks.segments(PACKED), 5, 5) is None


def test_keys_of_other_segments_than_the_queries_are_told():
    mask = masks.segments([[3, 4, 4]], [[1, 3, 3, 4, 7]])
    np.testing.assert_array_equal(hooks.seen_keys(mask, 3, 5), [[False, True, True, True, False]])
    mask = masks.segments([[3, 3]], [[1, 3, 4]])
    np.testing.assert_array_equal(hooks.common_keys(mask, 2, 3), [[False, True, False]])


def test_hooks_skip_what_they_can():
    grid = masks.Grid(T, S, 1, 0, 2, S)  # the queries at positions 3 and 4
    local = masks.causal() & masks.window(2)
    assert hooks.key_bounds(local, grid) == (2, 5) and hooks.max_keys(local, grid) == 3
    assert hooks.full_bounds(masks.causal(), grid) == (0, 4)
    assert hooks.is_relative(~local) and not hooks.is_relative(local | masks.prefix(1))
    # padding tells by tensors alone: the window's ints are left
    assert hooks.max_keys(masks.padding([3, 0]) & masks.window(2), grid) == 4
    np.testing.assert_array_equal(
        hooks.common_keys(masks.padding([3, 0]) & masks.prefix(2), T, S),
        np.arange(S) < np.array([[2], [0]]),
    )


class Second(masks.causal):
    """Every second key of a causal mask, without its own hooks."""

    def on(self, grid):
        return super().on(grid) & (grid.key_positions() % 2 == 0)


class Bounded(Second):
    """Its bounds alone."""

    def key_bounds(self, grid):
        return masks.causal.key_bounds(self, grid)


class Named(masks.causal):
    """A causal mask by another name."""


def test_a_hook_that_is_older_than_on_is_not_asked():
    grid = masks.Grid(T, S, 1, 0, 2, S)
    for mask, bounds, full, most in (
        (Second(), (0, S), (0, 0), S),
        (Bounded(), (0, 5), (0, 0), 5),
        (Named(), (0, 5), (0, 4), 5),
    ):
        assert hooks.key_bounds(mask, grid) == bounds
        assert hooks.full_bounds(mask, grid) == full
        assert hooks.max_keys(mask, grid) == most
        assert hooks.is_relative(mask) == hooks.is_relative(~mask) == isinstance(mask, Named)
        assert hooks.key_bounds(mask & masks.window(S), grid) == bounds

    class Few(masks.padding):
        def on(self, grid):
            return super().on(grid) & (grid.query_rows() > 0)

    assert hooks.seen_keys(Few([3, 0]), T, S) is None
    assert hooks.common_keys(Few([3, 0]), T, S) is None


HOOKS = hooks.__all__


def asked_of(source):
    """The calls of hooks in the source, except through `hooks` and `super()`."""
    return [
        ast.unparse(node)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Attribute)
        and node.attr in HOOKS
        and ast.unparse(node.value) not in ("hooks", "super()")
    ]


@pytest.mark.slow
def test_no_hook_is_asked_but_through_hooks():
    root = pathlib.Path(tfattn.__file__).parent
    sources = [path for path in root.rglob("*.py") if path.name != "hooks.py"]
    assert {path.name: asked for path in sources if (asked := asked_of(path.read_text()))} == {}
    assert asked_of("hooks.key_bounds(mask, grid), mask.key_bounds(grid)") == ["mask.key_bounds"]
    assert asked_of(inspect.getsource(hooks))  # the reader finds those that are there
    assert all(hasattr(masks.Mask, hook) for hook in HOOKS)


@pytest.mark.slow
@pytest.mark.tensorflow
@pytest.mark.parametrize("name", RULES)
def test_a_mask_comes_apart_and_together_again_in_a_graph(name):
    def joined():
        mask = RULES[name][0]
        return masks.causal() & ~mask | mask

    mask = joined()
    tensors, structure = trees.flatten(mask)
    assert trees.is_shareable(structure)
    assert hash(structure) == hash(trees.flatten(joined())[1])

    @tf.function(input_signature=[tf.TensorSpec([None] * len(x.shape), x.dtype) for x in tensors])
    def whole(*tensors):
        given = iter([*tensors, "the next"])
        again = trees.unflatten(structure, given)
        assert next(given) == "the next"  # it takes its own tensors and no others
        assert type(again) is type(mask)
        return again.dense(T, S)

    np.testing.assert_array_equal(spread(whole(*tensors)), spread(dense(mask)))


def test_masks_of_one_kind_have_one_structure():
    def structure(mask):
        return trees.flatten(mask)[1]

    assert structure(masks.padding([1, 2])) == structure(masks.padding([3, 0]))
    assert (
        structure(masks.prefix([1])) == structure(masks.prefix([2])) != structure(masks.prefix(1))
    )
    assert structure(masks.window(2)) != structure(masks.window(3))
    assert structure(masks.causal() & masks.window(2)) != structure(
        masks.causal() | masks.window(2)
    )
    lengths, ids = as_tensor([3, 0]), as_tensor([[0, 0, 1, 1, 2]] * B)
    tensors, _ = trees.flatten(masks.padding(lengths) & ~masks.segments(ids))
    assert [x is y for x, y in zip(tensors, [lengths, ids, ids], strict=True)] == [True] * 3
    assert trees.flatten(None) == ([], None) and trees.is_shareable(None)


def test_a_mask_whose_class_does_not_flatten_stays_whole():
    class Local(masks.window):
        def __init__(self, size, step):
            super().__init__(size)
            self.step = step

        def on(self, grid):
            return super().on(grid) & (grid.key_positions() % self.step == 0)

    own = Local(3, 2)
    tensors, structure = trees.flatten(masks.padding([3, 0]) & own)
    assert len(tensors) == 1 and not trees.is_shareable(structure)
    again = trees.unflatten(structure, tensors)
    np.testing.assert_array_equal(
        dense(again), dense(masks.padding([3, 0]) & masks.explicit(own.dense(T, S)))
    )

    class Flat(Local):
        def flatten(self):
            return (), (self.size, self.step)

    tensors, structure = trees.flatten(~Flat(3, 2))
    assert trees.is_shareable(structure) and structure == trees.flatten(~Flat(3, 2))[1]
    np.testing.assert_array_equal(dense(trees.unflatten(structure, tensors)), ~dense(own))


@pytest.mark.parametrize("name", RULES)
def test_a_plan_names_the_blocks_with_a_pair_that_may_attend(name):
    mask, expected = RULES[name]
    for size in (1, 2, 3, 9):
        plan = np.asarray(masks.plan(mask, T, S, size))
        here = spread(plan, *plan.shape[-2:])
        np.testing.assert_array_equal(here, reference.plan(spread(expected), size))
        planned = mask & masks.blocks(plan, size)
        np.testing.assert_array_equal(spread(dense(planned)), spread(expected))


def test_a_plan_is_made_of_an_array_too_and_asks_for_some_queries_at_a_time():
    asked = []

    class Asked(masks.causal):
        def on(self, grid):
            asked.append((grid.query_start, grid.queries, grid.keys))
            return super().on(grid)

    plan = masks.plan(Asked(), T, S, 2)
    assert asked == [(0, 2, S), (2, 2, S), (4, 1, S)]
    np.testing.assert_array_equal(plan, masks.plan(reference.causal(T, S), T, S, 2))


@pytest.mark.parametrize(
    ("make", "shape", "message"),
    [
        (lambda: masks.blocks(PLAN, 3), (B, T, S), r"have a plan of \(2, 3\) blocks of 3"),
        (lambda: masks.blocks(PLAN[None, None], 2), (B, T, S), r"have shape \(T/size, S/size\)"),
        (lambda: masks.blocks(HEADS_PLAN, 3), (B, 2, T, S), r"have shape \(T/size, S/size\)"),
        (
            lambda: masks.per_head([masks.causal()] * 3),
            (B, 2, T, S),
            "have as many heads as the scores, 2",
        ),
        (
            lambda: masks.per_head([masks.causal()] * 3),
            (B, T, S),
            "have as many heads as the scores, none",
        ),
        (
            lambda: masks.per_head([np.ones((1, 1, T, S), bool)] * 3),
            (B, 3, T, S),
            r"have shape \(T, S\) or \(B, T, S\)",
        ),
    ],
)
def test_a_mask_that_does_not_fit_the_scores_is_refused(make, shape, message):
    with pytest.raises(ValueError, match="layer: `attention_mask` must " + message):
        make().check("layer", "attention_mask", shape)


@pytest.mark.tensorflow
def test_a_plan_that_turns_out_too_short_is_an_error_and_no_guess():
    with pytest.raises(tf.errors.InvalidArgumentError, match="not in"):
        masks.blocks(PLAN, 2).dense(9, S)


def test_sizes_that_the_run_tells_fit_any_plan():
    masks.blocks(PLAN, 2).check("layer", "mask", (None, None, None))
    masks.blocks(PLAN[None], 2).check("layer", "mask", (B, H, T, S))
    masks.per_head([masks.causal(), np.ones((T, S), bool)]).check("layer", "mask", (B, 2, T, S))


OFFSETS = {
    "causal": masks.causal(),
    "window": masks.window(2),
    "causal & window": masks.causal() & masks.window(3),
    "~causal | prefix": ~masks.causal() | masks.prefix(1),
    "strided": masks.strided(3),
    "chunks": masks.chunks(3),
    "chunk ends": masks.chunk_ends(3),
}


@pytest.mark.parametrize("name", OFFSETS)
def test_a_query_inside_of_a_longer_cache_sees_what_it_sees_in_the_square(name):
    mask = OFFSETS[name]
    square = np.broadcast_to(dense(mask, S, S), (S, S))
    for position in range(S - 1):
        offset = as_tensor(position) if position % 2 else position
        grid = masks.Grid.whole(2, S, offset=offset)
        rows = square[position : position + 2]
        np.testing.assert_array_equal(np.broadcast_to(mask.on(grid), (2, S)), rows)
        second = grid._replace(query_start=1, queries=1)
        assert int(second.first_position()) == int(second.last_position()) == position + 1
        np.testing.assert_array_equal(second.query_positions(), [[position + 1]])
        assert int(grid.first_position()) == position and int(grid.last_position()) == position + 1
        assert not rows[:, ~covered(hooks.key_bounds(mask, grid))].any()
        assert rows[:, covered(hooks.full_bounds(mask, grid))].all()


def test_without_an_offset_the_last_query_meets_the_last_key():
    grid = masks.Grid.whole(T, S)
    np.testing.assert_array_equal(grid.query_positions()[:, 0], np.arange(S - T, S))
    assert (grid.first_position(), grid.last_position()) == (S - T, S - 1)
    np.testing.assert_array_equal(masks.Grid.whole(T, S, 0).query_positions()[:, 0], np.arange(T))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: masks.explicit(np.zeros((T, S), "float32")), "goes into `bias`"),
        (lambda: masks.explicit(np.full((T, S), 2, "int32")), "or hold 0 and 1"),
        (
            lambda: masks.explicit(np.zeros((T,), bool)),
            r"must have shape \(T, S\), \(B, T, S\) or \(B, H, T, S\)",
        ),
        (lambda: masks.padding(np.array([1.0])), r"masks.padding: `valid_lens` must hold integers"),
        (
            lambda: masks.padding(np.zeros((1, 1, 1), int)),
            r"`valid_lens` must have shape \(B,\) or \(B, T\)",
        ),
        (lambda: masks.chunk_ends(3, 4), "`count` must be at most `size`=3. Received: count=4"),
        (lambda: masks.per_head([]), "`masks` must be a sequence of at least one mask"),
        (lambda: masks.per_head([masks.causal()], [1, 2]), "`heads` must hold a number for each"),
        (lambda: masks.per_head([masks.causal()], [0]), "`heads` must be a positive integer"),
        (lambda: masks.blocks(np.ones((2, 2)), 2), "masks.blocks: `plan` must be boolean"),
        (lambda: masks.blocks(np.ones(2, bool), 2), r"`plan` must have shape \(T/size, S/size\)"),
        (lambda: masks.positions_in_segments([0, 1]), r"`ids` must have shape \(B, T\)"),
        (lambda: masks.positions_in_segments([[0.5]]), "`ids` must hold integers"),
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
