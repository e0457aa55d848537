"""Marian's models of `transformers`: equal logits, equal translations, and the state back."""

import json

import keras
import numpy as np
import pytest

import tfattn
from tests.convert import marian_of_transformers as theirs
from tests.convert.parity import close, refused
from tests.helpers.processes import printed
from tests.helpers.tensors import numpy
from tfattn.convert import from_marian, ids_from_marian, ids_to_marian, to_marian
from tfattn.convert.marian import _sinusoids

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """What `theirs` writes."""
    pytest.importorskip("torch")
    path = tmp_path_factory.mktemp("marian")
    if not theirs.is_there():
        pytest.skip("needs transformers")
    printed("-m", "tests.convert.marian_of_transformers", path)
    return path


@pytest.fixture(scope="module", params=theirs.MODELS)
def marian(request, folder):
    """State, config, outputs, and our model."""
    path = folder / request.param
    state = dict(np.load(f"{path}.state.npz"))
    config = json.loads((folder / f"{request.param}.json").read_text())
    return state, config, np.load(f"{path}.outputs.npz"), from_marian(state, config)


def test_the_logits_are_the_same(marian):
    _, config, outputs, model = marian
    source = ids_from_marian(theirs.sources(), config)
    assert (source == 0).any()
    found = numpy(model((source, theirs.targets(config["decoder_start_token_id"]) + 1)))
    close(found[..., 1:], outputs["logits"], rtol=1e-5)
    assert (found[..., 0] == -100).all()


def test_greedy_search_gives_the_same_translations(marian):
    _, config, outputs, model = marian
    source = ids_from_marian(theirs.sources(), config)
    wanted = outputs["greedy"][:, 1:]
    length = wanted.shape[1]
    found = tfattn.GreedySearch()(
        model.step,
        model.encode(source, max_length=length),
        batch_size=len(source),
        max_length=length,
        begin_id=config["decoder_start_token_id"] + 1,
        end_id=config["eos_token_id"] + 1,
    )
    np.testing.assert_array_equal(ids_to_marian(found, config), wanted)
    assert len(np.unique(wanted)) > 4


def test_the_state_comes_back_bit_for_bit(marian):
    state, config, _, model = marian
    back = to_marian(model)
    assert set(back) == set(state)
    for name, array in state.items():
        np.testing.assert_array_equal(back[name], array, err_msg=name)
    left_out = [name for name in state if "embed_positions" in name]
    if "model.shared.weight" in state:
        left_out += ["lm_head.weight"] + [name for name in state if "embed_tokens" in name]
    less = {name: array for name, array in state.items() if name not in left_out}
    for given in (back, less):  # what files leave out is filled in
        for one, other in zip(model.weights, from_marian(given, config).weights, strict=True):
            np.testing.assert_array_equal(one, other)


def test_the_model_can_be_saved_and_its_positions_are_not_trained(marian, tmp_path):
    _, config, _, model = marian
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    for each in (model, loaded):
        assert not any("positions" in variable.path for variable in each.trainable_variables)
    source = ids_from_marian(theirs.sources(), config)
    np.testing.assert_array_equal(loaded((source, source)), model((source, source)))


CONFIG = {
    "vocab_size": 11,
    "d_model": 6,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_ffn_dim": 7,
    "decoder_ffn_dim": 7,
    "encoder_attention_heads": 3,
    "decoder_attention_heads": 3,
    "max_position_embeddings": 13,
    "activation_function": "relu",
    "pad_token_id": 10,
}


def small():
    block = tfattn.TransformerDecoderBlock(3, 7)
    positions = tfattn.LearnedPositionalEncoding(13)
    model = tfattn.Transformer(12, num_layers=1, width=6, block=block, positions=positions)
    model.build_for_any()
    bias = np.random.default_rng(1).normal(size=12)
    model.output_dense.bias.assign([-99.7, *bias[1:]])  # as after some training
    return model


def test_a_model_of_ours_goes_there_and_back_and_an_error_lists_what_does_not_fit():
    model = small()
    state = to_marian(model)
    assert "model.shared.weight" not in state  # no two matrices are the same
    config = {**CONFIG, "share_encoder_decoder_embeddings": False, "tie_word_embeddings": False}
    again = from_marian(state, config)
    assert again.output_dense.bias.numpy()[0] == -100.0  # finite in float16 too
    back = to_marian(again)
    assert back.keys() == state.keys()
    for name, array in state.items():
        np.testing.assert_array_equal(back[name], array)
    state["model.encoder.layers.0.fc1.weight"] = np.zeros((5, 6))
    del state["model.decoder.layers.0.encoder_attn.q_proj.bias"]
    state["model.encoder.layers.1.fc1.bias"] = np.zeros(7)
    with pytest.raises(ValueError, match="from_marian: the weights must have") as error:
        from_marian(state, config)
    assert str(error.value).splitlines()[1:] == [
        "  model.encoder.layers.0.fc1.weight: expected (7, 6), found (5, 6)",
        "  model.decoder.layers.0.encoder_attn.q_proj.bias: expected (6,), found none",
        "  model.encoder.layers.1.fc1.bias: expected none, found (7,)",
    ]
    with pytest.raises(ValueError, match="embed_tokens.weight: expected .*, found none"):
        from_marian({}, CONFIG)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("decoder_layers", 2),
        ("decoder_ffn_dim", 5),
        ("decoder_attention_heads", 2),
        ("normalize_before", True),
        ("normalize_embedding", True),
        ("add_final_layer_norm", True),
        ("activation_function", "gelu_new"),
    ],
)
def test_what_a_config_has_and_we_have_not_is_refused_by_name(name, value):
    with pytest.raises(ValueError, match=f"from_marian: `{name}` (cannot be conv|must be one)"):
        from_marian({}, {**CONFIG, name: value})


POSITIONS = {"positions": tfattn.LearnedPositionalEncoding(13)}
HEADS = {"num_heads": 3, "hidden_dim": 7}
WIDE = tfattn.TransformerDecoderBlock(hidden_dim=7, attention=tfattn.MultiHeadAttention(3, 5))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("norm_first", {"block": tfattn.TransformerDecoderBlock(3, 7, norm_first=True)}),
        ("key_dim", {"block": WIDE}),
        ("positions", HEADS),
        ("share_embeddings", {**HEADS, **POSITIONS, "share_embeddings": True}),
        ("logit of padding", {**HEADS, **POSITIONS}),
    ],
)
def test_what_marian_does_not_have_is_refused_by_name(name, options):
    model = tfattn.Transformer(12, num_layers=1, width=6, **options)
    model.build_for_any()
    with refused(name):
        to_marian(model)


def test_sinusoids_are_all_sines_and_then_all_cosines():
    found = _sinusoids(5, 4)
    angles = np.arange(5)[:, None] / np.array([1.0, 100.0])
    np.testing.assert_allclose(found, np.hstack([np.sin(angles), np.cos(angles)]), atol=1e-6)


def test_ids_have_a_round_trip():
    ids = np.array([[3, 0, 10, 10]])
    found = ids_from_marian(ids, CONFIG)
    np.testing.assert_array_equal(found, [[4, 1, 0, 0]])
    np.testing.assert_array_equal(ids_to_marian(found, CONFIG), ids)
