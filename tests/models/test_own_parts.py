"""Whole models of blocks whose parts are passed in: learned, saved, and asked step by step."""

import json
import zipfile

import keras
import numpy as np
import pytest

import tfattn

V, WIDTH, HEADS, HIDDEN = 13, 20, 10, 7
B, T, L = 3, 5, 11

Block = tfattn.TransformerEncoderBlock
RMS = keras.layers.RMSNormalization(epsilon=1e-5)
GROUPED = tfattn.MultiHeadAttention(HEADS, 3, num_key_value_heads=2)
TURNED = tfattn.MultiHeadAttention(HEADS, 4, positions=tfattn.RotaryPositions())
GATED = tfattn.GatedFeedForward(HIDDEN, dropout=0.3)
MODELS = {
    "RMS norm, shared key heads": (
        tfattn.CausalLM,
        Block(hidden_dim=HIDDEN, attention=GROUPED, norm=RMS),
    ),
    "RMS norm before, gated feed-forward": (
        tfattn.Transformer,
        Block(HEADS, feed_forward=GATED, norm=RMS, norm_first=True),
    ),
    "turned heads": (tfattn.CausalLM, Block(hidden_dim=HIDDEN, attention=TURNED)),
}


def asked(model, source, target):
    """(inputs of a call, state of the steps): a language model reads the target alone."""
    if isinstance(model, tfattn.CausalLM):
        return target, model.encode(np.zeros((B, 0), int), max_length=L)
    return (source, target), model.encode(source, max_length=L)


def sentences():
    rng = np.random.default_rng(3)
    source, target = rng.integers(4, V, (B, 7)), rng.integers(4, V, (B, T))
    source[0, 4:], target[1, 3:] = 0, 0
    return source, target


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_model_of_own_parts_in_a_file_steps_as_it_calls(name, tmp_path):
    cls, block = MODELS[name]
    beside = {"positions": keras.layers.Identity()} if name == "turned heads" else {}
    model = cls(V, num_layers=2, width=WIDTH, block=block, **beside)
    source, target = sentences()
    model.build_for_any()
    rng = np.random.default_rng(7)
    model.set_weights([rng.normal(size=w.shape) * 0.5 for w in model.get_weights()])
    wanted = np.asarray(model(asked(model, source, target)[0]))
    assert np.abs(wanted).max() > 1.0  # 1e-5 is a tight tolerance here

    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    inputs, state = asked(loaded, source, target)
    np.testing.assert_array_equal(loaded(inputs), wanted)
    assert loaded.get_config() == model.get_config()

    for position in range(T):
        logits, state = loaded.step(target, position, state)
        np.testing.assert_allclose(logits, wanted[:, position], atol=1e-5)


def blocks_of(model):
    return [(stack, block) for stack in (model.encoder, model.decoder) for block in stack.blocks]


@pytest.mark.slow
def test_model_copies_its_block_with_weights_and_a_seed_for_each():
    block = Block(
        hidden_dim=HIDDEN,
        dropout=0.3,
        norm_first=True,
        attention=tfattn.MultiHeadAttention(HEADS, 3, dropout=0.2, num_key_value_heads=2),
        norm=keras.layers.RMSNormalization(epsilon=1e-3),
    )
    before = block.get_config()
    model = tfattn.Transformer(V, num_layers=2, width=WIDTH, block=block, seed=5)
    model.build_for_any()
    assert not block.built and block.get_config() == before
    own = ("name", "seed", "dtype")
    for stack, copy in blocks_of(model):
        config = copy.get_config()
        assert {n: v for n, v in config.items() if n not in own} == {
            n: v for n, v in before.items() if n not in own
        }
        assert isinstance(copy, stack._block_class)
        assert copy.self_attention.num_key_value_heads == 2
    copies = [copy for _, copy in blocks_of(model)]
    assert len({copy.seed for copy in copies}) == len(copies)
    assert len({copy.self_attention.seed for copy in copies}) == len(copies)
    kernels = [np.asarray(copy.self_attention.query_dense.kernel) for copy in copies]
    assert len({kernel.tobytes() for kernel in kernels}) == len(copies)
    assert (model.num_heads, model.hidden_dim, model.dropout) == (HEADS, HIDDEN, 0.3)
    for stack in (model.encoder, model.decoder):
        assert stack.input_dropout.rate == 0.3
        assert type(stack.final_norm) is keras.layers.RMSNormalization
        assert stack.final_norm.epsilon == 1e-3 and stack.final_norm.built
        assert stack.final_norm.name == "final_norm"


def test_model_of_own_parts_gives_them_its_precision():
    _, block = MODELS["RMS norm, shared key heads"]
    model = tfattn.Transformer(V, num_layers=1, width=WIDTH, block=block, dtype="mixed_bfloat16")
    model.build_for_any()
    for _, block in blocks_of(model):
        parts = (block, block.self_attention, block.feed_forward, block.self_attention_norm.norm)
        assert {part.compute_dtype for part in parts} == {"bfloat16"}


def test_model_config_beside_a_block_is_as_the_block_has_it():
    block = Block(HEADS, HIDDEN, dropout=0.3, norm_first=True)
    model = tfattn.Transformer(
        V, num_layers=1, width=WIDTH, num_heads=HEADS, hidden_dim=HIDDEN, dropout=0.3, block=block
    )
    assert model.get_config() == {
        **tfattn.Transformer(V, num_layers=1, width=WIDTH, block=block).get_config(),
        "name": model.name,
    }


def test_decoder_keeps_the_class_of_its_own_blocks():
    @keras.saving.register_keras_serializable("test_models_of_parts")
    class Louder(tfattn.TransformerDecoderBlock):
        def call(self, inputs, *arguments, **options):
            return 2.0 * super().call(inputs, *arguments, **options)

    decoder = tfattn.TransformerDecoder(V, 1, WIDTH, block=Louder(HEADS, HIDDEN))
    assert type(decoder.blocks[0]) is Louder
    assert type(tfattn.TransformerDecoder.from_config(decoder.get_config()).blocks[0]) is Louder


ALL_WITH_WEIGHTS = tfattn.MultiHeadAttention(
    2,
    4,
    score=tfattn.SoftCapScore(5.0, tfattn.BilinearScore()),
    positions=tfattn.RelativePositionBias(8, 12),
    normalizer=tfattn.AttentionSinks(),
)
IDS = np.array([[2, 4, 5, 6]])


@pytest.mark.slow
def test_model_of_six_blocks_in_a_file_keeps_the_weights_of_each(tmp_path):
    block = tfattn.TransformerDecoderBlock(hidden_dim=8, attention=ALL_WITH_WEIGHTS)
    model = tfattn.CausalLM(20, num_layers=6, width=8, block=block)
    wanted = np.asarray(model(IDS))
    model.save(tmp_path / "model.keras")
    for _ in range(3):  # Keras knows a part by its address, which may be that of an earlier one
        loaded = keras.saving.load_model(tmp_path / "model.keras")
        assert len(loaded.weights) == len(model.weights)
        np.testing.assert_array_equal(loaded(IDS), wanted)


def model_in_folder(folder):
    """A language model of two layers, and its files."""
    model = tfattn.CausalLM(V, num_layers=2, width=8, num_heads=2, hidden_dim=HIDDEN)
    model.build_for_any()
    model.save(folder / "model.keras")
    model.save_weights(folder / "model.weights.h5")
    return model


def with_config(folder, change):
    """A file of the model whose config is changed."""
    path = folder / "changed.keras"
    with zipfile.ZipFile(folder / "model.keras") as old, zipfile.ZipFile(path, "w") as new:
        for name in old.namelist():
            content = old.read(name)
            if name == "config.json":
                config = json.loads(content)
                change(config)
                content = json.dumps(config)
            new.writestr(name, content)
    return path


@pytest.mark.slow
def test_file_of_more_weights_than_model_is_refused(tmp_path):
    model_in_folder(tmp_path)
    smaller = tfattn.CausalLM(V, num_layers=1, width=8, num_heads=2, hidden_dim=HIDDEN)
    smaller.build_for_any()
    refused = "CausalLM: `number_of_weights` must be 33, as in the file, .* number_of_weights=17"
    with pytest.raises(ValueError, match=refused):
        smaller.load_weights(tmp_path / "model.weights.h5")
    path = with_config(tmp_path, lambda config: config["config"].update(num_layers=1))
    with pytest.raises(ValueError, match=refused):
        keras.saving.load_model(path)


@keras.saving.register_keras_serializable("tests")
class LateDense(Block):
    """A block with a layer that its first call builds."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.extra = keras.layers.Dense(WIDTH)

    def call(self, inputs, mask=None):
        return self.extra(super().call(inputs, mask=mask))


def test_file_of_layer_whose_call_builds_a_sublayer_loads(tmp_path):
    model = keras.Sequential([LateDense(num_heads=2, hidden_dim=HIDDEN)])
    x = np.ones((1, 4, WIDTH), "float32")
    wanted = model(x)
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(again(x), wanted)


@pytest.mark.slow
def test_file_of_earlier_version_with_number_of_weights_in_its_config_loads(tmp_path):
    model = model_in_folder(tmp_path)
    number = {"number_of_weights": len(model.weights)}
    path = with_config(tmp_path, lambda config: config["build_config"].update(number))
    loaded = keras.saving.load_model(path)
    np.testing.assert_array_equal(loaded(IDS), model(IDS))


@pytest.mark.slow
def test_file_of_weights_with_lora_is_not_refused_for_their_number(tmp_path):
    model = model_in_folder(tmp_path)
    adapted = keras.saving.load_model(tmp_path / "model.keras")
    adapted.decoder.blocks[0].self_attention.query_dense.enable_lora(2)
    adapted.load_weights(tmp_path / "model.weights.h5")
    adapted.save(tmp_path / "adapted.keras")
    adapted.save_weights(tmp_path / "adapted.weights.h5")
    again = keras.saving.load_model(tmp_path / "adapted.keras")
    again.load_weights(tmp_path / "adapted.weights.h5")
    np.testing.assert_array_equal(again(IDS), model(IDS))
