"""Encoder and step in one LiteRT file: equal logits, and equal tokens by a loop of NumPy alone."""

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
    TARGET,
    built,
    function_of_the_page,
    within,
)
from tests.helpers.tensors import numpy
from tfattn import data, scalings
from tfattn.convert import to_litert

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:In the future `np.object`:FutureWarning"),  # Keras's
]
LONGEST, MARGIN = 16, 1e-3


def signatures(model, folder):
    """`encode` and `step` of the model's file."""
    runtime = pytest.importorskip("ai_edge_litert.interpreter")
    to_litert(model, folder / "model.tflite")
    file = runtime.Interpreter(str(folder / "model.tflite"))
    return [file.get_signature_runner(name) for name in ("encode", "step")]


@pytest.fixture(scope="module", params=[*MODELS][1:])
def exported(request, tmp_path_factory):
    """Our model, and the signatures of its file, which the global policy does not change."""
    model = built(**MODELS[request.param])
    policy = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_float16")
    try:
        return model, *signatures(model, tmp_path_factory.mktemp("litert"))
    finally:
        keras.config.set_dtype_policy(policy)


def test_each_step_has_the_logits_of_a_call(exported):
    model, encode, step = exported
    attention = model.decoder.blocks[0].self_attention
    target_in = np.random.default_rng(1).integers(4, len(TARGET), (len(IDS), 7)).astype("int32")
    target_in[:, 0] = 2
    wanted, state = numpy(model((IDS, target_in))), encode(source=IDS)
    for length in range(1, 8):
        caches = (model.num_layers, len(IDS), attention.num_key_value_heads, length)
        assert state["keys"].shape == (*caches, attention.key_dim)
        assert state["values"].shape == (*caches, attention.value_dim)
        found = step(tokens=target_in[:, :length], **state)
        close(found.pop("logits"), wanted[:, length - 1], rtol=1e-5)
        state |= found
    assert state["memory_keys"].shape[:4] == (*caches[:3], IDS.shape[1])


@pytest.fixture(scope="module")
def translator():
    """A model of a few updates, whose translations differ, and sentences as ids."""
    pairs = data.toy_translation(4000, seed=1)
    english, french = map(data.Vocabulary.from_sentences, zip(*pairs, strict=True))
    source = padded([*english.encode(text), english.end_id] for text, _ in pairs)
    target = padded([french.begin_id, *french.encode(text), french.end_id] for _, text in pairs)
    sizes = {"num_layers": 2, "width": 48, "num_heads": 4, "hidden_dim": 96, "seed": 1}
    positions = tfattn.LearnedPositionalEncoding(32)
    model = tfattn.Transformer(len(english), len(french), positions=positions, **sizes)
    loss = tfattn.MaskedCrossentropy()
    model.compile(keras.optimizers.Adam(0.005), loss=loss, jit_compile=False)
    model.fit((source, target[:, :-1]), target[:, 1:], batch_size=128, epochs=2, verbose=0)
    return model, source[:240]


def padded(sentences):
    return keras.utils.pad_sequences([*sentences], padding="post")


def margins(model, source, tokens):
    """`(B,)`, the least distance of the best two choices in each sentence."""
    target_in = np.pad(tokens[:, :-1], [[0, 0], [1, 0]], constant_values=2)
    logits = numpy(model((source, target_in)))[..., 1:]  # padding is no choice
    *_, second, first = np.moveaxis(np.sort(logits), -1, 0)
    return np.where(tokens > 0, first - second, np.inf).min(axis=1)


def test_200_sentences_have_the_same_greedy_tokens(translator, tmp_path):
    """By the loop of the page."""
    model, source = translator
    state = model.encode(source, max_length=LONGEST)
    wanted = numpy(tfattn.GreedySearch()(model.step, state, len(source), LONGEST))
    clear = margins(model, source, wanted) >= MARGIN
    greedy = function_of_the_page("greedy_on_device")
    found = greedy(*signatures(model, tmp_path), source[clear], LONGEST)
    wanted = wanted[clear]
    np.testing.assert_array_equal(found, wanted[:, : found.shape[1]])
    assert not wanted[:, found.shape[1] :].any()
    assert len(wanted) >= 200 and len(np.unique(wanted, axis=0)) >= 150


def test_an_error_leaves_the_old_file(tmp_path, monkeypatch):
    def fails(model):
        raise RuntimeError("in the middle")

    path = tmp_path / "model.tflite"
    path.write_text("old")
    monkeypatch.setattr("tfattn.convert.litert._converted", fails)
    with pytest.raises(RuntimeError, match="in the middle"):
        to_litert(built(block=PLAIN), path)
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


def test_invalid_arguments_of_to_litert_are_refused(tmp_path, monkeypatch):
    path, plain = tmp_path / "model.tflite", built(block=PLAIN)
    with pytest.raises(ValueError, match="to_litert: `model` must be a Transformer"):
        to_litert(tfattn.BahdanauSeq2Seq(5, width=2, units=2), path)
    with pytest.raises(ValueError, match="`model` must be built"):
        to_litert(tfattn.Transformer(17, 19, num_layers=1, width=12, block=PLAIN), path)
    with pytest.raises(ValueError, match="`model` must compute in float32"):
        to_litert(built(num_heads=3, hidden_dim=7, dtype="mixed_float16"), path)
    for name in (tmp_path / "model.onnx", str(tmp_path)):
        with pytest.raises(ValueError, match='to_litert: `path` must end with ".tflite"'):
            to_litert(plain, name)
    with refused("scaling"):
        positions = tfattn.RotaryPositions(scaling=scalings.dynamic(2.0, 5))
        to_litert(built(block=within(positions=positions), **NOTHING_ADDED), path)
    quantized = built(block=PLAIN)
    quantized.output_dense.quantize("int8")
    with refused("quantize"):
        to_litert(quantized, path)
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    with pytest.raises(ValueError, match="`model` must be on the TensorFlow backend: save it"):
        to_litert(plain, path)
    assert not list(tmp_path.iterdir())
