"""Hidden tokens change no bit of any output or gradient on the streamed path."""

import numpy as np
import pytest
from keras import ops

from tests.helpers import tensors
from tests.helpers.blockwise import (
    B,
    Case,
    D,
    S,
    T,
    assert_close,
    blocks_of,
    both_ways,
    check,
    operands_of,
    problem,
    scored,
)
from tests.helpers.tensors import BACKEND, as_tensor, numpy
from tfattn import attend, masks
from tfattn.core.engine import STREAMING_BACKENDS

pytestmark = pytest.mark.skipif(BACKEND not in STREAMING_BACKENDS, reason="nothing streams here")


@pytest.mark.slow
@pytest.mark.parametrize("score", ["scaled dot", "additive", "gaussian"])
def test_streamed_hidden_tokens_of_any_value_reach_nothing(score):
    rule = masks.padding([11, 11]) & masks.causal()
    for broken in (np.nan, 3e38):  # infinities are drawn
        check(Case(rule, score, heads=(2, 2), broken=broken))


@pytest.mark.slow
@pytest.mark.parametrize("score", ["scaled dot", "gaussian", "additive"])
def test_streamed_later_token_changes_no_bit_before_it(score):
    function, parameters = scored(score, D, 2, np.random.default_rng(2))
    options = {"parameters": [as_tensor(x, "float32") for x in parameters], "mask": masks.causal()}

    @tensors.compiled
    def outputs(x):
        with blocks_of((8, 6)):
            return attend(x, x, key=x, score=function, path="streamed", **options)

    tokens = np.random.default_rng(3).normal(size=(2, 2, 31, D)).astype("float32")
    clean = numpy(outputs(as_tensor(tokens)))
    # From 40 on an additive block takes another formula, equal to rounding, for all pairs in it.
    for token in [30.0] if score == "additive" else [np.nan, np.inf, 1e30, 50.0]:
        tokens[0, :, 17] = token
        found = numpy(outputs(as_tensor(tokens)))
        np.testing.assert_array_equal(found[0, :, :17], clean[0, :, :17])
        np.testing.assert_array_equal(found[1], clean[1])


RULES = {
    "causal": masks.causal(),
    "a window": masks.causal() & masks.window(7),  # on TensorFlow local attention
    "explicit": masks.explicit(np.random.default_rng(1).random((31, 31)) < 0.3),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", RULES)
def test_streamed_broken_token_reaches_only_queries_that_see_it(name):
    query, key, value, upstream = operands_of((1, 2, 2, 31, 31))
    function, rule = scored("scaled dot", D, 2, None)[0], RULES[name]
    run = tensors.compiled(lambda *x: both_ways(function, x, rule, upstream=upstream, block=(8, 8)))
    clean, seen = run(query, key, value), numpy(rule.dense(31, 31))
    for at, broken in ((0, np.inf), (17, np.nan), (30, 3e38)):
        sees, here = seen[:, at], ops.arange(31)[:, None] == at
        for operands in (
            (ops.where(here, broken, key), value),
            (key, ops.where(here, broken, value)),
        ):
            output, of_query, of_key, of_value = map(numpy, run(query, *operands))
            np.testing.assert_array_equal(output[:, :, ~sees], numpy(clean[0])[:, :, ~sees])
            if broken == 3e38:
                continue
            assert not np.isfinite(output[:, :, sees]).any()
            np.testing.assert_array_equal(of_query[:, :, ~sees], numpy(clean[1])[:, :, ~sees])
            assert not np.any(of_query[:, :, sees])
            assert not np.any(of_key[:, :, at]) and not np.any(of_value[:, :, at])


@pytest.mark.slow
@pytest.mark.parametrize("keys", [12, 19, 20])
def test_streamed_mean_of_hidden_block_may_overflow(keys):
    query, key, value, _ = operands_of((1, 1, 1, 4, 2 * keys), (3, 3))
    seen = np.ones((4, 2 * keys), bool)
    seen[:2, keys:] = False
    largest = ops.where(ops.arange(2 * keys)[:, None] < keys, value, np.finfo("float32").max)

    def first_rows(value, **dropping):
        with blocks_of((4, keys)):
            rule = masks.explicit(seen)
            return numpy(attend(query, value, key=key, mask=rule, path="streamed", **dropping))[
                :, :, :2
            ]

    np.testing.assert_array_equal(first_rows(largest), first_rows(value))
    # And what dropout leaves of it is more, by 1 / (1 − rate).
    for seed in range(3):
        dropping = {"dropout": 0.5, "seed": seed}
        assert_close([first_rows(largest, **dropping)], [first_rows(value, **dropping)], 0)


@pytest.mark.slow
def test_streamed_fully_masked_queries_are_zero_with_zero_gradients():
    # some rows, and a whole batch row
    rule = masks.explicit(np.arange(T)[:, None] % 3 > 0) & masks.padding([S, 0])
    check(Case(rule, heads=(2, 2), seed=29))
    function, (query, key, value) = problem(29, heads=(2, 2))
    broken = ops.where(ops.arange(T)[:, None] == 3, np.nan, query)
    here, clean = (both_ways(function, [x, key, value], rule)[0] for x in (broken, query))
    assert_close([here], [clean])


@pytest.mark.slow
def test_streamed_bias_that_hides_keys_is_no_mask_and_no_nan():
    function, (query, key, value) = problem(31, heads=(2, 2))
    run = tensors.compiled(lambda *x: both_ways(function, x, biased=True))
    for hiding in (-np.inf, np.finfo("float32").min, -1e9, -1e6, -1e5):
        bias = np.zeros((B, 1, T, S), "float32")
        bias[:, :, ::2, 3:] = hiding
        bias[:, :, 5] = hiding  # every key: by −inf nothing is seen, by less the mean of all
        arguments = [query, key, value, as_tensor(bias)]
        here = [numpy(x) for x in run(*arguments)]
        assert_close(here, both_ways(function, arguments, None, "dense", biased=True))
        assert all(np.isfinite(x).all() for x in here)
        assert (here[0][:, :, 5] == 0).all() == (hiding == -np.inf)
