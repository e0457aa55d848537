"""Parts of layers: their types, their seeds, and who holds them."""

import gc
import json

import keras
import numpy as np
import pytest

import tfattn
from tests.helpers.tensors import dtype_of, tf
from tests.layers.test_multi_head import draw
from tfattn import masks

B, T, S, D = 2, 3, 7, 10


def test_attention_query_mask_changes_no_dtype_under_a_global_policy():
    keras.config.set_dtype_policy("mixed_float16")
    try:
        layers = [tfattn.MultiHeadAttention(2, 3, dtype="float32"), tfattn.DotProductAttention()]
        tokens, mask = draw(B, S, D), np.ones((B, S), bool)
        types = [dtype_of(layer(tokens, tokens, query_mask=mask)) for layer in layers]
    finally:
        keras.config.set_dtype_policy("float32")
    assert types == ["float32", "float16"]


def test_attention_pools_integers_as_floats():
    query, values = np.zeros((1, 1, 1), "float32"), np.arange(7).reshape(1, 7, 1)
    for act in (tfattn.attend, tfattn.DotProductAttention(), tfattn.NadarayaWatson(bandwidth=1e6)):
        np.testing.assert_allclose(act(query, values), [[[3.0]]], rtol=1e-5)
    weights = tfattn.masked_softmax(np.array([[[1, 1]]]))
    np.testing.assert_array_equal(weights, [[[0.5, 0.5]]])


@pytest.mark.slow
def test_transformer_with_one_seed_drops_other_features_in_each_part():
    model = tfattn.Transformer(
        11, num_layers=2, width=D, num_heads=2, hidden_dim=7, dropout=0.5, seed=1
    )
    model((np.array([[3, 5]]), np.array([[2, 4]])))
    layers = model._flatten_layers()
    dropouts = [x for x in layers if isinstance(x, keras.layers.Dropout) and x.rate]
    ones = np.ones((1, 200), "float32")
    patterns = {bytes(np.asarray(dropout(ones, training=True)) != 0) for dropout in dropouts}
    assert len(patterns) == len(dropouts) == 2 + 2 * 2 + 2 * 3


@keras.saving.register_keras_serializable("tests")
class Sharpened(tfattn.Score):
    """Another score times a power, without a config of its own."""

    def __init__(self, inner, power=1, power_initializer="ones", **kwargs):
        super().__init__(**kwargs)
        self.inner, self.power = inner, power
        self.power_initializer = keras.initializers.get(power_initializer)


def test_custom_score_config_has_its_arguments():
    layer = Sharpened(tfattn.DotProductScore(0.5), 3, "zeros", name="own")
    config = json.loads(json.dumps(layer.get_config()))
    again = Sharpened.from_config(config)
    assert type(again.inner) is tfattn.DotProductScore and again.inner.scale == 0.5
    assert (again.power, again.name) == (3, "own")
    assert type(again.power_initializer) is keras.initializers.Zeros
    assert again.get_config() == config


class Sharp(tfattn.DotProductAttention):
    """Fewer arguments than its base class."""

    def __init__(self, scale=3.0, name=None, dtype=None, trainable=True):
        super().__init__(scale=scale, name=name, dtype=dtype, trainable=trainable)


def test_custom_attention_with_fewer_arguments_has_a_config():
    layer = Sharp(2.0, name="own")
    again = Sharp.from_config(layer.get_config())
    assert (again.scale, again.name) == (2.0, "own")


def test_encoder_block_with_one_seed_computes_the_same_twice():
    outputs = []
    for _ in range(2):
        keras.utils.set_random_seed(1)
        block = tfattn.TransformerEncoderBlock(2, 7, dropout=0.5, attention_dropout=0.5, seed=3)
        outputs.append(np.asarray(block(draw(B, T, D), training=True)))
    np.testing.assert_array_equal(*outputs)


# Arguments of calls.


@pytest.mark.tensorflow
@pytest.mark.slow
@pytest.mark.usefixtures("dense_path")
def test_attention_mask_axes_repeated_at_run_time_broadcast():
    layer = tfattn.DotProductAttention()
    signature = [
        tf.TensorSpec((None, None, D)),
        tf.TensorSpec((None, None, None), "bool"),
        tf.TensorSpec((None, None), "int32"),
    ]

    def run(x, mask, lengths):
        return layer(x, x, attention_mask=mask, valid_lens=lengths)

    arguments = (
        draw(B, S, D),
        np.arange(S) < np.array([[[5]], [[3]]]),
        np.array([[4], [6]], "int32"),
    )
    found = tf.function(run, input_signature=signature)(*arguments)
    np.testing.assert_allclose(found, run(*arguments), atol=1e-6)


def test_attention_bool_bias_is_refused_and_a_list_is_taken():
    tokens = draw(1, 3, D)
    with pytest.raises(ValueError, match="`bias` must hold numbers.*a bool is a mask"):
        tfattn.DotProductAttention()(tokens, tokens, bias=np.eye(3, dtype=bool))
    np.testing.assert_array_equal(
        tfattn.attend(tokens, tokens, bias=[[0.0] * 3] * 3), tfattn.attend(tokens, tokens)
    )


def test_mask_object_with_a_symbolic_tensor_is_refused():
    tokens, lengths = keras.Input((None, D)), keras.Input((), dtype="int32")
    with pytest.raises(
        ValueError, match="`attention_mask` must hold no symbolic tensor.*`valid_lens`"
    ):
        tfattn.DotProductAttention()(tokens, tokens, attention_mask=masks.padding(lengths))


def test_transformer_encoder_embedding_of_another_width_is_refused():
    with pytest.raises(
        ValueError, match="`embedding` must have `width`=8 features. Received: embedding=6"
    ):
        tfattn.TransformerEncoder(11, width=8, num_heads=2, embedding=keras.layers.Embedding(11, 6))


# Layers that do not copy a sublayer: argument, layer, and a sublayer with weights.


def heads(**parts):
    return tfattn.MultiHeadAttention(2, 4, **parts)


def additive():
    return tfattn.AdditiveScore(3)


def learned():
    return tfattn.LearnedPositionalEncoding(5)


STACK = {"vocabulary_size": 11, "num_layers": 1, "width": D, "num_heads": 2, "hidden_dim": 3}
HOLDERS = {
    "score": ("score", tfattn.Attention, additive),
    "score of heads": ("score", heads, additive),
    "score under a cap": ("score", lambda score: tfattn.SoftCapScore(50.0, score=score), additive),
    "score of a decoder": (
        "score",
        lambda score: tfattn.RecurrentDecoder(11, width=3, units=5, score=score),
        additive,
    ),
    "normalizer": ("normalizer", tfattn.Attention, tfattn.AttentionSinks),
    "normalizer of heads": ("normalizer", heads, tfattn.AttentionSinks),
    "positions of heads": ("positions", heads, tfattn.RelativePositionBias),
    "positions of a stack": (
        "positions",
        lambda positions: tfattn.TransformerEncoder(**STACK, positions=positions),
        learned,
    ),
}
TOKENS = ((B, T, D), (B, S, D))
SHAPES = {tfattn.RecurrentDecoder: ((B, T), (B, S, D)), tfattn.TransformerEncoder: ((B, T),)}


def built_with(name, part):
    """A built layer that has the part."""
    argument, make, _ = HOLDERS[name]
    layer = make(**{argument: part})
    layer.build(*SHAPES.get(type(layer), TOKENS))
    return layer


@pytest.mark.parametrize("name", HOLDERS)
def test_layers_that_share_a_part_with_weights_refuse_to_be_saved(name):
    argument, _, make_part = HOLDERS[name]
    part = make_part()
    first = built_with(name, part)
    keras.saving.serialize_keras_object(first)
    second = built_with(name, part)
    for layer, other in ((first, second), (second, first)):
        expected = rf"`{argument}` must not be shared with `{other.name}` in a model that is saved"
        with pytest.raises(ValueError, match=expected):
            keras.saving.serialize_keras_object(layer)
    del first, other, layer
    gc.collect()
    keras.saving.serialize_keras_object(second)


@keras.saving.register_keras_serializable("tests")
class Tied(keras.Model):
    """Two attentions whose common part this code shares, whenever it is run."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        positions = tfattn.RelativePositionBias()
        self.first, self.second = heads(positions=positions), heads(positions=positions)

    def call(self, inputs):
        x = self.first(inputs, inputs)
        return self.second(x, x)


def of_two_residuals():
    x = inputs = keras.Input((None, D))
    for _ in range(2):
        add_norm = tfattn.AddNorm(norm_first=True)
        x = add_norm(x, tfattn.PositionwiseFeedForward(7)(add_norm.pre_norm(x)))
    return keras.Model(inputs, x)


def of_two_layers():
    inputs, positions = keras.Input((None, D)), tfattn.RotaryPositions()
    x = heads(positions=positions, name="first")(inputs, inputs)
    return keras.Model(inputs, heads(positions=positions, name="second")(x, x))


@pytest.mark.slow
@pytest.mark.usefixtures("dense_path")
@pytest.mark.parametrize("make", [of_two_residuals, of_two_layers, Tied])
def test_model_that_shares_a_part_without_configs_comes_back_from_its_file(make, tmp_path):
    model, tokens = make(), draw(B, T, D)
    model(tokens)
    model.set_weights([draw(*w.shape, seed=i) for i, w in enumerate(model.weights)])
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded(tokens), model(tokens))
    if make is Tied:
        assert loaded.first.positions is loaded.second.positions


# Freezing.


def frozen_score():
    return tfattn.MultiHeadAttention(2, 3, score=tfattn.AdditiveScore(5, trainable=False))


BLOCK = {"num_heads": 2, "hidden_dim": 7}
FROZEN = {
    "a block": (lambda: tfattn.TransformerEncoderBlock(**BLOCK, trainable=False), 0),
    "a part": (frozen_score, 8),
    "Keras's own": (
        lambda: tfattn.AddNorm(norm=keras.layers.LayerNormalization(trainable=False)),
        0,
    ),
}


@pytest.mark.slow
@pytest.mark.usefixtures("dense_path")
@pytest.mark.parametrize("name", FROZEN)
def test_layer_frozen_before_it_is_built_stays_so_in_clones_and_files(name, tmp_path):
    make, count = FROZEN[name]
    layer, inputs = make(), keras.Input((3, D))
    model = keras.Model(inputs, layer(inputs, inputs) if "block" not in name else layer(inputs))
    model.save(tmp_path / "m.keras")
    for one in (
        model,
        keras.models.clone_model(model),
        keras.models.load_model(tmp_path / "m.keras"),
    ):
        assert len(one.trainable_weights) == count and len(one.weights) > count


@pytest.mark.slow
@pytest.mark.usefixtures("dense_path")
def test_model_frozen_in_parts_stays_so_in_its_file(tmp_path):
    def made(**options):
        model = tfattn.CausalLM(11, 2, D, 2, 7, tie_embeddings=False, **options)
        assert model.trainable is options.get("trainable", True)
        return model

    model = made()
    model.decoder.trainable = False  # before it is built
    model.decoder.blocks[1].trainable = True
    model.build_for_any()
    frozen = made(trainable=False)
    frozen.build_for_any()
    frozen.output_dense.trainable = True
    template = tfattn.TransformerDecoderBlock(**BLOCK, trainable=False)
    of_template = tfattn.CausalLM(11, 2, D, block=template)
    of_template.build_for_any()
    for one, count in ((model, 2 + 16), (frozen, 0), (of_template, 1)):
        assert len(one.trainable_weights) == count
        one.save(tmp_path / "m.keras")
        again = keras.models.load_model(tmp_path / "m.keras")
        names = [[w.path.partition("/")[2] for w in m.trainable_weights] for m in (one, again)]
        assert names[0] == names[1]
    frozen.trainable = True
    assert len(frozen.trainable_weights) == len(frozen.weights)
