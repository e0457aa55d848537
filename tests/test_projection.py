"""The maps into and out of heads: Keras's `EinsumDense`, with its LoRA, quantisation and dtype
policies, in files and out of them.
"""

import keras
import numpy as np
import pytest
from keras import ops

import tfattn
from tests import reference
from tests.processes import printed
from tests.tensors import both_ways, dtype_of, numpy
from tests.test_multi_head import draw
from tfattn.layers.attention.projection import from_heads, to_heads

B, T, D, H, P = 2, 3, 11, 5, 7
MAPS = ("query_dense", "key_dense", "value_dense", "output_dense")


def layer_of(tokens, **options):
    keras.utils.set_random_seed(3)
    layer = tfattn.MultiHeadAttention(H, P, bias_initializer="random_normal", **options)
    layer.build(tokens.shape, tokens.shape)
    return layer


def model_of(**options):
    keras.utils.set_random_seed(3)
    x = keras.Input((None, D))
    layer = tfattn.MultiHeadAttention(H, P, name="heads", **options)
    return keras.Model(x, keras.layers.Dense(3)(layer(x, x)))


@pytest.mark.parametrize("use_bias", [True, False])
def test_a_map_computes_what_keras_einsum_does(use_bias):
    into = to_heads(H, P, use_bias, bias_initializer="random_normal", activation="sigmoid")
    out = from_heads((13, 3), use_bias, bias_initializer="random_normal")
    for layer, shape in ((into, (B, T, D)), (out, (B, T, H, P))):
        inputs = draw(*shape)
        output = layer(inputs)
        plain = keras.layers.EinsumDense.from_config(
            {**layer.get_config(), "kernel_initializer": "zeros", "name": "plain"}
        )
        plain.build(shape)
        plain.set_weights(layer.get_weights())
        np.testing.assert_allclose(output, plain(inputs), atol=1e-5)


def test_a_map_is_the_maps_of_the_oracle():
    into, out = to_heads(H, P), from_heads((13,))
    tokens = draw(B, T, D)
    heads = np.asarray(into(tokens))
    expected = reference.split_heads(tokens, *into.get_weights())
    np.testing.assert_allclose(np.swapaxes(heads, 1, 2), expected, atol=1e-5)
    expected = reference.join_heads(expected, *(numpy(w) for w in built(out).weights))
    np.testing.assert_allclose(out(heads), expected, atol=1e-5)


def built(layer):
    layer.build((None, None, H, P))
    return layer


@pytest.mark.parametrize("initializer", ["glorot_uniform", "orthogonal", "he_normal", "ones"])
def test_first_weights_are_those_of_the_matrix(initializer):
    initializer = keras.initializers.get(initializer)
    config = initializer.get_config()
    options = {**config, "seed": 3} if "seed" in config else config
    make = type(initializer).from_config
    for layer, shape, matrix in (
        (to_heads(H, P, kernel_initializer=make(options)), (None, None, D), (D, H * P)),
        (from_heads((13,), kernel_initializer=make(options)), (None, None, H, P), (H * P, 13)),
    ):
        layer.build(shape)
        expected = np.reshape(make(options)(matrix), layer.kernel.shape)
        np.testing.assert_array_equal(layer.kernel, expected)


# LoRA


def test_lora_begins_as_nothing_and_trains_alone():
    tokens = draw(B, T, D)
    layer = layer_of(tokens, use_bias=False)
    before = layer(tokens, tokens)
    for name in MAPS:
        getattr(layer, name).enable_lora(2)
    np.testing.assert_array_equal(layer(tokens, tokens), before)
    assert len(layer.trainable_weights) == 8
    assert all("lora" in weight.path for weight in layer.trainable_weights)
    _, gradients = both_ways(
        lambda: ops.sum(layer(tokens, tokens) ** 2), (), variables=layer.trainable_variables
    )
    assert all(
        np.any(numpy(g) != 0) for g in gradients[1::2]
    )  # of the second factors, which are zeros


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_lora_adds_the_product_of_its_factors(policy):
    tokens = draw(B, T, D)
    layer, merged = layer_of(tokens, dtype=policy), layer_of(tokens, dtype=policy)
    for name in MAPS:
        dense = getattr(layer, name)
        dense.enable_lora(2, lora_alpha=3)
        a, b = draw(*dense.lora_kernel_a.shape, seed=1), draw(*dense.lora_kernel_b.shape, seed=2)
        dense.lora_kernel_a.assign(a), dense.lora_kernel_b.assign(b)
        kernel = getattr(merged, name)._kernel
        kernel.assign(kernel + 3 / 2 * a @ b)
    tolerance = 1e-5 if policy == "float32" else 0.03
    output, expected = (np.asarray(x(tokens, tokens), "float32") for x in (layer, merged))
    np.testing.assert_allclose(output, expected, atol=tolerance * np.abs(expected).max())


def test_lora_is_merged_into_files(tmp_path):
    model, tokens = model_of(), draw(B, T, D)
    dense = model.get_layer("heads").query_dense
    dense.enable_lora(2)
    dense.lora_kernel_b.assign(draw(*dense.lora_kernel_b.shape, seed=2))
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(loaded(tokens), model(tokens), atol=1e-5)
    assert not loaded.get_layer("heads").query_dense.lora_enabled


# Quantisation


def quantized(mode, **options):
    model = model_of(**options)
    model.quantize(mode)
    return model


@pytest.mark.parametrize("mode", ["int8", "int4", "float8"])
def test_quantised_maps_say_nearly_the_same(mode):
    tokens = draw(B, T, D)
    layer = layer_of(tokens, use_gate=True)
    before = np.asarray(layer(tokens, tokens))
    for name in (*MAPS, "gate_dense"):
        getattr(layer, name).quantize(mode)
        assert getattr(layer, name).quantization_mode == mode
    off = np.abs(np.asarray(layer(tokens, tokens)) - before).max()
    assert 0 < off < {"int8": 0.03, "int4": 0.3, "float8": 0.2}[mode] * np.abs(before).max()


@pytest.mark.parametrize("tokens", [T, H])
def test_quantised_heads_of_one_feature_get_their_own_biases(tokens):
    x = draw(B, tokens, D)
    layer = tfattn.MultiHeadAttention(H, 1, bias_initializer="random_normal")
    before = np.asarray(layer(x, x))
    for name in MAPS:
        getattr(layer, name).quantize("int8")
    np.testing.assert_allclose(layer(x, x), before, atol=0.03 * np.abs(before).max())


@pytest.mark.filterwarnings("ignore:.*does not have a `quantize` method")
@pytest.mark.parametrize("mode", ["int8", "int4", "float8"])
def test_a_quantised_model_is_loaded_from_its_file(mode, tmp_path):
    model, tokens = quantized(mode, use_gate=True), draw(B, T, D)
    for name in ("model.keras", "model.weights.h5"):
        save = model.save if name == "model.keras" else model.save_weights
        save(tmp_path / name)
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded(tokens), model(tokens))
    for name in (*MAPS, "gate_dense"):
        theirs, ours = (getattr(m.get_layer("heads"), name) for m in (model, loaded))
        assert ours.dtype_policy.name == theirs.dtype_policy.name
    # Weights alone tell it too.
    heads = model_of(use_gate=True).get_layer("heads")
    x = keras.Input((None, D))
    plain = keras.Model(x, heads(x, x))
    other = keras.Model(x, model.get_layer("heads")(x, x))
    other.save_weights(tmp_path / "heads.weights.h5")
    plain.load_weights(tmp_path / "heads.weights.h5")
    np.testing.assert_array_equal(plain(tokens), other(tokens))


FRESH = """
import keras, numpy, tfattn

model = keras.models.load_model("model.keras")
numpy.save("output.npy", keras.ops.convert_to_numpy(model(numpy.load("tokens.npy"))))
"""


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*does not have a `quantize` method")
def test_a_quantised_file_is_loaded_in_a_fresh_process(tmp_path):
    model, tokens = quantized("int8"), draw(B, T, D)
    model.save(tmp_path / "model.keras")
    np.save(tmp_path / "tokens.npy", tokens)
    printed("-c", FRESH, folder=tmp_path)
    np.testing.assert_array_equal(np.load(tmp_path / "output.npy"), model(tokens))


@pytest.mark.filterwarnings("ignore:.*does not have a `quantize` method")
def test_weights_that_were_quantised_alone_come_back_so(tmp_path):
    quantization = pytest.importorskip("keras.quantizers")
    if not hasattr(quantization, "Int8QuantizationConfig"):
        pytest.skip("Keras has no Int8QuantizationConfig before 3.13")
    config = quantization.Int8QuantizationConfig(activation_quantizer=None)
    model, tokens = model_of(), draw(B, T, D)
    model.quantize(config=config)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded(tokens), model(tokens))
    assert loaded.get_layer("heads").query_dense.inputs_quantizer is None


@pytest.mark.filterwarnings("ignore:.*does not have a `quantize` method")
def test_a_quantised_block_is_loaded_from_its_file(tmp_path):
    x = keras.Input((None, 10))
    model = keras.Model(x, tfattn.TransformerEncoderBlock(H, 7)(x))
    tokens = draw(B, T, 10)
    attention = model.layers[-1].self_attention
    for name in MAPS:
        getattr(attention, name).quantize("int8")
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded(tokens), model(tokens))


# Dtype policies by the names of the maps


def test_each_map_has_the_policy_of_its_name(tmp_path):
    int8 = keras.dtype_policies.QuantizedDTypePolicy("int8", "float32")
    policies = keras.dtype_policies.DTypePolicyMap("float32")
    policies["heads/query"] = int8
    policies["heads/attention_output"] = int8
    policies["heads/value"] = keras.DTypePolicy("mixed_bfloat16")
    tokens, model = draw(B, T, D), model_of(dtype=policies)
    layer = model.get_layer("heads")
    names = {
        "query_dense": "int8_from_float32",
        "key_dense": "float32",
        "value_dense": "mixed_bfloat16",
        "output_dense": "int8_from_float32",
    }
    assert {name: getattr(layer, name).dtype_policy.name for name in MAPS} == names
    # A kernel that begins in int8 is zeros, until one is loaded.
    assert layer.query_dense.kernel.dtype == "int8"
    assert layer(tokens, tokens).shape == tokens.shape
    plain = model_of()
    for dense in (layer.query_dense, layer.output_dense):
        twin = getattr(
            plain.get_layer("heads"), "query_dense" if dense.name == "query" else MAPS[3]
        )
        twin.quantize("int8")
        for weight, value in zip(dense.weights, twin.weights, strict=True):
            weight.assign(value)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded(tokens), model(tokens))
    assert np.any(np.asarray(model(tokens)) != 0)
    layer = loaded.get_layer("heads")
    assert {name: getattr(layer, name).dtype_policy.name for name in MAPS} == names


def policies_without_a_default():
    policies = keras.dtype_policies.DTypePolicyMap()
    policies["heads/query"] = keras.DTypePolicy("mixed_bfloat16")
    policies["heads/value"] = keras.DTypePolicy("float16")
    return policies


def test_policies_of_a_map_without_a_default_come_back_from_a_file(tmp_path):
    policies = policies_without_a_default()
    model, tokens = model_of(dtype=policies), draw(B, T, D)
    names = ["mixed_bfloat16", "float32", "float16", "float32"]
    policies.get_config()  # in which Keras takes their names
    for path in ("first.keras", "second.keras"):
        layer = model.get_layer("heads")
        assert [getattr(layer, name).dtype_policy.name for name in MAPS] == names
        expected = model(tokens)
        model.save(tmp_path / path)
        model = keras.models.load_model(tmp_path / path)
        np.testing.assert_array_equal(model(tokens), expected)


def test_a_layer_under_such_a_map_keeps_its_own_default():
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        config = layer_of(draw(B, T, D), dtype=keras.dtype_policies.DTypePolicyMap()).get_config()
    finally:
        keras.config.set_dtype_policy("float32")
    layer = tfattn.MultiHeadAttention.from_config(config)
    assert dtype_of(layer(draw(B, T, D), draw(B, T, D))) == "bfloat16"


def test_keras_still_takes_the_names_of_policies_whose_map_has_no_default(tmp_path):
    policies = policies_without_a_default()
    inputs = keras.Input((None, D))
    outputs = keras.layers.MultiHeadAttention(2, 3, dtype=policies, name="heads")(inputs, inputs)
    keras.Model(inputs, outputs).save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    lost = loaded.get_layer("heads").dtype_policy["heads/query"].name
    assert lost == "float32", "Keras is mended: row 34 of docs/field-notes.md can go"


def test_a_map_under_a_policy_map_can_be_quantised():
    tokens = draw(B, T, D)
    layer = layer_of(tokens, dtype=keras.dtype_policies.DTypePolicyMap("float32"))
    before = np.asarray(layer(tokens, tokens))
    layer.query_dense.quantize("int8")
    after = np.asarray(layer(tokens, tokens))
    assert 0 < np.abs(after - before).max() < 0.02 * np.abs(before).max()
