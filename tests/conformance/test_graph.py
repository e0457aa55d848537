"""Every layer computes the same eagerly, under tf.function, under XLA and in `fit`."""

import keras
import numpy as np
import pytest
from keras import ops

import tfattn
from tests.conformance.table import INSIDE, OF_A_CLASS, ROWS, named
from tests.helpers import paths
from tests.helpers.tensors import as_tensor, both_ways, compiled, numpy, tf

OTHER_SIZES = {"B": 3, "T": 5, "S": 11}
# Scores and sublayers are inside of others.
OUTER = [row for row in OF_A_CLASS if row.name not in INSIDE and row.kind != "score"]


@pytest.mark.tensorflow
@pytest.mark.slow
@pytest.mark.parametrize(**named(OUTER))
def test_layer_traced_once_for_unknown_shapes_equals_eager(row):
    layer, traces = row.shared(), []

    @tf.function(input_signature=[[tf.TensorSpec(x.shape, x.dtype) for x in row.symbols()]])
    def run(inputs):
        traces.append(1)
        return row.call(layer, inputs)

    for inputs in (row.arrays(seed=1), row.arrays(seed=2, sizes=OTHER_SIZES)):
        np.testing.assert_allclose(run(inputs), row.call(layer, inputs), rtol=1e-5, atol=1e-5)
    assert len(traces) == 1


# With each score and each normalizer.
COMPILED = OUTER + [row for row in ROWS if row.name.startswith("Attention[") and row not in OUTER]


DROPPED = ("DotProductAttention", "TransformerEncoderBlock")  # of weights, of features


def outputs_and_gradients(arrays):
    """Output, and gradients of float inputs and weights, of every compiled row; and outputs in
    training.
    """
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
        if row.name in DROPPED:
            found[f"{row.name} in training"] = row.call(layer, inputs, training=True)
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
def test_layer_under_xla_equals_eager_in_output_and_every_gradient(row, eager_and_jit):
    eager, jit = (results[row.name] for results in eager_and_jit)
    np.testing.assert_allclose(jit[0], eager[0], rtol=1e-4, atol=1e-5)
    for jit_gradient, gradient in zip(jit[1:], eager[1:], strict=True):
        assert gradient is not None
        np.testing.assert_allclose(jit_gradient, gradient, rtol=1e-3, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", DROPPED)
def test_layer_under_xla_drops_in_training(name, eager_and_jit):
    for results in eager_and_jit:
        dropped = numpy(results[f"{name} in training"])
        assert np.isfinite(dropped).all() and np.any(dropped != numpy(results[name][0]))


# Rows are compiled together.
FITTED = tuple(row for row in OF_A_CLASS if row.name not in INSIDE)


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
    # XLA compiles the same layers above.
    model.compile(
        keras.optimizers.SGD(1e-2),
        loss=lambda _, total: total,
        jit_compile=False,
        run_eagerly=False,
    )
    before = {
        row.name: [numpy(w.value).copy() for w in layer.weights]
        for row, layer in zip(FITTED, layers, strict=True)
    }
    inputs = [tuple(row.arrays()) for row in FITTED]
    with paths.dense():
        history = model.fit(inputs, np.zeros((2, 1), "float32"), batch_size=2, verbose=0)
    return (
        dict(zip((row.name for row in FITTED), layers, strict=True)),
        before,
        history.history["loss"],
    )


@pytest.mark.slow
@pytest.mark.parametrize(**named(FITTED))
def test_layer_in_one_step_of_fit_moves_every_trainable_weight(row, fitted):
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


def test_add_norm_pre_norm_gets_every_gradient():
    layer = tfattn.AddNorm(norm_first=True)
    inputs = np.random.default_rng(0).normal(size=(2, 3, 11)).astype("float32")
    layer(inputs, layer.pre_norm(inputs))
    _, gradients = both_ways(
        lambda: ops.sum(layer(inputs, layer.pre_norm(inputs)) ** 2),
        (),
        variables=layer.trainable_weights,
    )
    assert len(gradients) == 2 and all(np.any(numpy(gradient) != 0) for gradient in gradients)
