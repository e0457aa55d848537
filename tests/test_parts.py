"""Parts of layers: their types, their seeds, and padding that is broken."""

import gc

import keras
import numpy as np
import pytest
from keras import ops

import tfattn
from tests import reference
from tests.paths import PATHS
from tests.tensors import both_ways, dtype_of, numpy, tf

B, T, S, D = 2, 3, 7, 10


def draw(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


@pytest.fixture
def half_precision_everywhere():
    keras.config.set_dtype_policy("mixed_float16")
    yield
    keras.config.set_dtype_policy("float32")


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize(
    "make", [tfattn.DotProductAttention, lambda **o: tfattn.MultiHeadAttention(2, 3, **o)]
)
@pytest.mark.parametrize("dtype", ["mixed_float16", "mixed_bfloat16", "float32"])
def test_a_query_mask_changes_no_type(make, dtype):
    layer = make(dtype=dtype)
    mask = np.ones((B, S), bool)
    tokens = draw(B, S, D)
    outputs = layer(tokens, tokens, query_mask=mask), layer(tokens, tokens)
    assert {dtype_of(output) for output in outputs} == {layer.compute_dtype}


def test_a_layer_of_full_precision_stays_so_under_another_global_policy(half_precision_everywhere):
    layer = tfattn.MultiHeadAttention(2, 3, dtype="float32")
    tokens = draw(B, S, D)
    assert dtype_of(layer(tokens, tokens, query_mask=np.ones((B, S), bool))) == "float32"


@pytest.mark.parametrize(
    "act",
    [
        lambda x: tfattn.attend(np.zeros((1, 1, 1), "float32"), x),
        lambda x: tfattn.DotProductAttention()(np.zeros((1, 1, 1), "float32"), x),
        lambda x: tfattn.NadarayaWatson(bandwidth=1e6)(np.zeros((1, 1, 1), "float32"), x),
    ],
)
def test_integer_values_are_pooled_as_numbers(act):
    np.testing.assert_allclose(act(np.arange(7).reshape(1, 7, 1)), [[[3.0]]], rtol=1e-5)


def test_integer_scores_are_normalised_as_numbers():
    weights = tfattn.masked_softmax(np.array([[[1, 1]]]))
    np.testing.assert_array_equal(weights, [[[0.5, 0.5]]])


def dropouts(layer):
    return [
        part
        for part in layer._flatten_layers()
        if isinstance(part, keras.layers.Dropout) and part.rate
    ]


@pytest.mark.slow
def test_one_seed_drops_other_features_in_each_part():
    model = tfattn.Transformer(
        11, num_layers=2, width=D, num_heads=2, hidden_dim=7, dropout=0.5, seed=1
    )
    model((np.array([[3, 5]]), np.array([[2, 4]])))
    ones = np.ones((1, 200), "float32")
    patterns = {bytes(np.asarray(part(ones, training=True)) != 0) for part in dropouts(model)}
    assert len(patterns) == len(dropouts(model)) == 2 + 2 * 2 + 2 * 3


def test_one_seed_trains_the_same_model_twice():
    outputs = []
    for _ in range(2):
        keras.utils.set_random_seed(1)
        block = tfattn.TransformerEncoderBlock(2, 7, dropout=0.5, attention_dropout=0.5, seed=3)
        outputs.append(np.asarray(block(draw(B, T, D), training=True)))
    np.testing.assert_array_equal(*outputs)


MASKS = {
    "padding": tfattn.masks.padding(np.array([4, 3])),
    "prefix": tfattn.masks.prefix(4),
    "not explicit": ~tfattn.masks.explicit(np.broadcast_to(np.arange(S) >= 4, (T, S))),
    "prefix or padding": tfattn.masks.prefix(2) | tfattn.masks.padding(np.array([4, 3])),
    "window and padding": tfattn.masks.window(9) & tfattn.masks.padding(np.array([4, 3])),
    "not the end": ~(~tfattn.masks.prefix(np.array([4, 4])) | ~tfattn.masks.causal()),
}


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("broken", [np.nan, np.inf, 3e38])
@pytest.mark.parametrize("name", MASKS)
def test_keys_that_a_rule_hides_from_all_reach_no_gradient(name, broken, path):
    query, key, value = draw(B, T, D), draw(B, S, D, seed=1), draw(B, S, D, seed=2)
    key[:, 5:] = value[:, 5:] = broken

    def squares(*tensors):
        return ops.sum(tfattn.attend(*tensors, mask=MASKS[name], path=path) ** 2)

    total, gradients = both_ways(squares, (query, value, key))
    assert np.isfinite(total)
    for gradient in gradients:
        assert np.isfinite(gradient).all()


# Rules that leave a key unseen where there are more keys than queries: the call, and that key.
UNREACHED = {
    "window": ({"attention_mask": tfattn.masks.window(2)}, 0),
    "causal window": ({"attention_mask": tfattn.masks.window(2), "use_causal_mask": True}, 2),
    "strided": ({"attention_mask": tfattn.masks.strided(5)}, 2),
    "dilated": ({"attention_mask": tfattn.masks.window(4) & tfattn.masks.strided(2)}, 0),
    "chunks": ({"attention_mask": tfattn.masks.chunks(4)}, 3),
    "segments": (
        {"attention_mask": tfattn.masks.segments([[2, 2, 3]], [[1, 1, 2, 2, 3, 3, 3]])},
        1,
    ),
    "never causal": ({"attention_mask": ~tfattn.masks.causal()}, 4),
}
PROJECTING = {
    "heads": lambda: tfattn.MultiHeadAttention(2, 4),
    "streamed heads": lambda: tfattn.MultiHeadAttention(2, 4, flash_attention=True),
    "additive": lambda: tfattn.AdditiveAttention(3),
    "sliding window": lambda: tfattn.MultiHeadAttention(2, 4, sliding_window=9),
}


@pytest.mark.parametrize("layer", PROJECTING)
@pytest.mark.parametrize("broken", [np.nan, np.inf])
@pytest.mark.parametrize("name", UNREACHED)
def test_a_key_that_no_query_reaches_is_in_no_gradient_of_the_projections(name, broken, layer):
    (call, place), layer = UNREACHED[name], PROJECTING[layer]()
    query, value = draw(B, T, D), draw(B, S, D, seed=1)
    layer.build(query.shape, value.shape)
    results = []
    for number in (0.0, broken):
        value[:, place] = number
        output, gradients = both_ways(
            lambda query, value: layer(query, value, **call) ** 2,
            [query, value],
            variables=layer.trainable_weights,
        )
        results.append([output, *gradients])
    for clean, found in zip(*results, strict=True):
        np.testing.assert_array_equal(numpy(found), numpy(clean))


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("broken", [np.nan, np.inf])
def test_broken_padding_of_a_block_reaches_no_gradient(broken, norm_first):
    tokens, memory = draw(B, S, D), draw(B, T, D)
    mask = reference.padding([5, 3], S)[:, 0]
    tokens[~mask] = broken
    encoder = tfattn.TransformerEncoderBlock(2, 7, norm_first=norm_first)
    decoder = tfattn.TransformerDecoderBlock(2, 7, norm_first=norm_first)
    for layer, call in (
        (encoder, lambda: encoder(tokens, mask=mask)),
        (decoder, lambda: decoder(tokens, memory, inputs_mask=mask)),
        (decoder, lambda: decoder(memory, tokens, memory_mask=mask)),
    ):

        def squares(call=call):
            output = call()
            if output.shape[1] == S:
                output = ops.where(mask[..., None], output, 0.0)
            return ops.sum(output**2)

        call()
        total, gradients = both_ways(squares, (), variables=layer.trainable_variables)
        assert np.isfinite(total)
        for gradient in gradients:
            assert gradient is not None and np.isfinite(gradient).all()


def test_an_explicit_mask_travels_on_through_both_blocks():
    mask = reference.padding([5, 3], S)[:, 0]
    tokens = draw(B, S, D)
    outputs = [
        tfattn.TransformerEncoderBlock(2, 7)(tokens, mask=mask),
        tfattn.TransformerDecoderBlock(2, 7)(tokens, tokens, inputs_mask=mask),
    ]
    for output in outputs:
        np.testing.assert_array_equal(output._keras_mask, mask)


def test_the_two_steps_of_a_pre_norm_residual_survive_a_functional_model_on_disk(tmp_path):
    x = inputs = keras.Input((None, D))
    for _ in range(2):
        add_norm = tfattn.AddNorm(norm_first=True)
        x = add_norm(x, tfattn.PositionwiseFeedForward(7)(add_norm.pre_norm(x)))
    model = keras.Model(inputs, x)
    model.save(tmp_path / "model.keras")
    tokens = draw(B, T, D)
    np.testing.assert_array_equal(
        keras.models.load_model(tmp_path / "model.keras")(tokens), model(tokens)
    )


@pytest.mark.tensorflow
@pytest.mark.slow
def test_axes_that_repeat_at_run_time_alone_broadcast():
    layer = tfattn.DotProductAttention()
    tokens = tf.TensorSpec((None, None, D))

    @tf.function(
        input_signature=[
            tokens,
            tf.TensorSpec((None, None, None), "bool"),
            tf.TensorSpec((None, None), "int32"),
        ]
    )
    def run(x, mask, lengths):
        return layer(x, x, attention_mask=mask, valid_lens=lengths)

    x = draw(B, S, D)
    mask = reference.padding([5, 3], S)
    lengths = np.array([[4], [6]], "int32")
    np.testing.assert_allclose(
        run(x, mask, lengths), layer(x, x, attention_mask=mask, valid_lens=lengths), atol=1e-6
    )


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_half_precision_regression_keeps_points_far_from_the_origin_apart(policy):
    x = np.linspace(2000.0, 2005.0, 51)[None, :, None]
    y = np.sin(x)
    expected = np.asarray(tfattn.NadarayaWatson(bandwidth=0.3)(x, y, x))
    output = tfattn.NadarayaWatson(bandwidth=0.3, dtype=policy)(x, y, x)
    assert dtype_of(output) == policy.removeprefix("mixed_")
    np.testing.assert_allclose(np.asarray(output, "float32"), expected, atol=0.02)


def test_a_bool_bias_is_refused_and_a_list_is_taken():
    tokens = draw(1, 3, D)
    layer = tfattn.DotProductAttention()
    with pytest.raises(ValueError, match="`bias` must hold numbers.*goes into `attention_mask`"):
        layer(tokens, tokens, bias=np.eye(3, dtype=bool))
    with pytest.raises(ValueError, match="attend: `bias` must hold numbers"):
        tfattn.attend(tokens, tokens, bias=np.eye(3, dtype=bool))
    np.testing.assert_array_equal(
        tfattn.attend(tokens, tokens, bias=[[0.0] * 3] * 3), tfattn.attend(tokens, tokens)
    )


def test_a_symbolic_tensor_inside_of_a_mask_object_is_refused_with_the_way_out():
    tokens, lengths = keras.Input((None, D)), keras.Input((), dtype="int32")
    with pytest.raises(
        ValueError, match="`attention_mask` must hold no symbolic tensor.*`valid_lens`"
    ):
        tfattn.DotProductAttention()(tokens, tokens, attention_mask=tfattn.masks.padding(lengths))


def test_a_config_without_an_argument_takes_its_default():
    assert tfattn.MultiHeadAttention.from_config({"num_heads": 2, "key_dim": 4}).key_dim == 4
    theirs = keras.layers.MultiHeadAttention(2, 4, dropout=0.1).get_config()
    assert tfattn.MultiHeadAttention.from_config(theirs).dropout == 0.1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: tfattn.Transformer(11, width=0, share_embeddings=True),
            "Transformer: `width` must be a positive",
        ),
        (
            lambda: tfattn.TransformerEncoder(11, embedding=5),
            "TransformerEncoder: `embedding` must be a layer",
        ),
        (
            lambda: tfattn.Transformer(11, positions="learned"),
            "Transformer: `positions` must be a layer",
        ),
        (
            lambda: tfattn.TransformerEncoder(
                11, width=8, num_heads=2, embedding=keras.layers.Embedding(11, 6)
            ),
            "`embedding` must have `width`=8 features. Received: embedding=6",
        ),
        (
            lambda: tfattn.TransformerEncoderBlock(
                attention=tfattn.MultiHeadAttention(4, 2, num_key_value_heads=3), hidden_dim=8
            ),
            "MultiHeadAttention: `num_key_value_heads` must divide `num_heads`=4",
        ),
    ],
)
def test_bad_parts_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def many_heads(**parts):
    return tfattn.MultiHeadAttention(2, 4, **parts)


def stack(positions):
    sizes = {"num_layers": 1, "width": D, "num_heads": 2, "hidden_dim": 3}
    return tfattn.TransformerEncoder(11, **sizes, positions=positions)


# Of each argument that takes a layer and does not copy it: what takes it, and a part with weights.
PARTS = {
    "score": (tfattn.Attention, lambda: tfattn.AdditiveScore(3)),
    "score of heads": (many_heads, lambda: tfattn.AdditiveScore(3)),
    "score under a cap": (tfattn.SoftCapScore, lambda: tfattn.AdditiveScore(3)),
    "score of a decoder": (tfattn.RecurrentDecoder, lambda: tfattn.AdditiveScore(3)),
    "normalizer": (tfattn.Attention, tfattn.AttentionSinks),
    "normalizer of heads": (many_heads, tfattn.AttentionSinks),
    "positions of heads": (many_heads, tfattn.RelativePositionBias),
    "positions of a stack": (stack, lambda: tfattn.LearnedPositionalEncoding(5)),
}


def built_with(name, part):
    """A built layer that has the part."""
    make, _ = PARTS[name]
    if make is tfattn.RecurrentDecoder:
        layer, shapes = make(11, width=3, units=5, score=part), ((B, T), (B, S, D))
    elif make is tfattn.SoftCapScore:
        layer, shapes = make(50.0, score=part), ((B, T, D), (B, S, D))
    elif make is stack:
        layer, shapes = make(part), ((B, T),)
    else:
        layer, shapes = make(**{name.split()[0]: part}), ((B, T, D), (B, S, D))
    layer.build(*shapes)
    return layer


@pytest.mark.parametrize("name", PARTS)
def test_layers_that_share_a_part_with_weights_are_not_saved_by_their_configs(name):
    part = PARTS[name][1]()
    first = built_with(name, part)
    keras.saving.serialize_keras_object(first)
    second = built_with(name, part)
    argument = name.split()[0]
    for layer, other in ((first, second), (second, first)):
        expected = rf"`{argument}` must be this layer's alone to be saved.*`{other.name}` has it"
        with pytest.raises(ValueError, match=expected):
            keras.saving.serialize_keras_object(layer)


def test_a_functional_model_whose_layers_share_weights_of_a_part_is_not_saved(tmp_path):
    positions = tfattn.RelativePositionBias()
    inputs = keras.Input((None, D))
    x = tfattn.MultiHeadAttention(2, 4, positions=positions, name="first")(inputs, inputs)
    outputs = tfattn.MultiHeadAttention(2, 4, positions=positions, name="second")(x, x)
    with pytest.raises(ValueError, match="`positions` must be this layer's alone.*`second`"):
        keras.Model(inputs, outputs).save(tmp_path / "model.keras")


@keras.saving.register_keras_serializable("tests")
class Tied(keras.Model):
    """Two attentions whose common part this code shares, whenever it is run."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        positions = tfattn.RelativePositionBias()
        self.first = tfattn.MultiHeadAttention(2, 4, positions=positions)
        self.second = tfattn.MultiHeadAttention(2, 4, positions=positions)

    def call(self, inputs):
        x = self.first(inputs, inputs)
        return self.second(x, x)


def test_a_subclassed_model_that_shares_a_part_comes_back(tmp_path):
    model, tokens = Tied(), draw(B, T, D)
    model(tokens)
    model.set_weights([draw(*w.shape, seed=i) for i, w in enumerate(model.weights)])
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert loaded.first.positions is loaded.second.positions
    np.testing.assert_array_equal(loaded(tokens), model(tokens))


def test_a_part_is_one_layer_s_again_when_the_other_is_gone():
    part = tfattn.AttentionSinks()
    built_with("normalizer", part)
    gc.collect()
    keras.saving.serialize_keras_object(built_with("normalizer", part))


def test_a_part_without_weights_serves_many_layers_and_their_file(tmp_path):
    positions = tfattn.RotaryPositions()
    inputs = keras.Input((None, D))
    x = tfattn.MultiHeadAttention(2, 4, positions=positions, name="first")(inputs, inputs)
    outputs = tfattn.MultiHeadAttention(2, 4, positions=positions, name="second")(x, x)
    model = keras.Model(inputs, outputs)
    model.save(tmp_path / "model.keras")
    tokens = draw(B, T, D)
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded(tokens), model(tokens))


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("name", ["normalizer of heads", "positions of heads", "score of heads"])
def test_models_whose_layers_have_parts_come_back_and_are_cloned(name, tmp_path):
    _, make = PARTS[name]
    inputs = keras.Input((None, D))
    x = many_heads(**{name.split()[0]: make()})(inputs, inputs)
    outputs = many_heads(**{name.split()[0]: make()})(x, x)
    model = keras.Model(inputs, outputs)
    model.set_weights([draw(*w.shape, seed=i) for i, w in enumerate(model.weights)])
    model.save(tmp_path / "model.keras")
    tokens = draw(B, T, D)
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded(tokens), model(tokens))
    copy = keras.models.clone_model(model)
    copy.set_weights(model.get_weights())
    np.testing.assert_array_equal(copy(tokens), model(tokens))


@pytest.mark.slow
def test_learned_positions_fit_a_whole_transformer():
    positions = tfattn.LearnedPositionalEncoding(max_length=6, input_scale=10**0.5)
    model = tfattn.Transformer(
        11, num_layers=1, width=10, num_heads=2, hidden_dim=7, positions=positions
    )
    source = np.array([[3, 5]])
    assert model((source, np.array([[2, 4]]))).shape == (1, 2, 11)
    assert model.encoder.positions is not model.decoder.positions
    written = tfattn.greedy_search(model.step, model.encode(source), batch_size=1, max_length=6)
    assert written.shape == (1, 6)
