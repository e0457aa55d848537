"""Marian's models of `transformers`: equal logits, equal translations, and the state back."""

import json
from typing import Any, NamedTuple

import keras
import numpy as np
import pytest

import tfattn
from tests.convert import marian_folders as theirs
from tests.convert.parity import close, refused
from tests.helpers.processes import printed
from tests.helpers.tensors import numpy
from tfattn.convert import (
    from_marian,
    ids_from_marian,
    ids_to_marian,
    load_marian,
    marian_search,
    to_marian,
)
from tfattn.convert.marian import _sinusoids

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """What `theirs` writes, in a process of its own."""
    if not theirs.is_there():
        pytest.skip("needs torch, transformers, sentencepiece and safetensors")
    path = tmp_path_factory.mktemp("marian")
    printed("-m", "tests.convert.marian_folders", path)
    return path


class Marian(NamedTuple):
    """A model of `transformers` with random weights, and ours."""

    state: dict[str, np.ndarray]
    config: dict[str, Any]
    outputs: dict[str, np.ndarray]
    model: tfattn.Transformer


@pytest.fixture(scope="module", params=theirs.FOLDERS)
def marian(request, folder):
    name = request.param
    config = json.loads((folder / name / "config.json").read_text("utf-8"))
    state, outputs = (dict(np.load(folder / f"{name}.{x}.npz")) for x in ("state", "logits"))
    return Marian(state, config, outputs, from_marian(state, config))


def test_from_marian_has_the_logits_of_transformers(marian):
    source = ids_from_marian(marian.outputs["source"], marian.config)
    assert (source == 0).any()
    found = numpy(marian.model((source, marian.outputs["target"] + 1)))
    close(found[..., 1:], marian.outputs["logits"], rtol=1e-5)
    assert (found[..., 0] == -100).all()


def test_to_marian_gives_the_state_back_bit_for_bit(marian):
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


def test_from_marian_can_be_saved_and_does_not_train_positions(marian, tmp_path):
    marian.model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    for each in (marian.model, loaded):
        assert not any("positions" in variable.path for variable in each.trainable_variables)
    source = ids_from_marian(marian.outputs["source"], marian.config)
    np.testing.assert_array_equal(loaded((source, source)), marian.model((source, source)))


@pytest.mark.parametrize("name", theirs.FOLDERS)
@pytest.mark.filterwarnings("ignore:translate. `source_vocabulary` lacks words")
def test_load_marian_writes_the_tokens_and_texts_of_transformers(name, folder):
    wanted = json.loads((folder / f"{name}.json").read_text("utf-8"))
    model, source, target = load_marian(folder / name)
    found = [[*source.encode(line), source.end_id] for line in wanted["lines"]]
    assert [[token - 1 for token in row] for row in found] == wanted["inputs"]
    seen = Seen(target)
    texts = tfattn.translate(
        model,
        wanted["lines"],
        source,
        seen,
        search=marian_search(folder / name),
        batch_size=len(wanted["lines"]),
        max_length=theirs.LONGEST,
    )
    assert texts == wanted["texts"]
    assert sorted(seen.rows) == sorted(wanted["ids"])
    assert len(texts) == theirs.FOLDERS[name][-1] and len(set(texts)) >= 0.75 * len(texts)
    lengths = set(map(len, wanted["inputs"]))
    assert min(lengths) == 2 and max(lengths) > 35  # with the end


class Seen:
    """A vocabulary that remembers the rows of ids that it decodes, as Marian's."""

    def __init__(self, vocabulary):
        self.vocabulary, self.rows = vocabulary, []

    def __getattr__(self, name):
        return getattr(self.vocabulary, name)

    def __len__(self):
        return len(self.vocabulary)

    def decode(self, ids):
        self.rows.append([int(token) - 1 for token in ids if token != self.vocabulary.padding_id])
        return self.vocabulary.decode(ids)


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


def test_to_marian_of_our_model_comes_back_or_lists_differences():
    block, positions = tfattn.TransformerDecoderBlock(3, 7), tfattn.LearnedPositionalEncoding(13)
    model = tfattn.Transformer(12, num_layers=1, width=6, block=block, positions=positions)
    model.build_for_any()
    bias = np.random.default_rng(1).normal(size=12)
    model.output_dense.bias.assign([-99.7, *bias[1:]])  # as after some training
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
def test_from_marian_names_what_a_config_has_and_we_have_not(name, value):
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
def test_to_marian_names_what_marian_has_not(name, options):
    model = tfattn.Transformer(12, num_layers=1, width=6, **options)
    model.build_for_any()
    with refused(name):
        to_marian(model)


def test_marian_sinusoids_are_all_sines_and_then_all_cosines():
    found = _sinusoids(5, 4)
    angles = np.arange(5)[:, None] / np.array([1.0, 100.0])
    np.testing.assert_allclose(found, np.hstack([np.sin(angles), np.cos(angles)]), atol=1e-6)


def test_ids_from_marian_come_back_by_ids_to_marian():
    ids = np.array([[3, 0, 10, 10]])
    found = ids_from_marian(ids, CONFIG)
    np.testing.assert_array_equal(found, [[4, 1, 0, 0]])
    np.testing.assert_array_equal(ids_to_marian(found, CONFIG), ids)
