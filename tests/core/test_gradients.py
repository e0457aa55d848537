"""A graph and its tensors can be freed once no object refers to them."""

import gc
import pathlib
import re
import weakref

import numpy as np
import pytest
import tensorflow as tf

import tfattn
from tests.helpers.tensors import numpy
from tfattn import masks
from tfattn._shared import LogitFactors
from tfattn.core.engine.tensorflow.gradients import custom_gradient
from tfattn.training import streamed

pytestmark = pytest.mark.tensorflow

TOKENS = np.linspace(-1.0, 1.0, 3 * 5 * 12, dtype="float32").reshape(3, 5, 12)
IDS = np.array([[4, 5, 6, 3, 0]] * 3, "int32")
SIZES = {"num_layers": 1, "width": 12, "num_heads": 3, "hidden_dim": 7}


def attended():
    layer = tfattn.MultiHeadAttention(3, 4, sliding_window=2)
    return lambda x: layer(x, x), TOKENS


def biased():
    bias = tf.Variable(np.zeros((1, 3, 1, 5), "float32"))

    def call(x):
        q = tf.reshape(x, (3, 5, 3, 4))
        q = tf.transpose(q, (0, 2, 1, 3))
        mask = masks.padding([5, 3, 0])
        return tfattn.attend(q, q, key=q, bias=tf.identity(bias), mask=mask, path="streamed")

    return call, TOKENS


def normalized():
    return tfattn.TransformerEncoderBlock(3, 7), TOKENS


def lost():
    model = tfattn.CausalLM(11, **SIZES)
    model.compile(loss=tfattn.MaskedCrossentropy())
    return lambda ids: model.compute_loss(y=ids, y_pred=model(ids, training=True)), IDS


VECTORS = TOKENS[0]  # (V, width)


def lost_without_logits():
    def call(x):
        factors = LogitFactors(x, tf.constant(VECTORS), None)
        target = tf.ones(tf.shape(x)[:2], "int32")
        return streamed.weighted_loss(factors, target, tf.ones(tf.shape(x)[:2]), 0.1)

    return call, TOKENS


CALLS = {
    "a choice of paths": attended,  # which holds the streamed one
    "a bias that is broadcast": biased,
    "a norm": normalized,
    "a loss": lost,
    "a loss without logits": lost_without_logits,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CALLS)
def test_graph_without_function_is_freed(name):
    call, inputs = CALLS[name]()

    def gradient(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            found = tf.reduce_sum(tf.cast(call(x), "float32") ** 2)
        sources = [x] if x.dtype.is_floating else tape.watched_variables()
        return tape.gradient(found, sources)

    unknown = tf.TensorSpec([None] * (np.ndim(inputs) - 1) + [np.shape(inputs)[-1]], inputs.dtype)
    function = tf.function(gradient, input_signature=[unknown], autograph=False)
    traced = function.get_concrete_function()
    assert all(np.isfinite(numpy(x)).all() for x in traced(tf.constant(inputs)))
    graph = weakref.ref(traced.graph)
    del function, traced
    gc.collect()
    assert graph() is None


@pytest.mark.slow
def test_model_trained_and_searched_leaves_no_graph():
    def alive():
        gc.collect()
        gc.collect()
        return sum(type(each).__name__ == "FuncGraph" for each in gc.get_objects())

    counts = []
    for _ in range(2):
        model = tfattn.Transformer(11, 11, **SIZES)
        model.compile("adam", tfattn.MaskedCrossentropy())
        model.fit((IDS, IDS), IDS, verbose=0)
        tfattn.GreedySearch()(model.step, model.encode(IDS, max_length=4), 3, 4)
        del model
        counts.append(alive())
    assert counts[0] == counts[1], counts


def test_custom_gradient_in_graph_equals_eager():
    @custom_gradient
    def doubled(x, y):
        return x * y, lambda *arguments, upstream=None: (2.0 * arguments[-1], 3.0 * arguments[-1])

    def gradients(x, y):
        with tf.GradientTape() as tape:
            tape.watch([x, y])
            found = doubled(x, y)
        return tape.gradient(found, [x, y])

    x, y = tf.constant(5.0), tf.constant(7.0)
    graph = tf.function(gradients)
    assert [float(g) for g in gradients(x, y)] == [float(g) for g in graph(x, y)] == [2.0, 3.0]


def test_custom_gradient_is_made_in_one_module():
    room = pathlib.Path(tfattn.__file__).parent
    plain = re.compile(r"\b(tf|ops)\.custom_gradient\(|@(tf|ops)\.custom_gradient")
    makers = [p.name for p in room.rglob("*.py") if plain.search(p.read_text("utf-8"))]
    assert makers == ["gradients.py"]


def test_custom_gradient_with_other_registry_stays_registered(monkeypatch):
    from tensorflow.python.framework import ops as framework

    class Elsewhere:
        register = framework.gradient_registry.register
        lookup = framework.gradient_registry.lookup

    monkeypatch.setattr(framework, "gradient_registry", Elsewhere())
    tripled = custom_gradient(lambda x: (x, lambda upstream: 3.0 * upstream))

    @tf.function
    def outputs(x):
        return tripled(x)

    assert float(outputs(tf.constant(5.0))) == 5.0
