"""Mask objects against plain NumPy, whole and block by block.

Masks joined at random, in any rectangle: `test_properties.py`.
"""

import keras
import numpy as np
import pytest
from keras import ops

import tfattn
from tests import reference
from tests.helpers.properties import check_hooks, covered
from tests.helpers.tensors import as_tensor, compiled, needs_compiling, tf
from tfattn import attend, biases, masks
from tfattn.core import objects
from tfattn.core.masks import base
from tfattn.core.masks.ranges import Bounds

B, H, T, S = 2, 3, 5, 7


def dense(mask, queries=T, keys=S):
    return np.asarray(mask.dense(queries, keys))


def spread(mask, queries=T, keys=S):
    """`(B, H, T, S)` of a mask with or without a batch and heads."""
    mask = np.asarray(mask)
    mask = mask[:, None] if mask.ndim == 3 else mask
    return np.broadcast_to(mask, (B, H, queries, keys))


PACKED = np.array([[0, 0, 1, 1, 2], [3, 3, 3, 3, 4]])
PACKED_KEYS = np.array([[0, 0, 0, 1, 1, 1, 2], [2, 3, 3, 3, 3, 4, 4]])

BY_HEAD = np.random.default_rng(0).random((1, H, T, S)) < 0.5

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
    "chunks": (masks.chunks(3), reference.chunks(3, T, S)),
    "explicit by head": (masks.explicit(BY_HEAD), BY_HEAD),
}


@pytest.mark.parametrize("name", RULES)
def test_mask_of_each_kind_equals_its_definition(name):
    mask, expected = RULES[name]
    causal = reference.causal(T, S)
    np.testing.assert_array_equal(spread(dense(mask)), spread(expected))
    config = keras.saving.serialize_keras_object(~mask & masks.causal())
    left, right = (config["config"][side] for side in ("left", "right"))
    written = [x["registered_name"] for x in (config, left, right, left["config"]["inner"])]
    inner = type(mask).__name__  # names that files keep
    assert written == [f"tfattn>masks.{x}" for x in ("_Both", "_Not", "causal", inner)]
    copy = keras.saving.deserialize_keras_object(config)
    np.testing.assert_array_equal(spread(dense(copy)), ~spread(expected) & causal)
    tensors, structure = objects.flatten(masks.causal() & ~mask | mask)
    assert objects.is_shareable(structure)
    assert hash(structure) == hash(objects.flatten(masks.causal() & ~mask | mask)[1])
    further = iter([*tensors, "the next"])
    again = objects.unflatten(structure, further)
    assert next(further) == "the next"  # it takes its own tensors and no others
    np.testing.assert_array_equal(spread(dense(again)), causal | spread(expected))


def test_mask_in_a_file_keeps_its_names():
    ids, other = [[0, 0, 1]], [[0, 1, 3]]
    for mask, config in (
        (masks.causal(), {}),
        (masks.window(2), {"size": 2}),
        (masks.padding([3, 0]), {"valid_lens": [3, 0]}),
        (masks.prefix([1, 4]), {"length": [1, 4]}),
        (masks.segments(ids, other), {"query_segments": ids, "key_segments": other}),
        (masks.explicit([[True, False]]), {"mask": [[True, False]]}),
    ):
        assert mask.get_config() == config


def test_mask_repr_reads_like_its_code():
    two = masks.causal() & masks.window(3)
    for rule, code in (
        (two, "masks.causal() & masks.window(3)"),
        (~two & (masks.prefix(2) | two), "~({0}) & (masks.prefix(2) | {0})"),
        (~~masks.causal() | masks.padding([3, 0]), "~~masks.causal() | masks.padding([3, 0])"),
        (masks.chunks(3) | masks.prefix(3), "masks.chunks(3) | masks.prefix(3)"),
        (biases.alibi(2) + biases.explicit([[0.5]]), "biases.alibi(2) + biases.explicit([[0.5]])"),
        (tfattn.scalings.linear(2.0), "scalings.linear(2.0)"),
    ):
        assert repr(rule) == code.format("masks.causal() & masks.window(3)")
        again = eval(repr(rule), {"masks": masks, "biases": biases, "scalings": tfattn.scalings})
        assert again.get_config() == rule.get_config()
    assert repr(masks.explicit(np.ones((T, S), bool))) == "masks.explicit(<bool, (5, 7)>)"

    class Own(masks.causal):
        def __init__(self, size=2, *, name):
            self.kept = size

    assert repr(Own(name="it")) == "Own()"

    class Two(masks.causal):
        def __init__(self, hidden, shown):
            self.shown = shown

    assert repr(Two(1, 2)) == "Two(shown=2)"
    assert "masks.explicit(<bool, (None, 7)>)" in repr(
        masks.explicit(keras.Input((7,), dtype="bool"))
    )


@pytest.mark.parametrize("name", RULES)
def test_mask_hooks_of_each_kind_agree_with_the_mask(name):
    mask, expected = RULES[name]
    for start in range(T):
        for queries in range(1, T - start + 1):
            check_hooks(mask, spread(expected), start, queries)
        check_hooks(~mask, ~spread(expected), start, T - start)


def test_mask_rectangle_that_divides_the_matrix_may_reach_beyond_it():
    block = np.asarray(masks.explicit(np.eye(12, dtype=bool)).on(masks.Grid(12, 12, 10, 0, 4, 12)))
    np.testing.assert_array_equal(block[:2], np.eye(12, dtype=bool)[10:])


def test_mask_positions_line_up_at_the_end():
    np.testing.assert_array_equal(dense(masks.causal(), 2, 5), [[1, 1, 1, 1, 0], [1, 1, 1, 1, 1]])
    np.testing.assert_array_equal(dense(masks.causal(), 3, 2), [[0, 0], [1, 0], [1, 1]])
    np.testing.assert_array_equal(dense(masks.window(1), 5, 5), np.eye(5, dtype=bool))


class Lengths(masks.Mask):
    """A length for each query, in a mask without hooks."""

    def on(self, grid):
        return grid.key_positions() < 1 + (5 * grid.query_rows() + 3) % 7


# No query sees some of their keys at some lengths.
EXACT = {
    "causal": masks.causal(),
    "not causal": ~masks.causal(),
    "window": masks.window(2),
    "not a window": ~masks.window(2),
    "causal window": masks.causal() & masks.window(3),
    "chunks": masks.chunks(3),
    "chunks or a prefix": masks.chunks(3) | masks.prefix(1),
    "padding": masks.padding(np.array([3, 0])),
    "causal and padding": masks.causal() & masks.padding(np.array([3, 0])),
    "window and padding": masks.window(2) & masks.padding(np.array([4, 9])),
    "lengths": Lengths(),
    "causal and lengths": masks.causal() & Lengths(),
    "a window, lengths and padding": masks.window(2) & Lengths() & masks.padding([2, 9]),
    "lengths and the same keys in two ways": Lengths()
    & ~(masks.padding([2, 1]) | ~masks.prefix(4)),
    "not lengths, and chunks": masks.chunks(3) & ~Lengths(),
    "not one of two": ~(masks.padding([2, 1]) | Lengths()),
    "lengths, and neighbors": (masks.window(2) | ~Lengths()) & Lengths(),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "convert", [int, pytest.param(tf and tf.constant, marks=pytest.mark.tensorflow)]
)
def test_mask_seen_keys_are_exact_for_any_lengths(convert):
    for name, mask in EXACT.items():
        for queries, keys in ((5, 7), (7, 5), (3, 11), (1, 7), (6, 6), (2, 1)):
            seen = spread(dense(mask, queries, keys), queries, keys)
            lengths = convert(queries), convert(keys)
            some = mask.seen_keys(masks.Grid.whole(*lengths))
            some = np.ones((1, 1), bool) if some is None else some
            some = np.broadcast_to(some, (B, keys))
            np.testing.assert_array_equal(some, seen.any(axis=(1, 2)), err_msg=name)
        for queries, keys in ((0, 0), (0, 3), (3, 0)):
            told = mask.seen_keys(masks.Grid.whole(queries, keys))
            assert told is None or told.shape[1] == keys


def test_mask_seen_keys_of_long_matrix_are_taken_a_few_rows_at_a_time(monkeypatch):
    asked = []

    class Noted(Lengths):
        def on(self, grid):
            asked.append(grid.queries * grid.keys)
            return super().on(grid)

    monkeypatch.setattr(base, "_PAIRS", 20)
    mask = masks.causal() & Noted()
    seen = dense(mask, 11, 7).any(axis=0)
    np.testing.assert_array_equal(mask.seen_keys(masks.Grid.whole(11, 7)), seen[None])
    assert not seen.all() and max(asked[1:]) <= 20


def test_mask_seen_keys_without_hidden_key_are_not_computed():
    packed, square = masks.segments(PACKED), masks.Grid.whole(5, 5)
    for mask in (masks.causal(), masks.window(2), masks.causal() & masks.window(2)):
        assert mask.seen_keys(masks.Grid.whole(S, S)) is None
    assert masks.causal().seen_keys(masks.Grid.whole(T, S)) is None
    assert packed.seen_keys(square) is (masks.causal() & packed).seen_keys(square) is None


def test_mask_seen_keys_of_causal_padding_are_those_of_padding_alone(monkeypatch):
    monkeypatch.setattr(masks.Mask, "seen_keys", None)  # which would take T × S pairs
    padding, square = masks.padding([3, 0]), masks.Grid.whole(5, 5)
    for mask in (masks.causal() & padding, padding & (masks.segments(PACKED) & masks.causal())):
        np.testing.assert_array_equal(mask.seen_keys(square), padding.seen_keys(square))


def test_segments_seen_keys_leave_out_other_segments():
    mask = masks.segments([[3, 5, 5]], [[1, 3, 4, 5, 7]])
    found = mask.seen_keys(masks.Grid.whole(3, 5))
    np.testing.assert_array_equal(found, [[False, True, False, True, False]])


def test_mask_hooks_skip_what_they_can():
    grid = masks.Grid(T, S, 1, 0, 2, S)  # the queries at positions 3 and 4
    local = masks.causal() & masks.window(2)
    bounds = Bounds.of(local, grid)
    assert bounds.seen == ((2, 5),) and bounds.most(S) == 3
    assert Bounds.of(masks.causal(), grid).full == (0, 4)
    assert (~local).is_relative and not (local | masks.prefix(1)).is_relative
    # padding tells by tensors alone: the window's ints are left
    assert Bounds.of(masks.padding([3, 0]) & masks.window(2), grid).most(S) == 4


class Second(masks.causal):
    """Every second key of a causal mask, without its own hooks."""

    def on(self, grid):
        return super().on(grid) & (grid.key_positions() % 2 == 0)


class Bounded(Second):
    """Its bounds alone."""

    def bounds(self, grid):
        return masks.causal.bounds(self, grid)[0], (0, 0)


class Named(masks.causal):
    """A causal mask by another name."""


def test_mask_hook_of_an_older_on_is_not_called():
    grid = masks.Grid(T, S, 1, 0, 2, S)
    for mask, bounds, full, most in (
        (Second(), (0, S), (0, 0), S),
        (Bounded(), (0, 5), (0, 0), 5),
        (Named(), (0, 5), (0, 4), 5),
    ):
        told = Bounds.of(mask, grid)
        assert told == ((bounds,), full, ()) and told.most(S) == most
        assert mask.is_relative == (~mask).is_relative == isinstance(mask, Named)
        assert Bounds.of(mask & masks.window(S), grid).seen == (bounds,)

    class Few(masks.padding):
        def on(self, grid):
            return super().on(grid) & (grid.query_rows() > 0)

    # Not by the older hook, which takes a length of 3 for the first query too.
    found = Few([3, 0]).seen_keys(masks.Grid.whole(1, S))
    np.testing.assert_array_equal(found, np.zeros((2, S), bool))


@pytest.mark.slow
@pytest.mark.tensorflow
def test_mask_restored_from_tensors_of_a_graph_equals_itself():
    parts = [objects.flatten(mask) for mask, _ in RULES.values()]
    arrays = [tensors for tensors, _ in parts]
    specs = keras.tree.map_structure(
        lambda x: tf.TensorSpec([None] * len(x.shape), x.dtype), arrays
    )

    @tf.function(input_signature=[specs])
    def restored(arrays):
        pairs = zip(parts, arrays, strict=True)
        return [objects.unflatten(of, tensors).dense(T, S) for (_, of), tensors in pairs]

    for found, (_, expected) in zip(restored(arrays), RULES.values(), strict=True):
        np.testing.assert_array_equal(spread(found), spread(expected))


def test_mask_of_one_kind_has_one_structure():
    def structure(mask):
        return objects.flatten(mask)[1]

    assert structure(masks.padding([1, 2])) == structure(masks.padding([3, 0]))
    assert (
        structure(masks.prefix([1])) == structure(masks.prefix([2])) != structure(masks.prefix(1))
    )
    assert structure(masks.window(2)) != structure(masks.window(3))
    assert structure(masks.causal() & masks.window(2)) != structure(
        masks.causal() | masks.window(2)
    )
    lengths, ids = as_tensor([3, 0]), as_tensor([[0, 0, 1, 1, 2]] * B)
    tensors, _ = objects.flatten(masks.padding(lengths) & ~masks.segments(ids))
    assert [x is y for x, y in zip(tensors, [lengths, ids, ids], strict=True)] == [True] * 3


def test_mask_of_ones_own_stays_whole_inside_of_others():
    class Local(masks.window):
        def __init__(self, size, step):
            super().__init__(size)
            self.step = step

        def on(self, grid):
            return super().on(grid) & (grid.key_positions() % self.step == 0)

    own = Local(3, 2)
    tensors, structure = objects.flatten(masks.padding([3, 0]) & own)
    assert len(tensors) == 1 and not objects.is_shareable(structure)
    again = objects.unflatten(structure, tensors)
    np.testing.assert_array_equal(
        dense(again), dense(masks.padding([3, 0]) & masks.explicit(own.dense(T, S)))
    )
    assert structure == objects.flatten(masks.padding([1, 2]) & own)[1]
    assert structure != objects.flatten(masks.padding([1, 2]) & Local(3, 2))[1]
    assert not objects.is_shareable(objects.flatten([np.array(2)])[1])
    for number in (1.0, True):  # each equals 1
        assert objects.flatten([number])[1] != objects.flatten([1])[1]


@needs_compiling
@pytest.mark.parametrize("path", ["dense", "streamed"])
def test_mask_of_ones_own_reads_its_attributes_in_any_graph(path):
    class Near(masks.Mask):
        __slots__ = ("size",)  # which `vars` does not tell

        def __init__(self, size):
            self.size = ops.convert_to_tensor(size)

        def on(self, grid):
            return abs(grid.key_positions() - grid.query_positions()) < int(self.size)

    near = Near(2)
    x = as_tensor(np.random.default_rng(0).normal(size=(1, 5, 3)).astype("float32"))
    found = compiled(lambda x: attend(x, x, mask=near, path=path))(x)
    np.testing.assert_allclose(found, attend(x, x, mask=masks.window(2)), rtol=1e-5)


def test_mask_with_an_offset_sees_what_it_sees_in_the_square():
    for mask in (
        masks.causal(),
        masks.causal() & masks.window(3),
        ~masks.causal() | masks.prefix(1),
        masks.chunks(3),
    ):
        square = np.broadcast_to(dense(mask, S, S), (S, S))
        for position in range(S - 1):
            offset = as_tensor(position) if position % 2 else position
            grid = masks.Grid.whole(2, S, offset=offset)
            rows = square[position : position + 2]
            np.testing.assert_array_equal(np.broadcast_to(mask.on(grid), (2, S)), rows)
            bounds = Bounds.of(mask, grid)
            assert not rows[:, ~covered(bounds.hull, S)].any()
            assert rows[:, covered(bounds.full, S)].all()


def test_grid_positions_begin_at_the_offset():
    for offset, position in ((None, S - T), (0, 0), (as_tensor(1), 1)):
        grid = masks.Grid.whole(T, S, offset=offset)
        positions = np.arange(position, position + T)
        np.testing.assert_array_equal(grid.query_positions()[:, 0], positions)
        assert (int(grid.first_position()), int(grid.last_position())) == (*positions[[0, -1]],)
        second = grid._replace(query_start=1, queries=1)
        assert int(second.first_position()) == int(second.last_position()) == position + 1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: masks.explicit(np.zeros((T, S), "float32")), "goes into `bias`"),
    ],
)
def test_mask_with_invalid_arguments_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
