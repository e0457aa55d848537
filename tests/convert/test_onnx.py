"""Encoder and step as ONNX files: the logits of a call, step by step, by ONNX's own runtime."""

import pathlib

import keras
import pytest

from tests.convert import stepping
from tests.convert.stepping import MODELS, PLAIN, SOURCE, TARGET, built
from tfattn import data
from tfattn.convert import to_onnx

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:In the future `np.object`:FutureWarning"),  # Keras's
]
STATE = ["keys", "values", "memory_keys", "memory_values", "memory_mask"]


@pytest.mark.parametrize("name", MODELS)
def test_to_onnx_steps_have_the_logits_of_a_call(name, tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("tf2onnx")
    model, folder = built(**MODELS[name]), tmp_path / "new"
    policy = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_float16")  # which changes no file
    try:
        to_onnx(model, [TARGET if model.share_embeddings else SOURCE, TARGET], folder)
    finally:
        keras.config.set_dtype_policy(policy)
    assert len(data.load_vocabulary(folder / "target.vocabulary")) == len(TARGET)
    encoder, step = (
        runtime.InferenceSession(str(folder / name)) for name in ("encoder.onnx", "step.onnx")
    )
    assert [each.name for each in encoder.get_inputs()] == ["source"]
    assert [each.name for each in step.get_inputs()] == ["tokens", *STATE]

    def encode(source):
        return dict(zip(STATE, encoder.run(None, {"source": source}), strict=True))

    def take_step(tokens, state):
        outputs = step.run(None, {"tokens": tokens, **state})
        return dict(zip(("logits", "keys", "values"), outputs, strict=True))

    stepping.assert_steps_are_a_call(model, encode, take_step, room=0)


@pytest.fixture(scope="module")
def plain():
    return built(block=PLAIN)


@pytest.mark.parametrize("empty", [False, True])
def test_to_onnx_after_an_error_leaves_nothing_and_can_be_repeated(
    empty, plain, tmp_path, monkeypatch
):
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

    monkeypatch.setattr("tfattn.convert.graphs._export", export)
    with pytest.raises(RuntimeError, match="in the middle"):
        to_onnx(plain, [SOURCE, TARGET], folder)
    assert list(tmp_path.rglob("*")) == ([folder] if empty else [])
    to_onnx(plain, [SOURCE, TARGET], folder)
    files = ["encoder.onnx", "source.vocabulary", "step.onnx", "target.vocabulary"]
    assert sorted(path.name for path in folder.iterdir()) == files
    assert list(tmp_path.iterdir()) == [folder]


def test_to_onnx_refuses_invalid_arguments(plain, tmp_path):
    pytest.importorskip("tf2onnx")
    new = tmp_path / "new"
    stepping.refuses_models(lambda model: to_onnx(model, [SOURCE, TARGET], new), "to_onnx")
    with pytest.raises(ValueError, match=r"`vocabularies\[0\]` must have 17 entries"):
        to_onnx(plain, [TARGET, TARGET], new)
    assert not new.exists()
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="`folder` must be new, or an empty folder"):
        to_onnx(plain, [SOURCE, TARGET], tmp_path)
