"""Hidden tokens change no bit of any output or gradient on the streamed path."""

import numpy as np
import pytest
from keras import ops

from tests.helpers import tensors
from tests.helpers.blockwise import (
    B,
    D,
    S,
    T,
    assert_close,
    blocks_of,
    both_ways,
    operands_of,
    problem,
    scored,
)
from tests.helpers.tensors import BACKEND, as_tensor, numpy
from tfattn import attend, masks
from tfattn.core.engine import STREAMING_BACKENDS

pytestmark = pytest.mark.skipif(BACKEND not in STREAMING_BACKENDS, reason="nothing streams here")

BROKEN = [float("nan"), float("inf"), -float("inf"), 3e38]


@pytest.mark.slow
@pytest.mark.parametrize("score", ["scaled dot", "additive", "gaussian"])
def test_what_lies_under_the_mask_reaches_nothing(score):
    function, (query, key, value, *rest) = problem(19, score, heads=(2, 2))
    rule = masks.padding([11, 11]) & masks.causal()
    run = tensors.compiled(lambda *x: both_ways(function, x, rule, block=(7, 6)))
    clean = run(query, key, value, *rest)
    hidden = ops.arange(S)[:, None] >= 11
    for broken in BROKEN:
        noisy = [ops.where(hidden, broken, x) for x in (key, value)]
        assert_close(run(query, *noisy, *rest), clean, 1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("score", ["scaled dot", "gaussian", "additive"])
def test_what_a_query_may_not_see_changes_no_bit_of_its_output(score):
    function, parameters = scored(score, D, 2, np.random.default_rng(2))
    parameters = [as_tensor(x, "float32") for x in parameters]

    @tensors.compiled
    def outputs(x):
        with blocks_of((8, 6)):
            return attend(
                x,
                x,
                key=x,
                score=function,
                parameters=parameters,
                mask=masks.causal(),
                path="streamed",
            )

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
    "~window": ~masks.window(5),
    "strided": masks.causal() & masks.strided(2),
    "explicit": masks.explicit(np.random.default_rng(1).random((31, 31)) < 0.3),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", RULES)
def test_a_broken_token_reaches_the_queries_that_may_see_it_and_no_other(name):
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
def test_the_mean_of_a_hidden_block_may_overflow(keys):
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
    for seed in range(6):
        dropping = {"dropout": 0.5, "seed": seed}
        assert_close([first_rows(largest, **dropping)], [first_rows(value, **dropping)], 0)


@pytest.mark.slow
def test_a_query_that_may_see_a_broken_key_becomes_nan_and_no_other_does():
    function, (query, key, value) = problem(23, heads=(2, 2))
    value = ops.where(ops.arange(S)[:, None] == 9, float("nan"), value)
    (here, of_query), (there, of_query_there) = (
        map(numpy, both_ways(function, [query, key, value], masks.window(3), path)[:2])
        for path in ("streamed", "dense")
    )
    np.testing.assert_array_equal(np.isnan(here), np.isnan(there))
    assert np.isfinite(of_query).all() and np.isfinite(of_query_there).all()
    assert np.isnan(here).any() and not np.isnan(here).all()


@pytest.mark.slow
def test_fully_masked_queries_pool_to_zero_with_zero_gradients():
    function, (query, key, value) = problem(29, heads=(2, 2))
    # some rows, and a whole batch row
    rule = masks.explicit(np.arange(T)[:, None] % 3 > 0) & masks.padding([S, 0])
    output, *gradients = map(numpy, both_ways(function, [query, key, value], rule))
    assert np.all(output[:, :, ::3] == 0.0) and np.all(output[1] == 0.0)
    assert np.all(gradients[0][:, :, ::3] == 0.0) and all(np.all(g[1] == 0.0) for g in gradients)
    assert all(np.isfinite(g).all() for g in gradients)
    broken = ops.where(ops.arange(T)[:, None] == 3, np.nan, query)
    assert_close(both_ways(function, [broken, key, value], rule)[:1], [output])


@pytest.mark.slow
@pytest.mark.parametrize(
    "rule",
    [~masks.causal(), ~masks.causal() & masks.window(4)],
    ids=["plain", "local"],
)
def test_queries_that_see_nothing_of_a_mask_by_distance_have_zero_gradients(rule):
    *arguments, upstream = operands_of((1, 1, 1, 24, 24))
    function, _ = scored("scaled dot", D, 2, None)
    found = both_ways(function, arguments, rule, upstream=upstream, block=(4, 4))
    output, of_query, of_key, of_value = map(numpy, found)
    assert np.all(output[:, :, -1] == 0) and np.all(of_query[:, :, -1] == 0)
    assert np.any(output[:, :, -2] != 0)
    # And nobody sees the first key.
    assert np.all(of_key[:, :, 0] == 0) and np.all(of_value[:, :, 0] == 0)


@pytest.mark.slow
def test_a_bias_that_hides_keys_is_no_mask_and_no_nan():
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
