"""Symbolic shapes and dtypes equal eager ones, for T ≠ S and for unknown B, T, S."""

import random

import keras
import pytest

from tests.conformance.table import ROWS, SIZES, first_of_each_class, named

UNKNOWN = dict.fromkeys("BTS")
OF_A_CLASS = [row for row in ROWS if row in first_of_each_class()]


def facts(outputs):
    return [
        (tuple(x.shape), keras.backend.standardize_dtype(x.dtype))
        for x in keras.tree.flatten(outputs)
    ]


@pytest.mark.parametrize(**named(ROWS))
def test_shapes_and_dtypes_are_promised_before_a_layer_is_built(row):
    inputs, symbols = row.arrays(), row.symbols(SIZES, batch=SIZES["B"])
    asked = [{"return_attention_scores": True}] if row.weights else []
    for options in ({}, *asked):
        letters = (row.output, *(row.weights if options else ()))
        eager = facts(row.call(row.shared(), inputs, **options))
        assert eager == [(row.shape(each), "float32") for each in letters]

        layer = row.make()
        drawn = random.getstate()  # Keras draws seeds from it
        assert facts(row.call(layer.compute_output_spec, symbols, **options)) == eager
        assert random.getstate() == drawn
        assert not layer.weights
        assert facts(row.call(row.shared(), symbols, **options)) == eager

    shapes = [x.shape for x in inputs]
    shapes = (tuple(shapes),) if row.pair else shapes
    assert tuple(row.make().compute_output_shape(*shapes)) == row.shape(row.output)


@pytest.mark.parametrize(**named(ROWS))
def test_unknown_lengths_stay_unknown_and_compute_the_same(row):
    by_symbols, inputs = row.make(), row.arrays()
    asked = {"return_attention_scores": True} if row.weights else {}
    letters = (row.output, *row.weights)
    unknown = facts(row.call(by_symbols, row.symbols(), **asked))
    assert [shape for shape, _ in unknown] == [row.shape(each, UNKNOWN) for each in letters]
    layer = row.shared()
    assert [w.shape for w in by_symbols.weights] == [w.shape for w in layer.weights]
    by_symbols.set_weights(layer.get_weights())
    assert keras.ops.all(row.call(by_symbols, inputs) == row.call(layer, inputs))
    for sizes in ({"B": 1, "T": 1, "S": 1}, {"B": 5, "T": 7, "S": 3}):
        output = row.call(layer, row.arrays(sizes=sizes))
        assert tuple(output.shape) == row.shape(row.output, sizes)


@pytest.mark.parametrize(**named(OF_A_CLASS))
def test_functional_model_of_unknown_lengths_equals_eager(row):
    layer, inputs = row.shared(), row.arrays()
    output = row.shared_model()(inputs[0] if len(inputs) == 1 else inputs)
    assert keras.ops.all(output == row.call(layer, inputs))


@pytest.mark.parametrize(**named(OF_A_CLASS))
def test_symbolic_dtype_is_the_eager_one_in_half_precision(row):
    layer = row.shared("mixed_bfloat16")
    eager = facts(row.call(layer, row.arrays()))
    assert facts(row.call(layer, row.symbols(SIZES, batch=SIZES["B"]))) == eager
    assert facts(row.call(layer, row.symbols())) == [(row.shape(row.output, UNKNOWN), eager[0][1])]
