"""Every layer computes the same eagerly, under tf.function, under XLA and in `fit`."""

import keras
import numpy as np
import pytest
from keras import ops

import tfattn
from tests.conformance.table import ROWS, first_of_each_class, named
from tests.helpers import paths
from tests.helpers.tensors import BACKEND, as_tensor, both_ways, compiled, numpy, tf

OTHER_SIZES = {"B": 3, "T": 5, "S": 11}


# Under pre-norm the norm is `AddNorm.pre_norm`'s, which has its own test at the end.
TRAINED = tuple(row for row in ROWS if row.name != "AddNorm[pre-norm]")
OF_A_CLASS = tuple(row for row in ROWS if row in first_of_each_class())


def specs(row):
    return [tf.TensorSpec(symbol.shape, symbol.dtype) for symbol in row.symbols()]


def graph_of(row, layer, **options):
    traces = []

    @tf.function(input_signature=[specs(row)], **options)
    def run(inputs):
        traces.append(1)
        return row.call(layer, inputs)

    return run, traces


@pytest.mark.tensorflow
@pytest.mark.slow
@pytest.mark.parametrize(**named(OF_A_CLASS))
def test_one_trace_of_unknown_shapes_serves_all_and_equals_eager(row):
    sizes = {**OTHER_SIZES, "T": 11} if "leave_one_out" in row.name else OTHER_SIZES
    layer = row.shared()
    run, traces = graph_of(row, layer)
    for inputs in (row.arrays(seed=1), row.arrays(seed=2, sizes=sizes)):
        np.testing.assert_allclose(run(inputs), row.call(layer, inputs), rtol=1e-5, atol=1e-5)
    assert len(traces) == 1


# One row a class, and one head with each score and each normalizer.
COMPILED = [row for row in TRAINED if row in OF_A_CLASS or row.name.startswith("Attention[")]


def outputs_and_gradients(arrays):
    """Output, and gradients of float inputs and weights, of every compiled row."""
    found = {}
    for row in COMPILED:
        layer, inputs = row.shared(), arrays[row.name]
        floats = {i: inputs[i] for i, tokens in enumerate(row.inputs) if tokens.width is not None}

        def sines(*tensors, row=row, layer=layer, inputs=inputs, floats=floats):
            changed = dict(zip(floats, tensors, strict=True))
            output = row.call(layer, [changed.get(i, x) for i, x in enumerate(inputs)])
            return ops.sum(ops.sin(output)), output

        (_, output), gradients = both_ways(
            sines, list(floats.values()), variables=layer.trainable_weights, has_aux=True
        )
        found[row.name] = [output, *gradients]
    return found


@pytest.fixture(scope="module")
def eager_and_jit():
    """All rows, compiled together to save time."""
    with paths.dense():
        arrays = {row.name: [as_tensor(x) for x in row.arrays(seed=1)] for row in COMPILED}
        eager = outputs_and_gradients(arrays)
        return eager, compiled(outputs_and_gradients, jit=True)(arrays)


@pytest.mark.slow
@pytest.mark.parametrize(**named(COMPILED))
def test_jit_equals_eager_in_output_and_every_gradient(row, eager_and_jit):
    eager, jit = (results[row.name] for results in eager_and_jit)
    np.testing.assert_allclose(jit[0], eager[0], rtol=1e-4, atol=1e-5)
    for jit_gradient, gradient in zip(jit[1:], eager[1:], strict=True):
        assert gradient is not None
        np.testing.assert_allclose(jit_gradient, gradient, rtol=1e-3, atol=1e-4)


# One row per class, since compiling more rows takes long. Encoder and decoder are fitted inside of
# the Transformer, and the regressor has its own `fit`.
INSIDE = ("TransformerEncoder", "TransformerDecoder", "RecurrentEncoder", "RecurrentDecoder")
FITTED = tuple(row for row in OF_A_CLASS if row in TRAINED and row.name not in INSIDE)


class AllRows(keras.Model):
    """One row per class in one model, which returns the sum of errors, to compile `fit` once."""

    def __init__(self, layers, **kwargs):
        super().__init__(**kwargs)
        self.rows = layers

    def call(self, inputs, training=None):
        total = 0.0
        for row, layer, arrays in zip(FITTED, self.rows, inputs, strict=True):
            output = (
                row.call(layer, list(arrays), training=training)
                if _trains(row)
                else row.call(layer, list(arrays))
            )
            axes = tuple(range(1, len(output.shape)))
            total = total + keras.ops.mean(keras.ops.square(output - 1.0), axis=axes)
        return total

    def build(self, input_shape):
        """All layers are built already."""


def _trains(row):
    return row.kind not in ("score",) and "PositionalEncoding" not in row.name


@pytest.fixture(scope="module")
def fitted():
    """Each row's weights before and after one step of `fit`, and the losses."""
    layers = [row.new() for row in FITTED]
    model = AllRows(layers)
    model.compile(
        keras.optimizers.SGD(1e-2),
        loss=lambda _, total: total,
        jit_compile=BACKEND != "torch",
        run_eagerly=False,
    )
    before = {
        row.name: [numpy(w.value).copy() for w in layer.weights]
        for row, layer in zip(FITTED, layers, strict=True)
    }
    inputs = [tuple(row.arrays()) for row in FITTED]
    history = model.fit(inputs, np.zeros((2, 1), "float32"), batch_size=2, epochs=1, verbose=0)
    return (
        dict(zip((row.name for row in FITTED), layers, strict=True)),
        before,
        history.history["loss"],
    )


@pytest.mark.slow
@pytest.mark.parametrize(**named(FITTED))
def test_one_step_of_fit_moves_every_trainable_weight_to_a_finite_value(row, fitted):
    layers, before, losses = fitted
    layer = layers[row.name]
    trainable = {id(weight) for weight in layer.trainable_weights}
    assert np.isfinite(losses).all()
    for weight, old in zip(layer.weights, before[row.name], strict=True):
        new = numpy(weight.value)
        assert np.isfinite(new).all()
        if id(weight) in trainable:
            # The softmax does not depend on a constant added to all scores of a query: the key's
            # bias has no gradient.
            assert (new != old).any() or weight.path.endswith("key/bias"), (
                f"{weight.path} got no gradient"
            )
        elif "seed" not in weight.path:
            np.testing.assert_array_equal(new, old)


def test_pre_norm_is_trained_through_pre_norm():
    layer = tfattn.AddNorm(norm_first=True)
    inputs = np.random.default_rng(0).normal(size=(2, 3, 11)).astype("float32")
    layer(inputs, layer.pre_norm(inputs))
    _, gradients = both_ways(
        lambda: ops.sum(layer(inputs, layer.pre_norm(inputs)) ** 2),
        (),
        variables=layer.trainable_weights,
    )
    assert len(gradients) == 2 and all(np.any(numpy(gradient) != 0) for gradient in gradients)
