"""How the square is tiled, and which of its blocks it computes."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.blockwise import (
    MASKS,
    S,
    T,
    assert_close,
    blocks_of,
    mask_of,
    operands_of,
    with_upstream,
)
from tfattn import attend, masks
from tfattn.core import scores as score_functions
from tfattn.core.masks import hooks
from tfattn.core.paths import devices, thresholds
from tfattn.core.paths.blockwise import additive, block_scores
from tfattn.core.paths.blockwise.tiling import Tiling

pytestmark = pytest.mark.tensorflow


def tiled(query, key, mask=None, block=None):
    """The tiling of a dot product whose heads need not be computed together."""
    score = block_scores.Product(True)
    return Tiling.of(query, key, score, mask, block, heads_independent=True)


def test_run_time_lengths_fall_into_few_block_sizes():
    sizes = []

    @tf.function(input_signature=[tf.TensorSpec((2, None, 256))])
    def block(x):
        tiling = Tiling.of(x[:, None], x[:, None], additive.Additive())
        return tiling.rows, tiling.columns

    for length in range(512, 1024, 7):
        sizes.append(tuple(map(int, block(tf.zeros((2, length, 256))))))
    # XLA compiles an additive score's kernels once more for each.
    assert len(set(sizes)) <= 4
    assert block.experimental_get_tracing_count() == 1


def test_a_narrow_mask_has_narrow_blocks_with_padding_too():
    def columns(mask):
        return tiled(*[tf.zeros((2, 1, 4096, 8))] * 2, mask).columns

    wide, narrow = columns(masks.causal()), columns(masks.causal() & masks.window(64))
    assert narrow < wide
    row, lengths = (
        masks.explicit(np.ones((2, 1, 4096), bool)),
        masks.padding(tf.constant([4096, 100])),
    )
    for padding in (row, lengths, row & lengths):
        assert columns(padding & masks.causal() & masks.window(64)) == narrow
        assert columns(masks.window(64) & padding) == narrow
        assert columns(padding) == wide


def test_heads_below_each_other_do_not_make_a_step_larger():
    def step(heads, groups):
        query, key = tf.zeros((1, heads, 1024, 8)), tf.zeros((1, groups, 128, 8))
        tiling = tiled(query, key)
        return tiling.heads * tiling.rows * tiling.columns

    assert step(8, 8) == step(8, 4) == 2**18


@pytest.mark.parametrize(
    ("shape", "groups", "mask", "sides"),
    [
        ((1, 8, 4096, 64), 8, None, (512, 512)),
        ((1, 8, 2100, 64), 8, None, (420, 420)),  # spread evenly
        ((2, 8, 1024, 64), 8, None, (512, 512)),
        ((1, 8, 4096, 64), 2, None, (128, 512)),  # four heads below each other
        ((4, 8, 1023, 64), 8, None, (512, 512)),
        ((4, 1, 4096, 64), 1, None, (512, 512)),  # one head
        ((1, 8, 4096, 64), 8, masks.causal(), (512, 512)),
        ((1, 8, 4096, 64), 8, masks.padding([4000]), (512, 512)),
        ((1, 8, 4096, 64), 8, masks.causal() & masks.window(300), (256, 256)),
    ],
)
def test_a_block_has_512_queries_and_keys_less_where_heads_share_a_key_head_or_see_little(
    shape, groups, mask, sides
):
    query, key = tf.zeros(shape), tf.zeros((shape[0], groups, *shape[2:]))
    tiling = tiled(query, key, mask)
    assert (tiling.rows, tiling.columns, tiling.chunk, tiling.groups) == (*sides, 1, 1)


@pytest.mark.parametrize("heads, groups", [(2, 2), (4, 2)])
def test_blocks_of_the_measured_sizes_equal_the_dense_path(heads, groups):
    arguments = operands_of((1, heads, groups, 1030, 300), (7, 5))
    here, there = (with_upstream(None, *arguments, path=path) for path in ("streamed", "dense"))
    assert_close(here, there)


@pytest.mark.parametrize(
    ("shape", "groups", "step"),
    [
        ((1, 8, 4096, 64), 8, (1, 1, 1)),
        ((1, 8, 4096, 64), 2, (1, 4, 1)),  # heads that share a key head stay together
        ((16, 8, 256, 64), 8, (1, 4, 4)),
        ((16, 8, 64, 64), 8, (8, 8, 8)),
        ((15, 3, 64, 64), 3, (15, 3, 3)),
        ((16, 1, 4096, 64), 1, (1, 1, 1)),
    ],
)
def test_a_step_has_as_many_heads_and_rows_as_fill_a_block(shape, groups, step):
    query, key = tf.zeros(shape), tf.zeros((shape[0], groups, *shape[2:]))
    tiling = tiled(query, key)
    assert (tiling.chunk, tiling.heads, tiling.groups) == step
    assert tiling.steps * tiling.chunk * tiling.heads == shape[0] * shape[1]
    assert step[0] * step[1] * tiling.rows * tiling.columns <= thresholds.BLOCKS["cpu"].scores


@pytest.mark.parametrize("name", ["products", "of heads together", "additive"])
def test_blocks_are_larger_where_no_cpu_computes(name, monkeypatch):
    """A GPU has threads for more, and no cache to stay in."""
    query = tf.zeros((16, 8, 8192, 16))
    score = {
        "products": block_scores.Product(True),
        "of heads together": block_scores.AnyScore(score_functions.dot_product, 4),
        "additive": additive.Additive(),
    }[name]

    def numbers():
        tiling = Tiling.of(query, query, score, heads_independent=name == "products")
        return tiling.chunk * tiling.heads * tiling.rows * tiling.columns

    few = numbers()
    monkeypatch.setattr(devices, "kind", lambda tensor: "gpu")
    assert 4 * few <= numbers() <= 64 * few


@given(
    batch=st.integers(1, 12),
    groups=st.integers(1, 12),
    repeats=st.integers(1, 4),
    lengths=st.tuples(st.integers(1, 3000), st.integers(1, 3000)),
    mask=st.sampled_from([None, masks.causal(), masks.window(50), masks.prefix(7)]),
)
@settings(max_examples=100, deadline=None)
def test_steps_have_every_head_once_and_blocks_at_most_their_numbers(
    batch, groups, repeats, lengths, mask
):
    query, key = (
        tf.zeros((batch, groups * repeats, lengths[0], 1)),
        tf.zeros((batch, groups, lengths[1], 1)),
    )
    tiling = tiled(query, key, mask)
    assert tiling.steps * tiling.chunk * tiling.heads == batch * groups * repeats
    assert (
        batch % tiling.chunk == 0
        and groups % tiling.groups == 0
        and tiling.heads == tiling.groups * repeats
    )
    block = tiling.chunk * tiling.heads * tiling.rows * tiling.columns
    assert block <= thresholds.BLOCKS["cpu"].scores
    assert (
        tiling.query_blocks * tiling.rows >= lengths[0]
        and tiling.key_blocks * tiling.columns >= lengths[1]
    )


@pytest.mark.parametrize("batch", [2, 3, 8, 64])
def test_any_other_score_has_two_steps_to_do_at_a_time(batch):
    for score in (additive.Additive(), block_scores.AnyScore(score_functions.dot_product, 4)):
        tiling = Tiling.of(tf.zeros((batch, 2, 64, 8)), tf.zeros((batch, 2, 64, 8)), score)
        assert tiling.steps >= 2 and tiling.head_steps == 1 and tiling.heads == 2


def test_blocks_that_the_mask_rules_out_are_not_computed():
    calls = []

    def counted(query, key):
        calls.append(1)
        return score_functions.dot_product(query, key)

    def blocks(mask, queries=64, keys=64):
        calls.clear()
        x, y = tf.ones((1, 1, queries, 2)), tf.ones((1, 1, keys, 2))
        with blocks_of((8, 8)):
            attend(x, y, y, counted, mask=mask, path="streamed")
        return len(calls)

    assert blocks(None) == 64
    assert blocks(masks.causal()) == 36
    assert blocks(masks.window(8)) == 22
    assert blocks(masks.causal() & masks.window(8)) == 15
    assert blocks(masks.padding([11])) == 16
    assert blocks(masks.padding([20]) & masks.causal()) == 1 + 2 + 6 * 3
    assert blocks(masks.prefix(8) | masks.causal()) == 36
    assert blocks(~masks.causal()) == 36
    assert blocks(masks.causal(), queries=16) == 7 + 8
    positions = np.arange(64)
    assert blocks(masks.explicit(positions[None, None] < 11)) == 16
    assert blocks(masks.explicit(positions[None] >= 53) & masks.causal()) == 1 + 2
    assert blocks(masks.explicit(positions[None, None] < 0)) == 0
    assert blocks(~masks.explicit(positions[None, None] < 11)) == 8 * 7
    assert blocks(masks.chunks(16)) == 4 * 4
    assert blocks(masks.chunks(16) & masks.causal()) == 4 * 3
    assert blocks(masks.segments(positions[None] // 16) & masks.causal()) == 4 * 3
    assert blocks(masks.segments(positions[None] % 16)) == 8 * 7
    plan = np.eye(4, dtype=bool) | (np.arange(4) == 0)
    assert blocks(masks.blocks(plan, 16)) == 4 * 7
    assert blocks(masks.blocks(plan, 16) & masks.causal()) == 4 * 3 + 4 * 3
    assert blocks(masks.blocks(np.zeros((8, 8), bool), 8)) == 0


@given(
    seed=st.integers(0, 2**32 - 1),
    mask=st.sampled_from([name for name in MASKS if name != "none"]),
    start=st.integers(0, T - 1),
    queries=st.integers(1, T),
)
@settings(max_examples=80, deadline=None)
def test_key_bounds_hold_for_every_query_of_a_block(seed, mask, start, queries):
    rule = mask_of(mask, seed)
    queries = min(queries, T - start)
    whole = np.asarray(rule.dense(T, S))
    whole = whole if whole.ndim == 4 else whole.reshape((-1, 1, *whole.shape[-2:]))
    whole = np.broadcast_to(whole, (*whole.shape[:2], T, S))[:, :, start : start + queries]
    grid = masks.Grid(T, S, start, 0, queries, S)
    low, high = (int(x) for x in hooks.key_bounds(rule, grid))
    keys = np.arange(S)
    assert not whole[..., (keys < low) | (keys >= high)].any()
    low, high = (int(x) for x in hooks.full_bounds(rule, grid))
    assert whole[..., (keys >= low) & (keys < high)].all()


def test_an_additive_block_is_cut_for_the_cores_that_the_process_may_use(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {0, 5, 6}, raising=False)
    monkeypatch.setattr("os.cpu_count", lambda: 64)
    rows = []

    def compiled(sigmoid, left, right, weight):
        rows.append(left.shape[1])
        return tf.zeros((1, left.shape[1], right.shape[1]))

    monkeypatch.setattr(additive, "_compiled_scores", compiled)
    scores = additive._scores_by_strips(None, tf.zeros((1, 60, 2)), tf.zeros((1, 5, 2)), None)
    assert rows == [20] * 3 and scores.shape == (1, 60, 5)


@pytest.mark.parametrize(
    "rows, parts", [(64, [8] * 8), (60, [8, 9, 8, 9, 8, 9, 9]), (16, [8, 8]), (15, [15]), (3, [3])]
)
def test_a_strip_of_an_additive_block_has_eight_queries_or_all(rows, parts):
    x = tf.range(rows)[None]
    strips = additive._strips(x, 8)
    assert [strip.shape[1] for strip in strips] == parts
    np.testing.assert_array_equal(tf.concat(strips, 1), x)


@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("size", [1.0, 60.0], ids=["exponentials", "sigmoid"])
def test_the_gradient_of_an_additive_block_comes_in_strips_that_add_up_to_the_whole(
    size, heads, monkeypatch
):
    kernels = {name: getattr(additive, f"_compiled_{name}_vjp") for name in ("operand", "weight")}
    rows = {name: [] for name in kernels}

    def counted(name):
        def kernel(sigmoid, left, *rest):
            rows[name].append(left.shape[1])
            return kernels[name](sigmoid, left, *rest)

        return kernel

    for name in kernels:
        monkeypatch.setattr(additive, f"_compiled_{name}_vjp", counted(name))
    draw = np.random.default_rng(5).normal
    left, right, weight, gradient = (
        tf.constant(draw(size=shape), tf.float32)
        for shape in ((2, 61, 3), (2, 7, 3), (heads, 3), (2, 61, 7))
    )
    left = left * size  # at 60 times beyond what has an exponential, and so in the other branch
    of_left, of_right, of_weight = additive._by_either(
        additive._vjp_by_strips, left, right, weight, gradient
    )
    assert (
        len(rows["operand"]) == 7
        and sum(rows["operand"]) == 61
        and rows["weight"] == rows["operand"]
    )
    with tf.GradientTape() as tape:
        tape.watch([left, right, weight])
        each = tf.repeat(weight, 2 // heads, axis=0)[:, None, None]  # (N, 1, 1, U)
        scores = tf.reduce_sum(each * tf.tanh(left[:, :, None] + right[:, None]), -1)
    expected = tape.gradient(scores, [left, right, weight], gradient)
    for found, wanted in zip((of_left, of_right, of_weight), expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)
