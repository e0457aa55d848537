"""Blocks that a mask by distance cuts through, taken in strips before the walk: the same as the dense path in all."""

import contextlib

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from tests.streaming import assert_close
from tfattn import attend, masks
from tfattn.core import scores as score_functions
from tfattn.core import streamed
from tfattn.core.streamed import block_scores, edge
from tfattn.core.streamed.block_dropout import Dropout
from tfattn.core.streamed.blocks import Square
from tfattn.core.streamed.edge import Edge
from tfattn.core.streamed.layouts import Plain
from tfattn.core.streamed.reach import Diagonals
from tfattn.core.streamed.walk import Walk

SCORE = score_functions.dot_product


class Earlier(masks.Mask):
    """Keys from eight before the query back to the first."""

    by_distance = True

    def on(self, grid):
        return grid.key_positions() <= grid.query_positions() - 8

    def key_bounds(self, grid):
        return 0, grid.last_position() - 7

    def open_bounds(self, grid):
        return 0, grid.first_position() - 7


class OfTheSquare(masks.Mask):
    """A window whose open bounds are those of the queries in the square, and wider than of what lies beyond."""

    by_distance = True

    def on(self, grid):
        return abs(grid.key_positions() - grid.query_positions()) < 5

    def key_bounds(self, grid):
        return grid.first_position() - 4, grid.last_position() + 5

    def open_bounds(self, grid):
        return min(grid.last_position(), grid.num_keys - 1) - 4, grid.first_position() + 5


class Unbounded(masks.Mask):
    """The causal mask, which does not say what it leaves out."""

    by_distance = True

    def on(self, grid):
        return grid.key_positions() <= grid.query_positions()


MASKS = {"causal": masks.causal(), "~causal": ~masks.causal(), "earlier": Earlier()}


def operands(rows, heads, groups, queries, keys, dtype="float32", seed=1):
    """query, key, value and an upstream gradient, of 7 and 5 features."""
    draw = np.random.default_rng(seed).normal
    shapes = [(rows, heads, queries, 7), (rows, groups, keys, 7), (rows, groups, keys, 5), (rows, heads, queries, 5)]
    query, *others = (draw(size=shape) for shape in shapes)
    return [tf.constant(x, dtype) for x in (7**-0.5 * query, *others)]


def here(mask, query, key, value, upstream, block, **options):
    """Output and gradients of the streamed path."""
    with tf.GradientTape() as tape:
        tape.watch([query, key, value])
        output = streamed.attend(query, value, key, SCORE, mask=mask, block=block, **options)
    return [output, *tape.gradient(output, [query, key, value], upstream)]


def dense(mask, query, key, value, kept=1.0):
    repeats = query.shape[1] // key.shape[1]
    keys, values = (tf.repeat(x, repeats, axis=1) for x in (key, value))
    seen = masks.explicit(mask.dense(query.shape[2], key.shape[2]))
    identity = tf.eye(key.shape[2], batch_shape=keys.shape[:2], dtype=keys.dtype)
    return (attend(query, identity, keys, SCORE, mask=seen, path="dense") * kept) @ values


def there(mask, query, key, value, upstream, kept=1.0):
    """And of the dense one, whose weights are multiplied by `kept`."""
    with tf.GradientTape() as tape:
        tape.watch([query, key, value])
        output = dense(mask, query, key, value, kept)
    return [output, *tape.gradient(output, [query, key, value], upstream)]


@contextlib.contextmanager
def edges(strips=4, numbers=2**19):
    """The edges of the walks in this context, None where one has none: of so many strips, and numbers a run, at most."""
    found, of = [], Edge.of

    def noted(*arguments):
        found.append(of(*arguments))
        return found[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(edge, "_STRIPS", strips)
        patch.setattr(edge, "_MOST_NUMBERS", numbers)
        patch.setattr(edge, "_LEAST_IN_A_RUN", 1)
        patch.setattr(Edge, "of", noted)
        patch.setattr(streamed.Band, "of", lambda *arguments: None)  # walked plainly, however narrow
        yield found


@given(
    name=st.sampled_from([*MASKS]),
    heads=st.sampled_from([(1, 1), (3, 3), (4, 2), (3, 1)]),
    queries=st.integers(1, 40),
    further=st.integers(-2, 3),
    side=st.integers(2, 13),
    strips=st.integers(2, 7),
    numbers=st.sampled_from([1, 100, 300, 2**19]),
)
@example("causal", (2, 2), 40, 0, 8, 4, 2**19)  # one run
@example("causal", (2, 2), 40, 0, 8, 4, 1)  # each block a run
@example("causal", (4, 2), 41, 0, 7, 3, 300)  # strips that are not equal, padded blocks, a run that lacks one
@example("causal", (1, 1), 32, 1, 8, 4, 2**19)  # a diagonal further on
@example("causal", (3, 1), 40, -1, 8, 4, 2**19)  # and behind: queries before all keys
@example("causal", (1, 1), 11, 0, 13, 4, 2**19)  # one block, and nothing left
@example("earlier", (1, 1), 40, 0, 8, 4, 64)  # a diagonal that leaves the square, and a run that lacks one
@example("earlier", (2, 1), 40, 0, 8, 4, 500)
@example("~causal", (1, 1), 40, 0, 8, 4, 2**19)
@example("~causal", (1, 1), 16, 0, 4, 4, 2**19)  # a strip that sees nothing of its block
@example("~causal", (1, 1), 13, 0, 7, 2, 2**19)  # padded keys, which the mask alone leaves open
@settings(max_examples=25, deadline=None)
def test_an_edge_equals_the_dense_path_for_any_lengths_sides_strips_and_runs(
    name, heads, queries, further, side, strips, numbers
):
    keys = queries + further * side
    assume(keys > 0)
    mask, arguments = MASKS[name], operands(2, *heads, queries, keys)
    with edges(strips, numbers) as found:
        pulled = here(mask, *arguments, (side, side))
    assume(found[0] is not None)
    assert len(found) == 2 and found[1] is not None and len(found[0].strips) <= strips
    assert_close(pulled, there(mask, *arguments), 2e-5)


@pytest.mark.parametrize(
    ("heads", "queries", "step"),
    [((2, 2), 521, (1, 2, 2)), ((1, 1), 521, (2, 1, 1)), ((2, 2), 256, (2, 2, 2)), ((4, 2), 256, (1, 4, 2))],
    ids=str,
)
def test_an_edge_of_several_heads_and_rows_side_by_side_equals_the_dense_path(heads, queries, step):
    arguments = operands(4, *heads, queries, queries)
    with edges() as found:
        pulled = here(masks.causal(), *arguments, None)
    square = found[0].square
    assert (square.chunk, square.heads, square.groups) == step
    assert_close(pulled, there(masks.causal(), *arguments), 2e-5)


def test_an_edge_where_blocks_that_are_cut_through_lie_on_one_diagonal():
    def shape(mask, queries=4096, keys=4096, heads=(2, 2), rows=2, block=None, score=None, bias=None):
        query, key = tf.zeros((rows, heads[0], queries, 2)), tf.zeros((rows, heads[1], keys, 2))
        score = score or block_scores.Dot(True)
        square = Square.cut(query, key, score, mask, block, apart=True)
        found = Edge.of(Plain(square, mask), Diagonals.of(mask, square), score, bias)
        if found is None:
            return None
        numbers = square.chunk * square.heads * max(strip.queries for strip in found.strips) * square.columns
        assert found.run == 1 or found.run * numbers <= 2**19
        return found.shift, [strip.high - strip.low for strip in found.strips], found.run

    assert shape(masks.causal()) == (0, [128, 256, 384, 512], 8)
    assert shape(masks.causal(), 16384, 16384) == (0, [128, 256, 384, 512], 8)
    assert shape(masks.causal(), 4608, 4608) == (0, [128, 256, 384, 512], 5)  # nine blocks in two runs
    assert shape(masks.causal(), 2048, 4096) == (4, [128, 256, 384, 512], 4)
    assert shape(masks.causal(), 1536, 1536) is None  # three blocks
    assert shape(masks.causal(), 256, 256, (8, 8), 4) is None  # four heads side by side, and one block
    assert shape(~masks.causal()) == (0, [511, 383, 255, 127], 8)
    assert shape(masks.causal(), block=(512, 256)) is None
    assert shape(masks.causal(), heads=(8, 1)) is None  # eight heads below each other: 64 queries and 512 keys
    assert shape(masks.causal(), bias=tf.zeros((1, 1, 1, 1))) is None
    assert shape(masks.causal(), score=block_scores.AnyScore(SCORE, 4)) is None
    assert shape(Unbounded(), 512, 512) is None  # a strip sees as much as a block, as far as is known
    for mask in (None, masks.padding([4096, 7]), masks.padding([4096, 7]) & masks.causal(), masks.prefix(600)):
        assert shape(mask) is None
    for mask in (masks.window(1024), masks.window(1024) & masks.causal()):
        assert shape(mask, 8192, 8192) is None  # two diagonals
    assert shape(masks.causal(), 4096, 4100) is None  # likewise: the last query stands within a block of keys
    assert shape(~masks.causal(), 4001, 4001) is None  # padded keys, which each block of queries sees


@pytest.mark.parametrize("mask", [OfTheSquare(), Unbounded()])
def test_a_mask_without_an_edge_equals_the_dense_path(mask):
    arguments = operands(2, 2, 2, 41, 41)
    with edges() as found:
        pulled = here(mask, *arguments, (4, 4))
    assert found == [None, None]
    assert_close(pulled, there(mask, *arguments), 2e-5)


def counted(monkeypatch, *names):
    """How many numbers the blocks and strips of scores have, one after the other."""
    counts = []

    def count(name):
        function = getattr(block_scores.Dot, name)

        def call(*arguments):
            scores = function(*arguments)
            counts.append(int(tf.size(scores)))
            return scores

        monkeypatch.setattr(block_scores.Dot, name, call)

    for name in names:
        count(name)
    return counts


def test_the_walk_of_an_edge_asks_no_mask(monkeypatch):
    calls, hide = [], Walk._hide

    def hidden(walk, scores, *arguments):
        calls.append(hide(walk, scores, *arguments) is scores)
        return scores

    monkeypatch.setattr(Walk, "_hide", hidden)
    with edges() as found:
        tf.function(here).get_concrete_function(masks.causal(), *operands(1, 1, 1, 64, 64), (8, 8))
    assert None not in found and len(calls) > 1 and all(calls)


def test_an_edge_leaves_out_what_strips_do_not_see(monkeypatch):
    counts = counted(monkeypatch, "scores", "shifted")
    with edges() as found:
        here(masks.causal(), *operands(1, 1, 1, 64, 64), (8, 8))
    assert None not in found
    assert sum(counts) == 2 * 64 * (28 + 8 * (1 + 2 + 3 + 4) / 16)  # of 36 blocks, on both ways
    assert max(counts) == 8 * 2 * 8  # a run of eight strips of two queries and eight keys


@pytest.mark.parametrize(
    "name, heads, sizes",
    [
        ("causal", (2, 2), (30, 30)),  # padded: four blocks of eight
        ("causal", (4, 2), (32, 32)),
        ("causal", (3, 1), (24, 32)),
        ("earlier", (2, 2), (48, 48)),
    ],
)
@pytest.mark.parametrize("jit", [False, True], ids=["graph", "XLA"])
def test_an_edge_in_a_graph_and_under_xla_with_a_batch_of_any_size(name, heads, sizes, jit):
    mask, arguments = MASKS[name], operands(3, *heads, *sizes)

    @tf.function(jit_compile=jit, input_signature=[tf.TensorSpec((None, *x.shape[1:])) for x in arguments])
    def run(*arguments):
        return here(mask, *arguments, (8, 8))

    with edges(numbers=200) as found:
        assert_close(run(*arguments), there(mask, *arguments), 2e-5)
    assert found and None not in found
    if not jit:
        empty = [x[:0] for x in arguments]
        assert [x.shape for x in run(*empty)] == [empty[3].shape, *[x.shape for x in empty[:3]]]


@pytest.mark.parametrize("dtype, tolerance", [("float16", 4e-2), ("bfloat16", 2e-1), ("float64", 1e-12)])
def test_an_edge_in_other_dtypes(dtype, tolerance):
    arguments = operands(2, 2, 1, 31, 31, dtype)
    with edges() as found:
        pulled = here(masks.causal(), *arguments, (8, 8))
    assert None not in found and all(x.dtype == dtype for x in pulled)
    assert_close(pulled, there(masks.causal(), *[tf.cast(x, "float64") for x in arguments]), tolerance)


@pytest.mark.parametrize("broken", [float("nan"), float("inf"), 3e38])
@pytest.mark.parametrize("at", [0, 17, 30])
@pytest.mark.parametrize("which", ["key", "value"])
def test_a_broken_token_reaches_the_queries_of_an_edge_that_may_see_it_and_no_other(which, at, broken):
    query, key, value, upstream = operands(1, 2, 2, 31, 31)
    tokens = {"key": key, "value": value}
    tokens[which] = tf.where(tf.range(31)[:, None] == at, broken, tokens[which])
    with edges() as found:
        clean = here(masks.causal(), query, key, value, upstream, (8, 8))
        output, of_query, *_ = here(masks.causal(), query, tokens["key"], tokens["value"], upstream, (8, 8))
    assert None not in found
    np.testing.assert_array_equal(output.numpy()[:, :, :at], clean[0].numpy()[:, :, :at])
    if broken != 3e38:
        np.testing.assert_array_equal(of_query.numpy()[:, :, :at], clean[1].numpy()[:, :, :at])
        assert not np.isfinite(output.numpy()[:, :, at:]).any()


def test_queries_of_an_edge_that_see_nothing_pool_to_zero_with_zero_gradients():
    with edges() as found:
        output, of_query, of_key, of_value = here(~masks.causal(), *operands(2, 2, 2, 24, 24), (8, 8))
        behind, of_behind, *_ = here(masks.causal(), *operands(2, 2, 2, 24, 12), (4, 4))
    assert None not in found
    assert np.all(output[:, :, -1] == 0) and np.all(of_query[:, :, -1] == 0) and np.any(output[:, :, -2] != 0)
    assert np.all(of_key[:, :, 0] == 0) and np.all(of_value[:, :, 0] == 0)  # and nobody sees the first key
    assert np.all(behind[:, :, :12] == 0) and np.all(of_behind[:, :, :12] == 0) and np.any(behind[:, :, 12] != 0)


def moved(query, key, by):
    """Queries and keys of one more feature, whose product moves all scores of a query."""
    by = tf.constant(by, query.dtype)[:, None] + 0 * query[..., :1]
    return [tf.concat([query, by], -1), tf.concat([key, 1 + 0 * key[..., :1]], -1)]


@pytest.mark.parametrize("name", ["causal", "earlier", "~causal"])
@pytest.mark.parametrize("kind", ["times 60", "overflow", "vanish"])
def test_exponentials_of_an_edge_that_overflow_or_vanish_for_some_queries(kind, name):
    mask, (query, key, value, upstream) = MASKS[name], operands(1, 4, 2, 40, 40)
    third = np.arange(40) % 3 == 0
    if kind == "times 60":
        query = query * tf.where(third[:, None], 60.0, 1.0)
    else:
        query, key = moved(query, key, np.where(third, 100.0 if kind == "overflow" else -100.0, 0.0))
    with edges(numbers=300) as found:
        pulled = here(mask, query, key, value, upstream, (8, 8))
    assert None not in found
    wide = there(mask, *[tf.cast(x, "float64") for x in (query, key, value, upstream)])
    assert_close([x[..., :7] for x in pulled], [x[..., :7] for x in wide], 1e-3)


def test_an_edge_is_computed_again_for_a_block_of_queries_whose_sums_would_not_do(monkeypatch):
    counts = counted(monkeypatch, "scores")

    def blocks(at):
        counts.clear()
        query, key, value, _ = operands(1, 1, 1, 32, 32)
        query, key = moved(query, key, np.where(np.arange(32) == at, 100.0, 0.0))
        streamed.attend(query, value, key, SCORE, mask=masks.causal(), block=(8, 8))
        return sum(counts) / 64

    with edges() as found:
        assert blocks(-1) == 6 + 4 * 10 / 16
        assert blocks(0) == 6 + 5 * 10 / 16
        assert blocks(19) == 8 + 5 * 10 / 16
    assert None not in found


@pytest.mark.parametrize("by", [0.0, 100.0], ids=["sums", "merges"])
@pytest.mark.parametrize("name, heads", [("causal", (2, 2)), ("causal", (4, 2)), ("earlier", (1, 1))])
def test_dropout_of_an_edge_is_the_same_both_ways_and_in_both_poolings(name, heads, by):
    mask, (query, key, value, upstream) = MASKS[name], operands(2, *heads, 40, 40)
    options = {"block": (8, 8), "dropout": 0.4, "seed": 7}
    with edges(numbers=300) as found:
        identity = tf.eye(40, batch_shape=[2, heads[1]])
        kept = streamed.attend(query, identity, key, SCORE, mask=mask, **options) > 0
        pulled = here(mask, *moved(query, key, np.full(40, by)), value, upstream, **options)
    assert None not in found
    kept = tf.cast(kept, "float32")
    seen = tf.reduce_sum(tf.cast(mask.dense(40, 40), "float32"))
    assert abs(tf.reduce_sum(kept) / (2 * heads[0] * seen) - 0.6) < 0.05
    by_hand = there(mask, query, key, value, upstream, kept / 0.6)
    assert_close([x[..., :7] for x in pulled], by_hand, 1e-3)
    # Of a pooling that is linear in the values, the gradient by them times the values is the output's sum again.
    np.testing.assert_allclose(tf.reduce_sum(pulled[3] * value), tf.reduce_sum(pulled[0] * upstream), rtol=1e-3)


@pytest.mark.parametrize("name, heads", [("causal", (4, 2)), ("earlier", (1, 1))])
def test_no_two_blocks_or_strips_of_an_edge_share_a_dropout_pattern(name, heads, monkeypatch):
    numbers, keep = [], Dropout.keep

    def noted(dropout, number, *rest):
        if not isinstance(number, list):
            numbers.append(int(number))
        return keep(dropout, number, *rest)

    monkeypatch.setattr(Dropout, "keep", noted)
    query, key, value, upstream = operands(3, *heads, 48, 48)
    with edges() as found, tf.GradientTape() as tape:
        tape.watch(value)
        output = streamed.attend(query, value, key, SCORE, mask=MASKS[name], block=(8, 8), dropout=0.4, seed=3)
        forward = [*numbers]
        numbers.clear()
        tape.gradient(output, value, upstream)
    assert None not in found
    assert len(forward) == len(set(forward)) > 3 * 6 * len(found[0].strips)
    assert sorted(numbers) == sorted(forward)


def test_strips_of_one_run_and_blocks_drop_by_patterns_of_their_own():
    tokens, side = 256, 64
    x, identity = tf.zeros((1, 1, tokens, 2)), tf.eye(tokens, batch_shape=[1, 1])
    options = {"mask": masks.causal(), "block": (side, side), "dropout": 0.5, "seed": 3}
    with edges() as found:
        weights = streamed.attend(x, identity, x, SCORE, **options)
    kept = np.asarray(weights > 0).reshape(4, side, 4, side)
    patterns = [kept[i, :16, j, :16].ravel() for i in range(4) for j in range(i)]
    patterns += [kept[i, p : p + 16, i, :16].ravel() for i in range(4) for p in (16, 32, 48)]
    same = np.mean(np.stack(patterns)[:, None] == patterns, -1)[~np.eye(len(patterns), dtype=bool)]
    assert None not in found
    assert np.all(np.abs(same - 0.5) < 0.2)  # 6 deviations of 256 coins
    np.testing.assert_allclose(same.mean(), 0.5, atol=0.02)


@pytest.mark.parametrize(
    "name, sizes, compiled",
    [("causal", (11, 11), False), ("causal", (8, 12), False), ("earlier", (16, 16), False), ("causal", (8, 12), True)],
)
def test_second_derivatives_of_an_edge_equal_the_dense_path(name, sizes, compiled):
    mask, arguments = MASKS[name], operands(2, 2, 1, *sizes)

    def penalty(path, *arguments):
        *sources, upstream = arguments
        with tf.GradientTape() as outer:
            outer.watch(sources)
            _, *gradients = path(mask, *sources, upstream)
            total = tf.add_n([tf.reduce_sum(tf.square(x)) for x in gradients])
        return outer.gradient(total, sources)

    def run(*arguments):
        return penalty(lambda *problem: here(*problem, (4, 4)), *arguments)

    with edges(numbers=30) as found:
        second = (tf.function(run) if compiled else run)(*arguments)
    assert len(found) > 2 and None not in found
    assert_close(second, penalty(there, *arguments), 1e-3)
