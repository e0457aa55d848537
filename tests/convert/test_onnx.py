"""Encoder and step as ONNX files: equal logits, and equal tokens by a loop of NumPy alone."""

import pathlib

import keras
import numpy as np
import pytest

import tfattn
from tests.convert.parity import close, refused
from tests.convert.stepping import (
    IDS,
    MODELS,
    NOTHING_ADDED,
    PLAIN,
    SOURCE,
    TARGET,
    built,
    code_of_the_page,
    function_of_the_page,
    within,
)
from tests.helpers.tensors import numpy
from tfattn import data, scalings
from tfattn.convert import to_onnx

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:In the future `np.object`:FutureWarning"),  # Keras's
]


def stepped(encoder, step, tokens, source):
    """Logits `(B, T, V)` after each of the tokens `(B, T)`, one step at a time."""
    state = encoder.run(None, {"source": source})
    names = [each.name for each in step.get_inputs()]
    found = []
    for length in range(1, tokens.shape[1] + 1):
        inputs = dict(zip(names, (tokens[:, :length], *state), strict=True))
        logits, *state[:2] = step.run(None, inputs)
        found.append(logits)
    return np.stack(found, axis=1)


@pytest.fixture(scope="module", params=MODELS)
def exported(request, tmp_path_factory):
    """Our model, and sessions of its two files, which the global policy does not change."""
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("tf2onnx")
    model = built(**MODELS[request.param])
    folder = tmp_path_factory.mktemp("onnx") / "new"
    policy = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_float16")
    try:
        to_onnx(model, [TARGET if model.share_embeddings else SOURCE, TARGET], folder)
    finally:
        keras.config.set_dtype_policy(policy)
    assert len(data.load_vocabulary(folder / "target.vocabulary")) == len(TARGET)
    files = (folder / "encoder.onnx", folder / "step.onnx")
    return model, *(runtime.InferenceSession(str(file)) for file in files)


def test_each_step_has_the_logits_of_a_call(exported):
    model, encoder, step = exported
    target_in = np.random.default_rng(1).integers(4, len(TARGET), (len(IDS), 7)).astype("int32")
    target_in[:, 0] = 2
    wanted = numpy(model((IDS, target_in)))
    close(stepped(encoder, step, target_in, IDS), wanted, rtol=1e-5)


@pytest.mark.parametrize("exported", ["relative, sinks, an additive score"], indirect=True)
def test_the_loop_of_the_page_writes_the_same(exported):
    """For any batch and lengths."""
    model, encoder, step = exported
    greedy = function_of_the_page("greedy")
    for source in (np.pad(IDS, [[0, 0], [0, 5]]), IDS[:1, :2]):
        found = greedy(encoder, step, source, 9)
        state = model.encode(source, max_length=9)
        wanted = numpy(tfattn.GreedySearch()(model.step, state, len(source), 9))
        np.testing.assert_array_equal(found, wanted[:, : found.shape[1]])
        assert not wanted[:, found.shape[1] :].any()


def test_the_code_of_the_page_runs_from_top_to_bottom(tmp_path, monkeypatch):
    for module in ("ai_edge_litert", "ctranslate2", "onnxruntime", "tf2onnx"):
        pytest.importorskip(module)
    monkeypatch.chdir(tmp_path)
    variables = {}
    for code in code_of_the_page():
        exec(code, variables)
    sentences = ["a cat sees a bird"]
    ours = tfattn.translate(variables["model"], sentences, *variables["words"], max_length=20)
    assert [variables["translation"]] == ours == [variables["on_device"]]


def test_keys_and_values_grow_by_a_position(exported):
    model, encoder, step = exported
    state = encoder.run(None, {"source": IDS})
    assert [each.name for each in encoder.get_inputs()] == ["source"]
    names = [each.name for each in step.get_inputs()]
    assert names == ["tokens", "keys", "values", "memory_keys", "memory_values", "memory_mask"]
    attention = model.decoder.blocks[0].self_attention
    groups, width = attention.num_key_value_heads, attention.key_dim
    layers = len(model.decoder.blocks)
    assert state[0].shape == (layers, len(IDS), groups, 0, width)
    assert state[2].shape == (layers, len(IDS), groups, IDS.shape[1], width)
    tokens = np.full((len(IDS), 1), 2, "int32")
    logits, keys, _ = step.run(None, dict(zip(names, (tokens, *state), strict=True)))
    assert logits.shape == (len(IDS), len(TARGET))
    assert keys.shape == (layers, len(IDS), groups, 1, width)


def test_a_scaling_that_turns_keys_in_a_cache_anew_is_refused(tmp_path):
    """Steps would go on beyond the length at which `model.encode` refuses a cache."""
    positions = tfattn.RotaryPositions(scaling=scalings.dynamic(2.0, 5))
    model = built(block=within(positions=positions), **NOTHING_ADDED)
    with refused("scaling"):
        to_onnx(model, [SOURCE, TARGET], tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("dtype", ["mixed_float16", "float16", "mixed_bfloat16", "float64"])
def test_a_model_that_does_not_compute_in_float32_is_refused(dtype, tmp_path):
    model = built(num_heads=3, hidden_dim=7, dtype=dtype)
    with pytest.raises(ValueError, match=f"`model` must compute in float32: .*model='{dtype}'"):
        to_onnx(model, [SOURCE, TARGET], tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.fixture(scope="module")
def plain():
    return built(block=PLAIN)


@pytest.mark.parametrize("empty", [False, True])
def test_after_an_error_nothing_is_there_and_a_second_try_goes(empty, plain, tmp_path, monkeypatch):
    pytest.importorskip("tf2onnx")
    folder = tmp_path / "new"
    if empty:
        folder.mkdir()
    written = []

    def export(model, inputs, path):
        pathlib.Path(path).write_text("")
        written.append(pathlib.Path(path).name)
        if written == ["encoder.onnx", "step.onnx"]:
            raise RuntimeError("in the middle")

    monkeypatch.setattr("tfattn.convert.onnx._export", export)
    with pytest.raises(RuntimeError, match="in the middle"):
        to_onnx(plain, [SOURCE, TARGET], folder)
    assert list(tmp_path.rglob("*")) == ([folder] if empty else [])
    to_onnx(plain, [SOURCE, TARGET], folder)
    files = ["encoder.onnx", "source.vocabulary", "step.onnx", "target.vocabulary"]
    assert sorted(path.name for path in folder.iterdir()) == files
    assert list(tmp_path.iterdir()) == [folder]


def test_invalid_arguments_of_to_onnx_are_refused(plain, tmp_path, monkeypatch):
    pytest.importorskip("tf2onnx")
    with pytest.raises(ValueError, match="to_onnx: `model` must be a Transformer"):
        to_onnx(keras.layers.Dense(3), [SOURCE, TARGET], tmp_path / "new")
    with pytest.raises(ValueError, match="`model` must be built"):
        model = tfattn.Transformer(17, 19, num_layers=1, width=12, block=PLAIN)
        to_onnx(model, [SOURCE, TARGET], tmp_path / "new")
    with pytest.raises(ValueError, match=r"`vocabularies\[0\]` must have 17 entries"):
        to_onnx(plain, [TARGET, TARGET], tmp_path / "new")
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="`folder` must be new, or an empty folder"):
        to_onnx(plain, [SOURCE, TARGET], tmp_path)
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    with pytest.raises(ValueError, match="to_onnx: `model` must be on the TensorFlow backend"):
        to_onnx(plain, [SOURCE, TARGET], tmp_path / "new")
