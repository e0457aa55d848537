"""Masks by block: of nothing, of arrays that do not fit, and rules of one's own."""

import numpy as np
import pytest
import tensorflow as tf

from tests.blockwise import B, D, H, S, T, assert_close, blocks_of, problem
from tfattn import attend, masks
from tfattn.core.paths.blockwise import attend as blockwise

pytestmark = pytest.mark.tensorflow

# made of an array whose sizes are known at run time alone, and by that array's sizes
RUN_TIME_MASKS = {
    "explicit": (masks.explicit, lambda t, s: np.ones((B, t, s), bool)),
    "padding": (masks.padding, lambda t, s: np.full((B, t), S)),
    "segments": (
        lambda ids: masks.segments(ids, np.zeros((B, S), int)),
        lambda t, s: np.zeros((B, t), int),
    ),
    "joined": (
        lambda array: ~(masks.explicit(array) & masks.causal()),
        lambda t, s: np.ones((B, t, s), bool),
    ),
}


@pytest.mark.parametrize("kind", RUN_TIME_MASKS)
def test_a_mask_of_the_wrong_run_time_length_is_refused(kind):
    function, (query, key, value) = problem(71)
    make, array = RUN_TIME_MASKS[kind]
    rank = array(1, 1).ndim

    @tf.function(input_signature=[tf.TensorSpec((None,) * rank, array(1, 1).dtype)])
    def run(array):
        return blockwise.attend(query, value, key, function, mask=make(array), block=(4, 6))

    for sizes in ((T, S), (1, 1)):
        dense = attend(query, value, key, function, mask=make(array(T, S)), path="dense")
        assert_close([run(array(*sizes))], [dense])
    for sizes in ((4, S), (T + 1, S), *([(T, 2), (T, S + 1)] if rank == 3 else [])):
        with pytest.raises(tf.errors.InvalidArgumentError, match="a mask must have"):
            run(array(*sizes))


def test_a_mask_of_another_length_than_the_run_time_queries_is_refused():
    function, (query, key, value) = problem(71)

    @tf.function(input_signature=[tf.TensorSpec((B, H, None, D))])
    def run(query):
        mask = masks.explicit(np.ones((T, S), bool))
        return blockwise.attend(query, value, key, function, mask=mask, block=(4, 6))

    run(query)
    with pytest.raises(tf.errors.InvalidArgumentError, match="a mask must have"):
        run(query[:, :, :4])


@pytest.mark.parametrize(
    "sizes", [(0, 7, 11), (2, 0, 11), (2, 7, 0)], ids=["batch", "queries", "keys"]
)
@pytest.mark.parametrize("path", ["dense", "streamed"])
def test_masks_of_what_is_empty(sizes, path):
    batch, queries, keys = sizes
    query, key = tf.ones((batch, 2, queries, D)), tf.ones((batch, 2, keys, D))
    rules = (
        masks.padding(np.full(batch, keys)),
        ~masks.padding(np.full(batch, keys)),
        masks.padding(np.full((batch, queries), keys)),
        ~masks.padding(np.full((batch, queries), keys)),
        masks.prefix(np.zeros(batch, int)),
        ~masks.prefix(np.zeros(batch, int)) | masks.causal(),
        masks.segments(np.zeros((batch, queries), int), np.zeros((batch, keys), int)),
        masks.explicit(np.ones((batch, 1, keys), bool)) & masks.window(3),
        ~masks.explicit(np.ones((batch, 1, keys), bool)),
        masks.chunks(2) | masks.chunk_ends(3) & masks.strided(2),
        masks.blocks(np.ones((-(-queries // 2), -(-keys // 2)), bool), 2),
        masks.per_head([masks.causal(), masks.padding(np.full(batch, keys))]),
    )
    for rule in rules:
        with tf.GradientTape() as tape:
            tape.watch([query, key])
            output = attend(query, key, mask=rule, path=path)
        assert output.shape == query.shape
        assert [x.shape for x in tape.gradient(output, [query, key])] == [query.shape, key.shape]
        if not keys:
            assert not np.any(output)


class Rows(masks.Mask):
    """A rule of one's own, which does not say what shape its array must have."""

    def __init__(self, array):
        self.array = array

    def on(self, grid):
        return grid.columns_of(grid.rows_of(self.array, -2), -1)


@pytest.mark.parametrize("lengths", [(T + 3, S), (4, S), (T, S - 1)])
def test_an_array_of_the_wrong_length_in_a_mask_of_ones_own_is_refused(lengths):
    function, (query, key, value) = problem(71)
    attend(query, value, key, function, mask=Rows(tf.ones((T, 1), tf.bool)), path="streamed")
    with pytest.raises(ValueError, match="`mask` must have the length 1[37] or 1 on axis"):
        attend(query, value, key, function, mask=Rows(tf.ones(lengths, tf.bool)), path="streamed")


class InNumpy(masks.Mask):
    """A rule of one's own that answers with arrays and numbers of NumPy, and bounds of 64 bits."""

    def __init__(self, wrap):
        self.wrap = wrap

    def on(self, grid):
        keys, queries = np.arange(grid.num_keys), np.arange(grid.num_queries)[:, None]
        return np.asarray(grid.columns_of(grid.rows_of(tf.constant(keys < queries + 2), 0), 1))

    def key_bounds(self, grid):
        return self.wrap(0), self.wrap(grid.query_start + grid.queries + 1)

    def full_bounds(self, grid):
        return self.wrap(0), self.wrap(grid.query_start + 2)


@pytest.mark.parametrize(
    "wrap",
    [pytest.param(np.int64, marks=pytest.mark.slow), lambda x: tf.cast(x, tf.int64)],
    ids=["NumPy", "int64 tensor"],
)
def test_a_mask_of_ones_own_may_answer_in_numpy(wrap):
    function, (query, key, value) = problem(73)
    own = InNumpy(wrap)
    for rule in (
        own,
        own & masks.window(9),
        own | masks.causal(),
        ~own,
        ~own | masks.padding([3, 5]),
    ):
        with blocks_of((4, 6)):
            here = attend(query, value, key, function, mask=rule, path="streamed")
        assert_close([here], [attend(query, value, key, function, mask=rule, path="dense")])
