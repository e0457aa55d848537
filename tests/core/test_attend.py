"""The engine's dense path against the oracle: outputs, weights and gradients."""

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import ops

from tests import reference
from tests.helpers.tensors import FLOAT64, as_tensor, both_ways, dtype_of, needs_float64, numpy, tf
from tfattn import Attention, attend, biases, masks
from tfattn.core import scores as score_functions

B, T, S, D, V, U = 2, 3, 7, 5, 11, 13


def draw(rng, *shape):
    return rng.normal(size=shape).astype("float32")


def scored(name, query, key, rng):
    """(pairwise function, its parameters, the oracle's scores)."""
    if name == "dot":
        return score_functions.dot_product, (), reference.dot_product(query, key, scale=1.0)
    if name == "scaled dot":
        return score_functions.scaled_dot_product, (), reference.dot_product(query, key)
    if name == "additive":
        weight = draw(rng, query.shape[-1], 1)
        return score_functions.additive, (weight,), reference.additive(query, key, weight[:, 0])
    kernel = {"gaussian": lambda squared: -0.5 * squared}[name]
    return score_functions.log_kernel(kernel), (), reference.log_kernel(query, key)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    score=st.sampled_from(["dot", "scaled dot", "additive", "gaussian"]),
    heads=st.sampled_from([None, (1, 1), (4, 4), (4, 2), (4, 1)]),
    mask=st.sampled_from([None, "causal", "padding", "window & padding", "random", "nothing"]),
    biased=st.booleans(),
)
def test_output_and_weights_equal_the_oracle(seed, score, heads, mask, biased):
    rng = np.random.default_rng(seed)
    outer_q, outer_k = ((B,), (B,)) if heads is None else ((B, heads[0]), (B, heads[1]))
    query, key, value = (
        draw(rng, *outer_q, T, D),
        draw(rng, *outer_k, S, D),
        draw(rng, *outer_k, S, V),
    )
    repeats = 1 if heads is None else heads[0] // heads[1]
    many_keys, many_values = (
        x if heads is None else np.repeat(x, repeats, axis=1) for x in (key, value)
    )
    function, parameters, scores = scored(score, query, many_keys, rng)
    lengths = rng.integers(0, S + 1, size=B)
    random = rng.random((B, T, S)) < 0.5
    given_mask, seen = {
        None: (None, np.ones((T, S), bool)),
        "causal": (masks.causal(), reference.causal(T, S)),
        "padding": (masks.padding(lengths), reference.padding(lengths, S)),
        "window & padding": (
            masks.window(2) & masks.padding(lengths),
            reference.window(2, T, S) & reference.padding(lengths, S),
        ),
        "random": (random, random),
        "nothing": (np.zeros((T, S), bool), np.zeros((T, S), bool)),
    }[mask]
    if heads is not None and seen.ndim == 3:
        seen = seen[:, None]
    bias = draw(rng, T, S) if biased else None
    output, weights = attend(
        query,
        value,
        key=key,
        score=function,
        parameters=parameters,
        mask=given_mask,
        bias=bias,
        return_weights=True,
    )
    expected = reference.attention(scores + (bias if biased else 0.0), many_values, seen)
    np.testing.assert_allclose(weights, expected[1], atol=2e-5)
    np.testing.assert_allclose(output, expected[0], atol=5e-5)
    alone = attend(
        query, value, key=key, score=function, parameters=parameters, mask=given_mask, bias=bias
    )
    np.testing.assert_array_equal(output, alone)


@needs_float64
def test_gradients_equal_finite_differences():
    rng = np.random.default_rng(0)
    inputs = {
        n: rng.normal(size=s)
        for n, s in (("query", (1, T, D)), ("value", (1, S, V)), ("key", (1, S, D)))
    }
    inputs["bias"] = rng.normal(size=(T, S))
    direction = rng.normal(size=(1, T, V))
    mask = reference.causal(T, S)

    def oracle(**x):
        scores = reference.dot_product(x["query"], x["key"]) + x["bias"]
        return (reference.attention(scores, x["value"], mask)[0] * direction).sum()

    def ours(*tensors):
        return attend(**dict(zip(inputs, tensors, strict=True)), mask=masks.causal())

    _, gradients = both_ways(ours, inputs.values(), direction)
    for name, gradient in zip(inputs, gradients, strict=True):
        step = rng.normal(size=inputs[name].shape)
        up, down = ({**inputs, name: inputs[name] + sign * 1e-6 * step} for sign in (1, -1))
        numeric = (oracle(**up) - oracle(**down)) / 2e-6
        np.testing.assert_allclose((numpy(gradient) * step).sum(), numeric, rtol=1e-6, err_msg=name)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", FLOAT64])
def test_fully_masked_query_pools_to_zero_with_finite_gradients(dtype):
    rng = np.random.default_rng(0)
    query, key, value = (ops.cast(draw(rng, B, n, D), dtype) for n in (T, S, S))

    def run(query, key, value):
        return attend(query, value, key=key, mask=np.zeros((T, S), bool), return_weights=True)

    (output, weights), gradients = both_ways(run, (query, key, value), has_aux=True)
    assert np.all(numpy(output) == 0) and np.all(numpy(weights) == 0)
    assert dtype_of(output) == dtype
    for gradient in gradients:
        assert np.all(numpy(gradient) == 0)


def test_large_half_precision_scores_stay_finite():
    query = ops.full((1, 2, 64), as_tensor(20.0, "float16"))
    output, weights = attend(query, query, return_weights=True)
    np.testing.assert_array_equal(weights, np.full((1, 2, 2), 0.5, "float16"))
    assert np.isfinite(output).all()


def test_grouped_heads_equal_repeated_ones():
    rng = np.random.default_rng(0)
    query, key, value = draw(rng, B, 6, T, D), draw(rng, B, 2, S, D), draw(rng, B, 2, S, V)
    grouped = attend(query, value, key=key, mask=masks.causal())
    repeated = attend(
        query, np.repeat(value, 3, axis=1), key=np.repeat(key, 3, axis=1), mask=masks.causal()
    )
    np.testing.assert_allclose(grouped, repeated, atol=1e-6)


def test_dropout_keeps_the_mean_its_seed_and_the_weights_before_it():
    query, value = np.zeros((1, 1, 2), "float32"), np.ones((1, 4000, 1), "float32")
    key = np.zeros((1, 4000, 2), "float32")
    output, weights = attend(query, value, key=key, dropout=0.5, seed=7, return_weights=True)
    assert 0.9 < float(output[0, 0, 0]) < 1.1 and float(output[0, 0, 0]) != 1.0
    np.testing.assert_allclose(np.sum(weights), 1.0, rtol=1e-5)
    again, other = (attend(query, value, key=key, dropout=0.5, seed=seed) for seed in (7, 8))
    np.testing.assert_array_equal(again, output)
    assert float(other[0, 0, 0]) != float(output[0, 0, 0])


def ops_of(function):
    concrete = function.get_concrete_function()
    ranks = [
        t.shape.rank
        for op in concrete.graph.get_operations()
        for t in op.outputs
        if t.shape.rank is not None
    ]
    return {op.type for op in concrete.graph.get_operations()}, max(ranks)


@pytest.mark.slow
@pytest.mark.tensorflow
@pytest.mark.parametrize("score, groups", [("dot", 4), ("additive", 2), ("gaussian", 2)])
def test_products_are_batched_and_no_tensor_has_five_axes(score, groups):
    rng = np.random.default_rng(0)
    query, key, value = (
        draw(rng, B, 4, T, D),
        draw(rng, B, groups, S, D),
        draw(rng, B, groups, S, V),
    )
    function, parameters, _ = scored(score, query, np.repeat(key, 4 // groups, axis=1), rng)

    @tf.function
    def traced():
        return attend(
            as_tensor(query),
            as_tensor(value),
            key=as_tensor(key),
            score=function,
            parameters=parameters,
        )

    types, rank = ops_of(traced)
    assert "BatchMatMulV2" in types
    assert "Einsum" not in types
    assert rank <= 4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"query": np.zeros((B, D))},
            r"attend: `query` must have shape \(B, T, D\) or \(B, H, T, D\)",
        ),
        ({"value": np.zeros((B, 1, S, V))}, r"`value` must have shape \(B, S, D\)"),
        (
            {"value": np.zeros((B, S + 1, V))},
            f"`key` must have as many tokens as `value`, which has {S + 1}",
        ),
        (
            {"query": np.zeros((B, 4, T, D)), "key": np.zeros((B, 3, S, D)), "value": None},
            "must divide `query heads`=4 without remainder",
        ),
        ({"mask": np.zeros((T, S + 1), bool)}, "`mask` must have shape"),
        ({"bias": np.zeros((T, S + 1))}, "`bias` must have shape"),
    ],
)
def test_bad_arguments_are_refused(change, message):
    arguments = {
        "query": np.zeros((B, T, D)),
        "value": np.zeros((B, S, V)),
        "key": np.zeros((B, S, D)),
        **change,
    }
    if arguments["value"] is None:
        arguments["value"] = arguments["key"]
    with pytest.raises(ValueError, match=message):
        attend(**arguments)


def test_score_layer_and_function_agree():
    layer = keras.layers.Identity()  # a custom score may use a layer
    rng = np.random.default_rng(0)
    query, value = draw(rng, B, T, D), draw(rng, B, S, D)

    def score(query, key):
        return layer(score_functions.dot_product(query, key))

    np.testing.assert_array_equal(
        attend(query, value, score=score), attend(query, value, score=score_functions.dot_product)
    )


@pytest.mark.parametrize("path", ["dense", "streamed"])
@pytest.mark.parametrize("variable", [keras.Variable, *([tf.Variable] if tf else [])])
def test_variables_are_taken_for_what_they_hold_and_have_gradients(variable, path):
    rng = np.random.default_rng(0)
    query, value = (rng.normal(size=size).astype("float32") for size in ((2, 3, 5), (2, 7, 5)))
    expected = attend(query=query, value=value, path=path)
    query, value = variable(query), variable(value)
    np.testing.assert_array_equal(attend(query=query, value=value, path=path), expected)
    np.testing.assert_array_equal(
        Attention()(query, value), attend(query=query, value=value, path="dense")
    )

    def total():
        return ops.sum(attend(query=query, value=value, path=path))

    if variable is keras.Variable:
        _, gradients = both_ways(total, [], variables=[query, value])
    else:
        with tf.GradientTape() as tape:
            found = total()
        gradients = tape.gradient(found, [query, value])
    assert all(np.any(numpy(gradient)) for gradient in gradients)


# Custom rules outside the package, which hold NumPy arrays.


class Table(masks.Mask):
    def __init__(self, table):
        self.table = table

    def on(self, grid):
        return grid.columns_of(grid.rows_of(self.table, -2), -1)

    def flatten(self):
        return (self.table,), ()


class TableInAList(Table):
    def flatten(self):
        return ([self.table],), ()

    @classmethod
    def unflatten(cls, static, children):
        return cls(*children[0])


class StaticTable(Table):
    def flatten(self):
        return (), (self.table,)


class WholeTable(Table):
    """Not flattened: the inherited `flatten` applies to its own class."""


class Every(masks.Mask):
    def __init__(self, number):
        self.number = number

    def on(self, grid):
        return grid.key_positions() % self.number == 0

    def flatten(self):
        return (self.number,), ()


class Added(biases.Bias):
    def __init__(self, table):
        self.table = table

    def on(self, grid, *parameters):
        (table,) = parameters or (self.table,)
        return grid.columns_of(grid.rows_of(table, -2), -1)

    def flatten(self):
        return (self.table,), ()


class Learned(Added):
    def parameters(self):
        return (self.table,)

    def flatten(self):
        return (self.table,), ()


SEEN = np.random.default_rng(7).random((T, S)) < 0.6
ADDED = np.random.default_rng(8).normal(size=(T, S)).astype("float32")
TURN = np.linspace(-1, 1, D * D).reshape(D, D).astype("float32")
EVEN = np.broadcast_to(np.arange(S) % 2 == 0, (T, S))


def turned(query, key, turn=TURN):
    return ops.matmul(ops.matmul(query, turn), ops.swapaxes(key, -1, -2))


OF_ONES_OWN = {
    "mask": (lambda: {"mask": Table(SEEN)}, SEEN, 0.0),
    "mask, joined": (lambda: {"mask": Table(SEEN) & ~Every(2)}, SEEN & ~EVEN, 0.0),
    "mask, list": (lambda: {"mask": TableInAList(SEEN)}, SEEN, 0.0),
    "mask, static": (lambda: {"mask": StaticTable(SEEN)}, SEEN, 0.0),
    "mask, whole": (lambda: {"mask": WholeTable(SEEN)}, SEEN, 0.0),
    "mask, number": (lambda: {"mask": Every(np.int64(2))}, EVEN, 0.0),
    "bias": (lambda: {"bias": Added(ADDED)}, None, ADDED),
    "bias, learned": (lambda: {"bias": Learned(ADDED)}, None, ADDED),
    "bias, sum": (lambda: {"bias": Added(ADDED) + ADDED}, None, 2 * ADDED),
    "score": (lambda: {"score": turned}, None, None),
    "score, parameter": (lambda: {"score": turned, "parameters": [TURN]}, None, None),
}


@pytest.mark.parametrize("name", OF_ONES_OWN)
def test_what_a_user_writes_with_arrays_of_numpy_works_on_every_path(name):
    options, seen, added = OF_ONES_OWN[name]
    rng = np.random.default_rng(9)
    query, key = draw(rng, B, T, D), draw(rng, B, S, D)
    scores = query @ TURN @ key.swapaxes(-1, -2) if added is None else None
    scores = reference.dot_product(query, key) + added if scores is None else scores
    expected = reference.softmax(scores, seen) @ key
    for path in ("dense", "streamed"):
        found = attend(query, key, path=path, **options())
        np.testing.assert_allclose(numpy(found), expected, atol=2e-6, err_msg=path)
