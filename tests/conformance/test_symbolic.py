"""Symbolic shapes and dtypes equal eager ones, for T ≠ S and for unknown B, T, S."""

import random

import keras
import pytest

from tests.conformance.table import NUMERIC, OF_A_CLASS, ROWS, SIZES, named

UNKNOWN = dict.fromkeys("BTS")
# Attention layers whose scores and weights have the shapes of another row.
SAME_SHAPES = {row.name for row in ROWS if row.name.startswith(("Attention[", "NadarayaWatson["))}
SAME_SHAPES |= {"MultiHeadAttention[kernel]", "MultiHeadAttention[sparsemax]"}
SHAPED = [row for row in ROWS if row in OF_A_CLASS or row.name not in SAME_SHAPES]


def facts(outputs):
    return [
        (tuple(x.shape), keras.backend.standardize_dtype(x.dtype))
        for x in keras.tree.flatten(outputs)
    ]


@pytest.mark.parametrize(**named(OF_A_CLASS))
def test_layer_not_built_promises_the_shapes_and_dtypes_of_eager_calls(row):
    inputs, symbols = row.arrays(), row.symbols(SIZES, batch=SIZES["B"])
    options = {"return_attention_scores": True} if row.weights else {}
    eager = facts(row.call(row.shared(), inputs, **options))
    assert eager == [(row.shape(each), "float32") for each in (row.output, *row.weights)]

    layer = row.make()
    drawn = random.getstate()  # Keras draws seeds from it
    assert facts(row.call(layer.compute_output_spec, symbols, **options)) == eager
    assert random.getstate() == drawn
    assert not layer.weights
    shapes = [x.shape for x in inputs]
    shapes = (tuple(shapes),) if row.pair else shapes
    assert tuple(row.make().compute_output_shape(*shapes)) == row.shape(row.output)


@pytest.mark.parametrize(**named(SHAPED))
def test_layer_called_with_unknown_lengths_keeps_them_and_computes_the_same(row):
    by_symbols, inputs, symbols = row.make(), row.arrays(), row.symbols()
    options = {"return_attention_scores": True} if row.weights else {}
    outputs = row.call(by_symbols, symbols, **options)
    letters = (row.output, *row.weights)
    assert facts(outputs) == [(row.shape(each, UNKNOWN), "float32") for each in letters]
    layer = row.shared()
    assert [w.shape for w in by_symbols.weights] == [w.shape for w in layer.weights]
    by_symbols.set_weights(layer.get_weights())
    model = keras.Model(symbols[0] if len(symbols) == 1 else symbols, outputs)
    for sizes in (SIZES, {"B": 1, "T": 1, "S": 1}, {"B": 5, "T": 7, "S": 3}):
        inputs = row.arrays(sizes=sizes)
        found = keras.tree.flatten(model(inputs[0] if len(inputs) == 1 else inputs))
        wanted = keras.tree.flatten(row.call(layer, inputs, **options))
        for one, other in zip(found, wanted, strict=True):
            assert keras.ops.all(one == other)
        assert [tuple(x.shape) for x in found] == [row.shape(each, sizes) for each in letters]


@pytest.mark.parametrize(**named([row for row in NUMERIC if row in OF_A_CLASS]))
def test_layer_without_weights_asked_for_has_one_symbolic_output(row):
    for symbols, sizes in ((row.symbols(SIZES, batch=SIZES["B"]), SIZES), (row.symbols(), UNKNOWN)):
        for policy in ("float32", "mixed_bfloat16"):
            found = facts(row.call(row.shared(policy), symbols))
            assert found == [(row.shape(row.output, sizes), policy.removeprefix("mixed_"))]


@pytest.mark.slow
@pytest.mark.parametrize(**named([row for row in OF_A_CLASS if row.kind != "attention"]))
def test_layer_symbolic_dtype_is_the_eager_one_in_half_precision(row):
    layer = row.shared("mixed_bfloat16")
    _, dtype = facts(row.call(layer, row.arrays()))[0]
    assert facts(row.call(layer, row.symbols())) == [(row.shape(row.output, UNKNOWN), dtype)]
