"""Attention over shards of the keys, merged, against one call over all keys."""

import numpy as np
import pytest
from keras import ops

from tests import reference
from tests.helpers.blockwise import UPSTREAM, B, H, S, T, assert_close, blocks_of, problem, wide
from tests.helpers.tensors import FLOAT64, as_tensor, both_ways, dtype_of, numpy, tf
from tfattn import attend, masks, merge_attentions
from tfattn.core import normalizers

ENDS = [0, 5, 6, 6 + 7, S]  # four shards
RNG = np.random.default_rng(3)
SEEN = {
    "all": np.ones((B, H, T, S), bool),
    "some": RNG.random((B, H, T, S)) < 0.5,
    "causal": reference.causal(T, S)[None, None] & np.ones((B, H, 1, 1), bool),
    "the last shard hidden": (np.arange(S) < ENDS[3]) & np.ones((B, H, T, 1), bool),
    "a row hidden": np.array([True, False])[:, None, None, None] & np.ones((1, H, T, S), bool),
}


def shards(path, arguments, seen, **options):
    """(outputs, logs of the sums) of calls over four parts of the keys."""
    query, key, value = arguments
    with blocks_of((4, 3)):
        parts = [
            attend(
                query,
                value[..., start:end, :],
                key=key[..., start:end, :],
                mask=seen[..., start:end],
                path=path,
                return_log_sum_exp=True,
                **options,
            )
            for start, end in zip(ENDS, ENDS[1:], strict=False)
        ]
    return tuple(zip(*parts, strict=True))


@pytest.mark.parametrize(
    "path, seen", [*[("dense", name) for name in SEEN], ("streamed", "a row hidden")]
)
def test_merged_shards_equal_oracle_and_gradients_of_one_call(path, seen):
    _, arguments = problem(7)
    of_sums = np.random.default_rng(9).normal(size=(B, H, T))

    def found(of, arguments):
        def functional(*arguments):
            output, sums = of(arguments)
            total = ops.sum(output * ops.cast(UPSTREAM, output.dtype))
            finite = ops.where(ops.equal(sums, -np.inf), 0.0, sums)
            return total + ops.sum(finite * ops.cast(of_sums, sums.dtype)), [output, sums]

        (_, results), gradients = both_ways(functional, arguments, has_aux=True)
        return [*results, *gradients]

    def whole(arguments):
        query, key, value = arguments
        return attend(query, value, key=key, mask=SEEN[seen], return_log_sum_exp=True, path="dense")

    here = found(lambda x: merge_attentions(*shards(path, x, SEEN[seen])), arguments)
    assert_close(here, found(whole, wide(arguments)), 2e-5)
    query, key, value = (numpy(x).astype("float64") for x in arguments)
    scores = reference.dot_product(query, key)
    assert_close(here[:1], reference.attention(scores, value, SEEN[seen])[:1], 2e-5)
    assert_close(here[1:2], [reference.log_sum_exp(scores, SEEN[seen])], 2e-5)


def test_merged_query_that_sees_nothing_is_zero_with_zero_gradients():
    outputs = [ops.zeros((1, 2, 3))] * 2
    sums = [
        np.array([[-np.inf, 0.5]], "float32"),
        np.array([[-np.inf, -np.inf]], "float32"),
    ]
    (output, merged), gradients = both_ways(lambda *sums: merge_attentions(outputs, sums), sums)
    np.testing.assert_array_equal(output, np.zeros((1, 2, 3)))
    np.testing.assert_array_equal(merged, [[-np.inf, 0.5]])
    first, second = gradients
    np.testing.assert_allclose(first, [[0, 1]])
    np.testing.assert_array_equal(second, [[0, 0]])


def test_merged_parts_merge_again_in_any_order():
    _, arguments = problem(11)
    outputs, sums = shards("dense", arguments, SEEN["some"])
    at_once = merge_attentions(outputs, sums)
    first = merge_attentions(outputs[2:0:-1], sums[2:0:-1])
    again = merge_attentions([outputs[3], first[0], outputs[0]], [sums[3], first[1], sums[0]])
    assert_close(again, at_once, 1e-5)


@pytest.mark.parametrize("size", [-1e4, 1e4])
def test_merged_sums_of_any_size_stay_finite(size):
    output, sums = merge_attentions(
        [ops.ones((1, 1, 2)), 3 * ops.ones((1, 1, 2))], [ops.full((1, 1), size)] * 2
    )
    np.testing.assert_allclose(output, np.full((1, 1, 2), 2.0), 1e-6)
    np.testing.assert_allclose(sums, [[size + np.log(2)]], 1e-6)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", FLOAT64])
def test_merged_parts_keep_their_dtypes(dtype):
    _, arguments = problem(13, dtype=dtype)
    output, sums = merge_attentions(*shards("dense", arguments, SEEN["some"]))
    assert dtype_of(output) == dtype
    assert dtype_of(sums) == ("float64" if dtype == "float64" else "float32")
    query, key, value = wide(arguments)
    whole = attend(query, value, key=key, mask=SEEN["some"])
    tolerance = {"float16": 4e-3, "bfloat16": 4e-2, "float64": 1e-12}[dtype]
    assert_close([output], [whole], tolerance)


@pytest.mark.slow
@pytest.mark.tensorflow
def test_merged_in_graph_of_unknown_sizes_equals_one_call():
    spec = [tf.TensorSpec((None, None, 3)), tf.TensorSpec((None, None))]

    @tf.function(input_signature=[spec, spec])
    def merged(one, other):
        return merge_attentions(*zip(one, other, strict=True))

    query = tf.random.stateless_normal((2, 5, 3), (1, 2))
    key = tf.random.stateless_normal((2, 7, 3), (3, 4))
    parts = [attend(query, x, return_log_sum_exp=True) for x in (key[:, :4], key[:, 4:])]
    assert_close([merged(*map(list, parts))[0]], [attend(query, key)], 1e-5)


def test_sink_equals_merged_shard_of_zero():
    _, (query, key, value) = problem(17)
    output, sums = attend(
        query, value, key=key, mask=masks.padding([9, 0]), return_log_sum_exp=True
    )
    sinks = np.arange(H, dtype="float32") - 1.5
    here = output * normalizers.sink_scale(sums, sinks)[..., None]
    shard = ops.zeros_like(output), ops.zeros_like(sums) + as_tensor(sinks[:, None])
    merged, _ = merge_attentions([output, shard[0]], [sums, shard[1]])
    assert_close([here], [merged], 1e-5)


OUTPUT, SUMS = np.zeros((2, 3, 5), "float32"), np.zeros((2, 3), "float32")


@pytest.mark.parametrize(
    ("outputs", "sums", "message"),
    [
        ([], [], "merge_attentions: `outputs` must hold at least one output"),
        ([OUTPUT], [SUMS, SUMS], "`log_sum_exps` must hold one tensor for each of the 1 outputs"),
        ([SUMS], [SUMS], r"`outputs` must have shape \(B, T, Dv\) or \(B, H, T, Dv\)"),
        ([OUTPUT, OUTPUT[:, 1:]], [SUMS] * 2, r"`outputs` must all have shape \(2, 3, 5\)"),
        ([OUTPUT], [SUMS[:1]], r"`log_sum_exps` must all have shape \(2, 3\)"),
        ([OUTPUT], [SUMS[..., None]], r"`log_sum_exps` must have shape \(2, 3\)"),
    ],
)
def test_merged_parts_that_do_not_fit_are_refused(outputs, sums, message):
    with pytest.raises(ValueError, match=message):
        merge_attentions(outputs, sums)
