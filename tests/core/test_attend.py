"""`attend`: its edges, its refusals, and rules and scores of one's own. See `test_properties`."""

import keras
import numpy as np
import pytest
from keras import ops

from tests import reference
from tests.helpers.tensors import FLOAT64, as_tensor, both_ways, dtype_of, numpy, tf
from tfattn import Attention, attend, biases, masks
from tfattn.core import kernels
from tfattn.core import scores as score_functions

B, T, S, D, V = 2, 3, 7, 5, 11


def draw(rng, *shape):
    return rng.normal(size=shape).astype("float32")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", FLOAT64])
def test_attend_fully_masked_is_zero_with_zero_gradients(dtype):
    rng = np.random.default_rng(0)
    query, key, value = (ops.cast(draw(rng, B, n, D), dtype) for n in (T, S, S))

    def run(query, key, value):
        return attend(query, value, key=key, mask=np.zeros((T, S), bool), return_weights=True)

    (output, weights), gradients = both_ways(run, (query, key, value), has_aux=True)
    assert np.all(numpy(output) == 0) and np.all(numpy(weights) == 0)
    assert dtype_of(output) == dtype
    for gradient in gradients:
        assert np.all(numpy(gradient) == 0)


def test_attend_large_float16_scores_stay_finite():
    query = ops.full((1, 2, 64), as_tensor(20.0, "float16"))
    output, weights = attend(query, query, return_weights=True)
    np.testing.assert_array_equal(weights, np.full((1, 2, 2), 0.5, "float16"))
    assert np.isfinite(output).all()


def test_attend_dropout_keeps_mean_seed_and_weights_before_it():
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
@pytest.mark.parametrize(
    "score, groups",
    [
        (score_functions.dot_product, 4),
        (score_functions.additive, 2),
        (score_functions.log_kernel(kernels.get("gaussian")), 2),
    ],
    ids=["dot", "additive", "gaussian"],
)
def test_attend_products_are_batched_and_no_tensor_has_five_axes(score, groups):
    query, key, value = (
        tf.zeros((B, *shape)) for shape in ((4, T, D), (groups, S, D), (groups, S, V))
    )
    parameters = [tf.zeros((D, 1))] if score is score_functions.additive else []

    @tf.function
    def traced():
        return attend(query, value, key=key, score=score, parameters=parameters)

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
def test_attend_bad_arguments_are_refused(change, message):
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


def test_attend_score_with_layer_equals_function():
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
def test_attend_variables_have_values_and_gradients(variable, path):
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


class TableInAList(masks.Mask):
    def __init__(self, table):
        self.tables = [table, "its name"]

    def on(self, grid):
        return Table(self.tables[0]).on(grid)


class Every(masks.Mask):
    def __init__(self, number):
        self.number = number

    def on(self, grid):
        return grid.key_positions() % self.number == 0


class Added(biases.Bias):
    def __init__(self, table):
        self.table = table

    def on(self, grid, *parameters):
        (table,) = parameters or (self.table,)
        return grid.columns_of(grid.rows_of(table, -2), -1)


class Learned(Added):
    def parameters(self):
        return (self.table,)


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
    "mask, list of tensors": (lambda: {"mask": TableInAList(as_tensor(SEEN))}, SEEN, 0.0),
    "mask, number": (lambda: {"mask": Every(np.int64(2))}, EVEN, 0.0),
    "bias": (lambda: {"bias": Added(ADDED)}, None, ADDED),
    "bias, learned": (lambda: {"bias": Learned(ADDED)}, None, ADDED),
    "bias, sum": (lambda: {"bias": Added(ADDED) + ADDED}, None, 2 * ADDED),
    "score": (lambda: {"score": turned}, None, None),
    "score, parameter": (lambda: {"score": turned, "parameters": [TURN]}, None, None),
}


@pytest.mark.parametrize("name", OF_ONES_OWN)
def test_attend_custom_rules_with_numpy_arrays_equal_formula(name):
    options, seen, added = OF_ONES_OWN[name]
    rng = np.random.default_rng(9)
    query, key = draw(rng, B, T, D), draw(rng, B, S, D)
    scores = query @ TURN @ key.swapaxes(-1, -2) if added is None else None
    scores = reference.dot_product(query, key) + added if scores is None else scores
    expected = reference.softmax(scores, seen) @ key
    for path in ("dense", "streamed"):
        found = attend(query, key, path=path, **options())
        np.testing.assert_allclose(numpy(found), expected, atol=2e-6, err_msg=path)
