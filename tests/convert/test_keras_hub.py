"""Round trips of KerasHub's layers, and equal outputs."""

import keras
import numpy as np
import pytest

import tfattn
from tests.convert.parity import close, randomized, refused, same_weights, tokens
from tfattn import scalings
from tfattn.convert import from_keras_hub, to_keras_hub

keras_hub = pytest.importorskip("keras_hub")

B, T, S, D = 2, 5, 7, 6

BLOCKS = {
    "plain": {},
    "pre-norm": {"normalize_first": True, "layer_norm_epsilon": 1e-3},
    "gelu": {"activation": "gelu", "dropout": 0.2},
    "heads that leave a rest": {"num_heads": 4},
}


def block(cls, name, *inputs):
    layer = cls(**{"intermediate_dim": 11, "num_heads": 3, **BLOCKS[name]})
    layer(*inputs)
    return randomized(layer)


def padded(length):
    return np.arange(length) < np.array([[length - 2], [length]])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "masks"), list(zip(BLOCKS, ["none", "padding", "pairs", "padding"], strict=True))
)
def test_an_encoder_computes_the_same(name, masks):
    x = tokens(B, T, D)
    theirs = block(keras_hub.layers.TransformerEncoder, name, x)
    ours = from_keras_hub(theirs)
    pairs = np.random.default_rng(3).random((B, T, T)) < 0.8
    of_theirs, of_ours = {
        "none": ({}, {}),
        "padding": ({"padding_mask": padded(T)}, {"mask": padded(T)}),
        "pairs": ({"attention_mask": pairs}, {"attention_mask": pairs}),
    }[masks]
    close(ours(x, **of_ours), theirs(x, **of_theirs))
    goes_back(theirs, ours)


@pytest.mark.slow
@pytest.mark.parametrize("name", BLOCKS)
def test_a_decoder_computes_the_same(name):
    x, memory = tokens(B, T, D), tokens(B, S, 13, seed=2)
    theirs = block(keras_hub.layers.TransformerDecoder, name, x, memory)
    ours = from_keras_hub(theirs)
    of_theirs = {"decoder_padding_mask": padded(T), "encoder_padding_mask": padded(S)}
    of_ours = {"inputs_mask": padded(T), "memory_mask": padded(S)}
    close(ours(x, memory, **of_ours), theirs(x, memory, **of_theirs))
    close(ours(x, memory, use_causal_mask=False), theirs(x, memory, use_causal_mask=False))
    goes_back(theirs, ours)


@pytest.mark.slow
def test_a_decoder_without_a_memory_computes_the_same():
    x = tokens(B, T, D)
    theirs = block(keras_hub.layers.TransformerDecoder, "plain", x)
    ours = from_keras_hub(theirs)
    close(ours(x), theirs(x))
    goes_back(theirs, ours)


def goes_back(theirs, ours):
    """Bit for bit, and once more."""
    back = to_keras_hub(ours)
    assert type(back) is type(theirs)
    config = theirs.get_config()
    for argument in ("activation", "layer_norm_epsilon", "dropout", "normalize_first", "name"):
        assert back.get_config()[argument] == config[argument]
    same_weights(back, theirs)
    same_weights(from_keras_hub(back), ours)


def test_a_cached_attention_computes_the_same():
    x = tokens(B, T, D)
    theirs = keras_hub.layers.CachedMultiHeadAttention(num_heads=3, key_dim=5)
    theirs(x, x)
    randomized(theirs)
    close(from_keras_hub(theirs)(query=x, value=x), theirs(x, x))


def test_sinusoids_are_the_same_once_they_are_added():
    x = tokens(B, T, D)
    theirs = keras_hub.layers.SinePositionEncoding(max_wavelength=500)
    ours = from_keras_hub(theirs)
    close(ours(x), keras.ops.add(x, theirs(x)))
    close(ours(x, start_index=3), keras.ops.add(x, theirs(x, start_index=3)))
    assert to_keras_hub(ours).get_config() == theirs.get_config()


ROTARY = {
    "plain": {"max_wavelength": 500},
    "linear": {"scaling_factor": 2.0},
    "yarn": {
        "rope_type": "yarn",
        "scaling_factor": 4.0,
        "original_max_position_embeddings": 32,
        "beta_fast": 16.0,
        "beta_slow": 2.0,
        "truncate": False,
    },
}


@pytest.mark.parametrize("name", ROTARY)
def test_rotary_positions_turn_heads_as_theirs(name):
    heads = tokens(B, 3, T, 10)  # (B, H, T, P)
    theirs = keras_hub.layers.RotaryEmbedding(sequence_axis=2, **ROTARY[name])
    ours = from_keras_hub(theirs)
    close(ours.turn(heads, 4), theirs(heads, start_index=4))
    back = to_keras_hub(ours).get_config()
    assert {argument: back[argument] for argument in ROTARY[name]} == ROTARY[name]


@pytest.mark.parametrize(
    ("name", "options", "convert"),
    [
        ("rope_type", {"rope_type": "dynamic"}, from_keras_hub),
        ("denominator_dim", {"denominator_dim": 4}, from_keras_hub),
        ("rotary_dim", {"rotary_dim": 2}, to_keras_hub),
        ("interleaved", {"interleaved": True}, to_keras_hub),
        ("scaling", {"scaling": scalings.llama3(8.0, original_length=32)}, to_keras_hub),
        ("scaling", {"scaling": scalings.yarn(4.0, 32, attention_factor=1.5)}, to_keras_hub),
    ],
)
def test_rotary_positions_that_the_other_has_not_are_refused_by_name(name, options, convert):
    cls = tfattn.RotaryPositions if convert is to_keras_hub else keras_hub.layers.RotaryEmbedding
    with refused(name):
        convert(cls(**options))


def test_learned_positions_are_the_same_once_they_are_added():
    x = tokens(B, T, D)
    theirs = keras_hub.layers.PositionEmbedding(sequence_length=11)
    theirs(x)
    ours = from_keras_hub(randomized(theirs))
    close(ours(x, start_index=3), keras.ops.add(x, theirs(x, start_index=3)))
    same_weights(to_keras_hub(ours), theirs)
    assert to_keras_hub(ours).get_config() == theirs.get_config()


# KerasHub's layer carries the mask around its positions by itself.
@pytest.mark.filterwarnings("ignore:Layer 'position_embedding'")
def test_token_and_position_embeddings_are_two_layers():
    ids = np.array([[3, 1, 0], [2, 2, 5]])
    theirs = keras_hub.layers.TokenAndPositionEmbedding(13, 11, D, mask_zero=True)
    theirs(ids)
    ours = from_keras_hub(randomized(theirs))
    found = ours(ids)
    close(found, theirs(ids))
    np.testing.assert_array_equal(found._keras_mask, ids != 0)
    back = to_keras_hub(ours)
    same_weights(back, theirs)
    close(back(ids), theirs(ids))
    untied = keras_hub.layers.TokenAndPositionEmbedding(13, 11, D, tie_weights=False)
    untied(ids)
    with refused("tie_weights=False"):
        from_keras_hub(untied)


def attending(*sizes, **options):
    attention = tfattn.MultiHeadAttention(*sizes, **options)
    return tfattn.TransformerEncoderBlock(hidden_dim=11, attention=attention)


def networking(network):
    return tfattn.TransformerEncoderBlock(num_heads=3, feed_forward=network)


def plain(**options):
    return tfattn.TransformerEncoderBlock(num_heads=3, hidden_dim=11, **options)


@pytest.mark.parametrize(
    ("name", "layer"),
    [
        ("attention_dropout", plain(attention_dropout=0.1)),
        ("norm", plain(norm=keras.layers.RMSNormalization())),
        ("norm", plain(norm=keras.layers.LayerNormalization(center=False))),
        (
            "dropout of the feed_forward",
            networking(tfattn.PositionwiseFeedForward(11, dropout=0.1)),
        ),
        ("feed_forward", networking(tfattn.GatedFeedForward(11))),
        ("key_dim", attending(3, 5)),
        ("value_dim", attending(3, 2, 5)),
        ("use_bias", attending(3, 2, use_bias=False)),
        ("use_gate", attending(3, 2, use_gate=True)),
        ("sliding_window", attending(3, 2, sliding_window=2)),
        ("normalizer", attending(3, 2, normalizer=tfattn.AttentionSinks())),
        ("num_key_value_heads", attending(4, 2, num_key_value_heads=2)),
        ("input_scale", tfattn.SinusoidalPositionalEncoding(input_scale=2.0)),
    ],
)
def test_what_keras_hub_does_not_have_is_refused_by_name(name, layer):
    layer(tokens(B, T, D))
    with refused(name):
        to_keras_hub(layer)


def test_other_layers_are_refused():
    with pytest.raises(ValueError, match="from_keras_hub: `layer` must be one of Transformer"):
        from_keras_hub(keras.layers.Dense(3))
    with pytest.raises(ValueError, match="to_keras_hub: `layer` must be one of Transformer"):
        to_keras_hub(keras.layers.Dense(3))
    with pytest.raises(ValueError, match="to_keras_hub: `layer` must hold an Embedding"):
        to_keras_hub(keras.Sequential([keras.Input((3,)), keras.layers.Dense(3)]))
