"""Symbolic shapes and dtypes are the eager ones, with T ≠ S and with unknown B, T, S."""

import random

import keras
import pytest

from tests.conformance.table import ROWS, SIZES, WITH_WEIGHTS, named

SCORES = {"return_attention_scores": True}


def facts(outputs):
    return [
        (tuple(x.shape), keras.backend.standardize_dtype(x.dtype))
        for x in keras.tree.flatten(outputs)
    ]


@pytest.mark.parametrize(**named(ROWS))
def test_eager_output_has_the_shape_of_the_table(row):
    layer = row.shared()
    assert facts(row.call(layer, row.arrays())) == [(row.shape(row.output), "float32")]


@pytest.mark.parametrize(**named(WITH_WEIGHTS))
def test_eager_weights_have_the_shape_of_the_table(row):
    expected = [(row.shape(letters), "float32") for letters in (row.output, *row.weights)]
    assert facts(row.call(row.shared(), row.arrays(), **SCORES)) == expected


@pytest.mark.parametrize(
    "dtype", ["float32", pytest.param("mixed_bfloat16", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize(**named(ROWS))
def test_symbolic_output_equals_eager_output(row, dtype):
    layer = row.shared(dtype)
    known = row.call(layer, row.symbols(SIZES, batch=SIZES["B"]))
    assert facts(known) == facts(row.call(layer, row.arrays()))
    unknown = row.shared_model(dtype).outputs
    assert facts(unknown) == [
        (row.shape(row.output, sizes=dict.fromkeys("BTS")), facts(known)[0][1])
    ]


@pytest.mark.parametrize(**named(WITH_WEIGHTS))
def test_symbolic_weights_equal_eager_weights(row):
    layer = row.shared()
    known = row.call(layer, row.symbols(SIZES, batch=SIZES["B"]), **SCORES)
    assert facts(known) == facts(row.call(layer, row.arrays(), **SCORES))
    unknown = row.call(layer, row.symbols(), **SCORES)
    shapes = [
        row.shape(letters, sizes=dict.fromkeys("BTS")) for letters in (row.output, *row.weights)
    ]
    assert [shape for shape, _ in facts(unknown)] == shapes


@pytest.mark.parametrize(**named(ROWS))
def test_layer_is_built_by_symbols_as_by_tensors(row):
    built_by_symbols = row.make()
    row.call(built_by_symbols, row.symbols())
    assert [w.shape for w in built_by_symbols.weights] == [w.shape for w in row.shared().weights]
    row.call(built_by_symbols, row.arrays())


@pytest.mark.parametrize(**named(ROWS))
def test_compute_output_shape_equals_eager_shape(row):
    shapes = [x.shape for x in row.arrays()]
    layer = row.make()
    result = (
        layer.compute_output_shape(tuple(shapes))
        if row.pair
        else layer.compute_output_shape(*shapes)
    )
    assert tuple(result) == row.shape(row.output)


@pytest.mark.parametrize(**named(ROWS))
def test_compute_output_spec_of_a_layer_that_is_not_built_is_the_eager_output(row):
    layer = row.make()
    drawn = random.getstate()  # from which Keras draws the seeds of what comes next
    promised = row.call(layer.compute_output_spec, row.symbols(SIZES, batch=SIZES["B"]))
    assert random.getstate() == drawn
    expected = row.call(row.shared(), row.arrays())
    assert facts(promised) == facts(expected)
    assert not layer.weights
    assert facts(row.call(layer, row.arrays())) == facts(expected)


@pytest.mark.parametrize(**named(WITH_WEIGHTS))
def test_compute_output_spec_of_a_layer_that_is_not_built_has_the_weights(row):
    symbols = row.symbols(SIZES, batch=SIZES["B"])
    promised = row.call(row.make().compute_output_spec, symbols, **SCORES)
    assert facts(promised) == facts(row.call(row.shared(), row.arrays(), **SCORES))


@pytest.mark.parametrize(**named(ROWS))
def test_other_lengths_and_batches_run_through_the_same_layer(row):
    layer = row.shared()
    for sizes in ({"B": 1, "T": 1, "S": 1}, {"B": 5, "T": 7, "S": 3}):
        output = row.call(layer, row.arrays(sizes=sizes))
        assert tuple(output.shape) == row.shape(row.output, sizes)


@pytest.mark.parametrize(**named(ROWS))
def test_functional_model_of_unknown_lengths_equals_eager(row):
    layer, inputs = row.shared(), row.arrays()
    output = row.shared_model()(inputs[0] if len(inputs) == 1 else inputs)
    assert keras.ops.all(output == row.call(layer, inputs))
