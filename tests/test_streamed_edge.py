"""Blocks on the diagonal, pooled in strips before the walk forward: the same as the dense path in
all.
"""

import contextlib

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from tests.streaming import assert_close
from tfattn import attend, masks
from tfattn.core import scores as score_functions
from tfattn.core.paths.blockwise import attend as streamed
from tfattn.core.paths.blockwise import block_scores, edge
from tfattn.core.paths.blockwise.blocks import Square
from tfattn.core.paths.blockwise.edge import Edge
from tfattn.core.paths.blockwise.reach import Diagonals
from tfattn.core.paths.blockwise.walk import Walk

SCORE = score_functions.dot_product


class Earlier(masks.Mask):
    """Keys from so many before the query, or after it, back to the first."""

    by_distance = True

    def __init__(self, by):
        self.by = by

    def on(self, grid):
        return grid.key_positions() <= grid.query_positions() - self.by

    def key_bounds(self, grid):
        return 0, grid.last_position() - self.by + 1

    def open_bounds(self, grid):
        return 0, grid.first_position() - self.by + 1


class OfTheSquare(masks.Mask):
    """A window whose open bounds are those of the queries in the square, and wider than of what
    lies beyond.
    """

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


MASKS = {
    "causal": masks.causal(),
    "~causal": ~masks.causal(),
    "before": Earlier(1),
    "8 before": Earlier(8),
    "3 after": Earlier(-3),
}


def operands(rows, heads, groups, queries, keys, dtype="float32", seed=1):
    """query, key, value and an upstream gradient, of 7 and 5 features."""
    draw = np.random.default_rng(seed).normal
    shapes = [
        (rows, heads, queries, 7),
        (rows, groups, keys, 7),
        (rows, groups, keys, 5),
        (rows, heads, queries, 5),
    ]
    query, *others = (draw(size=shape) for shape in shapes)
    return [tf.constant(x, dtype) for x in (7**-0.5 * query, *others)]


def here(mask, query, key, value, upstream, block, **options):
    """Output and gradients of the streamed path."""
    with tf.GradientTape() as tape:
        tape.watch([query, key, value])
        output = streamed.attend(query, value, key, SCORE, mask=mask, block=block, **options)
    return [output, *tape.gradient(output, [query, key, value], upstream)]


def there(mask, query, key, value, upstream):
    """And of the dense one."""
    seen = masks.explicit(mask.dense(query.shape[2], key.shape[2]))
    with tf.GradientTape() as tape:
        tape.watch([query, key, value])
        output = attend(query, value, key, SCORE, mask=seen, path="dense")
    return [output, *tape.gradient(output, [query, key, value], upstream)]


@contextlib.contextmanager
def edges(strips=4, numbers=2**19):
    """The edges of the walks in this context, None where one has none: of so many strips, and
    numbers a run, at most.
    """
    found, of = [], Edge.of

    def noted(*arguments):
        found.append(of(*arguments))
        return found[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(edge, "_STRIPS", strips)
        patch.setattr(edge, "_MOST_NUMBERS", numbers)
        patch.setattr(edge, "_LEAST_IN_A_RUN", 1)
        patch.setattr(Edge, "of", noted)
        # walked plainly, however narrow
        patch.setattr(streamed.Band, "of", lambda *arguments: None)
        yield found


@given(
    name=st.sampled_from([*MASKS]),
    heads=st.integers(1, 3),
    queries=st.integers(1, 40),
    side=st.integers(2, 13),
    strips=st.integers(2, 7),
    numbers=st.sampled_from([200, 300, 2**19]),
)
@example("causal", 2, 40, 8, 4, 2**19)  # one run
@example("causal", 2, 40, 8, 4, 16)  # each block a run
# strips that are not equal, padded blocks, a run that lacks one
@example("causal", 2, 41, 7, 3, 80)
@example("causal", 1, 11, 13, 4, 2**19)  # one block, and nothing left
@example("before", 2, 40, 8, 4, 64)  # a query that sees nothing
# eight keys more than queries: by position the diagonal is another
@example("8 before", 1, 40, 8, 4, 2**19)
@example("~causal", 1, 40, 8, 4, 2**19)
@example("~causal", 1, 16, 4, 4, 2**19)  # a strip that sees nothing of its block
@settings(max_examples=25, deadline=None)
def test_an_edge_equals_the_dense_path_for_any_lengths_sides_strips_and_runs(
    name, heads, queries, side, strips, numbers
):
    keys = queries + {"8 before": 8, "3 after": -3}.get(name, 0)
    assume(keys > 0)
    mask, arguments = MASKS[name], operands(2, heads, heads, queries, keys)
    with edges(strips, numbers) as found:
        pulled = here(mask, *arguments, (side, side))
    assume(found[0] is not None)
    assert len(found[0].strips) <= strips
    assert_close(pulled, there(mask, *arguments), 2e-5)


@pytest.mark.parametrize(
    ("heads", "rows", "queries", "step"),
    [(2, 4, 521, (1, 2)), (1, 4, 521, (2, 1)), (2, 4, 256, (2, 2))],
    ids=str,
)
def test_an_edge_of_several_heads_and_rows_side_by_side_equals_the_dense_path(
    heads, rows, queries, step
):
    arguments = operands(rows, heads, heads, queries, queries)
    with edges() as found:
        pulled = here(masks.causal(), *arguments, None)
    square = found[0].square
    assert (square.chunk, square.heads) == step
    assert_close(pulled, there(masks.causal(), *arguments), 2e-5)


def test_an_edge_where_the_blocks_that_are_cut_through_are_those_on_the_diagonal():
    def shape(mask, queries=4096, keys=4096, heads=(2, 2), rows=2, block=None, score=None):
        query, key = tf.zeros((rows, heads[0], queries, 2)), tf.zeros((rows, heads[1], keys, 2))
        score = score or block_scores.Dot(True)
        square = Square.cut(query, key, score, mask, block, apart=True)
        found = Edge.of(mask, square, Diagonals.of(mask, square), score)
        if found is None:
            return None
        numbers = square.chunk * square.heads * max(strip.numbers for strip in found.strips)
        assert found.run * numbers <= 2**18
        return [strip.high - strip.low for strip in found.strips], found.run

    assert shape(masks.causal()) == ([128, 256, 384, 512], 4)
    assert shape(masks.causal(), 16384, 16384) == ([128, 256, 384, 512], 4)
    # nine blocks in three runs
    assert shape(masks.causal(), 4608, 4608) == ([128, 256, 384, 512], 3)
    assert shape(masks.causal(), 3001, 3001) == ([125, 250, 375, 501], 3)  # padded
    assert shape(masks.causal(), 1536, 1536) is None  # three blocks
    # four heads side by side, and one block
    assert shape(masks.causal(), 256, 256, (8, 8), 4) is None
    assert shape(~masks.causal()) == ([511, 383, 255, 127], 4)
    assert shape(masks.causal(), block=(256, 256)) == ([64, 128, 192, 256], 16)
    assert shape(masks.causal(), block=(512, 256)) is None
    # eight heads below each other: 64 queries and 512 keys
    assert shape(masks.causal(), heads=(8, 1)) is None
    assert shape(masks.causal(), heads=(2, 1), block=(256, 256)) is None  # two below each other
    assert shape(masks.causal(), score=block_scores.AnyScore(SCORE, 4)) is None
    assert shape(Unbounded(), 2048, 2048) is None  # which blocks it leaves open is not known
    assert shape(Earlier(1)) == ([127, 255, 383, 511], 4)
    assert shape(Earlier(512)) is None  # another diagonal
    assert shape(Earlier(512), 2048, 2560) == ([128, 256, 384, 512], 4)
    assert shape(masks.causal(), 2048, 4096) is None
    assert shape(masks.causal(), 4096, 2048) is None
    # the last queries see the padding on the diagonal
    assert shape(Earlier(-3), 4096, 4093) is None
    for mask in (
        None,
        masks.padding([4096, 7]),
        masks.padding([4096, 7]) & masks.causal(),
        masks.prefix(600),
    ):
        assert shape(mask) is None
    for mask in (masks.window(1024), masks.window(1024) & masks.causal()):
        assert shape(mask, 8192, 8192) is None  # two diagonals
    # likewise: the last query stands within a block of keys
    assert shape(masks.causal(), 4096, 4100) is None
    # padded keys, which each block of queries sees
    assert shape(~masks.causal(), 4001, 4001) is None


@pytest.mark.parametrize(
    ("mask", "sizes", "block"),
    [
        (OfTheSquare(), (41, 41), (4, 4)),
        (Unbounded(), (41, 41), (4, 4)),
        (Earlier(-3), (40, 37), (8, 8)),  # queries of the last block see padding
        (masks.causal(), (21, 22), (7, 8)),  # blocks that are no squares, three of each
    ],
)
def test_what_has_no_edge_equals_the_dense_path(mask, sizes, block):
    arguments = operands(2, 2, 2, *sizes)
    with edges() as found:
        pulled = here(mask, *arguments, block)
    assert found and set(found) == {None}
    assert_close(pulled, there(mask, *arguments), 2e-5)


@pytest.mark.parametrize("option", ["dropout", "bias"])
def test_dropout_and_biases_have_no_edge(option):
    options = {"dropout": {"dropout": 0.1, "seed": 1}, "bias": {"bias": tf.ones((1, 1, 1, 1))}}[
        option
    ]
    with edges() as found:
        here(masks.causal(), *operands(1, 1, 1, 40, 40), (8, 8), **options)
    assert found == []


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


def test_an_edge_leaves_out_what_strips_do_not_see_and_the_walk_then_asks_no_mask(monkeypatch):
    counts, asked = counted(monkeypatch, "scores"), []
    monkeypatch.setattr(Walk, "_visible", lambda *arguments: asked.append(arguments))
    query, key, value, _ = operands(1, 1, 1, 64, 64)
    with edges() as found:
        streamed.attend(query, value, key, SCORE, mask=masks.causal(), block=(8, 8))
    assert None not in found and not asked
    assert sum(counts) == 64 * (28 + 8 * (1 + 2 + 3 + 4) / 16)  # of 36 blocks
    assert max(counts) == 8 * 2 * 8  # a run of eight strips of two queries and eight keys


@pytest.mark.parametrize(
    "name, sizes", [("causal", (30, 30)), ("~causal", (32, 32)), ("8 before", (40, 48))]
)
@pytest.mark.parametrize("jit", [False, True], ids=["graph", "XLA"])
def test_an_edge_in_a_graph_and_under_xla_with_a_batch_of_any_size(name, sizes, jit):
    mask, arguments = MASKS[name], operands(3, 2, 2, *sizes)

    @tf.function(
        jit_compile=jit, input_signature=[tf.TensorSpec((None, *x.shape[1:])) for x in arguments]
    )
    def run(*arguments):
        return here(mask, *arguments, (8, 8))

    with edges(numbers=50) as found:
        assert_close(run(*arguments), there(mask, *arguments), 2e-5)
    assert found and None not in found
    if not jit:
        empty = [x[:0] for x in arguments]
        assert [x.shape for x in run(*empty)] == [empty[3].shape, *[x.shape for x in empty[:3]]]


@pytest.mark.parametrize(
    "dtype, tolerance", [("float16", 4e-2), ("bfloat16", 2e-1), ("float64", 1e-12)]
)
def test_an_edge_in_other_dtypes(dtype, tolerance):
    arguments = operands(2, 2, 2, 31, 31, dtype)
    with edges() as found:
        pulled = here(masks.causal(), *arguments, (8, 8))
    assert found and None not in found and all(x.dtype == dtype for x in pulled)
    assert_close(
        pulled, there(masks.causal(), *[tf.cast(x, "float64") for x in arguments]), tolerance
    )


@pytest.mark.parametrize("broken", [float("nan"), float("inf"), 3e38])
@pytest.mark.parametrize("at", [0, 17, 30])
@pytest.mark.parametrize("which", ["key", "value"])
def test_a_broken_token_reaches_the_queries_of_an_edge_that_may_see_it_and_no_other(
    which, at, broken
):
    query, key, value, upstream = operands(1, 2, 2, 31, 31)
    tokens = {"key": key, "value": value}
    tokens[which] = tf.where(tf.range(31)[:, None] == at, broken, tokens[which])
    with edges() as found:
        clean = here(masks.causal(), query, key, value, upstream, (8, 8))
        output, of_query, *_ = here(
            masks.causal(), query, tokens["key"], tokens["value"], upstream, (8, 8)
        )
    assert found and None not in found
    np.testing.assert_array_equal(output.numpy()[:, :, :at], clean[0].numpy()[:, :, :at])
    if broken != 3e38:
        np.testing.assert_array_equal(of_query.numpy()[:, :, :at], clean[1].numpy()[:, :, :at])
        assert not np.isfinite(output.numpy()[:, :, at:]).any()


def test_queries_of_an_edge_that_see_nothing_pool_to_zero_with_zero_gradients():
    with edges() as found:
        output, of_query, of_key, of_value = here(
            ~masks.causal(), *operands(2, 2, 2, 24, 24), (8, 8)
        )
        before, of_before, *_ = here(Earlier(1), *operands(2, 2, 2, 24, 24), (8, 8))
    assert found and None not in found
    assert (
        np.all(output[:, :, -1] == 0)
        and np.all(of_query[:, :, -1] == 0)
        and np.any(output[:, :, -2] != 0)
    )
    # and nobody sees the first key
    assert np.all(of_key[:, :, 0] == 0) and np.all(of_value[:, :, 0] == 0)
    assert (
        np.all(before[:, :, 0] == 0)
        and np.all(of_before[:, :, 0] == 0)
        and np.any(before[:, :, 1] != 0)
    )


def moved(query, key, by):
    """Queries and keys of one more feature, whose product moves all scores of a query."""
    by = tf.constant(by, query.dtype)[:, None] + 0 * query[..., :1]
    return [tf.concat([query, by], -1), tf.concat([key, 1 + 0 * key[..., :1]], -1)]


@pytest.mark.parametrize("name", ["causal", "before", "~causal"])
@pytest.mark.parametrize("kind", ["times 60", "overflow", "vanish"])
def test_exponentials_of_an_edge_that_overflow_or_vanish_for_some_queries(kind, name):
    mask, (query, key, value, upstream) = MASKS[name], operands(1, 4, 4, 40, 40)
    third = np.arange(40) % 3 == 0
    if kind == "times 60":
        query = query * tf.where(third[:, None], 60.0, 1.0)
    else:
        query, key = moved(
            query, key, np.where(third, 100.0 if kind == "overflow" else -100.0, 0.0)
        )
    with edges(numbers=50) as found:
        pulled = here(mask, query, key, value, upstream, (8, 8))
    assert found and None not in found
    wide = there(mask, *[tf.cast(x, "float64") for x in (query, key, value, upstream)])
    assert_close([x[..., :7] for x in pulled], [x[..., :7] for x in wide], 1e-3)


def test_a_block_of_queries_whose_sums_would_not_do_is_walked_whole(monkeypatch):
    counts = counted(monkeypatch, "scores")

    def blocks(at):
        counts.clear()
        query, key, value, _ = operands(1, 1, 1, 32, 32)
        query, key = moved(query, key, np.where(np.arange(32) == at, 100.0, 0.0))
        streamed.attend(query, value, key, SCORE, mask=masks.causal(), block=(8, 8))
        return sum(counts) / 64

    with edges() as found:
        assert blocks(-1) == 6 + 4 * 10 / 16
        assert blocks(0) == 7 + 4 * 10 / 16
        assert blocks(19) == 9 + 4 * 10 / 16
    assert found and None not in found


@pytest.mark.parametrize("compiled", [False, True])
def test_second_derivatives_beside_an_edge_equal_the_dense_path(compiled):
    mask, arguments = masks.causal(), operands(2, 2, 2, 11, 11)

    def penalty(path, *arguments):
        *sources, upstream = arguments
        with tf.GradientTape() as outer:
            outer.watch(sources)
            _, *gradients = path(mask, *sources, upstream)
            total = tf.add_n([tf.reduce_sum(tf.square(x)) for x in gradients])
        return outer.gradient(total, sources)

    def run(*arguments):
        return penalty(lambda *problem: here(*problem, (4, 4)), *arguments)

    with edges() as found:
        second = (tf.function(run) if compiled else run)(*arguments)
    assert found and None not in found
    assert_close(second, penalty(there, *arguments), 1e-3)
