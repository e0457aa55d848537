"""Encoder and step in one LiteRT file: the logits of a call, step by step."""

import keras
import pytest

from tests.convert import stepping
from tests.convert.parity import refused
from tests.convert.stepping import MODELS, PLAIN, built
from tfattn.convert import to_litert

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:In the future `np.object`:FutureWarning"),  # Keras's
]


@pytest.mark.parametrize("name", MODELS)
def test_to_litert_steps_have_the_logits_of_a_call(name, tmp_path):
    runtime = pytest.importorskip("ai_edge_litert.interpreter")
    model, path = built(**MODELS[name]), tmp_path / "model.tflite"
    policy = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_float16")  # which changes no file
    try:
        to_litert(model, path)
    finally:
        keras.config.set_dtype_policy(policy)
    file = runtime.Interpreter(str(path))
    encode, step = (file.get_signature_runner(each) for each in ("encode", "step"))
    stepping.assert_steps_are_a_call(
        model,
        lambda source: encode(source=source),
        lambda tokens, state: step(tokens=tokens, **state),
        room=1,
    )


def test_to_litert_after_an_error_leaves_the_old_file(tmp_path, monkeypatch):
    def fails(model):
        raise RuntimeError("in the middle")

    path = tmp_path / "model.tflite"
    path.write_text("old")
    monkeypatch.setattr("tfattn.convert.graphs._converted", fails)
    with pytest.raises(RuntimeError, match="in the middle"):
        to_litert(built(block=PLAIN), path)
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


def test_to_litert_refuses_invalid_arguments(tmp_path):
    path, plain = tmp_path / "model.tflite", built(block=PLAIN)
    stepping.refuses_models(lambda model: to_litert(model, path), "to_litert")
    for name in (tmp_path / "model.onnx", str(tmp_path)):
        with pytest.raises(ValueError, match='to_litert: `path` must end with ".tflite"'):
            to_litert(plain, name)
    plain.output_dense.quantize("int8")
    with refused("quantize"):
        to_litert(plain, path)
    assert not list(tmp_path.iterdir())
