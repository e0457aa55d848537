"""Factors of logits: which logits have them, and that logits with factors are not computed."""

import keras
import numpy as np
import pytest
from keras import ops

import tfattn
from tests.helpers.small_vocabulary import V, assert_alike, blocks
from tests.helpers.tensors import tf
from tfattn._shared import LogitFactors

# Only TensorFlow leaves logits uncomputed.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.tensorflow,
    pytest.mark.usefixtures("dense_path"),
]

B, S, T = 3, 5, 7


@pytest.fixture
def streams():
    with blocks():
        yield


MODELS = {
    "Transformer": lambda **more: tfattn.Transformer(
        V, num_layers=1, width=8, num_heads=2, hidden_dim=6, **more
    ),
    "BahdanauSeq2Seq": lambda **more: tfattn.BahdanauSeq2Seq(V, width=6, units=5, **more),
    "CausalLM": lambda **more: tfattn.CausalLM(
        V, num_layers=1, width=8, num_heads=2, hidden_dim=6, **more
    ),
}


def new_model(name="Transformer", **more):
    keras.utils.set_random_seed(0)
    model = MODELS[name](**more)
    model.build_for_any()
    if model.output_dense is not None:
        model.output_dense.bias.assign(np.random.default_rng(1).normal(size=V))
    return model


def batch():
    """(source, target_in), target_out, and weights of tokens."""
    rng = np.random.default_rng(0)
    source, target_in, target_out = (
        rng.integers(1, V, (B, length)).astype("int32") for length in (S, T, T)
    )
    source[0, 3:], target_in[1, 5:], target_out[1, 4:] = 0, 0, 0
    return (source, target_in), target_out, rng.uniform(0.5, 2.0, (B, T)).astype("float32")


def trained(model, **more):
    """A model's numbers in two steps of training and after them, and its weights."""
    loss = tfattn.MaskedCrossentropy(0.1)
    options = {"metrics": [tfattn.MaskedAccuracy()], "jit_compile": False, **more}
    model.compile(keras.optimizers.SGD(0.3), loss, **options)
    inputs, target, weights = batch()
    inputs = inputs[1] if isinstance(model, tfattn.CausalLM) else inputs
    logs = model.fit(
        inputs, target, sample_weight=weights, epochs=2, verbose=0, shuffle=False
    ).history
    return [*logs.values(), *model.evaluate(inputs, target, verbose=0), *model.get_weights()]


@pytest.fixture
def without_logits(monkeypatch, streams):
    """Logits that make a graph fail which computes them."""
    on, seen = LogitFactors.on, []

    def poisoned(factors, logits):
        seen.append(logits)
        bad = ops.reshape(logits, (*ops.shape(logits)[:-1], V + 1))[..., :V]
        return on(factors, bad)

    monkeypatch.setattr(LogitFactors, "on", poisoned)
    yield
    assert seen


# Of a tied matrix, and of a layer with a bias.
@pytest.mark.parametrize("name", ["CausalLM", "BahdanauSeq2Seq"])
def test_logit_factors_of_models_train_and_are_judged_without_logits(name, request):
    wanted = trained(new_model(name), run_eagerly=True)
    request.getfixturevalue("without_logits")
    assert_alike(trained(new_model(name)), wanted, 1e-4, 1e-5)


def test_logit_factors_of_a_model_inside_a_functional_one_are_used(without_logits):
    source, target = (keras.Input((None,), dtype="int32") for _ in range(2))
    outer = keras.Model([source, target], new_model()((source, target)))
    assert np.isfinite(trained(outer)[0]).all()


def test_logits_that_are_asked_for_are_computed(without_logits):
    model, metric = new_model(), tfattn.MaskedAccuracy()
    inputs, target, _ = batch()
    for use in (lambda logits: logits, lambda logits: metric.update_state(target, logits)):
        function = tf.function(
            lambda *inputs, use=use: use(model(inputs)),
            input_signature=[tf.TensorSpec((None, None), "int32")] * 2,
        )
        with pytest.raises(tf.errors.InvalidArgumentError, match="reshape"):
            function(*inputs)


def factors_in_a_graph(model):
    """Of the logits of some vectors."""
    found, x = [], ops.ones((B, T, 8), model.compute_dtype)
    tf.function(lambda x: found.append(LogitFactors.of(model.logits(x))))(x)
    return found[0]


class Doubling(keras.layers.Dense):
    def call(self, inputs):
        return 2.0 * super().call(inputs)


def changed(change, **options):
    model = new_model(**options)
    change(model.output_dense)
    return model


def of_a_layer_of_ones_own():
    model = MODELS["Transformer"]()
    model.output_dense = Doubling(V)
    model.build_for_any()
    return model


OTHER = {
    "half": lambda: new_model(dtype="mixed_float16"),
    "half but for the output": lambda: changed(
        lambda out: setattr(out, "dtype_policy", "float32"), dtype="mixed_bfloat16"
    ),
    "float64": lambda: new_model(dtype="float64"),
    "own layer": of_a_layer_of_ones_own,
    "activation": lambda: changed(lambda out: setattr(out, "activation", keras.activations.tanh)),
    "quantized": lambda: changed(lambda out: out.quantize("int8")),
}


@pytest.mark.parametrize("name", OTHER)
def test_logit_factors_of_no_plain_product_in_float32_are_none(name):
    assert factors_in_a_graph(OTHER[name]()) is None


def test_logit_factors_are_those_of_a_graph():
    model = new_model()
    assert LogitFactors.of(model.logits(ops.ones((B, T, 8)))) is None
    assert factors_in_a_graph(model).bias is not None
    model.output_dense.bias = None
    assert factors_in_a_graph(model).bias is None


def test_logit_factors_of_an_adapted_layer_have_its_matrix():
    model = new_model()
    model.output_dense.enable_lora(2)
    model.output_dense.lora_kernel_b.assign(np.ones((2, V)))
    found, vectors = [], ops.reshape(ops.arange(8.0) - 3, (1, 1, 8))

    def function(x):
        logits = model.logits(x)
        factors = LogitFactors.of(logits)
        found.append(ops.einsum("btw,vw->btv", factors.tokens, factors.vectors) + factors.bias)
        return logits, found[0]

    assert_alike(*([x] for x in tf.function(function)(vectors)), 1e-4, 1e-5)
